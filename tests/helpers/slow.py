"""Jobs that are held up until a test lets them go on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.store import threads


@dataclass
class Gate:
    """Where every job waits that loads a thread.

    Attributes:
        opened: lets them go on.
        waiting: threads whose jobs are held up now.
        passed: number of jobs that were let through.
    """

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[str] = field(default_factory=list)
    passed: int = 0


def gate(monkeypatch: pytest.MonkeyPatch, *, only_folds: bool = False) -> Gate:
    """Hold up jobs where they load a thread."""
    held = Gate()
    original = threads.load

    async def load(
        redis: Redis, thread_id: str, through: int | None = None, **more: Any
    ) -> ThreadState:
        if through is None or not only_folds:
            held.waiting.append(thread_id)
            held.arrived.set()
            try:
                await held.opened.wait()
            finally:
                held.waiting.remove(thread_id)
            held.passed += 1
        return await original(redis, thread_id, through, **more)

    monkeypatch.setattr(threads, "load", load)
    return held
