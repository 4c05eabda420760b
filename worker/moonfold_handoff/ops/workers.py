"""Which workers live: each says so every few seconds, and what it does, without whose.

What a worker said expires by itself, so one that was killed is gone within `ALIVE_SECONDS`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
import structlog
from redis.asyncio import Redis

from moonfold_handoff.ops.metrics import Recent
from moonfold_handoff.store import keys
from moonfold_schemas import utc_now

ALIVE_SECONDS = 20  # a worker that has said nothing for so long counts as dead
READ = 1_000  # workers that are listed at most

_encode = msgspec.json.Encoder().encode
logger = structlog.get_logger()


class Slots(msgspec.Struct, frozen=True):
    """Jobs that a worker runs of one queue, and how many it can."""

    running: int
    slots: int


class Beat(msgspec.Struct, frozen=True):
    """What a worker says of itself.

    Attributes:
        token: tells workers apart.
        version: of the package.
        host: name of the machine.
        pid: of the process.
        started_at: since when it serves.
        metrics: where it serves its metrics, `host:port`; None where it does not.
        queues: what it runs, by queue.
        answered: requests it has answered.
        p50_ms: milliseconds from request to answer, median of the latest; None before the first.
        p99_ms: the same, of all but the slowest hundredth.
        recent: the latest handoffs, the oldest first.
    """

    token: str
    version: str
    host: str
    pid: int
    started_at: datetime
    metrics: str | None = None
    queues: dict[str, Slots] = {}
    answered: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    recent: tuple[Recent, ...] = ()


_decode = msgspec.json.Decoder(Beat).decode


async def beat(redis: Redis, said: Beat) -> None:
    """Keep what a worker says; in passing, those that have died are forgotten."""
    now = utc_now().timestamp()
    async with redis.pipeline(transaction=True) as pipe:
        pipe.set(keys.worker(said.token), _encode(said), ex=ALIVE_SECONDS)
        pipe.zadd(keys.WORKERS, {said.token: now})
        pipe.zremrangebyscore(keys.WORKERS, "-inf", now - ALIVE_SECONDS)
        pipe.expire(keys.WORKERS, ALIVE_SECONDS)
        await pipe.execute()


async def leave(redis: Redis, token: str) -> None:
    """Forget a worker that has stopped."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.delete(keys.worker(token))
        pipe.zrem(keys.WORKERS, token)
        await pipe.execute()


async def count(redis: Redis) -> int:
    """Return how many workers live."""
    since = utc_now().timestamp() - ALIVE_SECONDS
    return int(await redis.zcount(keys.WORKERS, since, "+inf"))


async def alive(redis: Redis) -> list[Beat]:
    """Return the workers that live, the one that started first in front."""
    tokens: list[bytes] = await redis.zrange(keys.WORKERS, 0, READ - 1)
    if not tokens:
        return []
    raws = await redis.mget([keys.worker(token.decode(errors="replace")) for token in tokens])
    found = []
    for raw in raws:
        if raw is None:
            continue  # it has died since
        try:
            found.append(_decode(raw))
        except (msgspec.DecodeError, UnicodeError):
            logger.warning("worker_beat_unreadable", bytes=len(raw))
    return sorted(found, key=lambda one: (one.started_at, one.token))
