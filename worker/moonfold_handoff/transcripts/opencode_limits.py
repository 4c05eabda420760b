"""Recognises how OpenCode says that its provider would not go on.

Only called for the error that OpenCode itself wrote into a message. The error's name decides first, then the
code in the provider's answer, which OpenCode keeps, then the HTTP status.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.clocks import from_epoch
from moonfold_handoff.transcripts.lines import Json, decode, dictionary, integer, string
from moonfold_schemas.events import Limit, LimitKind

LONG_DELAY = 300.0  # seconds; who has to wait longer has used up a window

_NAMES = {
    "ContextOverflowError": LimitKind.CONTEXT,
    "ProviderAuthError": LimitKind.AUTHENTICATION,
}
# Of OpenCode's own gateway (packages/console/app/src/routes/zen/util/error.ts), which answers missing
# credits with status 401, and of the APIs behind it.
_CODES = {
    "AuthError": LimitKind.AUTHENTICATION,
    "BlackUsageLimitError": LimitKind.QUOTA,
    "CreditsError": LimitKind.CREDITS,
    "FreeUsageLimitError": LimitKind.QUOTA,
    "GoUsageLimitError": LimitKind.QUOTA,
    "MonthlyLimitError": LimitKind.CREDITS,
    "UserLimitError": LimitKind.CREDITS,
    "billing_error": LimitKind.CREDITS,
    "insufficient_quota": LimitKind.CREDITS,
    "usage_limit_reached": LimitKind.QUOTA,
}
_STATUSES = {
    401: LimitKind.AUTHENTICATION,
    402: LimitKind.CREDITS,
    403: LimitKind.AUTHENTICATION,
    429: LimitKind.THROTTLE,
    503: LimitKind.THROTTLE,
    529: LimitKind.THROTTLE,
}


def recognise(error: Json, now: datetime | None) -> Limit | None:
    """Return the limit that a message's error tells of, or None for any other error.

    Args:
        error: The error, `{name, data}`.
        now: When it was written; without it a delay ends at no time.
    """
    data = dictionary(error.get("data"))
    answer = _answer(data.get("responseBody"))
    codes = [error.get("name"), answer.get("type"), answer.get("code")]
    meanings = {**_NAMES, **_CODES}
    kind = next((meanings[code] for code in map(string, codes) if code in meanings), None)
    kind = kind or _STATUSES.get(integer(data.get("statusCode")) or 0)
    if kind is None:
        return None
    delay = _delay(data.get("responseHeaders"))
    if kind is LimitKind.THROTTLE and delay is not None and delay > LONG_DELAY:
        kind = LimitKind.QUOTA
    return Limit(
        kind=kind,
        resets_at=_reset(answer, delay, now) if kind in STOPS else None,
        retry_after=delay,
        message=string(data.get("message")) or None,
    )


def _answer(body: Any) -> Json:
    """Return the error object in a provider's answer, or an empty one."""
    if not isinstance(body, str):
        return {}
    try:
        return dictionary(dictionary(decode(body.encode("utf-8", "replace"))).get("error"))
    except (ValueError, RecursionError):
        return {}


def _delay(headers: Any) -> float | None:
    """Return the seconds that `retry-after-ms` or `retry-after` state."""
    stated = {str(name).lower(): value for name, value in dictionary(headers).items()}
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = string(stated.get(name)) or ""
        if value.isascii() and value.replace(".", "", 1).isdigit() and len(value) < 20:
            return float(value) / unit
    return None


def _reset(answer: Json, delay: float | None, now: datetime | None) -> datetime | None:
    seconds = integer(answer.get("resets_at"))
    if seconds is not None and seconds > 0:
        return from_epoch(seconds)
    try:
        return now + timedelta(seconds=delay) if now is not None and delay is not None else None
    except OverflowError:
        return None
