from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moonfold_handoff.limits import Evidence, recognise
from moonfold_schemas.events import Limit, LimitKind

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

QUOTA, CREDITS, THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
CONTEXT, AUTHENTICATION = LimitKind.CONTEXT, LimitKind.AUTHENTICATION

CURRENT = "You exceeded your current quota, please check your plan and billing details. "
CAPACITY = "You have exhausted your capacity on this model. Your quota will reset after 142h40m7s."


def told(body: Any, **fields: Any) -> Limit | None:
    return recognise("gemini-cli", Evidence(body=body, now=NOW, zone=UTC, **fields))


def of(body: Any, **fields: Any) -> tuple[LimitKind, datetime | None, float | None]:
    limit = told(body, **fields)
    assert limit is not None
    return limit.kind, limit.resets_at, limit.retry_after


def detail(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def reason(name: str, **metadata: Any) -> dict[str, Any]:
    domain = "cloudcode-pa.googleapis.com"
    return detail("ErrorInfo", reason=name, domain=domain, metadata=metadata)


def failed(*quotas: str) -> dict[str, Any]:
    return detail("QuotaFailure", violations=[{"quotaId": quota} for quota in quotas])


def retry(delay: str) -> dict[str, Any]:
    return detail("RetryInfo", retryDelay=delay)


def exhausted(*details: Any, message: str = "Resource has been exhausted.") -> dict[str, Any]:
    status = "RESOURCE_EXHAUSTED"
    return {"error": {"code": 429, "message": message, "status": status, "details": list(details)}}


A_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
A_MINUTE = "GenerateRequestsPerMinutePerProjectPerModel"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (exhausted(), (THROTTLE, None, None)),
        (exhausted(retry("34.07s")), (THROTTLE, None, 34.07)),
        (exhausted(retry("900ms")), (THROTTLE, None, 0.9)),
        (exhausted(retry("300s")), (THROTTLE, None, 300.0)),
        (exhausted(retry("301s")), (QUOTA, NOW + timedelta(seconds=301), None)),
        (exhausted(failed(A_MINUTE)), (THROTTLE, None, 60.0)),
        (exhausted(failed(A_MINUTE), retry("12s")), (THROTTLE, None, 12.0)),
        (exhausted(failed(A_DAY)), (QUOTA, None, None)),
        (exhausted(failed("DailyRequests")), (QUOTA, None, None)),
        # The short delay is the minute's, and the day is used up.
        (exhausted(failed(A_DAY), retry("34s")), (QUOTA, None, None)),
        (exhausted(failed(A_MINUTE, A_DAY), retry("34s")), (QUOTA, None, None)),
        (exhausted(failed(A_DAY), retry("4000s")), (QUOTA, NOW + timedelta(seconds=4000), None)),
        (exhausted(reason("RATE_LIMIT_EXCEEDED"), retry("5s")), (THROTTLE, None, 5.0)),
        (exhausted(reason("RATE_LIMIT_EXCEEDED"), failed(A_DAY)), (QUOTA, None, None)),
        (exhausted(reason("MODEL_CAPACITY_EXHAUSTED")), (THROTTLE, None, None)),
        (exhausted(reason("INSUFFICIENT_G1_CREDITS_BALANCE")), (CREDITS, None, None)),
        (exhausted(reason("INSUFFICIENT_G1_CREDITS_BALANCE"), retry("9h")), (CREDITS, None, None)),
        (exhausted(reason("QUOTA_EXHAUSTED")), (QUOTA, None, None)),
        (
            exhausted(reason("QUOTA_EXHAUSTED"), message=CAPACITY),
            (QUOTA, NOW + timedelta(hours=142, minutes=40, seconds=7), None),
        ),
        (
            exhausted(reason("QUOTA_EXHAUSTED", quotaResetTimeStamp="2026-12-02T07:20:42Z")),
            (QUOTA, datetime(2026, 12, 2, 7, 20, 42, tzinfo=UTC), None),
        ),
        (
            exhausted(reason("QUOTA_EXHAUSTED", quotaResetDelay="1h0m0s")),
            (QUOTA, NOW + timedelta(hours=1), None),
        ),
        (exhausted(message=f"{CURRENT}Please retry in 34.07s."), (THROTTLE, None, 34.07)),
        (
            exhausted(message=f"{CURRENT}Please retry in 1h2m."),
            (QUOTA, NOW + timedelta(hours=1, minutes=2), None),
        ),
        (
            exhausted(message=f"{CURRENT}* Quota exceeded, limit: 0, Please retry in 34.07s."),
            (QUOTA, None, None),
        ),
        (
            exhausted(message=f"{CURRENT}* Quota exceeded, limit: 05\nPlease retry in 3s."),
            (THROTTLE, None, 3.0),
        ),
        (
            exhausted(message="You have exhausted your daily quota on this model."),
            (QUOTA, None, None),
        ),
    ],
)
def test_an_exhausted_resource_has_its_class(body: Any, expected: Any) -> None:
    assert of(body, status=429) == expected
    assert of(body) == expected
    assert of([body]) == expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "status": "UNAVAILABLE", "message": "Overloaded."}, THROTTLE),
        ({"code": 401, "status": "UNAUTHENTICATED"}, AUTHENTICATION),
        ({"code": 403, "status": "PERMISSION_DENIED"}, AUTHENTICATION),
        ({"code": 400, "details": [reason("API_KEY_INVALID")]}, AUTHENTICATION),
        (
            {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "The input token count (1200000) exceeds the maximum number of tokens",
            },
            CONTEXT,
        ),
    ],
)
def test_other_errors_of_the_api_have_their_class(error: Any, kind: LimitKind) -> None:
    assert of({"error": error}) == (kind, None, None)


@pytest.mark.parametrize("status", ["INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND"])
def test_a_broken_request_or_server_is_no_limit(status: str) -> None:
    assert told({"error": {"code": 500, "status": status, "message": "x", "details": []}}) is None


def test_a_sentence_alone_tells_a_minute_from_a_day() -> None:
    assert of(None, text=f"{CURRENT}Please retry in 34.5s.") == (THROTTLE, None, 34.5)
    assert of(None, text=f"{CURRENT}limit: 0\nPlease retry in 34.5s.") == (QUOTA, None, None)
    a_day = "Quota exceeded for quota metric 'R' and limit 'Requests per day per user'"
    assert of(None, text=a_day) == (QUOTA, None, None)
    assert of(None, text=a_day.replace("day", "minute")) == (THROTTLE, None, None)


def test_a_notice_of_the_chat_is_read() -> None:
    at = NOW + timedelta(hours=142, minutes=40, seconds=7)
    for content in (CAPACITY, [{"text": CAPACITY}], {"text": CAPACITY}, f"[API Error: {CAPACITY}]"):
        for kind in ("error", "info"):
            assert of({"type": kind, "content": content}) == (QUOTA, at, None)
    assert told({"type": "error", "content": [{"functionCall": {}}, 3]}) is None


def test_an_error_within_an_error_is_read() -> None:
    inner = json.dumps(exhausted(reason("QUOTA_EXHAUSTED"), message=CAPACITY))
    outer = {"error": {"code": 429, "status": "Too Many Requests", "message": inner}}
    twice = {"error": {"message": json.dumps(outer), "code": 429, "status": ""}}
    at = NOW + timedelta(hours=142, minutes=40, seconds=7)
    for body in (outer, twice):
        assert of(body) == (QUOTA, at, None)
    for text in (inner, f"[API Error: {inner}]", f"got status: RESOURCE_EXHAUSTED. {inner}"):
        limit = told({"type": "error", "content": text})
        assert limit is not None
        assert (limit.kind, limit.resets_at, limit.message) == (QUOTA, at, CAPACITY)


def test_the_output_as_json_is_read() -> None:
    at = NOW + timedelta(hours=142, minutes=40, seconds=7)
    error = {"type": "TerminalQuotaError", "message": CAPACITY, "code": 429}
    assert of({"type": "result", "status": "error", "error": error}) == (QUOTA, at, None)
    assert of({"error": error}) == (QUOTA, at, None)
    assert of({"type": "error", "severity": "error", "message": CAPACITY}) == (QUOTA, at, None)
