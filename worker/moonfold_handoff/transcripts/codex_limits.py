"""Recognises how Codex says that its provider would not go on.

Only called for what Codex itself marked as an error, and for the rate limits that it wrote down: prose
and command output are never searched. The error's code decides first, then its HTTP status, then an
anchored sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, TypeGuard

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.clocks import CLOCK, clock_time, from_epoch
from moonfold_handoff.transcripts.lines import Json, dictionary, string
from moonfold_schemas.events import Limit, LimitKind

_CODES = {
    "context_window_exceeded": LimitKind.CONTEXT,
    "rate_limit_exceeded": LimitKind.THROTTLE,
    "server_overloaded": LimitKind.THROTTLE,
    "unauthorized": LimitKind.AUTHENTICATION,
    "usage_limit_exceeded": LimitKind.QUOTA,
}
_STATUSES = {
    401: LimitKind.AUTHENTICATION,
    402: LimitKind.CREDITS,
    403: LimitKind.AUTHENTICATION,
    429: LimitKind.THROTTLE,
    503: LimitKind.THROTTLE,
    529: LimitKind.THROTTLE,
}
_CREDITS = re.compile(
    r"^(?:Your workspace is|You(?:['\u2019]re| are)) out of credits\b|\bspend cap\b"
    r"|^Quota exceeded\. Check your plan|^You exceeded your current quota"
    r"|^To use Codex with your ChatGPT plan",
    re.IGNORECASE,
)
_SENTENCES = (
    (
        re.compile(
            r"^(?:You(?:['\u2019]ve| have) hit your (?:ChatGPT )?usage limit"
            r"|The usage limit has been reached)\b",
            re.IGNORECASE,
        ),
        LimitKind.QUOTA,
    ),
    (_CREDITS, LimitKind.CREDITS),
    (re.compile(r"^exceeded retry limit, last status: 429\b"), LimitKind.THROTTLE),
    (re.compile(r"^Selected model is at capacity\b"), LimitKind.THROTTLE),
    (re.compile(r"^Rate limit reached for\b"), LimitKind.THROTTLE),
    (
        re.compile(r"^Codex ran out of room in the model['\u2019]s context window"),
        LimitKind.CONTEXT,
    ),
    (
        re.compile(r"^(?:unexpected status|exceeded retry limit, last status:) 401\b"),
        LimitKind.AUTHENTICATION,
    ),
    (re.compile(r"^Your access token could not be refreshed"), LimitKind.AUTHENTICATION),
)

_AT = re.compile(r"\btry again at " + CLOCK)
_IN = re.compile(
    r"\btry again in ~?(?P<span>\d+(?:\.\d+)?\s*[a-z]+(?:,?\s*(?:and\s+)?\d+(?:\.\d+)?\s*[a-z]+)*)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "week": 604800,
}
_USED_UP = 100


@dataclass(frozen=True, slots=True)
class Window:
    """A rate-limit window that is used up, and when it opens again."""

    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The rate limits that Codex wrote down last."""

    used_up: tuple[Window, ...] = ()
    reached: str | None = None  # Codex's own word for what was reached

    def closed(self, now: datetime | None) -> tuple[Window, ...]:
        """Return the used-up windows that have not opened again by `now`."""
        open_again = (w.resets_at is not None and now and w.resets_at <= now for w in self.used_up)
        return tuple(w for w, again in zip(self.used_up, open_again, strict=True) if not again)

    def dated(self) -> RateLimits:
        """Return what of them still means something in a later turn: the windows with a reset."""
        return RateLimits(tuple(w for w in self.used_up if w.resets_at), self.reached)


def read_rate_limits(value: Any, now: datetime | None) -> RateLimits:
    """Return the rate limits of a `token_count` event that was written at `now`."""
    limits = dictionary(value)
    credits_ = dictionary(limits.get("credits"))
    # A window that has credits left is not used up.
    if credits_.get("has_credits") is True or credits_.get("unlimited") is True:
        return RateLimits()
    windows = (_window(limits, name, now) for name in ("primary", "secondary"))
    used_up = tuple(w for w in windows if w is not None)
    return RateLimits(used_up, string(limits.get("rate_limit_reached_type")))


def recognise(
    error: Json, rates: RateLimits, now: datetime | None, zone: tzinfo | None
) -> Limit | None:
    """Return the limit that an error tells of, or None for any other error.

    Args:
        error: Its `message` and `codex_error_info`.
        rates: The rate limits that were written down last.
        now: When the error was written; without it a time of day has no date.
        zone: Zone of a sentence, which never names one; None is the machine's.
    """
    text = string(error.get("message")) or ""
    kind = _kind(error.get("codex_error_info"), text)
    if kind is LimitKind.QUOTA and (
        _CREDITS.search(text) or "credits_depleted" in (rates.reached or "")
    ):
        kind = LimitKind.CREDITS
    if kind is None:
        return None
    resets_at = None
    if kind is LimitKind.QUOTA:
        resets_at = _latest(rates.closed(now)) or reset_time(text, now, zone)
    retry_after = None if kind in STOPS else _span(text)
    return Limit(kind=kind, resets_at=resets_at, retry_after=retry_after, message=text or None)


def limit_without_error(rates: RateLimits, now: datetime | None) -> Limit | None:
    """Return the limit that used-up windows alone tell of, as older files have it."""
    closed = rates.closed(now)
    return Limit(kind=LimitKind.QUOTA, resets_at=_latest(closed)) if closed else None


def reset_time(text: str, now: datetime | None, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, when a limit sentence says that the window opens again."""
    if clock := _AT.search(text):
        return clock_time(clock, now, zone)
    seconds = _span(text)
    if seconds is None or now is None:
        return None
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _kind(info: Any, text: str) -> LimitKind | None:
    if isinstance(info, str) and info in _CODES:
        return _CODES[info]
    for code, details in dictionary(info).items():
        if code in _CODES:
            return _CODES[code]
        status = dictionary(details).get("http_status_code")
        if isinstance(status, int) and status in _STATUSES:
            return _STATUSES[status]
    return next((kind for pattern, kind in _SENTENCES if pattern.search(text)), None)


def _window(limits: Json, name: str, now: datetime | None) -> Window | None:
    window = dictionary(limits.get(name))
    used = window.get("used_percent", limits.get(f"{name}_used_percent"))
    if not _is_number(used) or used < _USED_UP:
        return None
    if _is_number(at := window.get("resets_at")):
        return Window(from_epoch(at))
    if _is_number(seconds := window.get("resets_in_seconds")) and now is not None:
        try:
            return Window(now + timedelta(seconds=seconds))
        except OverflowError:
            return Window(None)
    return Window(None)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _latest(windows: Iterable[Window]) -> datetime | None:
    times = [w.resets_at for w in windows if w.resets_at is not None]
    return max(times, default=None)


def _span(text: str) -> float | None:
    """Return the seconds of a sentence such as "Try again in 5 days 22 hours 11 minutes."."""
    found = _IN.search(text)
    if found is None:
        return None
    seconds = 0.0
    for number, unit in _PART.findall(found["span"]):
        name = unit.lower()
        scale = _SECONDS.get(name) or _SECONDS.get(name.removesuffix("s"))
        if scale is None:
            break
        seconds += float(number) * scale
    return seconds or None
