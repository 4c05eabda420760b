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


def told(body: Any) -> Limit | None:
    return recognise("opencode", Evidence(body=body, now=NOW, zone=UTC))


def of(body: Any) -> tuple[LimitKind, datetime | None, float | None]:
    limit = told(body)
    assert limit is not None
    return limit.kind, limit.resets_at, limit.retry_after


def api_error(
    status: int, body: Any = None, message: str = "x", headers: Any = None
) -> dict[str, Any]:
    data = {
        "message": message,
        "statusCode": status,
        "isRetryable": status == 429,
        "responseHeaders": headers,
        "responseBody": json.dumps(body),
    }
    return {"name": "APIError", "data": data}


def free_or_go(name: str, message: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": name, "message": message}, **fields}


GO = free_or_go("GoUsageLimitError", metadata={"limitName": "5 hour"})
ERRORS: list[tuple[dict[str, Any], Any]] = [
    (api_error(429, free_or_go("FreeUsageLimitError")), (QUOTA, None, None)),
    (
        api_error(429, GO, headers={"Retry-After": "1806"}),
        (QUOTA, NOW + timedelta(seconds=1806), None),
    ),
    (
        api_error(
            429, free_or_go("GoUsageLimitError", "Weekly usage limit reached. Resets in 19hr")
        ),
        (QUOTA, NOW + timedelta(hours=19), None),
    ),
    (api_error(429, headers={"retry-after-ms": "1500"}), (THROTTLE, None, 1.5)),
    (api_error(429, headers={"retry-after": "20"}), (THROTTLE, None, 20.0)),
    (
        api_error(429, headers={"retry-after": "1806"}),
        (QUOTA, NOW + timedelta(seconds=1806), None),
    ),
    (api_error(529), (THROTTLE, None, None)),
    (api_error(503), (THROTTLE, None, None)),
    (api_error(402), (CREDITS, None, None)),
    (api_error(401), (AUTHENTICATION, None, None)),
    (
        api_error(403, message="You have reached your subscription quota limit, see your plan."),
        (QUOTA, None, None),
    ),
    (
        api_error(429, {"error": {"type": "usage_limit_reached", "resets_at": 1_796_062_000}}),
        (QUOTA, datetime.fromtimestamp(1_796_062_000, UTC), None),
    ),
    (
        api_error(429, {"type": "error", "error": {"type": "rate_limit_error"}}),
        (THROTTLE, None, None),
    ),
    ({"name": "ContextOverflowError", "data": {"message": "x"}}, (CONTEXT, None, None)),
    ({"name": "ProviderAuthError", "data": {"message": "x"}}, (AUTHENTICATION, None, None)),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_an_error_has_its_class_wherever_it_is_kept(error: dict[str, Any], expected: Any) -> None:
    message = {"role": "assistant", "error": error, "providerID": "anthropic"}
    properties = {"sessionID": "ses_1", "error": error}
    for body in (
        error,
        message,
        {"info": message, "parts": []},
        {"type": "retry", "attempt": 1, "error": error},
        {"type": "session.error", "properties": properties},
        {"type": "message.updated", "properties": {"info": message}},
        {"type": "message.part.updated", "properties": {"part": {"type": "retry", "error": error}}},
        {"type": "error", "timestamp": 1, "sessionID": "ses_1", "error": error},
    ):
        assert of(body) == expected


@pytest.mark.parametrize(
    "error",
    [
        {"name": "MessageAbortedError", "data": {"message": "x"}},
        {"name": "MessageOutputLengthError", "data": {}},
        {"name": "UnknownError", "data": {"message": "boom"}},
        api_error(500),
        api_error(400, {"error": "no object"}),
        {"name": "APIError", "data": {"statusCode": "429", "responseBody": "{", "message": 3}},
    ],
)
def test_other_errors_are_no_limit(error: dict[str, Any]) -> None:
    assert told({"role": "assistant", "error": error}) is None


def test_model_studio_s_throttle_is_known_by_the_message_s_provider() -> None:
    body = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota."}}
    message = {"role": "assistant", "error": api_error(429, body), "providerID": "alibaba"}
    assert of(message)[0] is THROTTLE
    assert of({**message, "providerID": "openai"})[0] is CREDITS


def waiting(message: str, seconds: float) -> dict[str, Any]:
    upto = (NOW + timedelta(seconds=seconds)).timestamp() * 1000
    status = {"type": "retry", "attempt": 1, "message": message, "next": upto}
    return {"type": "session.status", "properties": {"sessionID": "ses_1", "status": status}}


@pytest.mark.parametrize(
    ("message", "seconds", "expected"),
    [
        (
            "Free usage exceeded, subscribe to Go",
            19_920,
            (QUOTA, NOW + timedelta(hours=5, minutes=32), None),
        ),
        ("Too Many Requests", 30, (THROTTLE, None, 30.0)),
        ("Provider is overloaded", 30, (THROTTLE, None, 30.0)),
        ("Rate Limited", 3_600, (QUOTA, NOW + timedelta(hours=1), None)),
        # OpenCode's own delays are short, so it was the provider that asked for this one.
        ("Something new", 3_600, (QUOTA, NOW + timedelta(hours=1), None)),
    ],
)
def test_a_session_that_waits_says_until_when(message: str, seconds: int, expected: Any) -> None:
    assert of(waiting(message, seconds)) == expected


def test_a_session_that_works_or_retries_a_passing_error_is_not_limited() -> None:
    assert told(waiting("Something new", 8)) is None
    assert told({"type": "session.status", "properties": {"status": {"type": "busy"}}}) is None
