"""How the queues stand, read from the server in one round trip, so right whichever worker is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from redis.asyncio import Redis

from moonfold_handoff.store import keys
from moonfold_handoff.store.queue import READ_LIMIT
from moonfold_handoff.store.scripts import worker_script

QUEUES = (keys.HANDOFFS, keys.BACKGROUND)
FIELDS = 4  # numbers that the script returns for a queue

_figures = worker_script("figures")


class QueueFigures(NamedTuple):
    """How one queue stands.

    Attributes:
        queue: `handoffs` or `background`.
        depth: jobs that are due and wait for a worker.
        in_progress: jobs that any worker has claimed; those of a killed one until the claim expires.
        deferred: jobs that are due later, which is: to be tried again.
        oldest_seconds: how long ago the oldest job that is not done became due; 0 if none is.
    """

    queue: str
    depth: int
    in_progress: int
    deferred: int
    oldest_seconds: float


class Figures(NamedTuple):
    """How all queues stand.

    Attributes:
        queues: each of them.
        rejected: dead letters that are kept.
        rejected_at: when the latest one was rejected; None if none is kept.
    """

    queues: tuple[QueueFigures, ...]
    rejected: int
    rejected_at: datetime | None


async def read(redis: Redis) -> Figures:
    """Return the figures of now, by the server's clock; the cost does not depend on the depth."""
    *numbers, rejected, latest = await _figures(redis, (*QUEUES, keys.REJECTED), (READ_LIMIT,))
    rows = zip(*[iter(numbers)] * FIELDS, strict=True)
    queues = tuple(
        QueueFigures(name(key), waiting, running, deferred, age / 1000)
        for key, (waiting, running, deferred, age) in zip(QUEUES, rows, strict=True)
    )
    return Figures(queues, rejected, _time(latest) if latest else None)


def name(key: str) -> str:
    """Return what a queue is called, which is its key without the prefix."""
    return key.rpartition(":")[2]


def _time(entry_id: bytes) -> datetime:
    """Return when a stream's entry was added, from its id."""
    return datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, UTC)
