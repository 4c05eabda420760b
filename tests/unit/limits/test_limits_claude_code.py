from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moonfold_handoff.limits import Evidence, quota, recognise
from moonfold_schemas.events import Limit, LimitKind, QuotaWindow

NOW = datetime(2026, 8, 29, 12, tzinfo=UTC)
RESET = 1_788_303_000
AT = datetime.fromtimestamp(RESET, UTC)
NOTICE = "You've hit your session limit · resets 9:50pm (Asia/Saigon)"
AT_2150 = datetime(2026, 8, 29, 14, 50, tzinfo=UTC)

QUOTA, CREDITS, THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
CONTEXT, AUTHENTICATION = LimitKind.CONTEXT, LimitKind.AUTHENTICATION


def told(body: Any, **fields: Any) -> Limit | None:
    return recognise("claude-code", Evidence(body=body, now=NOW, zone=UTC, **fields))


def of(body: Any, **fields: Any) -> tuple[LimitKind, datetime | None, float | None]:
    limit = told(body, **fields)
    assert limit is not None
    return limit.kind, limit.resets_at, limit.retry_after


def notice(text: str, **fields: Any) -> dict[str, Any]:
    message = {"model": "<synthetic>", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "isApiErrorMessage": True, "message": message, **fields}


def rejected(**fields: Any) -> dict[str, Any]:
    return {"status": "rejected", "resetsAt": RESET, "rateLimitType": "five_hour", **fields}


def event(**fields: Any) -> dict[str, Any]:
    return {"type": "rate_limit_event", "rate_limit_info": rejected(**fields)}


# Records of a session


def test_the_final_record_states_its_reset() -> None:
    record = notice(NOTICE, error="rate_limit", apiErrorStatus=429, quotaLimits=rejected())
    limit = told(record)
    assert limit == Limit(kind=QUOTA, resets_at=AT, message=NOTICE)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (notice(NOTICE, error="rate_limit", apiErrorStatus=429), (QUOTA, AT_2150)),
        (notice(NOTICE), (QUOTA, AT_2150)),
        (notice("Something new", error="rate_limit"), (QUOTA, None)),
        (notice("Something new", apiErrorStatus=429), (QUOTA, None)),
        (notice("Usage credits are required for this model.", error="rate_limit"), (CREDITS, None)),
        (notice("Something new", error="billing_error"), (CREDITS, None)),
        (
            notice("", error="rate_limit", quotaLimits={"errorCode": "credits_required"}),
            (CREDITS, None),
        ),
        (
            notice("Server is temporarily limiting requests", error="rate_limit"),
            (THROTTLE, None),
        ),
        # The account's window has room, so it is not what the request met.
        (
            notice("Something new", error="rate_limit", quotaLimits={"status": "allowed_warning"}),
            (THROTTLE, None),
        ),
        (
            notice("x", error="rate_limit", quotaLimits=rejected(overageStatus="allowed")),
            (THROTTLE, None),
        ),
        (notice("x", error="overloaded"), (THROTTLE, None)),
        (notice("API Error: 529 Overloaded", apiErrorStatus=529), (THROTTLE, None)),
        (notice("x", error="server_error", apiErrorStatus=529), (THROTTLE, None)),
        (notice("Prompt is too long", error="invalid_request"), (CONTEXT, None)),
        (notice("x", apiErrorStatus=401), (AUTHENTICATION, None)),
        *(
            (notice("x", error=code), (AUTHENTICATION, None))
            for code in (
                "authentication_failed",
                "oauth_org_not_allowed",
                "account_on_hold",
                "verification_required",
                "cloud_credential_error",
            )
        ),
    ],
)
def test_a_record_has_its_class(record: Any, expected: Any) -> None:
    assert of(record)[:2] == expected


@pytest.mark.parametrize(
    "code", ["server_error", "invalid_request", "model_not_found", "max_output_tokens", "unknown"]
)
def test_other_errors_of_a_session_are_no_limit(code: str) -> None:
    assert told(notice("API Error: something", error=code, apiErrorStatus=500)) is None


def test_an_error_written_out_as_json_is_read() -> None:
    body = '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert of(notice(f"API Error: 529 {body}"))[0] is THROTTLE
    body = '{"type":"error","error":{"type":"rate_limit_error","message":"Wait."},"request_id":"r"}'
    limit = told(notice(f"API Error: 429 {body}"))
    assert limit is not None
    assert (limit.kind, limit.message) == (THROTTLE, "Wait.")


@pytest.mark.parametrize(
    ("record", "wait"),
    [
        (
            {
                "type": "system",
                "subtype": "api_retry",
                "attempt": 1,
                "max_retries": 10,
                "retry_delay_ms": 2_500,
                "error_status": 429,
                "error": "rate_limit",
            },
            2.5,
        ),
        (
            {
                "type": "system",
                "subtype": "api_error",
                "error": {"status": 529, "error": {"error": {"type": "overloaded_error"}}},
                "retryInMs": 500,
            },
            0.5,
        ),
        (
            {
                "type": "system",
                "subtype": "api_error",
                "error": {"status": 429, "headers": {"Retry-After": "30"}},
                "retryInMs": 500,
            },
            30.0,
        ),
        ({"type": "system", "subtype": "api_retry", "error": "overloaded"}, None),
    ],
)
def test_a_retry_is_a_throttle(record: Any, wait: float | None) -> None:
    assert of(record) == (THROTTLE, None, wait)


def test_a_retry_of_a_broken_server_is_no_limit() -> None:
    assert told({"type": "system", "subtype": "api_retry", "error_status": 500}) is None
    assert told({"type": "system", "subtype": "api_error", "error": {"status": 401}}) is None
    assert told({"type": "system", "subtype": "compact_boundary"}) is None


# The stream and the hooks


def test_a_rejected_window_of_the_stream_is_a_quota() -> None:
    assert of(event()) == (QUOTA, AT, None)
    assert of(event(resetsAt=None)) == (QUOTA, None, None)


def test_the_latest_reset_of_several_used_up_windows_wins() -> None:
    windows = {
        "five_hour": {"utilization": 1.0, "resetsAt": RESET},
        "seven_day": {"utilization": 1.02, "resetsAt": RESET + 86_400},
        "seven_day_opus": {"utilization": 0.4, "resetsAt": RESET + 172_800},
    }
    assert of(event(unifiedWindows=windows))[1] == AT + timedelta(days=1)


@pytest.mark.parametrize(
    "info",
    [
        {"status": "allowed"},
        {"status": "allowed_warning"},
        {"isUsingOverage": True},
        {"overageStatus": "allowed"},
        {"overageStatus": "allowed_warning"},
        {"status": None},
    ],
)
def test_a_window_with_room_or_overage_is_no_limit(info: Any) -> None:
    assert told(event(**info)) is None


def test_credits_that_are_required_have_no_clock() -> None:
    assert of(event(errorCode="credits_required")) == (CREDITS, None, None)


def test_a_used_up_overage_has_its_own_reset() -> None:
    info = {"rateLimitType": "overage", "resetsAt": None, "overageResetsAt": RESET + 60}
    assert of(event(**info, overageStatus="rejected"))[1] == AT + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"result": NOTICE}, (QUOTA, AT_2150, None)),
        ({"api_error_status": 429}, (QUOTA, None, None)),
        ({"api_error_status": 529}, (THROTTLE, None, None)),
        ({"api_error_status": 401}, (AUTHENTICATION, None, None)),
        ({"terminal_reason": "prompt_too_long"}, (CONTEXT, None, None)),
        ({"terminal_reason": "blocking_limit"}, (CONTEXT, None, None)),
    ],
)
def test_a_result_that_is_an_error_has_its_class(fields: Any, expected: Any) -> None:
    assert of({"type": "result", "is_error": True, **fields}) == expected
    assert told({"type": "result", "is_error": False, **fields}) is None


@pytest.mark.parametrize("reason", ["aborted_streaming", "budget_exhausted", "max_turns"])
def test_a_result_that_a_person_or_a_budget_ended_is_no_limit(reason: str) -> None:
    assert told({"type": "result", "is_error": True, "terminal_reason": reason}) is None


def test_the_hook_of_a_failed_turn_is_read() -> None:
    hook = {"hook_event_name": "StopFailure", "error": "rate_limit"}
    assert of({**hook, "last_assistant_message": NOTICE}) == (QUOTA, AT_2150, None)
    assert of({**hook, "error_details": NOTICE}) == (QUOTA, AT_2150, None)
    assert told({**hook, "error": "server_error"}) is None
    assert told({**hook, "hook_event_name": "Stop", "last_assistant_message": NOTICE}) is None


def test_the_agent_client_protocol_names_the_kind_of_error() -> None:
    error = {
        "code": -32603,
        "message": "Internal error: You've hit your session limit · resets 3:30am (America/Sao_Paulo)",
        "data": {"errorKind": "rate_limit"},
    }
    at = datetime(2026, 8, 30, 6, 30, tzinfo=UTC)
    assert of({"jsonrpc": "2.0", "id": 3, "error": error}) == (QUOTA, at, None)
    without_words = {**error, "message": "Internal error"}
    assert of({"jsonrpc": "2.0", "id": 3, "error": without_words}) == (QUOTA, None, None)
    assert told({"error": {"code": -32603, "message": "Internal error"}}) is None


# The API


def answer(type_: str, message: str = "Please try again later.") -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "r"}


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (answer("rate_limit_error"), 429, (THROTTLE, None, None)),
        (answer("overloaded_error"), 529, (THROTTLE, None, None)),
        (answer("overloaded_error"), None, (THROTTLE, None, None)),
        (
            answer("rate_limit_error", "Usage credits are required for this model."),
            429,
            (CREDITS, None, None),
        ),
        (answer("billing_error"), 402, (CREDITS, None, None)),
        (answer("authentication_error"), 401, (AUTHENTICATION, None, None)),
        (answer("permission_error"), 403, (AUTHENTICATION, None, None)),
        (
            answer("invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
            400,
            (CONTEXT, None, None),
        ),
    ],
)
def test_an_api_s_error_has_its_class(body: Any, status: int | None, expected: Any) -> None:
    assert of(body, status=status) == expected


def test_other_errors_of_the_api_are_no_limit() -> None:
    assert told(answer("invalid_request_error", "max_tokens: must be positive"), status=400) is None
    assert told(answer("api_error"), status=500) is None


UNIFIED = {
    "Anthropic-Ratelimit-Unified-Status": "rejected",
    "anthropic-ratelimit-unified-reset": str(RESET),
    "anthropic-ratelimit-unified-representative-claim": "five_hour",
    "anthropic-ratelimit-unified-5h-status": "rejected",
    "anthropic-ratelimit-unified-5h-utilization": "1.0",
    "anthropic-ratelimit-unified-5h-reset": str(RESET),
    "anthropic-ratelimit-unified-7d-status": "allowed",
    "anthropic-ratelimit-unified-7d-utilization": "0.62",
    "anthropic-ratelimit-unified-7d-reset": str(RESET + 86_400),
}


def test_rejected_windows_in_headers_make_a_quota() -> None:
    assert of(answer("rate_limit_error"), status=429, headers=UNIFIED) == (QUOTA, AT, None)
    both = {**UNIFIED, "anthropic-ratelimit-unified-7d-status": "rejected"}
    expected = (QUOTA, AT + timedelta(days=1), None)
    assert of(answer("rate_limit_error"), status=429, headers=both) == expected


def test_a_rejection_without_windows_has_the_common_reset() -> None:
    headers = dict(list(UNIFIED.items())[:2])
    assert of(None, status=429, headers=headers) == (QUOTA, AT, None)


def test_overage_in_headers_leaves_a_throttle() -> None:
    headers = {**UNIFIED, "anthropic-ratelimit-unified-overage-status": "allowed"}
    assert of(answer("rate_limit_error"), status=429, headers=headers)[0] is THROTTLE


def test_headers_of_a_normal_answer_are_no_limit() -> None:
    assert told({"type": "message", "content": []}, status=200, headers=UNIFIED) is None


def test_a_used_up_bucket_of_the_api_is_waited_for() -> None:
    headers = {
        "anthropic-ratelimit-input-tokens-limit": "1000",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-08-29T12:00:20Z",
        "anthropic-ratelimit-requests-remaining": "7",
        "anthropic-ratelimit-requests-reset": "2026-08-29T13:00:00Z",
    }
    assert of(answer("rate_limit_error"), headers=headers) == (THROTTLE, None, 20.0)


# Telemetry


def test_telemetry_of_the_stream_has_every_window() -> None:
    windows = {
        "five_hour": {"utilization": 0.905, "resetsAt": RESET},
        "seven_day_opus": {"utilization": 0.5},
        "broken": {"utilization": "0.5"},
    }
    body = event(status="allowed_warning", unifiedWindows=windows, isUsingOverage=True)
    found = quota("claude-code", Evidence(body=body))
    assert found is not None
    assert found.has_credits
    assert found.windows == (
        QuotaWindow(name="five_hour", used_percent=90.5, resets_at=AT, minutes=300),
        QuotaWindow(name="seven_day_opus", used_percent=50.0, minutes=10_080),
    )


def test_telemetry_of_one_window_has_its_type() -> None:
    found = quota("claude-code", Evidence(body=event(utilization=0.97, status="allowed_warning")))
    assert found is not None
    (window,) = found.windows
    assert (window.name, window.used_percent) == ("five_hour", 97.0)
    # A rejected one is used up, whatever it was rounded to.
    rejected_one = quota("claude-code", Evidence(body=notice("x", quotaLimits=rejected())))
    assert rejected_one is not None
    assert rejected_one.windows[0].used_percent == 100.0


def test_telemetry_of_the_status_line_is_in_percent() -> None:
    rates = {
        "five_hour": {"used_percentage": 23.5, "resets_at": RESET},
        "seven_day": {"used_percentage": 41, "resets_at": RESET + 60},
        "spend_limit": {"used_percentage": 0},
    }
    found = quota("claude-code", Evidence(body={"rate_limits": rates}))
    assert found is not None
    assert [(w.name, w.used_percent, w.minutes) for w in found.windows] == [
        ("five_hour", 23.5, 300),
        ("seven_day", 41.0, 10_080),
        ("spend_limit", 0.0, None),
    ]


def test_telemetry_of_headers_has_the_names_of_the_stream() -> None:
    found = quota("claude-code", Evidence(headers=UNIFIED))
    assert found is not None
    assert [(w.name, w.used_percent, w.minutes) for w in found.windows] == [
        ("five_hour", 100.0, 300),
        ("seven_day", 62.0, 10_080),
    ]
    assert not found.has_credits


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "x",
        {"type": "assistant"},
        {"rate_limits": []},
        {"rate_limits": {"five_hour": {"used_percentage": "9"}}},
        {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}},
        event(status="allowed"),
    ],
)
def test_what_tells_of_no_window_is_no_telemetry(body: Any) -> None:
    assert quota("claude-code", Evidence(body=body)) is None
