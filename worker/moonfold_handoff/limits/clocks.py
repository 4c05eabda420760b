"""Times of limit notices: epochs, RFC 3339, durations, and the clock of a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import product
from zoneinfo import ZoneInfo

CLOCK = (
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,\s*(?P<year>\d{4}))?,?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[AaPp])[Mm]\b(?:\s*\((?P<zone>[^)]+)\))?"
)
"""A time of day with an optional date and zone; what `clock_time` takes a match of."""

SPAN = (
    r"\d{1,9}(?:\.\d{1,9})?\s*[A-Za-z]+"
    r"(?:,?\s*(?:and\s+)?\d{1,9}(?:\.\d{1,9})?\s*[A-Za-z]+)*"
)
"""A length of time, such as `142h40m7s` or `5 days 22 hours`; what `duration` reads."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# The sentence has no seconds: a notice written just after its own minute still means that minute.
_JUST_PASSED = timedelta(minutes=5)
_HALF_YEAR = timedelta(days=183)
# Milliseconds have been seen where seconds are documented; seconds pass this in the year 5138.
_FIRST_MILLISECONDS = 1e11

_SPAN = re.compile(SPAN)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_SECONDS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hr": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "w": 604800.0,
    "week": 604800.0,
}


def from_epoch(value: float) -> datetime | None:
    """Return a time in UTC, or None where the number is none.

    Args:
        value: Seconds since the epoch, or milliseconds where it is too large for seconds.
    """
    try:
        seconds = value / 1000 if value > _FIRST_MILLISECONDS else value
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def instant(text: str, zone: tzinfo | None = UTC) -> datetime | None:
    """Return an RFC 3339 time in UTC, or None where the text is none.

    Args:
        text: The time.
        zone: Zone of a time that names none; None is the machine's.
    """
    try:
        time = datetime.fromisoformat(text.strip())
        return _in_utc(time, zone) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def midnight(year: int, month: int, day: int, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, when a day begins, or None where there is no such day."""
    return instant(f"{year:04}-{month:02}-{day:02}", zone)


def after(now: datetime | None, seconds: float | None) -> datetime | None:
    """Return the time that is `seconds` after `now`, or None where either is unknown or too large."""
    if now is None or seconds is None:
        return None
    try:
        return (now + timedelta(seconds=seconds)).astimezone(UTC)
    except OverflowError:
        return None


def duration(text: str) -> float | None:
    """Return the seconds of a length of time, or None where the text is none.

    Args:
        text: Numbers with units, such as `900ms`, `34.07s`, `142h40m7s` or `5 days 22 hours`.
    """
    if not _SPAN.fullmatch(text.strip()):
        return None
    seconds = 0.0
    for amount, unit in _PART.findall(text.lower().replace("and", " ")):
        scale = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
        if scale is None:
            return None
        seconds += float(amount) * scale
    return seconds


def clock_time(
    clock: re.Match[str] | None, now: datetime | None, zone: tzinfo | None
) -> datetime | None:
    """Return, in UTC, the time that a match of `CLOCK` means.

    An impossible date, or a zone that this machine does not know, gives no time: none beats a wrong one.

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
        return _meant(clock, now, zone)
    except (ValueError, OverflowError, OSError, LookupError):
        return None


def _meant(clock: re.Match[str], now: datetime, zone: tzinfo | None) -> datetime | None:
    hour = int(clock["hour"])
    if not 1 <= hour <= 12:
        raise ValueError("not an hour of a 12-hour clock")
    hour = hour % 12 + (12 if clock["half"] in "Pp" else 0)
    today = now.astimezone(zone).replace(tzinfo=None)
    wall = today.replace(hour=hour, minute=int(clock["minute"] or 0), second=0, microsecond=0)
    if clock["month"] is None:
        return _next(wall, now, zone)
    month, day = _MONTHS.index(clock["month"]) + 1, int(clock["day"])
    if clock["year"]:
        return _in_utc(wall.replace(year=int(clock["year"]), month=month, day=day), zone)
    # A date without a year is the one nearest to the sentence.
    dates = (_in_utc(date, zone) for date in _in_each_year(wall, month, day))
    nearest = min(dates, key=lambda date: abs(date - now))
    return nearest if abs(nearest - now) <= _HALF_YEAR else None


def _next(wall: datetime, now: datetime, zone: tzinfo | None) -> datetime:
    """Return the first time at or after `now` that the clock shows; an hour can come twice in a night."""
    times = [
        _in_utc((wall + timedelta(days=days)).replace(fold=fold), zone)
        for days, fold in product((0, 1), (0, 1))
    ]
    return next((time for time in times if time >= now - _JUST_PASSED), times[-1])


def _in_each_year(wall: datetime, month: int, day: int) -> Iterator[datetime]:
    wall = wall.replace(month=1, day=1)
    for year in (wall.year - 1, wall.year, wall.year + 1):
        try:
            yield wall.replace(year=year, month=month, day=day)
        except ValueError:
            continue  # 29 February


def _in_utc(wall: datetime, zone: tzinfo | None) -> datetime:
    """Return, in UTC, what a clock in the zone shows; a time without one is the machine's."""
    return (wall if zone is None else wall.replace(tzinfo=zone)).astimezone(UTC)
