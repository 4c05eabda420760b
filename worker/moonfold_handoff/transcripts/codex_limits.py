"""The rate limits that a Codex rollout writes down apart from its errors; the reader keeps the last."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from moonfold_handoff import limits
from moonfold_handoff.limits import codex
from moonfold_handoff.limits.quotas import Quota, latest_reset
from moonfold_handoff.transcripts.lines import dictionary, string
from moonfold_schemas.events import Limit, LimitKind, QuotaWindow

_SAME_RESET = timedelta(minutes=1)  # resets that are told relative to now differ by less


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
        return Quota(self.windows, self.has_credits).used_up(now)

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
    rates = dictionary(value)
    quota = limits.quota("codex", limits.Evidence(body={"rate_limits": rates}, now=now))
    return RateLimits(
        windows=quota.windows if quota else (),
        has_credits=quota is not None and quota.has_credits,
        reached=codex.reached_type(rates) or None,
        family=string(rates.get("limit_id")) or "",
    )


def completed(limit: Limit, rates: RateLimits, now: datetime | None) -> Limit:
    """Return a limit with what the rate limits tell better: what was reached, and its reset."""
    if limit.kind is not LimitKind.QUOTA:
        return limit
    if codex.is_credits(rates.reached or ""):
        return msgspec.structs.replace(limit, kind=LimitKind.CREDITS, resets_at=None)
    resets_at = latest_reset(rates.closed(now)) or limit.resets_at
    return msgspec.structs.replace(limit, resets_at=resets_at)


def limit_without_error(rates: RateLimits, now: datetime | None) -> Limit | None:
    """Return the limit that used-up windows alone tell of, as older files have it."""
    closed = rates.closed(now)
    return Limit(kind=LimitKind.QUOTA, resets_at=latest_reset(closed)) if closed else None


def _is_another(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > _SAME_RESET
