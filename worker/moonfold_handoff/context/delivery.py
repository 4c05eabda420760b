"""Which of the two deliveries a target takes (R5, R6)."""

from __future__ import annotations

import re

from moonfold_schemas.requests import Target
from moonfold_schemas.results import Delivery

INJECT_ITEMS_SINCE = (0, 121, 0)
"""First Codex that has `thread/inject_items`; none of the 0.120 binaries does."""


def delivery_for(target: Target) -> Delivery:
    """Return native items where the target is known to take them, else attributed text."""
    given = target.native.inject_items
    if given is None:
        given = target.provider == "codex" and _version(target.version) >= INJECT_ITEMS_SINCE
    return Delivery.ITEMS if given else Delivery.TEXT


def _version(text: str | None) -> tuple[int, ...]:
    """Return the release numbers in `text`, such as `codex-cli 0.171.0`; () if there are none."""
    match = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(number) for number in match[0].split(".")) if match else ()
