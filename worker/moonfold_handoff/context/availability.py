"""Which provider instances are used up, and until when: what a limit notice means.

Only a used-up quota and spent credits make an instance unavailable. A throttle is waited for, unless the
provider's own delay is so long that it is a window. A full context or a refused login is not a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from moonfold_schemas import is_id
from moonfold_schemas.events import Limit, LimitKind, QuotaReported, QuotaWindow

HOLD = timedelta(hours=1)
"""How long a notice without a clock holds; after it the instance may be tried again."""

LONGEST_HOLD = timedelta(days=366)
"""No window is longer; a reset further ahead is a mistake of a clock or of a unit."""

LONGEST_THROTTLE = 300.0  # seconds; a longer delay is a used-up window
DEFAULT_THROTTLE = 30.0  # seconds, where the provider names no delay


class _Placed(Protocol):
    """What names a provider and an account of it."""

    @property
    def provider(self) -> str: ...
    @property
    def instance(self) -> str | None: ...


class Instance(NamedTuple):
    """A provider, and the account of it where several are used. A limit is one instance's."""

    provider: str
    instance: str | None = None

    @classmethod
    def of(cls, placed: _Placed) -> Instance:
        """Return the instance of a target or of a conversation."""
        return cls(placed.provider, placed.instance)

    @classmethod
    def parse(cls, name: str) -> Instance | None:
        """Return the instance of that name, `provider` or `provider/instance`; None if it is no name."""
        provider, slash, instance = name.partition("/")
        if not is_id(provider) or (slash and not is_id(instance)):
            return None
        return cls(provider, instance if slash else None)

    @property
    def name(self) -> str:
        """`provider` or `provider/instance`; no identifier holds a slash."""
        return self.provider if self.instance is None else f"{self.provider}/{self.instance}"


@dataclass(frozen=True, slots=True)
class Notice:
    """An instance is used up.

    Attributes:
        kind: quota or credits.
        noticed: when it was noticed; None where the record does not tell.
        until: when it is available again.
        assumed: the provider named no time; then `until` is when it may be tried again.
    """

    kind: LimitKind
    noticed: datetime | None
    until: datetime
    assumed: bool = False

    @property
    def resets_at(self) -> datetime | None:
        """When the provider said that it is available again; None where it did not."""
        return None if self.assumed else self.until


def notice_of(limit: Limit, noticed: datetime | None, now: datetime) -> Notice | None:
    """Return what a limit says of its instance, or None if the instance is not used up by it.

    Args:
        limit: as it was recognised.
        noticed: when; None where the record does not tell, then a delay counts from `now`.
        now: the current time.
    """
    at = noticed or now
    delay = _delay(limit, at)
    if limit.kind is LimitKind.THROTTLE and (delay is None or delay <= LONGEST_THROTTLE):
        return None
    if limit.kind not in {LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE}:
        return None
    kind = LimitKind.QUOTA if limit.kind is LimitKind.THROTTLE else limit.kind
    hold = HOLD if delay is None else timedelta(seconds=delay)
    return Notice(kind, noticed, at + hold, assumed=delay is None)


def throttle_delay(limit: Limit | None, now: datetime) -> float | None:
    """Return the seconds to wait where a limit is a throttle that passes soon, else None."""
    if limit is None or limit.kind is not LimitKind.THROTTLE:
        return None
    delay = _delay(limit, now)
    if delay is None:
        return DEFAULT_THROTTLE
    return delay if delay <= LONGEST_THROTTLE else None


def _delay(limit: Limit, at: datetime) -> float | None:
    """Return the seconds from `at` that the provider named, the longest of several; None if it named none."""
    named = [] if limit.retry_after is None else [limit.retry_after]
    if limit.resets_at is not None:
        named.append((limit.resets_at - at).total_seconds())
    return max(0.0, min(LONGEST_HOLD.total_seconds(), max(named))) if named else None


def fullest(report: QuotaReported) -> QuotaWindow | None:
    """Return the window that is used up first, by the share used; None if credits go beyond all."""
    if report.has_credits or not report.windows:
        return None
    return max(report.windows, key=lambda window: window.used_percent)
