"""Codex's limits, as its importer asks for them; `moonfold_handoff.limits` recognises them.

A rollout writes its rate limits down apart from its errors, so the importer keeps the last ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from moonfold_handoff import limits
from moonfold_handoff.limits import codex, sentences
from moonfold_handoff.limits.clocks import after
from moonfold_handoff.limits.quotas import USED_UP
from moonfold_handoff.transcripts.lines import Json, dictionary, string
from moonfold_schemas.events import Limit, LimitKind, QuotaWindow


class Window(msgspec.Struct, frozen=True):
    """A rate-limit window that is used up, and when it opens again."""

    resets_at: datetime | None = None


class RateLimits(msgspec.Struct, frozen=True):
    """The rate limits that Codex wrote down last.

    Attributes:
        used_up: The windows that are used up; none where there are credits.
        reached: Codex's own word for what was reached.
        windows: Every window that was written down, for `quota.reported`.
        has_credits: Whether Codex goes on beyond a used-up window.
    """

    used_up: tuple[Window, ...] = ()
    reached: str | None = None
    windows: tuple[QuotaWindow, ...] = ()
    has_credits: bool = False

    def closed(self, now: datetime | None) -> tuple[Window, ...]:
        """Return the used-up windows that have not opened again by `now`."""
        open_again = (w.resets_at is not None and now and w.resets_at <= now for w in self.used_up)
        return tuple(w for w, again in zip(self.used_up, open_again, strict=True) if not again)

    def dated(self) -> RateLimits:
        """Return what of them still means something in a later turn: the windows with a reset."""
        return msgspec.structs.replace(self, used_up=tuple(w for w in self.used_up if w.resets_at))


def read_rate_limits(value: Any, now: datetime | None) -> RateLimits:
    """Return the rate limits of a `token_count` event that was written at `now`."""
    evidence = limits.Evidence(body={"rate_limits": dictionary(value)}, now=now)
    quota = limits.quota("codex", evidence)
    windows = quota.windows if quota else ()
    if quota is not None and quota.has_credits:
        return RateLimits(windows=windows, has_credits=True)
    used_up = tuple(Window(w.resets_at) for w in windows if w.used_percent >= USED_UP)
    reached = codex.reached_type(dictionary(value)) or None
    return RateLimits(used_up=used_up, reached=reached, windows=windows)


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
    limit = limits.recognise("codex", limits.Evidence(body=error, text=text, now=now, zone=zone))
    if limit is None or limit.kind is not LimitKind.QUOTA:
        return limit
    if codex.is_credits(rates.reached or ""):
        return Limit(kind=LimitKind.CREDITS, message=limit.message)
    written = _latest(rates.closed(now))
    return msgspec.structs.replace(limit, resets_at=written) if written else limit


def limit_without_error(rates: RateLimits, now: datetime | None) -> Limit | None:
    """Return the limit that used-up windows alone tell of, as older files have it."""
    closed = rates.closed(now)
    return Limit(kind=LimitKind.QUOTA, resets_at=_latest(closed)) if closed else None


def reset_time(text: str, now: datetime | None, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, when a limit sentence says that the window opens again."""
    # Its callers know a clock only within a sentence; the package reads one at its start, too.
    if "Try again at " in text:
        return None
    return sentences.reset_time(text, now, zone) or after(now, sentences.delay(text))


def _latest(windows: Iterable[Window]) -> datetime | None:
    return max((w.resets_at for w in windows if w.resets_at is not None), default=None)
