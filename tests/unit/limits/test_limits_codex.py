from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from moonfold_handoff.limits import Evidence, quota, recognise
from moonfold_handoff.transcripts.codex_limits import RateLimits, read_rate_limits
from moonfold_schemas.events import Limit, LimitKind, QuotaWindow

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
RESET = 1_777_936_568
AT = datetime.fromtimestamp(RESET, UTC)
SENTENCE = (
    "You\u2019ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
    "https://chatgpt.com/settings/usage to purchase more credits or try again at 5:11 PM."
)
AT_1711 = datetime(2026, 5, 4, 17, 11, tzinfo=UTC)

QUOTA, CREDITS, THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
CONTEXT, AUTHENTICATION = LimitKind.CONTEXT, LimitKind.AUTHENTICATION


def told(body: Any, **fields: Any) -> Limit | None:
    return recognise("codex", Evidence(body=body, now=NOW, zone=UTC, **fields))


def of(body: Any, **fields: Any) -> tuple[LimitKind, datetime | None, float | None]:
    limit = told(body, **fields)
    assert limit is not None
    return limit.kind, limit.resets_at, limit.retry_after


# What ChatGPT and OpenAI answer


USED_UP = {
    "error": {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": RESET,
        "eligible_promo": None,
        "resets_in_seconds": 13_872,
    }
}


def test_a_used_up_plan_states_its_reset() -> None:
    message = "The usage limit has been reached"
    expected = Limit(kind=QUOTA, resets_at=AT, message=message)
    assert told(USED_UP, status=429) == expected
    assert told(USED_UP) == expected
    websocket = {"type": "error", **USED_UP, "status_code": 429, "headers": {"X-Codex-A": "b"}}
    assert told(websocket) == expected


def test_a_reset_in_seconds_counts_from_the_record() -> None:
    error = {**USED_UP["error"], "resets_at": None}
    assert of({"error": error}) == (QUOTA, NOW + timedelta(seconds=13_872), None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"type": "usage_not_included"}, (CREDITS, None, None)),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, (CREDITS, None, None)),
        (
            {"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."},
            (THROTTLE, None, 1.5),
        ),
        (
            {
                "type": "tokens",
                "code": "rate_limit_exceeded",
                "message": "Please try again in 7m12s.",
            },
            (QUOTA, NOW + timedelta(seconds=432), None),
        ),
        ({"code": "context_length_exceeded"}, (CONTEXT, None, None)),
        ({"code": "invalid_api_key"}, (AUTHENTICATION, None, None)),
        ({"code": "server_is_overloaded"}, (THROTTLE, None, None)),
        ({"code": "slow_down"}, (THROTTLE, None, None)),
    ],
)
def test_a_code_of_the_api_has_its_class(error: Any, expected: Any) -> None:
    assert of({"error": error}) == expected
    assert of({"type": "response.failed", "response": {"error": error}}) == expected


def test_an_event_of_the_stream_can_be_the_error_itself() -> None:
    event = {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}
    assert recognise("openai", Evidence(body=event)) == Limit(kind=THROTTLE, message="Slow down.")


@pytest.mark.parametrize("provider", ["bailian", "dashscope", "alibaba"])
def test_credits_that_model_studio_misses_are_a_throttle(provider: str) -> None:
    text = "You exceeded your current quota, please check your plan and billing details."
    body = {"error": {"code": "insufficient_quota", "message": text}}
    limit = recognise(provider, Evidence(body=body, status=429))
    assert limit == Limit(kind=THROTTLE, message=text)


def test_the_sentence_of_model_studio_s_throttle_is_known_by_its_link() -> None:
    text = (
        "You exceeded your current quota, please check your plan and billing details. "
        "See https://help.example/error-code#token-limit"
    )
    assert of({"error": {"code": "insufficient_quota", "message": text}})[0] is THROTTLE
    assert of({"error": {"code": "Throttling.AllocationQuota", "message": text}})[0] is THROTTLE


CODEX_HEADERS = {
    "X-Codex-Primary-Used-Percent": "100",
    "x-codex-primary-window-minutes": "300",
    "x-codex-primary-reset-at": str(RESET),
    "x-codex-secondary-used-percent": "40.5",
    "x-codex-secondary-window-minutes": "10080",
    "x-codex-secondary-reset-after-seconds": "7200",
    "x-codex-plan-type": "plus",
    "x-codex-credits-has-credits": "False",
    "x-codex-credits-unlimited": "False",
}


def test_used_up_windows_in_headers_make_a_quota() -> None:
    assert of(None, status=429, headers=CODEX_HEADERS) == (QUOTA, AT, None)
    both = {**CODEX_HEADERS, "x-codex-secondary-used-percent": "100"}
    assert of(None, status=429, headers={**both, "x-codex-primary-reset-at": "1"}) == (
        QUOTA,
        NOW + timedelta(hours=2),
        None,
    )


def test_a_later_window_in_headers_wins_over_the_body_s() -> None:
    later = {**CODEX_HEADERS, "x-codex-secondary-used-percent": "100"}
    later["x-codex-secondary-reset-at"] = str(RESET + 86_400)
    assert of(USED_UP, status=429, headers=CODEX_HEADERS) == (QUOTA, AT, None)
    assert of(USED_UP, status=429, headers=later) == (QUOTA, AT + timedelta(days=1), None)


def test_windows_with_room_or_credits_leave_a_throttle() -> None:
    with_room = {**CODEX_HEADERS, "x-codex-primary-used-percent": "99.9"}
    assert of(None, status=429, headers=with_room)[0] is THROTTLE
    with_credits = {**CODEX_HEADERS, "x-codex-credits-has-credits": "True"}
    assert of(None, status=429, headers=with_credits)[0] is THROTTLE
    assert told(None, status=200, headers=CODEX_HEADERS) is None


def test_the_limit_in_force_is_the_one_whose_windows_count() -> None:
    headers = {
        **CODEX_HEADERS,
        "x-codex-active-limit": "codex_other",
        "x-codex-other-limit-name": "Other",
        "x-codex-other-primary-used-percent": "12",
        "x-codex-other-primary-window-minutes": "60",
    }
    found = quota("codex", Evidence(headers=headers))
    assert found is not None
    (window,) = found.windows
    assert (window.name, window.used_percent, window.minutes) == ("codex-other.primary", 12.0, 60)
    del headers["x-codex-active-limit"]
    own = quota("codex", Evidence(headers=headers, now=NOW))
    assert own is not None
    assert [w.name for w in own.windows] == ["primary", "secondary"]
    assert own.windows[1].resets_at == NOW + timedelta(hours=2)


# Rollouts, app-server, exec


def rollout(kind: str, **fields: Any) -> dict[str, Any]:
    return {"timestamp": "t", "type": "event_msg", "payload": {"type": kind, **fields}}


ERRORS: list[tuple[dict[str, Any], Any]] = [
    ({"message": SENTENCE, "codex_error_info": "usage_limit_exceeded"}, (QUOTA, AT_1711, None)),
    ({"message": SENTENCE}, (QUOTA, AT_1711, None)),
    (
        {
            "message": "Your workspace is out of credits.",
            "codex_error_info": "usage_limit_exceeded",
        },
        (CREDITS, None, None),
    ),
    ({"message": "x", "codex_error_info": "context_window_exceeded"}, (CONTEXT, None, None)),
    ({"message": "x", "codex_error_info": "server_overloaded"}, (THROTTLE, None, None)),
    ({"message": "x", "codex_error_info": "rate_limit_exceeded"}, (THROTTLE, None, None)),
    ({"message": "x", "codex_error_info": "unauthorized"}, (AUTHENTICATION, None, None)),
    (
        {"codex_error_info": {"response_too_many_failed_attempts": {"http_status_code": 429}}},
        (THROTTLE, None, None),
    ),
    (
        {
            "message": "You have reached your subscription quota limit, see your plan.",
            "codex_error_info": {"http_connection_failed": {"http_status_code": 403}},
        },
        (QUOTA, None, None),
    ),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_an_error_has_its_class_in_a_rollout(error: dict[str, Any], expected: Any) -> None:
    assert of(rollout("task_complete", error=error)) == expected
    assert of(rollout("error", **error)) == expected
    assert of(error, text=error.get("message", "")) == expected


def camel(value: Any) -> Any:
    """Return a rollout's error as the app-server names its fields and codes."""
    if isinstance(value, dict):
        return {camel(name): camel(inner) for name, inner in value.items()}
    if isinstance(value, str) and "_" in value:
        head, *rest = value.split("_")
        return head + "".join(word.capitalize() for word in rest)
    return {"http_status_code": "httpStatusCode"}.get(value, value)


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_an_error_has_its_class_in_the_app_server(error: dict[str, Any], expected: Any) -> None:
    turn = {"id": "t", "status": "failed", "error": {**camel(error), "additionalDetails": None}}
    assert of({"method": "turn/completed", "params": {"threadId": "x", "turn": turn}}) == expected
    assert of({"method": "error", "params": {"error": camel(error)}}) == expected
    assert of({"threadId": "x", "turn": turn}) == expected


def test_an_error_has_its_class_in_exec() -> None:
    assert of({"type": "error", "message": SENTENCE}) == (QUOTA, AT_1711, None)
    assert of({"type": "turn.failed", "error": {"message": SENTENCE}}) == (QUOTA, AT_1711, None)


def test_a_session_s_own_budget_is_no_limit_of_the_provider() -> None:
    error = {
        "message": "The session's budget is used up.",
        "codexErrorInfo": "sessionBudgetExceeded",
    }
    assert told({"method": "turn/completed", "params": {"turn": {"error": error}}}) is None


@pytest.mark.parametrize("info", [None, "other", {"http_connection_failed": {}}, 7, ["x"], {}])
def test_other_errors_are_no_limit(info: Any) -> None:
    error = {"message": "stream closed", "codex_error_info": info}
    assert told(rollout("task_complete", error=error)) is None
    assert told(rollout("error", **error)) is None


# Rate limits


def window(used: float, **fields: Any) -> dict[str, Any]:
    return {"usedPercent": used, "windowDurationMins": 300, "resetsAt": RESET, **fields}


def snapshot(**fields: Any) -> dict[str, Any]:
    return {"limitId": "codex", "primary": window(100), "secondary": None, **fields}


def rates_read(**fields: Any) -> dict[str, Any]:
    return {"id": 1, "result": {"ordinaryUsageAllowed": True, "rateLimits": snapshot(), **fields}}


def test_usage_that_is_not_allowed_is_a_limit_and_a_percentage_alone_is_none() -> None:
    assert told(rates_read()) is None
    assert of(rates_read(ordinaryUsageAllowed=False)) == (QUOTA, AT, None)
    both = snapshot(secondary=window(100, resetsAt=RESET + 86_400))
    refused = rates_read(ordinaryUsageAllowed=False, rateLimits=both)
    assert of(refused) == (QUOTA, AT + timedelta(days=1), None)
    with_room = snapshot(secondary=window(99, resetsAt=RESET + 86_400))
    refused = rates_read(ordinaryUsageAllowed=False, rateLimits=with_room)
    assert of(refused) == (QUOTA, AT, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rateLimitReachedType": "rate_limit_reached"}, (QUOTA, AT, None)),
        ({"rateLimitReachedType": "workspace_owner_credits_depleted"}, (CREDITS, None, None)),
        ({"spendControlReached": True}, (CREDITS, None, None)),
    ],
)
def test_what_was_reached_is_said_by_its_type(fields: Any, expected: Any) -> None:
    params = {"rateLimits": snapshot(**fields)}
    assert of({"method": "account/rateLimits/updated", "params": params}) == expected
    for credits_ in ({"hasCredits": True}, {"unlimited": True}):
        params = {"rateLimits": snapshot(**fields, credits=credits_)}
        assert told({"method": "account/rateLimits/updated", "params": params}) is None


SNAKE = {
    "limit_id": "codex",
    "limit_name": None,
    "primary": {"used_percent": 96.5, "window_minutes": 300, "resets_at": RESET},
    "secondary": {"used_percent": 7, "window_minutes": 10_080, "resets_in_seconds": 3_600},
    "credits": {"has_credits": False, "unlimited": False, "balance": None},
    "rate_limit_reached_type": None,
}
WINDOWS = (
    QuotaWindow(name="primary", used_percent=96.5, resets_at=AT, minutes=300),
    QuotaWindow(
        name="secondary", used_percent=7.0, resets_at=NOW + timedelta(hours=1), minutes=10_080
    ),
)


def test_telemetry_of_a_rollout_has_both_windows() -> None:
    found = quota("codex", Evidence(body=rollout("token_count", rate_limits=SNAKE), now=NOW))
    assert found is not None
    assert (found.windows, found.has_credits) == (WINDOWS, False)
    assert told(rollout("token_count", rate_limits=SNAKE)) is None


def test_telemetry_of_2025_has_its_windows_side_by_side() -> None:
    rates = {
        "primary_used_percent": 35.0,
        "secondary_used_percent": 10.0,
        "primary_window_minutes": 299,
        "secondary_window_minutes": 10_079,
    }
    found = quota("codex", Evidence(body=rollout("token_count", rate_limits=rates)))
    assert found is not None
    assert [(w.used_percent, w.minutes) for w in found.windows] == [(35.0, 299), (10.0, 10_079)]


def test_telemetry_of_the_stream_and_of_the_app_server_is_the_same() -> None:
    primary = {"used_percent": 96.5, "window_minutes": 300, "reset_at": RESET}
    event = {"type": "codex.rate_limits", "plan_type": "plus", "rate_limits": {"primary": primary}}
    streamed = quota("codex", Evidence(body=event))
    other = {**snapshot(limitId="other"), "primary": window(3)}
    by_id = {"codex": snapshot(), "other": other}
    main = snapshot(primary=window(96.5), credits={"hasCredits": True})
    read = quota("codex", Evidence(body=rates_read(rateLimits=main, rateLimitsByLimitId=by_id)))
    assert streamed is not None
    assert read is not None
    assert streamed.windows == read.windows[:1] == WINDOWS[:1]
    assert [w.name for w in read.windows] == ["primary", "other.primary"]
    assert (streamed.has_credits, read.has_credits) == (False, True)


def test_a_record_without_rate_limits_is_no_telemetry() -> None:
    bodies: list[Any] = [
        None,
        [],
        {"rate_limits": None},
        {"rate_limits": {"primary": {"used_percent": "9"}}},
        rollout("token_count", rate_limits=[]),
    ]
    assert [quota("codex", Evidence(body=body)) for body in bodies] == [None] * len(bodies)


def test_the_importer_s_rate_limits_are_plain_data_with_the_telemetry() -> None:
    rates = read_rate_limits(SNAKE, NOW)
    assert msgspec.json.decode(msgspec.json.encode(rates), type=RateLimits) == rates
    assert (rates.windows, rates.has_credits) == (WINDOWS, False)
    assert read_rate_limits({**SNAKE, "credits": {"has_credits": True}}, NOW).has_credits
