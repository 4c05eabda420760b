"""What threads and results take of the server's memory, and a busy worker of its machine's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.store import keys

from .content import conversation, hand_off, record, switch
from .figures import Advance, Figure
from .servers import Server, server

MEBIBYTE = 1024 * 1024  # bytes


def measure(advance: Advance, *, threads: int, thread_items: int) -> list[Figure]:
    with server() as own, own.worker() as worker:
        return asyncio.run(_measure(own, worker, threads, thread_items, advance))


async def _measure(
    own: Server, worker: int, threads: int, items: int, advance: Advance
) -> list[Figure]:
    events = conversation(items)
    async with HandoffClient("benchmark", own.settings) as client:
        redis = client.services.redis
        before = await _used(redis)
        recorded = []
        for number in range(threads):
            recorded.append(await record(client, events))
            advance(number / threads / 2)
        logs = await _used(redis) - before
        states = results = 0
        for number, thread_id in enumerate(recorded):
            request = switch(client, thread_id, items)
            await hand_off(client, request)
            states += await _size(redis, keys.state(thread_id))
            results += await _size(redis, keys.result(request.request_id))
            advance(0.5 + number / threads / 2)
        written = sum([await _size(redis, keys.log(thread_id)) for thread_id in recorded])
    return [
        Figure("an item's events in the log", written / threads / items, "bytes"),
        Figure("an item in all: log and index", logs / threads / items, "bytes"),
        Figure("a thread's state", states / threads, "bytes"),
        Figure("a result", results / threads, "bytes"),
        Figure("a busy worker, resident", _resident(worker) / MEBIBYTE, "MiB"),
    ]


async def _used(redis: Redis) -> int:
    return int((await redis.info("memory"))["used_memory"])


async def _size(redis: Redis, key: str) -> int:
    return int(await redis.memory_usage(key, samples=0) or 0)


def _resident(process: int) -> float:
    """Return the bytes that a process has in memory; NaN where the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return float("nan")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024.0
