"""Trees of threads on a real server, and an oracle that reads whole logs in memory for every question."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from helpers.asking import append, events
from helpers.building import assistant, command, user
from hypothesis import strategies as st
from redis.asyncio import Redis

from moonfold_handoff.context.portable import body
from moonfold_handoff.store import threads
from moonfold_schemas.events import ItemRecorded, ThreadEvent, ThreadForked, TurnsRolledBack
from moonfold_schemas.items import Item

DEEPEST = 4  # forks of forks
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
    item_id: str = ""
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

    def alive(self, to: int) -> list[tuple[str, Record]]:
        """Return the records up to a point that were not taken back, with whose they are."""
        alive: list[tuple[str, Record]] = []
        for holder, record in self.lineage(to):
            if record.to is None:
                alive.append((holder, record))
            else:
                alive = [(h, r) for h, r in alive if r.sequence <= record.to]
        return alive

    def means(self, to: int | None = None) -> list[tuple[int, str, str]]:
        """Return position, holder and text of every item the thread has at a point, in order."""
        alive = self.alive(self.last if to is None else to)
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
        thread.records.append(Record(thread.last, first, item.item_id, body(item)))

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


async def grown(redis: Redis, history: list[Step]) -> Tree:
    tree = Tree(redis, f"tree-{next(_trees)}")
    await tree.begin()
    for step in history:
        await tree.step(step)
    return tree
