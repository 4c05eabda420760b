"""Times of limit notices, as the importers ask for them; `moonfold_handoff.limits` reads them."""

from __future__ import annotations

from moonfold_handoff.limits.clocks import CLOCK, clock_time, from_epoch

__all__ = ["CLOCK", "clock_time", "from_epoch"]
