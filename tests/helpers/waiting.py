"""Waiting for what happens elsewhere: by looking again and again, never by a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_SECONDS = 15.0
POLL_SECONDS = 0.005


async def until(
    condition: Callable[[], Awaitable[object]], seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait until `condition` holds; a TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(POLL_SECONDS)


def until_sync(condition: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until `condition` holds, outside an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_SECONDS)
