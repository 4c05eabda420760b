"""Times of limit notices: seconds since the epoch, and the clock of a sentence."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

CLOCK = (
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,\s*(?P<year>\d{4}))?,?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[AaPp])[Mm]\b(?:\s*\((?P<zone>[^)]+)\))?"
)
"""A time of day with an optional date and zone; what `clock_time` takes a match of."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# The sentence has no seconds: a notice written just after its own minute still means that minute.
_JUST_PASSED = timedelta(minutes=5)
_HALF_YEAR = timedelta(days=183)


def from_epoch(value: float) -> datetime | None:
    """Return a time in UTC, or None where the number is none."""
    try:
        # Milliseconds have been seen where seconds are documented; seconds end in the year 5138.
        return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def clock_time(
    clock: re.Match[str] | None, now: datetime | None, zone: tzinfo | None
) -> datetime | None:
    """Return, in UTC, the time that a match of `CLOCK` means.

    Args:
        clock: The match; None gives None.
        now: When the sentence was written; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    if clock is None or now is None:
        return None
    try:
        if name := clock["zone"]:
            zone = UTC if name.upper() in {"UTC", "GMT"} else ZoneInfo(name)
        return _next(clock, now.astimezone(zone)).astimezone(UTC)
    except (ValueError, OverflowError, OSError, LookupError):
        # An impossible date, or a zone that this machine does not know: no time beats a wrong one.
        return None


def _next(clock: re.Match[str], now: datetime) -> datetime:
    """Return the first time at or after `now` that the sentence can mean, in the zone of `now`."""
    hour = int(clock["hour"])
    if not 1 <= hour <= 12:
        raise ValueError("not an hour of a 12-hour clock")
    hour = hour % 12 + (12 if clock["half"] in "Pp" else 0)
    at = now.replace(hour=hour, minute=int(clock["minute"] or 0), second=0, microsecond=0)
    if clock["month"] is None:
        return at if at >= now - _JUST_PASSED else at + timedelta(days=1)
    month = _MONTHS.index(clock["month"]) + 1
    day = int(clock["day"])
    if clock["year"]:
        return at.replace(year=int(clock["year"]), month=month, day=day)
    at = at.replace(month=month, day=day)
    return at if at > now - _HALF_YEAR else at.replace(year=at.year + 1)
