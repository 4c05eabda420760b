"""Request enqueued to result in hand: an idle worker, a thread folded already; beside it stock arq."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient

from .content import conversation, hand_off, record, switch
from .figures import Advance, Figure, percentile
from .servers import STOCK_WORKER, WOKEN_WORKER, Server, server

ITEMS = 200
RATE = 20.0  # requests a second
WARM_UP = 20  # requests before those that count
PINGS = 60


@dataclass(slots=True)
class Times:
    """Milliseconds of each request: in all, and of these in `build_handoff`."""

    whole: list[float] = field(default_factory=list)
    building: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)


def measure(advance: Advance, *, requests: int, stock_requests: int) -> list[Figure]:
    """Measure both workers, one after the other, each with a server of its own.

    What is idle is slow to wake, and slower the busier the machine is with other things: what one
    round trip to the server takes at the same pace tells how much of a figure is that.
    """
    whole = requests + stock_requests
    with server() as own:
        woken = asyncio.run(
            _times(own, WOKEN_WORKER, requests, lambda done: advance(done * requests / whole))
        )
    with server() as other:
        stock = asyncio.run(
            _times(
                other,
                STOCK_WORKER,
                stock_requests,
                lambda done: advance((requests + done * stock_requests) / whole),
            )
        )
    median = percentile(woken.whole, 0.5)
    return [
        Figure("p50", median, "ms", at_most=4.0),
        Figure("p99", percentile(woken.whole, 0.99), "ms", at_most=15.0),
        Figure("most", max(woken.whole), "ms"),
        Figure("of which building, p50", percentile(woken.building, 0.5), "ms"),
        Figure("one PING at the same pace, p50", percentile(woken.pings, 0.5), "ms"),
        Figure("stock arq worker, p50", percentile(stock.whole, 0.5), "ms"),
        Figure("stock arq worker, p99", percentile(stock.whole, 0.99), "ms"),
        Figure("stock p50 / ours", percentile(stock.whole, 0.5) / median, "×"),
    ]


async def _times(own: Server, command: Sequence[str], requests: int, advance: Advance) -> Times:
    """Ask at a steady rate, whether or not the answers keep up with it."""
    times = Times()
    async with (
        HandoffClient("benchmark", own.settings) as client,
        Redis.from_url(own.settings.redis_url or "") as redis,
    ):
        thread_id = await record(client, conversation(ITEMS))
        with own.worker(command):
            await _one(client, thread_id, 0.0)  # however long the worker takes to start
            start = time.perf_counter() + 1 / RATE
            tasks = [
                asyncio.create_task(_one(client, thread_id, start + number / RATE))
                for number in range(WARM_UP + requests)
            ]
            for number, task in enumerate(tasks):
                whole, building = await task
                if number >= WARM_UP:
                    times.whole.append(whole)
                    times.building.append(building)
                advance(number / len(tasks))
            for _ in range(PINGS):
                await asyncio.sleep(1 / RATE)
                began = time.perf_counter()
                await redis.ping()
                times.pings.append((time.perf_counter() - began) * 1_000)
    return times


async def _one(client: HandoffClient, thread_id: str, at: float) -> tuple[float, float]:
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
    request = switch(client, thread_id, ITEMS)
    began = time.perf_counter()
    result = await hand_off(client, request)
    return (time.perf_counter() - began) * 1_000, result.duration_ms or 0.0
