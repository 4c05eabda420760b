"""Recognises how Codex says that its provider would not go on.

Only called for what Codex itself marked as an error, and for the rate limits that it wrote down: prose
and command output are never searched. The error's code decides first, then its HTTP status, then an
anchored sentence.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Any, TypeGuard

import msgspec

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.clocks import CLOCK, clock_time, from_epoch
from moonfold_handoff.transcripts.lines import Json, dictionary, string, tokens
from moonfold_schemas.events import Limit, LimitKind, QuotaWindow

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
_WINDOWS = ("primary", "secondary")
_USED_UP = 100  # percent
_SAME_RESET = timedelta(minutes=1)  # resets that are told relative to now differ by less
_LONGEST_NAME = 100  # characters
_LARGEST = 1e300  # beyond it a number is none that can be reckoned with


class RateLimits(msgspec.Struct, frozen=True):
    """The rate limits that Codex wrote down at one time.

    Attributes:
        windows: How far each is used up.
        has_credits: Whether the provider goes on beyond them.
        reached: Codex's own word for what was reached.
        family: Which limits they are, where there are several kinds.
    """

    windows: tuple[QuotaWindow, ...] = ()
    has_credits: bool = False
    reached: str | None = None
    family: str = ""

    def closed(self, now: datetime | None) -> tuple[QuotaWindow, ...]:
        """Return the used-up windows that have not opened again by `now`; with credits none is."""
        if self.has_credits:
            return ()
        used_up = (w for w in self.windows if w.used_percent >= _USED_UP)
        return tuple(w for w in used_up if not (w.resets_at and now and w.resets_at <= now))

    def dated(self) -> RateLimits:
        """Return what of them still means something in a later turn: the windows with a reset."""
        windows = tuple(w for w in self.windows if w.resets_at)
        return msgspec.structs.replace(self, windows=windows)

    def differ(self, others: RateLimits) -> bool:
        """Tell whether a window moved, or is used up by another whole percent."""
        if self.has_credits != others.has_credits or len(self.windows) != len(others.windows):
            return True
        pairs = zip(self.windows, others.windows, strict=True)
        return any(
            one.name != other.name
            or int(one.used_percent) != int(other.used_percent)
            or _is_another(one.resets_at, other.resets_at)
            for one, other in pairs
        )


def read_rate_limits(value: Any, now: datetime | None) -> RateLimits:
    """Return the rate limits of a `token_count` event that was written at `now`."""
    limits = dictionary(value)
    credits_ = dictionary(limits.get("credits"))
    # Models of their own have limits of their own, told in the same place.
    family = string(limits.get("limit_id")) or ""
    windows = (_window(limits, name, family, now) for name in _WINDOWS)
    return RateLimits(
        windows=tuple(w for w in windows if w is not None),
        has_credits=credits_.get("has_credits") is True or credits_.get("unlimited") is True,
        reached=string(limits.get("rate_limit_reached_type")),
        family=family,
    )


def recognise(error: Json, now: datetime | None, zone: tzinfo | None) -> Limit | None:
    """Return the limit that an error tells of, or None for any other error.

    Args:
        error: Its `message` and `codex_error_info`.
        now: When the error was written; without it a time of day has no date.
        zone: Zone of a sentence, which never names one; None is the machine's.
    """
    text = string(error.get("message")) or ""
    kind = _kind(error.get("codex_error_info"), text)
    if kind is LimitKind.QUOTA and _CREDITS.search(text):
        kind = LimitKind.CREDITS
    if kind is None:
        return None
    resets_at = reset_time(text, now, zone) if kind is LimitKind.QUOTA else None
    retry_after = None if kind in STOPS else _span(text)
    return Limit(kind=kind, resets_at=resets_at, retry_after=retry_after, message=text or None)


def completed(limit: Limit, rates: RateLimits, now: datetime | None) -> Limit:
    """Return a limit with what the rate limits tell better: what was reached, and its reset."""
    if limit.kind is not LimitKind.QUOTA:
        return limit
    if "credits_depleted" in (rates.reached or ""):
        return msgspec.structs.replace(limit, kind=LimitKind.CREDITS, resets_at=None)
    resets_at = _latest(rates.closed(now)) or limit.resets_at
    return msgspec.structs.replace(limit, resets_at=resets_at)


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


def _window(limits: Json, name: str, family: str, now: datetime | None) -> QuotaWindow | None:
    window = dictionary(limits.get(name))
    used = window.get("used_percent", limits.get(f"{name}_used_percent"))
    if not _is_number(used) or used < 0:
        return None
    minutes = window.get("window_minutes", limits.get(f"{name}_window_minutes"))
    prefix = "" if family in {"", "codex"} else f"{family}."
    return QuotaWindow(
        name=f"{prefix}{name}"[-_LONGEST_NAME:],
        used_percent=float(used),
        resets_at=_reset(window, now),
        minutes=tokens(minutes),
    )


def _reset(window: Json, now: datetime | None) -> datetime | None:
    if _is_number(at := window.get("resets_at")):
        return from_epoch(at)
    if _is_number(seconds := window.get("resets_in_seconds")) and now is not None:
        try:
            return now + timedelta(seconds=seconds)
        except OverflowError:
            return None
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST


def _is_another(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > _SAME_RESET


def _latest(windows: tuple[QuotaWindow, ...]) -> datetime | None:
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
