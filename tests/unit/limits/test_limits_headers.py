from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moonfold_handoff.limits import Evidence, headers, recognise
from moonfold_schemas.events import LimitKind

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
EPOCH = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"Retry-After": "12"}, 12.0),
        ({"retry-after": "12.5"}, 12.5),
        ({"retry-after": 12}, 12.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:20 GMT"}, 20.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:20 -0000"}, 20.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "2500", "retry-after": "2"}, 2.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 25:00:00 GMT"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": None, 3: "4", "x": ["y"]}, None),
        ({"x-ratelimit-reset-requests": "1s"}, None),
        ({}, None),
    ],
)
def test_a_delay_is_read_from_headers(given: Any, seconds: float | None) -> None:
    found = headers.retry_after(headers.plain(given), NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "0"}, 1.0),
        ({"x-ratelimit-reset-requests": "1s"}, 1.0),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360.0),
        ({"x-ratelimit-reset-tokens": "17ms"}, 0.017),
        ({"x-ratelimit-reset-tokens": "20"}, 20.0),
        ({"x-ratelimit-reset-tokens": str(EPOCH + 20)}, 20.0),
        ({"x-ratelimit-reset-tokens": str((EPOCH + 20) * 1000)}, 20.0),
        ({"x-ratelimit-reset-tokens": "2026-11-30T12:00:20Z"}, 20.0),
        # The tokens have room, so only the requests are waited for.
        (
            {
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "900",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "0",
            },
            1.0,
        ),
        ({"x-ratelimit-reset-tokens": "later"}, None),
        ({"anthropic-ratelimit-unified-reset": str(EPOCH + 20)}, None),
        ({}, None),
    ],
)
def test_a_bucket_s_refill_is_read_from_headers(given: Any, seconds: float | None) -> None:
    found = headers.refill(headers.plain(given), NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("retry", "message", "expected"),
    [
        ({}, "Slow down.", ("quota", None, NOW + timedelta(minutes=6))),
        # The bucket is full in six minutes, and the request passes before.
        ({"retry-after": "20"}, "Slow down.", ("throttle", 20.0, None)),
        ({}, "Please try again in 1.5s.", ("throttle", 1.5, None)),
        ({"retry-after": "1"}, "Please try again in 1.5s.", ("throttle", 1.5, None)),
    ],
)
def test_a_refill_counts_only_where_no_delay_is_stated(
    retry: Any, message: str, expected: Any
) -> None:
    body = {"error": {"code": "rate_limit_exceeded", "message": message}}
    given = {"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0", **retry}
    limit = recognise("another", Evidence(body, 429, given, now=NOW))
    assert limit is not None
    assert (limit.kind, limit.retry_after, limit.resets_at) == expected


def test_a_date_is_no_delay_without_a_time_to_count_from() -> None:
    given = {"retry-after": "Mon, 30 Nov 2026 12:00:20 GMT"}
    assert headers.retry_after(given, None) is None


@pytest.mark.parametrize("value", [None, [], "retry-after: 3", 3])
def test_what_is_no_headers_has_none(value: Any) -> None:
    assert headers.plain(value) == {}


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [(0, "throttle"), (300, "throttle"), (301, "quota"), (1_806, "quota"), (86_400, "quota")],
)
def test_a_stated_delay_is_kept_or_becomes_a_window(seconds: int, kind: str) -> None:
    evidence = Evidence(status=429, headers={"Retry-After": str(seconds)}, now=NOW)
    limit = recognise("another", evidence)
    assert limit is not None
    assert limit.kind == kind
    if limit.kind is LimitKind.THROTTLE:
        assert (limit.retry_after, limit.resets_at) == (seconds, None)
    else:
        assert (limit.retry_after, limit.resets_at) == (None, NOW + timedelta(seconds=seconds))


def test_a_delay_that_is_longer_than_the_stated_reset_is_not_shortened() -> None:
    error = {"type": "usage_limit_reached", "resets_at": EPOCH + 60}
    evidence = Evidence({"error": error}, headers={"retry-after": "3600"}, now=NOW)
    limit = recognise("codex", evidence)
    assert limit is not None
    assert limit.resets_at == NOW + timedelta(hours=1)


def test_only_anthropic_s_own_words_reject() -> None:
    for status in ("allowed", "allowed_warning", "", "REJECTED?"):
        given = {"anthropic-ratelimit-unified-status": status}
        assert not headers.is_used_up(given, NOW)
    assert headers.is_used_up({"anthropic-ratelimit-unified-status": "rejected"}, NOW)
