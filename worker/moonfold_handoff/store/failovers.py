"""What a failover depends on beside the thread: who is used up, and how often the thread went on already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from redis.asyncio import Redis

from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.store import keys, providers
from moonfold_handoff.store.scripts import worker_script

COUNTED = timedelta(hours=1)
"""How long a failover counts against the cap."""

_read = worker_script("failover")


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when a failover is asked for.

    Attributes:
        notices: the used-up instances among those asked about.
        earlier: when the thread failed over within the hour, the oldest first.
    """

    notices: dict[Instance, Notice] = field(default_factory=dict)
    earlier: tuple[datetime, ...] = ()


async def situation(
    redis: Redis, thread_id: str, through: int, instances: Iterable[Instance], *, now: datetime
) -> Situation:
    """Return what is known, in one round trip.

    Args:
        redis: the server of queues.
        thread_id: the thread.
        through: the point of the thread it is about; asked for from there before, it does not count.
        instances: where the thread may go on.
        now: the current time.
    """
    asked = list(dict.fromkeys(instances))
    since = providers.milliseconds(now - COUNTED)
    names = [instance.name for instance in asked]
    failovers, standings = await _read(
        redis, (keys.PROVIDERS, keys.failovers(thread_id)), (since, *names)
    )
    pairs = zip(failovers[::2], failovers[1::2], strict=True)
    earlier = [float(at) / 1000 for name, at in pairs if int(name) != through]
    return Situation(
        providers.notices(asked, standings, now=now),
        tuple(datetime.fromtimestamp(at, UTC) for at in earlier),
    )


async def count(redis: Redis, thread_id: str, through: int, *, now: datetime) -> None:
    """Count a failover of a thread at a point, once however often it is asked for from there.

    A thread that goes back and forth grows with every agent's turn.
    """
    key = keys.failovers(thread_id)
    async with redis.pipeline(transaction=True) as pipe:
        pipe.zremrangebyscore(key, "-inf", providers.milliseconds(now - COUNTED))
        pipe.zadd(key, {str(through): providers.milliseconds(now)}, nx=True)
        pipe.pexpire(key, COUNTED)
        await pipe.execute()
