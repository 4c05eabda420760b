"""Events appended per second: one client, one thread, records of 500 bytes, in batches."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from moonfold_handoff.client import HandoffClient
from moonfold_schemas import encode
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import AssistantMessage

from .content import new_id
from .figures import Advance, Figure
from .servers import Server, cpu_seconds, server

EVENT_BYTES = 500
BATCHES_WARM_UP = 4
ONE_BY_ONE = 500


def measure(advance: Advance, *, events: int, batch: int) -> list[Figure]:
    with server() as own:
        return asyncio.run(_measure(own, events, batch, advance))


async def _measure(own: Server, events: int, batch: int, advance: Advance) -> list[Figure]:
    warm_up = BATCHES_WARM_UP * batch
    records = [_event() for _ in range(warm_up + events + ONE_BY_ONE)]
    batched, single = records[:-ONE_BY_ONE], records[-ONE_BY_ONE:]
    thread_id, last, began, used, used_server = new_id(), 0, 0.0, 0.0, 0.0
    async with HandoffClient("benchmark", own.settings) as client:
        for start in range(0, len(batched), batch):
            if start == warm_up:
                used, used_server = time.process_time(), cpu_seconds(own.pid)
                began = time.perf_counter()
            last = await client.append(thread_id, last, batched[start : start + batch])
            if start % (20 * batch) == 0:
                advance(start / len(records))
        seconds = time.perf_counter() - began
        used, used_server = time.process_time() - used, cpu_seconds(own.pid) - used_server
        began = time.perf_counter()
        for record in single:
            last = await client.append(thread_id, last, [record])
        seconds_single = time.perf_counter() - began
    if last != len(records):
        raise RuntimeError(f"{last} events in the log, not {len(records)}")
    return [
        Figure("events in batches", events / seconds, "per second", at_least=30_000),
        Figure("client's processor share", used / seconds * 100, "%"),
        Figure("server's processor share", used_server / seconds * 100, "%"),
        Figure("events one by one", ONE_BY_ONE / seconds_single, "per second"),
    ]


def _event() -> ItemRecorded:
    head: dict[str, Any] = {"item_id": new_id(), "turn_id": "turn"}
    without = len(encode(ItemRecorded(item=AssistantMessage(text="", **head))))
    text = ("All tests pass again. " * EVENT_BYTES)[: EVENT_BYTES - without]
    return ItemRecorded(item=AssistantMessage(text=text, **head))
