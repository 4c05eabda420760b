"""Whether a long thread costs more than a short one: time to build from it, size of its state."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.fold import Entry, fold
from moonfold_handoff.context.rendering import render
from moonfold_handoff.context.selection import select
from moonfold_handoff.context.state import WINDOW_ITEMS, ThreadState
from moonfold_handoff.store import keys, log, threads
from moonfold_schemas.events import ConversationStarted, ItemRecorded, ThreadEvent
from moonfold_schemas.items import AssistantMessage, Item, ItemStatus

from .content import conversation, hand_off, new_id, record, switch
from .figures import Advance, Figure
from .servers import Server, server

SHORT = 1_000  # items
ALLOWANCE = 16_000  # bytes
WARM_UP = 10  # builds of each thread before those that count
FOLD_SHARE = 0.6  # of the whole benchmark is spent on recording and folding the long thread
STATE_BYTES = 64 * 1024
CONVERSATIONS = 64  # more than a state keeps
FAR = 1_000_000_000  # a position as long as any thread will have

Name = Literal["short", "long"]


def measure(advance: Advance, *, items: int, builds: int) -> list[Figure]:
    with server() as own:
        return asyncio.run(_measure(own, items, builds, advance))


async def _measure(own: Server, items: int, builds: int, advance: Advance) -> list[Figure]:
    lengths: dict[Name, int] = {"short": SHORT, "long": items}
    async with (
        HandoffClient("benchmark", own.settings) as client,
        Redis.from_url(own.settings.redis_url or "") as redis,
    ):
        thread_ids: dict[Name, str] = {}
        folding: dict[Name, float] = {}
        states: dict[Name, ThreadState] = {}
        for name, length in lengths.items():
            thread_ids[name] = await record(client, conversation(length))
            began = time.perf_counter()
            states[name] = await threads.load(redis, thread_ids[name])
            folding[name] = time.perf_counter() - began
        advance(FOLD_SHARE)
        kept = {
            name: len(await redis.hget(keys.state(thread_id), "s") or b"")
            for name, thread_id in thread_ids.items()
        }
        pure = {name: await _pure(redis, thread_ids[name], states[name]) for name in lengths}
        with own.worker():
            built: dict[Name, list[float]] = {"short": [], "long": []}
            for number in range(WARM_UP + builds):
                for name, length in lengths.items():
                    result = await hand_off(client, switch(client, thread_ids[name], length))
                    built[name].append(result.duration_ms or 0.0)
                advance(FOLD_SHARE + (1 - FOLD_SHARE) * number / (WARM_UP + builds))
    whole = {name: statistics.median(times[WARM_UP:]) for name, times in built.items()}
    core = _alternately(pure, builds)
    return [
        Figure(f"build, {SHORT:,} items", whole["short"], "ms"),
        Figure(f"build, {items:,} items", whole["long"], "ms"),
        Figure("build, long / short", whole["long"] / whole["short"], "×", at_most=1.2),
        Figure(f"select and render, {SHORT:,} items", core["short"], "ms"),
        Figure(f"select and render, {items:,} items", core["long"], "ms"),
        Figure("select and render, long / short", core["long"] / core["short"], "×", at_most=1.2),
        Figure(f"state, {SHORT:,} items", kept["short"], "bytes", at_most=STATE_BYTES),
        Figure(f"state, {items:,} items", kept["long"], "bytes", at_most=STATE_BYTES),
        Figure("state, as full as can be", _fullest(), "bytes", at_most=STATE_BYTES),
        Figure("items folded from the log", items / folding["long"], "per second"),
    ]


async def _pure(redis: Redis, thread_id: str, state: ThreadState) -> Callable[[], None]:
    """Return what a build does without the server: to choose, and to render the chosen items."""
    choices = select(state, thread_id, ALLOWANCE).choices
    events = await log.fetch(redis, [(thread_id, choice.ref.record) for choice in choices])
    contents: dict[int, Item] = {
        choice.ref.position: event.item
        for choice, event in zip(choices, events, strict=True)
        if isinstance(event, ItemRecorded)
    }

    def build() -> None:
        render(select(state, thread_id, ALLOWANCE), contents, b"seed")

    return build


def _alternately(builds: dict[Name, Callable[[], None]], times: int) -> dict[Name, float]:
    """Return the median milliseconds of each, taken in turns."""
    taken: dict[Name, list[float]] = {name: [] for name in builds}
    for _ in range(WARM_UP + times):
        for name, build in builds.items():
            began = time.perf_counter()
            build()
            taken[name].append((time.perf_counter() - began) * 1_000)
    return {name: statistics.median(values[WARM_UP:]) for name, values in taken.items()}


def _fullest() -> int:
    """Return the size of a state with all the references and conversations that it can keep."""
    events: list[ThreadEvent] = [
        ConversationStarted(
            conversation_id=new_id(),
            provider="claude-code",
            model="a-model-with-a-long-name-20261130",
            options={"context_window": "1m", "reasoning_effort": "high"},
            capacity=1_000_000,
        )
        for _ in range(CONVERSATIONS)
    ]
    tiny = AssistantMessage(item_id=new_id(), turn_id="turn", text="k", status=ItemStatus.FAILED)
    events += [ItemRecorded(item=tiny)] * (2 * WINDOW_ITEMS)
    entries = [Entry(number, number, event) for number, event in enumerate(events, FAR)]
    return len(msgspec.json.encode(fold(ThreadState(), entries)))
