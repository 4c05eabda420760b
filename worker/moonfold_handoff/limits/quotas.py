"""Quota windows: how far each is used up, and when the last of them opens again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from moonfold_schemas.events import QuotaWindow

USED_UP = 100.0  # percent

_LARGEST = 1e6  # percent; a greater number is no share of anything
_MAX_WINDOWS = 32
_NAME_LENGTH = 100
_MAX_MINUTES = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Quota:
    """Telemetry of an account: its windows, and whether it goes on beyond a used-up one."""

    windows: tuple[QuotaWindow, ...]
    has_credits: bool = False

    def used_up(self, now: datetime | None) -> tuple[QuotaWindow, ...]:
        """Return the windows that are used up and have not opened again by `now`.

        With credits or overage left, none is used up.
        """
        if self.has_credits:
            return ()
        return tuple(
            w for w in self.windows if w.used_percent >= USED_UP and not _has_opened(w, now)
        )


def quota_of(windows: Iterable[QuotaWindow | None], *, has_credits: bool = False) -> Quota | None:
    """Return what is known of the windows, or None where nothing is."""
    known = tuple(w for w in windows if w is not None)[:_MAX_WINDOWS]
    return Quota(known, has_credits) if known or has_credits else None


def window(
    name: str,
    used_percent: float | None,
    *,
    resets_at: datetime | None = None,
    minutes: float | None = None,
) -> QuotaWindow | None:
    """Return a window as the contract has it, or None where its use is unknown.

    Args:
        name: The provider's own name for it.
        used_percent: 0 to 100, or more.
        resets_at: When it opens again.
        minutes: How long it is.
    """
    if used_percent is None or not 0 <= used_percent <= _LARGEST:
        return None
    length = int(minutes) if minutes is not None and 0 < minutes <= _MAX_MINUTES else None
    return QuotaWindow(
        name=name[-_NAME_LENGTH:],
        used_percent=used_percent,
        resets_at=resets_at,
        minutes=length,
    )


def latest_reset(windows: Iterable[QuotaWindow]) -> datetime | None:
    """Return when the last of the windows opens again, as far as that is known."""
    return max((w.resets_at for w in windows if w.resets_at is not None), default=None)


def _has_opened(window: QuotaWindow, now: datetime | None) -> bool:
    return window.resets_at is not None and now is not None and window.resets_at <= now
