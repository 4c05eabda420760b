from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moonfold_handoff.limits import Evidence, quota, recognise
from moonfold_schemas import codec
from moonfold_schemas.events import LimitKind, QuotaReported, TurnEnded, TurnStatus

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PROVIDERS = ("claude-code", "codex", "gemini-cli", "opencode", "cursor", "another")

# Telling bodies, in each of which any value is replaced.

_SENTENCE = "You've hit your usage limit. Try again in 5 days 22 hours 11 minutes."
_WINDOW = {"used_percent": 100, "window_minutes": 300, "resets_at": 1_796_062_000}
_RATES = {"limit_id": "x", "primary": _WINDOW, "credits": {"has_credits": False}}
_INFO = {
    "status": "rejected",
    "resetsAt": 1_796_062_000,
    "rateLimitType": "five_hour",
    "utilization": 1.0,
    "overageStatus": "rejected",
    "unifiedWindows": {"seven_day": {"utilization": 1.0, "resetsAt": 1_796_062_000}},
}
_GOOGLE = {
    "code": 429,
    "message": "You exceeded your current quota, limit: 0. Please retry in 3s.",
    "status": "RESOURCE_EXHAUSTED",
    "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"},
        {"@type": "google.rpc.QuotaFailure", "violations": [{"quotaId": "PerDay"}]},
        {
            "@type": "google.rpc.ErrorInfo",
            "reason": "QUOTA_EXHAUSTED",
            "metadata": {"quotaResetDelay": "3h", "quotaResetTimeStamp": "2026-12-01T00:00:00Z"},
        },
    ],
}
_ANSWER = {"error": {"type": "usage_limit_reached", "resets_at": 1_796_062_000, "code": 429}}
BODIES: tuple[Any, ...] = (
    {
        "type": "assistant",
        "isApiErrorMessage": True,
        "apiErrorStatus": 429,
        "error": "rate_limit",
        "quotaLimits": _INFO,
        "message": {"content": [{"type": "text", "text": _SENTENCE}]},
    },
    {"type": "rate_limit_event", "rate_limit_info": _INFO},
    {"type": "system", "subtype": "api_retry", "retry_delay_ms": 3, "error_status": 429},
    {"type": "system", "subtype": "api_error", "error": {"status": 429, "headers": {"a": "b"}}},
    {"type": "result", "is_error": True, "api_error_status": 429, "result": _SENTENCE},
    {"hook_event_name": "StopFailure", "error": "rate_limit", "error_details": _SENTENCE},
    {"rate_limits": {"five_hour": {"used_percentage": 90, "resets_at": 1_796_062_000}}},
    {"type": "event_msg", "payload": {"type": "token_count", "rate_limits": _RATES}},
    {
        "type": "event_msg",
        "payload": {
            "type": "task_complete",
            "error": {"message": _SENTENCE, "codex_error_info": {"x": {"http_status_code": 429}}},
        },
    },
    {
        "method": "turn/completed",
        "params": {
            "turn": {"error": {"message": _SENTENCE, "codexErrorInfo": "usageLimitExceeded"}}
        },
    },
    {"result": {"ordinaryUsageAllowed": False, "rateLimits": _RATES, "rateLimitsByLimitId": {}}},
    {"type": "error", **_ANSWER, "status_code": 429, "headers": {"retry-after": "3"}},
    {"type": "response.failed", "response": _ANSWER},
    {"error": {"code": -32603, "message": _SENTENCE, "data": {"errorKind": "rate_limit"}}},
    {"error": _GOOGLE},
    [{"error": _GOOGLE}],
    {"type": "error", "content": [{"text": _SENTENCE}]},
    {
        "role": "assistant",
        "providerID": "alibaba",
        "error": {
            "name": "APIError",
            "data": {
                "message": _SENTENCE,
                "statusCode": 429,
                "responseHeaders": {"retry-after": "3"},
                "responseBody": json.dumps(_ANSWER),
            },
        },
    },
    {"properties": {"status": {"type": "retry", "message": "x", "next": 1_796_062_000_000}}},
)

numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -1, 0, 1e308]))
texts = st.one_of(
    st.text(),
    st.sampled_from([_SENTENCE, "usage_limit_reached", "rejected", "allowed", "9" * 400]),
    st.from_regex(
        r"(?:resets|try again at|try again in|reset at|ends on) [0-9apm:/ A-Z+()-]{1,20}"
    ),
    st.text().map(lambda tail: f"API Error: 429 {json.dumps(tail)}"),
    st.text().map(lambda tail: f"You've hit your limit · {tail}"),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a document."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in entries:
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, name))
        else:
            yield (*path, name)


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a document with the value at one place replaced."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Return a telling body in which one or two values are anything."""
    body = draw(st.sampled_from(BODIES))
    for _ in range(draw(st.integers(1, 2))):
        if isinstance(body, dict | list):
            path = draw(st.sampled_from(list(places(body))))
            body = replaced(body, path, draw(documents))
    return body


evidence = st.builds(
    Evidence,
    body=st.one_of(damaged(), documents),
    status=st.one_of(st.none(), st.integers(-1, 600)),
    headers=st.one_of(
        st.just({}),
        st.dictionaries(
            st.sampled_from(
                [
                    "Retry-After",
                    "retry-after-ms",
                    "x-ratelimit-reset-tokens",
                    "anthropic-ratelimit-requests-reset",
                    "anthropic-ratelimit-unified-status",
                    "anthropic-ratelimit-unified-5h-status",
                    "anthropic-ratelimit-unified-5h-utilization",
                    "anthropic-ratelimit-unified-reset",
                    "x-codex-primary-used-percent",
                    "x-codex-primary-reset-at",
                ]
            ),
            st.one_of(st.text(), numbers.map(str), st.sampled_from(["rejected", "100", "6m0s"])),
        ),
    ),
    text=st.one_of(st.just(""), texts),
    now=st.one_of(st.none(), st.datetimes(timezones=st.just(UTC))),
    zone=st.just(UTC),
)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(PROVIDERS), evidence)
def test_whatever_comes_is_a_limit_that_the_wire_takes_or_none(
    provider: str, found: Evidence
) -> None:
    limit = recognise(provider, found)
    event = TurnEnded(turn_id="t", status=TurnStatus.LIMITED, limit=limit)
    decoded = codec.decode_event(codec.encode(event))
    assert isinstance(decoded, TurnEnded)
    if limit is not None:
        assert decoded.limit is not None
        assert (decoded.limit.kind, decoded.limit.retry_after) == (limit.kind, limit.retry_after)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(PROVIDERS), evidence)
def test_whatever_comes_is_telemetry_that_the_wire_takes_or_none(
    provider: str, found: Evidence
) -> None:
    known = quota(provider, found)
    if known is not None:
        event = QuotaReported(
            conversation_id="c", windows=known.windows, has_credits=known.has_credits
        )
        assert codec.decode_event(codec.encode(event)) == event


@given(st.integers(0, 10**10), st.integers(1, 10**7), st.sampled_from(PROVIDERS))
def test_a_stated_delay_is_never_shortened(wait: int, reset: int, provider: str) -> None:
    headers = {"retry-after-ms": str(wait)}
    delay = timedelta(milliseconds=wait)
    alone = recognise(provider, Evidence(status=429, headers=headers, now=NOW))
    assert alone is not None
    if wait <= 300_000:
        assert (alone.kind, alone.retry_after) == (LimitKind.THROTTLE, wait / 1000)
    else:
        assert (alone.kind, alone.resets_at) == (LimitKind.QUOTA, NOW + delay)
    error = {"type": "usage_limit_reached", "resets_at": int(NOW.timestamp()) + reset}
    both = recognise(provider, Evidence({"error": error}, 429, headers, now=NOW))
    assert both is not None
    assert both.resets_at == NOW + max(timedelta(seconds=reset), delay)


@given(
    st.dictionaries(
        st.sampled_from(["five_hour", "seven_day", "seven_day_opus", "seven_day_sonnet"]),
        st.tuples(st.floats(0, 2), st.integers(1, 10**7)),
        min_size=1,
    )
)
def test_the_latest_reset_of_the_used_up_windows_wins(
    windows: dict[str, tuple[float, int]],
) -> None:
    start = int(NOW.timestamp())
    stated = {n: {"utilization": u, "resetsAt": start + s} for n, (u, s) in windows.items()}
    info = {"status": "rejected", "unifiedWindows": stated}
    limit = recognise(
        "claude-code", Evidence({"type": "rate_limit_event", "rate_limit_info": info})
    )
    assert limit is not None
    latest = max((seconds for used, seconds in windows.values() if used * 100 >= 100), default=None)
    assert limit.resets_at == (None if latest is None else NOW + timedelta(seconds=latest))
