"""Trees of threads on a real server: what each thread's handoff draws from, told by an oracle."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import pytest
from conftest import Servers
from helpers.asking import append, events
from helpers.building import assistant, command, user
from helpers.servers import RedisServer
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from moonfold_handoff.context import window
from moonfold_handoff.context.portable import body
from moonfold_handoff.context.selection import select
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.store import log, threads
from moonfold_schemas.events import ItemRecorded, ThreadEvent, ThreadForked, TurnsRolledBack
from moonfold_schemas.items import Item

DEEPEST = 4  # forks of forks
HUGE = 10**7  # bytes; everything fits
KINDS = (user, assistant, command)

_trees = itertools.count()

# What happens to the tree. A pick is taken modulo what there is, a part in thousandths of a log.


@dataclass(frozen=True)
class Add:
    """A thread gets new items."""

    thread: int
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class Again:
    """A thread's own item, perhaps one that was taken back, is recorded again."""

    thread: int
    pick: int


@dataclass(frozen=True)
class RollBack:
    """A thread goes back to a point, perhaps one before it was forked."""

    thread: int
    part: int


@dataclass(frozen=True)
class Fork:
    """A thread is forked at a point, perhaps one before it was forked itself."""

    thread: int
    part: int


@dataclass(frozen=True)
class Load:
    """A worker folds a thread up to a point and keeps the state."""

    thread: int
    part: int


Step = Add | Again | RollBack | Fork | Load

picks = st.integers(0, 99)
parts = st.integers(0, 1_000)
late = st.integers(800, 1_000)
adds = st.builds(Add, picks, st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))
forks = st.builds(Fork, picks, parts | late)
steps: st.SearchStrategy[Step] = st.one_of(
    adds,
    adds,
    adds,
    forks,
    forks,
    st.builds(Again, picks, picks),
    st.builds(RollBack, picks, parts | late),
    st.builds(Load, picks, parts | st.just(1_000)),
)
histories = st.sampled_from([1, 10, 20, 30]).flatmap(
    lambda least: st.lists(steps, min_size=least, max_size=35)
)


# The oracle: whole logs in memory, read from the start for every question.


@dataclass(frozen=True)
class Record:
    """One entry of a log: an item's content, or a rollback."""

    sequence: int
    position: int
    text: str = ""
    to: int | None = None


@dataclass
class Thread:
    """A thread as the test wrote it."""

    name: str
    parent: Thread | None = None
    begins: int = 0  # after this sequence
    records: list[Record] = field(default_factory=list)
    last: int = 0
    own: list[tuple[str, int]] = field(default_factory=list)  # item id; position, 0 if taken back

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def lineage(self, to: int) -> list[tuple[str, Record]]:
        """Return all records up to a point, the eldest ancestor's first, with whose they are."""
        inherited = [] if self.parent is None else self.parent.lineage(min(to, self.begins))
        return inherited + [(self.name, r) for r in self.records if r.sequence <= to]

    def means(self) -> list[tuple[int, str, str]]:
        """Return position, holder and text of every item the thread has, in order."""
        alive: list[tuple[str, Record]] = []
        for holder, record in self.lineage(self.last):
            if record.to is None:
                alive.append((holder, record))
            else:
                alive = [(h, r) for h, r in alive if r.sequence <= record.to]
        newest = {record.position: (holder, record.text) for holder, record in alive}
        return [(position, *newest[position]) for position in sorted(newest)]


@dataclass
class Tree:
    """The threads, on the server and in the oracle."""

    redis: Redis
    name: str
    threads: list[Thread] = field(default_factory=list)
    texts: Iterator[int] = field(default_factory=itertools.count)

    async def begin(self) -> None:
        self.threads.append(Thread(self.name))
        await self.record(self.threads[0], user("begin", item_id="begin"))

    async def record(self, thread: Thread, item: Item) -> None:
        await self.write(thread, ItemRecorded(item=item))
        first = next((p for name, p in thread.own if name == item.item_id), 0) or thread.last
        thread.own = [one for one in thread.own if one[0] != item.item_id]
        thread.own.append((item.item_id, first))
        thread.records.append(Record(thread.last, first, body(item)))

    async def write(self, thread: Thread, event: ThreadEvent) -> None:
        thread.last = await append(
            self.redis, events(event), thread_id=thread.name, after=thread.last
        )

    def item(self, kind: int, item_id: str | None = None) -> Item:
        number = next(self.texts)
        return KINDS[kind](f"text {number}", item_id=item_id or f"item-{number}")

    async def step(self, step: Step) -> None:
        thread = self.threads[step.thread % len(self.threads)]
        match step:
            case Add(kinds=kinds):
                for kind in kinds:
                    await self.record(thread, self.item(kind))
            case Again(pick=pick):
                own = thread.own
                if own:
                    item_id, _ = own[pick % len(own)]
                    await self.record(thread, self.item(pick % len(KINDS), item_id))
            case RollBack(part=part):
                to = thread.last * part // 1_000
                await self.write(thread, TurnsRolledBack(to=to))
                thread.records.append(Record(thread.last, thread.last, to=to))
                # What is recorded again after it was taken back is a new item.
                thread.own = [(name, p if p <= to else 0) for name, p in thread.own]
            case Fork(part=part):
                if thread.depth < DEEPEST:
                    await self.fork(thread, max(1, thread.last * part // 1_000))
            case Load(part=part):
                await threads.load(self.redis, thread.name, max(1, thread.last * part // 1_000))

    async def fork(self, parent: Thread, point: int) -> None:
        fork = Thread(f"{self.name}-{len(self.threads)}", parent, begins=point, last=point)
        forked = ThreadForked(parent_thread_id=parent.name, through=point)
        await self.write(fork, forked)
        self.threads.append(fork)

    async def drawn(self, thread: Thread, state: ThreadState) -> list[tuple[int, str, str]]:
        """Return position, holder and text of what a handoff with room for everything carries."""
        selection = select(state, thread.name, HUGE)
        refs = [choice.ref for choice in selection.choices]
        assert refs == list(state.kept)
        records = [(state.holder(thread.name, ref.record), ref.record) for ref in refs]
        found = []
        for ref, (holder, _), event in zip(
            refs, records, await log.fetch(self.redis, records), strict=True
        ):
            assert isinstance(event, ItemRecorded)
            found.append((ref.position, holder, body(event.item)))
        return found


async def grown(redis: Redis, history: list[Step]) -> Tree:
    tree = Tree(redis, f"tree-{next(_trees)}")
    await tree.begin()
    for step in history:
        await tree.step(step)
    return tree


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
                found = await tree.drawn(thread, state)
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
