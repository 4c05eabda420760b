"""Where a thread's history is at a point: which logs hold it, what of it was taken back, what it says.

Nothing here reads a log through. A log begins where its parent's part ends, so each sequence is in one
log; `append` notes beside a log what was rolled back, and where an item was recorded again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from moonfold_handoff.errors import HistoryCorruptError, ThreadNotFoundError
from moonfold_handoff.store import keys, log
from moonfold_handoff.store.scripts import worker_script
from moonfold_handoff.store.threads import MAX_LINEAGE
from moonfold_schemas.events import ItemRecorded, ThreadForked
from moonfold_schemas.items import Item

ENTRIES = 128  # of a log looked at in one step of a walk; the server does nothing else meanwhile
BYTES = 512 * 1024  # of events read in one step, about, unless one event is larger

_records = worker_script("records")


class Span(NamedTuple):
    """Sequences `first` to `last`, both included."""

    first: int
    last: int


class Segment(NamedTuple):
    """The part of a lineage that one log holds."""

    thread_id: str
    first: int
    last: int


class Content(NamedTuple):
    """An item at its position, with the record that held its content at the point in question."""

    position: int
    recorded: ItemRecorded

    @property
    def item(self) -> Item:
        """The item as it was then."""
        return self.recorded.item


class Step(NamedTuple):
    """One step of a walk.

    Attributes:
        contents: the items found, in the direction of the walk.
        reached: the sequence that was looked at last.
    """

    contents: list[Content]
    reached: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A thread's history at a point.

    Attributes:
        segments: the logs that hold it, the eldest ancestor's first.
        alive: what was not taken back, in order, each span within one segment.
    """

    segments: tuple[Segment, ...]
    alive: tuple[Span, ...]

    @property
    def through(self) -> int:
        """The last sequence there is; 0 if there is none."""
        return self.segments[-1].last if self.segments else 0

    def is_alive(self, sequence: int) -> bool:
        """Return whether there is a record at `sequence` that was not taken back."""
        return any(span.first <= sequence <= span.last for span in self.alive)


async def lineage(redis: Redis, thread_id: str, through: int) -> Lineage:
    """Return the history of a thread at sequence `through`, or at the end of its log if that is earlier.

    One round trip for the thread and each of its ancestors.

    Raises:
        ThreadNotFoundError: the thread, or an ancestor, has no log.
        HistoryCorruptError: a log does not begin as a thread or a fork does.
    """
    segments: list[Segment] = []
    voided: list[Span] = []
    for _ in range(MAX_LINEAGE + 1):
        opening = await _opening(redis, thread_id)
        last = min(through, opening.last)
        if opening.first <= last:
            segments.append(Segment(thread_id, opening.first, last))
            # A rollback is recorded right after what it takes back.
            voided += [span for span in opening.voided if span.last < last]
        through = min(through, opening.first - 1)
        if opening.parent_id is None:
            segments.reverse()
            return Lineage(tuple(segments), tuple(_alive(segments, voided)))
        thread_id = opening.parent_id
    raise HistoryCorruptError(f"A thread has more than {MAX_LINEAGE} ancestors.")


async def walk(
    redis: Redis, lineage: Lineage, span: Span, *, down: bool = False
) -> AsyncGenerator[Step, None]:
    """Yield the items whose positions are in `span`, a bounded step at a time, one round trip each.

    Raises:
        HistoryCorruptError: an entry is no thread event.
    """
    for segment in reversed(lineage.segments) if down else lineage.segments:
        first, last = max(span.first, segment.first), min(span.last, segment.last)
        while first <= last:
            step = await _step(redis, lineage, segment, Span(first, last), down=down)
            first, last = (first, step.reached - 1) if down else (step.reached + 1, last)
            yield step


async def content(redis: Redis, lineage: Lineage, position: int) -> Content | None:
    """Return the item at `position`, or None where none begins, or it was taken back.

    Raises:
        HistoryCorruptError: the entry is no thread event.
    """
    if not lineage.is_alive(position):
        return None
    found = None
    async for step in walk(redis, lineage, Span(position, position)):
        found = next(iter(step.contents), None)
    return found


async def position_of(redis: Redis, lineage: Lineage, item_id: str) -> int | None:
    """Return the position of an item by its id, the youngest thread's first, or None.

    An item that was taken back and recorded again has had several; one of them at most is alive.

    Args:
        redis: the server of threads.
        lineage: where to look.
        item_id: a valid identifier; other names have other meanings in the index.
    """
    async with redis.pipeline(transaction=False) as pipe:
        for segment in lineage.segments:
            pipe.hmget(keys.items(segment.thread_id), [item_id, f"@{item_id}"])
        found = await pipe.execute()
    for segment, (current, earlier) in zip(
        reversed(lineage.segments), reversed(found), strict=True
    ):
        for position in (*_numbers(current), *_numbers(earlier)):
            if segment.first <= position <= segment.last and lineage.is_alive(position):
                return position
    return None


class _Opening(NamedTuple):
    """What is known of a log without reading it."""

    first: int
    last: int
    parent_id: str | None
    voided: list[Span]


async def _opening(redis: Redis, thread_id: str) -> _Opening:
    async with redis.pipeline(transaction=False) as pipe:
        pipe.xrange(keys.log(thread_id), count=1)
        pipe.xrevrange(keys.log(thread_id), count=1)
        pipe.hget(keys.items(thread_id), "~")
        head, tail, rolled_back = await pipe.execute()
    if not head:
        raise ThreadNotFoundError(f"There is no log of thread {thread_id}.")
    raw_id, fields = head[0]
    first = log.sequence_of(raw_id)
    parent_id = None
    if first > 1:
        event = log.event_of(first, fields.get(b"e", b""))
        if not isinstance(event, ThreadForked) or event.through != first - 1:
            raise HistoryCorruptError(f"The log of thread {thread_id} begins at {first}.")
        parent_id = event.parent_thread_id
    ends = _numbers(rolled_back)
    voided = [Span(*ends) for ends in zip(ends[::2], ends[1::2], strict=True)]
    return _Opening(first, log.sequence_of(tail[0][0]), parent_id, voided)


async def _step(
    redis: Redis, lineage: Lineage, segment: Segment, span: Span, *, down: bool
) -> Step:
    alive = [s for s in lineage.alive if segment.first <= s.first <= segment.last]
    reached, *found = await _records(
        redis,
        (keys.log(segment.thread_id), keys.items(segment.thread_id)),
        (
            span.first,
            span.last,
            "down" if down else "up",
            ENTRIES,
            BYTES,
            " ".join(f"{first}-{last}" for first, last in alive),
        ),
    )
    return Step(list(_contents(found)), int(reached))


def _contents(found: Sequence[Any]) -> Iterable[Content]:
    for position, record, raw in zip(found[::3], found[1::3], found[2::3], strict=True):
        event = log.event_of(int(record), raw)
        if isinstance(event, ItemRecorded):
            yield Content(int(position), event)


def _alive(segments: Iterable[Segment], voided: Iterable[Span]) -> Iterable[Span]:
    """Yield what of `segments` is outside of `voided`, in order."""
    holes = sorted(span for span in voided if span.first <= span.last)
    for segment in segments:
        first = segment.first
        for hole in holes:
            if first < hole.first <= segment.last:
                yield Span(first, hole.first - 1)
            if hole.first <= segment.last:
                first = max(first, hole.last + 1)
        if first <= segment.last:
            yield Span(first, segment.last)


def _numbers(raw: bytes | None) -> list[int]:
    return [int(number) for number in re.findall(rb"\d+", raw or b"")]
