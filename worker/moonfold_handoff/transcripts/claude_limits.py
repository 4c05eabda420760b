"""Recognises how Claude Code says that its provider would not go on.

Only called for a record that Claude Code itself marked as an error: prose and command output are never
searched. Structured fields decide first, then the HTTP status, then an anchored sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from moonfold_schemas.events import Limit, LimitKind

STOPS = frozenset({LimitKind.QUOTA, LimitKind.CREDITS})
"""The kinds that call for another provider; the rest is waited out or repaired."""

_PREFIX = r"^(?:API Error:\s*)?(?:Request rejected \(429\)\s*[·∙]\s*)?"
# Sent with error `rate_limit` and status 429 too, so it has to be asked first.
_THROTTLED = re.compile(_PREFIX + r"Server is temporarily limiting requests", re.IGNORECASE)
_OVERLOADED = re.compile(r"^API Error:\s*(?:529\b|Overloaded)", re.IGNORECASE)
_CREDITS = re.compile(
    r"out of (?:usage )?credits|credits? (?:are |is )?required|credit balance is too low|/usage-credits",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    _PREFIX
    + r"(?:Claude (?:AI )?usage limit reached|You(?:['\u2019]ve| have) (?:hit|reached) your\b.*\blimit"
    r"|You['\u2019]re out of extra usage|\d+-hour limit reached)",
    re.IGNORECASE,
)
_CONTEXT = re.compile(r"^(?:API Error:\s*)?(?:400\s+)?Prompt is too long", re.IGNORECASE)
_LOGIN = re.compile(r"^(?:Please run /login|Invalid API key)", re.IGNORECASE)

_AUTHENTICATION_CODES = frozenset(
    {
        "account_on_hold",
        "authentication_failed",
        "cloud_credential_error",
        "oauth_org_not_allowed",
        "verification_required",
    }
)

_EPOCH = re.compile(r"limit reached\|(\d{9,13})\b")
_CLOCK = re.compile(
    r"\bresets?\s+(?:at\s+)?"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\s+(?P<day>\d{1,2})(?:,\s*(?P<year>\d{4}))?,?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[AaPp])[Mm]\b(?:\s*\((?P<zone>[^)]+)\))?",
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# The sentence has no seconds: a notice written just after its own minute still means that minute.
_JUST_PASSED = timedelta(minutes=5)
_HALF_YEAR = timedelta(days=183)


def recognise(
    record: Mapping[str, Any], text: str, now: datetime | None, zone: tzinfo | None
) -> Limit | None:
    """Return the limit that an error record tells of, or None for any other error.

    Args:
        record: The record, marked as an error by Claude Code.
        text: The notice in it.
        now: When it was written; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    kind = _kind(record, text)
    if kind is None:
        return None
    resets_at = None
    if kind in STOPS:
        resets_at = _stated_reset(record) or reset_time(text, now, zone)
    return Limit(kind=kind, resets_at=resets_at, message=text or None)


def reset_time(text: str, now: datetime | None, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, when a limit sentence says that the window opens again."""
    if epoch := _EPOCH.search(text):
        return _from_epoch(int(epoch[1]))
    clock = _CLOCK.search(text)
    if clock is None or now is None:
        return None
    try:
        if name := clock["zone"]:
            zone = UTC if name.upper() in {"UTC", "GMT"} else ZoneInfo(name)
        return _next(clock, now.astimezone(zone)).astimezone(UTC)
    except (ValueError, OverflowError, OSError, LookupError):
        # An impossible date, or a zone that this machine does not know: no time beats a wrong one.
        return None


def _kind(record: Mapping[str, Any], text: str) -> LimitKind | None:
    code, status, quota = (record.get(n) for n in ("error", "apiErrorStatus", "quotaLimits"))
    code = code if isinstance(code, str) else None
    status = status if isinstance(status, int) else None
    quota = quota if isinstance(quota, dict) else {}
    kind: LimitKind | None = None
    if _THROTTLED.search(text) or code == "overloaded" or status == 529:
        kind = LimitKind.THROTTLE
    elif code == "billing_error" or quota.get("errorCode") == "credits_required" or status == 402:
        kind = LimitKind.CREDITS
    elif code == "rate_limit" or status == 429:
        has_clock = _stated_reset(record) or _CLOCK.search(text) or _EPOCH.search(text)
        kind = LimitKind.CREDITS if _CREDITS.search(text) and not has_clock else LimitKind.QUOTA
    elif code in _AUTHENTICATION_CODES or status in {401, 403}:
        kind = LimitKind.AUTHENTICATION
    else:
        kind = next((k for pattern, k in _SENTENCES if pattern.search(text)), None)
    return kind


_SENTENCES = (
    (_QUOTA, LimitKind.QUOTA),
    (_CREDITS, LimitKind.CREDITS),
    (_CONTEXT, LimitKind.CONTEXT),
    (_LOGIN, LimitKind.AUTHENTICATION),
    (_OVERLOADED, LimitKind.THROTTLE),
)


def _stated_reset(record: Mapping[str, Any]) -> datetime | None:
    quota = record.get("quotaLimits")
    seconds = quota.get("resetsAt") if isinstance(quota, dict) else None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        return _from_epoch(seconds)
    return None


def _from_epoch(value: float) -> datetime | None:
    try:
        # Milliseconds have been seen where seconds are documented; seconds end in the year 5138.
        return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError):
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
