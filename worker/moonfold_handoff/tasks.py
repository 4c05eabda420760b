"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

CANCEL_AGAIN = 0.1  # seconds


async def end(task: asyncio.Task[Any], again: float = CANCEL_AGAIN) -> None:
    """Cancel a task, after `again` seconds anew, until it has ended; how is the caller's to ask.

    redis-py sends through `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives
    as the sending completes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=again)
    if not task.cancelled():
        task.exception()  # seen: asyncio would log it, with its message
