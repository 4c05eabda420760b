"""What a limit says of its provider."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moonfold_handoff.context.availability import (
    DEFAULT_THROTTLE,
    HOLD,
    LONGEST_HOLD,
    Instance,
    Notice,
    fullest,
    notice_of,
    throttle_delay,
)
from moonfold_handoff.context.state import Conversation
from moonfold_schemas.events import Limit, LimitKind, QuotaReported, QuotaWindow
from moonfold_schemas.requests import Target

NOON = datetime(2026, 10, 12, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=5)


def limit(kind: LimitKind = LimitKind.QUOTA, **changes: object) -> Limit:
    return Limit(kind=kind, **changes)  # type: ignore[arg-type]


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@pytest.mark.parametrize("kind", [LimitKind.QUOTA, LimitKind.CREDITS])
def test_a_stated_reset_is_when_the_limit_ends(kind: LimitKind) -> None:
    notice = notice_of(limit(kind, resets_at=LATER), NOON, NOON)
    assert notice == Notice(kind, NOON, LATER)
    assert notice.resets_at == LATER


def test_a_stated_delay_counts_from_the_notice() -> None:
    found = notice_of(limit(retry_after=90), NOON, LATER)
    assert found == Notice(LimitKind.QUOTA, NOON, NOON + seconds(90))
    unknown = notice_of(limit(retry_after=90), None, LATER)
    assert unknown == Notice(LimitKind.QUOTA, None, LATER + seconds(90))


@pytest.mark.parametrize(("delay", "until"), [(60, LATER), (6 * 3600, NOON + seconds(6 * 3600))])
def test_of_two_times_the_later_holds(delay: float, until: datetime) -> None:
    found = notice_of(limit(resets_at=LATER, retry_after=delay), NOON, NOON)
    assert found is not None
    assert found.until == until


@pytest.mark.parametrize("kind", [LimitKind.QUOTA, LimitKind.CREDITS])
def test_without_a_clock_it_may_be_tried_again_after_an_hour(kind: LimitKind) -> None:
    notice = notice_of(limit(kind), NOON, NOON)
    assert notice == Notice(kind, NOON, NOON + HOLD, assumed=True)
    assert notice.resets_at is None


@pytest.mark.parametrize(
    "far", [{"retry_after": 1e308}, {"resets_at": datetime(9999, 1, 1, tzinfo=UTC)}]
)
def test_no_limit_holds_for_longer_than_a_year(far: dict[str, object]) -> None:
    found = notice_of(limit(**far), NOON, NOON)  # type: ignore[arg-type]
    assert found is not None
    assert found.until == NOON + LONGEST_HOLD


@pytest.mark.parametrize("kind", [LimitKind.CONTEXT, LimitKind.AUTHENTICATION])
def test_a_full_context_or_a_refused_login_uses_nobody_up(kind: LimitKind) -> None:
    assert notice_of(limit(kind, resets_at=LATER), NOON, NOON) is None
    assert throttle_delay(limit(kind, retry_after=5), NOON) is None


@pytest.mark.parametrize(
    ("named", "delay"),
    [
        ({"retry_after": 12.5}, 12.5),
        ({"retry_after": 0}, 0),
        ({"retry_after": 300}, 300),
        ({"resets_at": NOON + seconds(7)}, 7),
        ({"resets_at": NOON + seconds(7), "retry_after": 9}, 9),
        ({"resets_at": NOON - seconds(7)}, 0),
        ({}, DEFAULT_THROTTLE),
    ],
)
def test_a_throttle_is_waited_for_as_long_as_the_provider_says(
    named: dict[str, object], delay: float
) -> None:
    throttle = limit(LimitKind.THROTTLE, **named)
    assert throttle_delay(throttle, NOON) == delay
    assert notice_of(throttle, NOON, NOON) is None


def test_a_throttle_of_more_than_five_minutes_is_a_window() -> None:
    throttle = limit(LimitKind.THROTTLE, retry_after=1_806)
    assert throttle_delay(throttle, NOON) is None
    assert notice_of(throttle, NOON, NOON) == Notice(LimitKind.QUOTA, NOON, NOON + seconds(1_806))


@pytest.mark.parametrize("other", [None, limit(retry_after=5)])
def test_only_a_throttle_is_waited_for(other: Limit | None) -> None:
    assert throttle_delay(other, NOON) is None


def test_an_account_is_an_instance_of_its_own() -> None:
    target = Target(provider="codex", instance="work")
    assert Instance.of(target) == Instance("codex", "work") != Instance("codex")
    assert Instance.of(Conversation("c", "codex", "work")) == Instance.of(target)


@pytest.mark.parametrize("instance", [Instance("codex"), Instance("codex", "a:b.c-d_e")])
def test_an_instance_is_known_by_its_name(instance: Instance) -> None:
    assert Instance.parse(instance.name) == instance


@pytest.mark.parametrize("name", ["", "/", "codex/", "/work", "a/b/c", "a b", "codex/a b", "a\n"])
def test_other_names_are_none(name: str) -> None:
    assert Instance.parse(name) is None


def window(used: float, **changes: object) -> QuotaWindow:
    return QuotaWindow(name="five_hour", used_percent=used, **changes)  # type: ignore[arg-type]


def test_the_fullest_window_counts() -> None:
    full = window(95, resets_at=LATER)
    report = QuotaReported(conversation_id="c", windows=(window(10), full, window(94.9)))
    assert fullest(report) == full


@pytest.mark.parametrize(
    "report",
    [
        QuotaReported(conversation_id="c", windows=(window(100),), has_credits=True),
        QuotaReported(conversation_id="c", windows=()),
    ],
)
def test_what_credits_go_beyond_is_not_used_up(report: QuotaReported) -> None:
    assert fullest(report) is None
