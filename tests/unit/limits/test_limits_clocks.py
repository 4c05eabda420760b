from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from moonfold_handoff.limits import sentences
from moonfold_handoff.limits.clocks import after, duration, from_epoch, instant

NEW_YORK = ZoneInfo("America/New_York")


def read(sentence: str, now: str, zone: ZoneInfo | None = NEW_YORK) -> str | None:
    at = sentences.reset_time(sentence, datetime.fromisoformat(now), zone)
    return at.isoformat() if at else None


@pytest.mark.parametrize(
    ("sentence", "now", "expected"),
    [
        # Clocks go back at 2:00 on 1 November, so 1:30 comes twice.
        ("resets 1:30am", "2026-11-01T05:00:00Z", "2026-11-01T05:30:00+00:00"),
        ("resets 1:30am", "2026-11-01T05:50:00Z", "2026-11-01T06:30:00+00:00"),
        ("resets 1:30am", "2026-11-01T06:50:00Z", "2026-11-02T06:30:00+00:00"),
        ("resets 3am", "2026-11-01T05:50:00Z", "2026-11-01T08:00:00+00:00"),
        # Clocks go forward at 2:00 on 14 March, so 2:30 is 3:30.
        ("resets 2:30am", "2027-03-14T05:00:00Z", "2027-03-14T07:30:00+00:00"),
        ("resets 9am", "2027-03-13T15:00:00Z", "2027-03-14T13:00:00+00:00"),
        ("resets Nov 2, 8am", "2026-10-30T12:00:00Z", "2026-11-02T13:00:00+00:00"),
        # The day is the zone's, and not the record's.
        ("resets 11pm", "2026-11-10T03:30:00Z", "2026-11-10T04:00:00+00:00"),
        ("resets 10:28pm", "2026-11-10T03:30:00Z", "2026-11-10T03:28:00+00:00"),
        ("resets 10:20pm", "2026-11-10T03:30:00Z", "2026-11-11T03:20:00+00:00"),
    ],
)
def test_a_clock_is_that_of_its_zone_in_summer_and_winter(
    sentence: str, now: str, expected: str
) -> None:
    assert read(sentence, now) == expected


@pytest.mark.parametrize(
    ("sentence", "now", "expected"),
    [
        ("resets Jan 2, 8am (UTC)", "2026-12-30T12:00:00Z", "2027-01-02T08:00:00+00:00"),
        ("resets Dec 31, 11:59pm (UTC)", "2027-01-01T00:01:00Z", "2026-12-31T23:59:00+00:00"),
        ("resets Nov 28, 8am (UTC)", "2026-11-30T12:00:00Z", "2026-11-28T08:00:00+00:00"),
        ("resets Feb 29, 8am (UTC)", "2028-02-25T12:00:00Z", "2028-02-29T08:00:00+00:00"),
        ("resets Feb 29, 8am (UTC)", "2026-02-25T12:00:00Z", None),
        ("resets Feb 29, 8am (UTC)", "2027-02-25T12:00:00Z", None),
        ("resets Jan 1, 8am (UTC)", "9999-12-31T12:00:00Z", None),
        ("resets Jan 1, 8am (UTC)", "0001-01-01T12:00:00Z", "0001-01-01T08:00:00+00:00"),
    ],
)
def test_a_date_without_a_year_is_the_nearest_one(
    sentence: str, now: str, expected: str | None
) -> None:
    assert read(sentence, now) == expected


@pytest.fixture
def machine_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_new_york")
def test_a_machine_s_zone_has_its_summer_time_too() -> None:
    now = "2026-10-30T12:00:00Z"
    assert read("try again at 5:11 PM.", now, None) == "2026-10-30T21:11:00+00:00"
    assert read("try again at Nov 2nd, 2026 5:11 PM.", now, None) == "2026-11-02T22:11:00+00:00"
    assert read("resets 8am", "2026-11-01T03:00:00Z", None) == "2026-11-01T13:00:00+00:00"
    assert read("cycle ends on 11/17/2026", now, None) == "2026-11-17T05:00:00+00:00"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_760_000_400, datetime(2025, 10, 9, 9, tzinfo=UTC)),
        (1_760_000_400.0, datetime(2025, 10, 9, 9, tzinfo=UTC)),
        (1_760_000_400_000, datetime(2025, 10, 9, 9, tzinfo=UTC)),
        (0, None),
        (-5, None),
        (1e300, None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_an_epoch_is_a_time_or_none(value: float, expected: datetime | None) -> None:
    assert from_epoch(value) == expected


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "9999-12-31T23:59:59-23:00"])
def test_what_is_no_rfc_3339_is_no_time(text: str) -> None:
    assert instant(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("17ms", 0.017),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("142h40m7s", 513_607.0),
        ("5 days 22 hours 11 minutes", 511_860.0),
        ("1 hr", 3_600.0),
        ("0s", 0.0),
        ("", None),
        ("5", None),
        ("5 parsecs", None),
        ("s", None),
        ("-5s", None),
    ],
)
def test_a_duration_has_units(text: str, seconds: float | None) -> None:
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


def test_a_time_after_the_last_year_is_none() -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert after(now, 1e30) is None
    assert after(now, float("inf")) is None
    assert after(None, 1) is None
