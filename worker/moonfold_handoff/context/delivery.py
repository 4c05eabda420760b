"""Which delivery a target takes (R5, R6), and whether it needs one."""

from __future__ import annotations

import re

from moonfold_handoff.context.state import ThreadState
from moonfold_schemas.requests import ForkRequested, HandoffRequest, Target
from moonfold_schemas.results import Delivery

INJECT_ITEMS_SINCE = (0, 121, 0)
"""First Codex that has `thread/inject_items`; none of the 0.120 binaries does."""


def delivery_for(target: Target) -> Delivery:
    """Return native items where the target is known to take them, else attributed text."""
    given = target.native.inject_items
    if given is None:
        given = target.provider == "codex" and _version(target.version) >= INJECT_ITEMS_SINCE
    return Delivery.ITEMS if given else Delivery.TEXT


def goes_on_natively(request: HandoffRequest, state: ThreadState, target: Target) -> bool:
    """Return whether the provider can go on by itself, so that no history has to travel.

    A resume needs the target's conversation to have seen all of the thread; a native fork needs one of
    the thread that is forked. A session that tried in vain says so, and gets a portable handoff.

    Args:
        request: what is asked.
        state: the thread; for a fork its parent at the point, since a fork begins without conversations.
        target: where it goes on.
    """
    native = target.native
    able = native.fork if isinstance(request, ForkRequested) else native.resume
    known = state.conversation(target.conversation_id)
    if request.native_failed or not able or known is None:
        return False
    return known.provider == target.provider and not state.since(known).items


def _version(text: str | None) -> tuple[int, ...]:
    """Return the release numbers in `text`, such as `codex-cli 0.171.0`; () if there are none."""
    match = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(number) for number in match[0].split(".")) if match else ()
