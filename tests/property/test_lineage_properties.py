"""Trees of threads on a real server: what each thread's handoff draws from, told by an oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from conftest import Servers
from helpers.servers import RedisServer
from helpers.trees import Step, Thread, grown, histories
from hypothesis import given, settings
from redis.asyncio import Redis

from moonfold_handoff.context import window
from moonfold_handoff.context.portable import body
from moonfold_handoff.context.selection import select
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.store import log, threads
from moonfold_schemas.events import ItemRecorded

HUGE = 10**7  # bytes; everything fits


async def drawn(redis: Redis, thread: Thread, state: ThreadState) -> list[tuple[int, str, str]]:
    """Return position, holder and text of what a handoff with room for everything carries."""
    selection = select(state, thread.name, HUGE)
    refs = [choice.ref for choice in selection.choices]
    assert refs == list(state.kept)
    records = [(state.holder(thread.name, ref.record), ref.record) for ref in refs]
    found = []
    for ref, (holder, _), event in zip(refs, records, await log.fetch(redis, records), strict=True):
        assert isinstance(event, ItemRecorded)
        found.append((ref.position, holder, body(event.item)))
    return found


@pytest.fixture(scope="module")
def valkey(servers: Servers) -> RedisServer:
    return servers.get("valkey")


@contextmanager
def small_window() -> Iterator[None]:
    """Keep so little that short threads have more."""
    with mock.patch.multiple(window, WINDOW_ITEMS=5, SKETCH_BYTES=60):
        yield


@settings(max_examples=300, deadline=None)
@given(histories)
def test_a_handoff_draws_from_the_lineage(valkey: RedisServer, history: list[Step]) -> None:
    async def check() -> None:
        async with Redis.from_url(valkey.url) as redis:
            tree = await grown(redis, history)
            for thread in tree.threads:
                state = await threads.load(redis, thread.name)
                expected = thread.means()
                found = await drawn(redis, thread, state)
                assert found == expected
                positions = [position for position, _, _ in found]
                assert positions == sorted(set(positions))
                assert len({text for _, _, text in found}) == len(found)  # no text came twice
                assert state.items == len(expected)
                assert state.through == thread.last

    asyncio.run(check())


@settings(max_examples=200, deadline=None)
@given(histories)
def test_what_is_kept_of_a_long_lineage_is_its_end(
    valkey: RedisServer, history: list[Step]
) -> None:
    async def check() -> None:
        async with Redis.from_url(valkey.url) as redis:
            tree = await grown(redis, history)
            for thread in tree.threads:
                state = await threads.load(redis, thread.name)
                expected = [position for position, _, _ in thread.means()]
                window_ = [ref.position for ref in state.window]
                assert window_ == expected[len(expected) - len(window_) :]
                assert {ref.position for ref in state.kept} <= set(expected)
                assert state.items == len(expected)
                assert state.first_position == (expected[0] if expected else 0)

    with small_window():
        asyncio.run(check())
