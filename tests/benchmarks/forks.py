"""Many forks prepared at once: what each costs, and whether a person who waits notices."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.store import keys
from moonfold_schemas import Target
from moonfold_schemas.requests import ForkRequested
from moonfold_schemas.results import HandoffPrepared

from .content import conversation, hand_off, new_id, record, switch
from .figures import Advance, Figure, percentile
from .servers import Server, server

FORKS = 200
SHORT, LONG = 2_000, 20_000  # items of the forked threads
INTERACTIVE_ITEMS = 200
RATE = 40.0  # interactive requests a second
IDLE_REQUESTS = 200
WAIT_SECONDS = 60.0


def measure(advance: Advance) -> list[Figure]:
    """Measure interactive handoffs, idle and while forks of a long thread are prepared."""
    with server() as own:
        return asyncio.run(_measure(own, advance))


async def _measure(own: Server, advance: Advance) -> list[Figure]:
    async with (
        HandoffClient("benchmark", own.settings) as client,
        Redis.from_url(own.settings.redis_url or "") as redis,
    ):
        short = await record(client, conversation(SHORT))
        long = await record(client, conversation(LONG))
        talk = await record(client, conversation(INTERACTIVE_ITEMS))
        with own.worker():
            for thread_id, items in ((short, SHORT), (long, LONG), (talk, INTERACTIVE_ITEMS)):
                await hand_off(client, switch(client, thread_id, items))
            advance(0.3)
            idle = await _interactive(
                client, talk, asyncio.create_task(asyncio.sleep(IDLE_REQUESTS / RATE))
            )
            advance(0.6)
            began = time.perf_counter()
            preparing = asyncio.create_task(_prepare(client, long, LONG))
            busy = await _interactive(client, talk, preparing)
            took = time.perf_counter() - began
            of_long = await _bytes_a_fork(redis, await preparing)
            of_short = await _bytes_a_fork(redis, await _prepare(client, short, SHORT))
    idle_p99, busy_p99 = percentile(idle, 0.99), percentile(busy, 0.99)
    return [
        Figure("interactive p99, idle", idle_p99, "ms"),
        Figure(f"interactive p99 while {FORKS} forks are prepared", busy_p99, "ms"),
        Figure("busy / idle", busy_p99 / idle_p99, "×", at_most=2.0),
        Figure("interactive requests meanwhile", len(busy)),
        Figure(f"forks of {LONG:,} items prepared", FORKS / took, "per second"),
        Figure(f"stored for a fork of {SHORT:,} items", of_short, "bytes"),
        Figure(f"stored for a fork of {LONG:,} items", of_long, "bytes"),
        Figure("stored, long / short", of_long / of_short, "×", at_most=1.1),
    ]


async def _interactive(
    client: HandoffClient, thread_id: str, meanwhile: asyncio.Task[object]
) -> list[float]:
    """Ask at a steady rate until something else is done, and return the milliseconds of each."""
    asked: list[asyncio.Task[float]] = []
    start = time.perf_counter()
    while not meanwhile.done():
        asked.append(asyncio.create_task(_one(client, thread_id)))
        await asyncio.sleep(max(0.0, start + len(asked) / RATE - time.perf_counter()))
    return list(await asyncio.gather(*asked))


async def _one(client: HandoffClient, thread_id: str) -> float:
    began = time.perf_counter()
    await hand_off(client, switch(client, thread_id, INTERACTIVE_ITEMS))
    return (time.perf_counter() - began) * 1_000


async def _prepare(client: HandoffClient, thread_id: str, through: int) -> list[str]:
    """Ask for all forks at once and return their threads when all are prepared."""
    requests = [_request(client, thread_id, through) for _ in range(FORKS)]
    for request in requests:
        await client.request(request)
    # One after the other: what this process does beside is not to delay what it measures.
    for request in requests:
        result = await client.wait(request.request_id, WAIT_SECONDS)
        if not isinstance(result, HandoffPrepared):
            raise TypeError(f"not prepared but {type(result).__name__}")
    return [request.fork_thread_id for request in requests]


def _request(client: HandoffClient, thread_id: str, through: int) -> ForkRequested:
    return ForkRequested(
        request_id=new_id(),
        session_id=client.session_id,
        thread_id=thread_id,
        through=through,
        fork_thread_id=new_id(),
        target=Target(provider="claude-code", model="large"),
    )


async def _bytes_a_fork(redis: Redis, forks: list[str]) -> float:
    """Return what the server keeps for a fork, in the mean."""
    total = 0
    for fork in forks:
        for key in (keys.log(fork), keys.items(fork), keys.state(fork)):
            total += await redis.memory_usage(key) or 0
    return total / len(forks)
