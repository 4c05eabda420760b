"""HTTP headers: how long to wait, and which quota windows are used up.

Anthropic's `anthropic-ratelimit-…`, ChatGPT's `x-codex-…` and its other families, OpenAI's
`x-ratelimit-…`, and `retry-after` of them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from moonfold_handoff.limits.clocks import after, duration, from_epoch, instant
from moonfold_handoff.limits.quotas import Quota, latest_reset, quota_of, window
from moonfold_schemas.events import QuotaWindow

Headers = Mapping[str, str]

_CLAIMS = {"5h": ("five_hour", 300), "7d": ("seven_day", 10_080)}
"""Anthropic's unified windows in headers: their names in its other telemetry, and minutes."""

ALLOWED = frozenset({"allowed", "allowed_warning"})
"""Anthropic's words for a window, or an overage, that still has room."""

_UNIFIED = "anthropic-ratelimit-unified-"
_CLAIM = re.compile(re.escape(_UNIFIED) + r"(?P<claim>\d+[a-z](?:[_-]\w+)?)-(?:status|utilization)")
_FAMILY = re.compile(r"x-(?P<family>[\w-]+?)-(?P<window>primary|secondary)-used-percent")
_RESET = re.compile(
    r"(?:anthropic-ratelimit-(?!unified)(?P<claude>[a-z-]+)-reset|x-ratelimit-reset-(?P<openai>[a-z-]+))"
)
_CODEX = "codex"
_NUMBER = re.compile(r"\s*-?\d{1,20}(?:\.\d{1,20})?\s*")
# Seconds passed this in 2001; a smaller number is a delay.
_FIRST_EPOCH = 1e9


def plain(headers: Any) -> dict[str, str]:
    """Return headers by lower-case name; what is no header is left out."""
    if not isinstance(headers, Mapping):
        return {}
    return {
        name.lower(): value if isinstance(value, str) else str(value)
        for name, value in headers.items()
        if isinstance(name, str) and isinstance(value, str | int | float)
    }


def retry_after(headers: Headers, now: datetime | None) -> float | None:
    """Return the seconds to wait as the headers state them; of two statements, the longer.

    Args:
        headers: By lower-case name.
        now: When they were sent; without it a date is no delay.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    stated = headers.get("retry-after", "")
    seconds = _number(stated)
    if seconds is None:
        seconds = _until(_http_date(stated), now)
    return _longest([None if milliseconds is None else milliseconds / 1000, seconds])


def refill(headers: Headers, now: datetime | None) -> float | None:
    """Return the seconds until the last empty bucket of requests or tokens is full again.

    A request passes before that, so it only counts where nothing else is stated.
    """
    return _longest(
        _until_reset(value, now)
        for name, value in headers.items()
        if (match := _RESET.fullmatch(name)) and not _number(headers.get(_remaining(match)))
    )


def reset(headers: Headers, now: datetime | None) -> datetime | None:
    """Return when the last of the used-up windows opens again, as far as that is stated."""
    known = quota(headers, now)
    latest = latest_reset(known.used_up(now)) if known else None
    if latest is None and _is_rejected(headers):
        return _epoch(headers, _UNIFIED + "reset")
    return latest


def is_used_up(headers: Headers, now: datetime | None) -> bool:
    """Return whether the headers state that the account's quota is used up."""
    known = quota(headers, now)
    return _is_rejected(headers) or (known is not None and bool(known.used_up(now)))


def quota(headers: Headers, now: datetime | None) -> Quota | None:
    """Return the windows that the headers tell of, and whether there are credits beyond them."""
    windows = [*_unified(headers), *_codex(headers, now)]
    return quota_of(windows, has_credits=_has_overage(headers) or _has_credits(headers))


def _longest(delays: Iterable[float | None]) -> float | None:
    return max((max(0.0, seconds) for seconds in delays if seconds is not None), default=None)


def _remaining(match: re.Match[str]) -> str:
    """Return the name of the header that says what is left until a reset."""
    if match["claude"]:
        return f"anthropic-ratelimit-{match['claude']}-remaining"
    return f"x-ratelimit-remaining-{match['openai']}"


def _until_reset(value: str, now: datetime | None) -> float | None:
    """Return the seconds of a rate limit's reset: a length of time, an epoch, or RFC 3339."""
    if (amount := _number(value)) is not None:
        return amount if amount < _FIRST_EPOCH else _until(from_epoch(amount), now)
    seconds = duration(value)
    return _until(instant(value), now) if seconds is None else seconds


def _until(time: datetime | None, now: datetime | None) -> float | None:
    return None if time is None or now is None else (time - now).total_seconds()


def _http_date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_rejected(headers: Headers) -> bool:
    return headers.get(_UNIFIED + "status") == "rejected" and not _has_overage(headers)


def _has_overage(headers: Headers) -> bool:
    return headers.get(_UNIFIED + "overage-status") in ALLOWED


def _has_credits(headers: Headers) -> bool:
    stated = (headers.get(f"x-codex-credits-{name}", "") for name in ("has-credits", "unlimited"))
    return any(value.lower() == "true" for value in stated)


def _unified(headers: Headers) -> Iterator[QuotaWindow | None]:
    claims = dict.fromkeys(m["claim"] for name in headers if (m := _CLAIM.fullmatch(name)))
    for claim in claims:
        start = f"{_UNIFIED}{claim}-"
        name, minutes = _CLAIMS.get(claim, (claim, None))
        used = _number(headers.get(start + "utilization"))
        percent = None if used is None else used * 100
        if headers.get(start + "status") == "rejected":
            # Rounded, a rejected window can show less than it has used.
            percent = max(100.0, percent or 0.0)
        resets_at = _epoch(headers, start + "reset")
        yield window(name, percent, resets_at=resets_at, minutes=minutes)


def _codex(headers: Headers, now: datetime | None) -> Iterator[QuotaWindow | None]:
    """Yield the windows of the limit in force, or ChatGPT's own where none is said to be."""
    found = [m for name in headers if (m := _FAMILY.fullmatch(name))]
    families = {m["family"] for m in found}
    active = headers.get("x-codex-active-limit", "").lower().replace("_", "-")
    chosen = next((family for family in (active, _CODEX) if family in families), None)
    for match in found:
        if match["family"] == chosen:
            start = f"x-{chosen}-{match['window']}-"
            resets_at = _epoch(headers, start + "reset-at")
            if resets_at is None:
                resets_at = after(now, _number(headers.get(start + "reset-after-seconds")))
            name = match["window"] if chosen == _CODEX else f"{chosen}.{match['window']}"
            yield window(
                name,
                _number(headers[match[0]]),
                resets_at=resets_at,
                minutes=_number(headers.get(start + "window-minutes")),
            )


def _number(value: str | None) -> float | None:
    return float(value) if value is not None and _NUMBER.fullmatch(value) else None


def _epoch(headers: Headers, name: str) -> datetime | None:
    seconds = _number(headers.get(name))
    return None if seconds is None else from_epoch(seconds)
