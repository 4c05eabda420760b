"""How it all stands, at one glance: whether somebody has to look into it, and why."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from msgspec import Struct

from moonfold_handoff.ops import queues, workers
from moonfold_handoff.ops.queues import Figures, QueueFigures
from moonfold_handoff.ops.workers import Beat
from moonfold_handoff.services import Services
from moonfold_handoff.store import keys, providers
from moonfold_handoff.store.providers import Known
from moonfold_schemas import utc_now

MAX_AGE = 60.0  # seconds that a person waits for a handoff; after `kill -9` it is 30
BACKGROUND_AGE = 900.0  # seconds that what is done ahead of need may wait
REJECTED_LATELY = timedelta(hours=1)
FULL = 0.9  # share of its memory that a server uses at most; a full one takes no data


class Server(Struct, frozen=True):
    """The server of the queues.

    Attributes:
        round_trip_ms: milliseconds that one PING took.
        memory_bytes: that it uses.
        memory_limit_bytes: that it may use; 0 is no limit.
    """

    round_trip_ms: float
    memory_bytes: int
    memory_limit_bytes: int


class Status(Struct, frozen=True):
    """How it all stands.

    Attributes:
        problems: a sentence for each thing that somebody has to look into.
        figures: of the queues.
        workers: that live.
        providers: of which something is known.
        server: of the queues.
    """

    problems: tuple[str, ...]
    figures: Figures
    workers: list[Beat]
    providers: list[Known]
    server: Server

    @property
    def is_healthy(self) -> bool:
        """Whether nobody has to look into anything."""
        return not self.problems


async def read(services: Services, *, max_age: float = MAX_AGE) -> Status:
    """Return how it all stands now.

    Args:
        services: the connections.
        max_age: seconds that the oldest interactive job may be due.

    Raises:
        RedisError, OSError: the server cannot be used.
    """
    redis = services.redis
    began = time.perf_counter()
    await redis.ping()
    took = time.perf_counter() - began
    figures, living, known, memory = await asyncio.gather(
        queues.read(redis),
        workers.alive(redis),
        providers.listed(redis, now=utc_now()),
        redis.info("memory"),
    )
    server = Server(round(took * 1000, 3), memory["used_memory"], memory["maxmemory"])
    problems = tuple(_problems(figures, living, server, max_age))
    return Status(problems, figures, living, known, server)


def _problems(figures: Figures, living: list[Beat], server: Server, max_age: float) -> list[str]:
    found = [] if living else ["No worker lives; start one with `moonfold worker`."]
    found += filter(None, (_backlog(queue, max_age) for queue in figures.queues))
    if figures.rejected_at is not None:
        ago = utc_now() - figures.rejected_at
        if ago < REJECTED_LATELY:
            minutes = max(0, int(ago.total_seconds() // 60))
            found.append(f"A job was rejected {minutes} min ago; see `moonfold rejected list`.")
    if server.memory_limit_bytes and server.memory_bytes > FULL * server.memory_limit_bytes:
        share = server.memory_bytes / server.memory_limit_bytes
        found.append(f"The server uses {share:.0%} of its memory; a full one takes no data.")
    return found


def _backlog(queue: QueueFigures, max_age: float) -> str:
    most = max_age if queue.queue == queues.name(keys.HANDOFFS) else BACKGROUND_AGE
    if queue.oldest_seconds <= most:
        return ""
    return (
        f"The oldest job of {queue.queue} is due for {queue.oldest_seconds:.0f} s, "
        f"which should be {most:.0f} s at most."
    )
