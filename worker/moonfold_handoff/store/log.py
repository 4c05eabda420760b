"""A thread's log: a Redis stream with one entry an event, whose ids are the events' sequences."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from moonfold_handoff.context.fold import Entry
from moonfold_handoff.errors import HistoryCorruptError
from moonfold_handoff.store import keys
from moonfold_handoff.store.scripts import Argument, producer_script, worker_script
from moonfold_schemas import WireError, decode_event, encode, is_id
from moonfold_schemas.events import ItemRecorded, ThreadEvent

PAGE = 64  # entries read, and folded, at once; meanwhile nothing else runs
BATCH_EVENTS = 500  # events sent in one call at most
BATCH_BYTES = 4 * 1024 * 1024  # bytes sent in one call at most, unless one event is larger

_append = producer_script("append")
_fetch = worker_script("fetch")
_renew = worker_script("renew")
_REFUSAL = re.compile(r"(SEQUENCE_GAP|SEQUENCE_CONFLICT|EVENT_TOO_LARGE) (.*)")


class AppendError(Exception):
    """The log refused events; nothing of that call was recorded."""


class SequenceGapError(AppendError):
    """The log ends before the sequence that the producer expected; `last` is where."""

    def __init__(self, last: int) -> None:
        super().__init__(f"The log ends at sequence {last}, before the expected one.")
        self.last = last


class SequenceConflictError(AppendError):
    """Another event is recorded at `sequence` already."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"Another event is recorded at sequence {sequence} already.")
        self.sequence = sequence


class EventTooLargeError(AppendError):
    """An event is larger than the log accepts."""

    def __init__(self, sequence: int, size: int, limit: int) -> None:
        super().__init__(
            f"The event for sequence {sequence} has {size} bytes; the log accepts {limit}."
        )
        self.sequence, self.size, self.limit = sequence, size, limit


async def append(
    redis: Redis,
    thread_id: str,
    expected: int,
    events: Sequence[ThreadEvent],
    *,
    ttl: int,
    max_event_bytes: int,
) -> int:
    """Add events after sequence `expected` and return the log's last sequence.

    Sent in batches, each all or nothing. Repeating a call that may have succeeded is harmless.

    Args:
        redis: the server.
        thread_id: the thread.
        expected: the last sequence the producer knows of; 0 for a new thread.
        events: what happened, in order.
        ttl: lifetime of the thread from now, in seconds.
        max_event_bytes: largest event accepted.

    Raises:
        SequenceGapError: the log ends before `expected`.
        SequenceConflictError: other events are recorded there.
        EventTooLargeError: an event exceeds `max_event_bytes`.
        WireError: an event or the thread id is not valid, for example has other characters.
    """
    if not is_id(thread_id):
        raise WireError("the thread id is not 1-200 characters of A-Z a-z 0-9 . _ : -")
    thread_keys = (keys.log(thread_id), keys.items(thread_id), keys.state(thread_id))
    last = expected
    for first, batch in _batches(expected, events):
        arguments: list[Argument] = [first, ttl * 1000, max_event_bytes, *batch]
        try:
            last = int(await _append(redis, thread_keys, arguments))
        except ResponseError as error:
            raise _refusal(error) from None
    return last


def _batches(expected: int, events: Sequence[ThreadEvent]) -> list[tuple[int, list[Argument]]]:
    """Return (sequence before, arguments) for each call; all events are checked before the first."""
    batches: list[tuple[int, list[Argument]]] = []
    size = BATCH_BYTES
    for offset, event in enumerate(events):
        raw = encode(event)
        checked = decode_event(raw)
        item_id = checked.item.item_id if isinstance(checked, ItemRecorded) else ""
        if size + len(raw) > BATCH_BYTES or len(batches[-1][1]) >= 2 * BATCH_EVENTS:
            batches.append((expected + offset, []))
            size = 0
        batches[-1][1].extend((raw, item_id))
        size += len(raw)
    return batches


def _refusal(error: ResponseError) -> Exception:
    match = _REFUSAL.match(str(error))
    if match is None:
        return error
    numbers = [int(number) for number in re.findall(r"=(\d+)", match[2])]
    refusals: dict[str, Callable[..., AppendError]] = {
        "SEQUENCE_GAP": SequenceGapError,
        "SEQUENCE_CONFLICT": SequenceConflictError,
        "EVENT_TOO_LARGE": EventTooLargeError,
    }
    return refusals[match[1]](*numbers)


async def read(
    redis: Redis, thread_id: str, *, after: int, through: int
) -> AsyncIterator[list[Entry]]:
    """Yield the entries after sequence `after` up to `through`, a page at a time.

    Raises:
        HistoryCorruptError: an entry is no thread event, or one is missing.
    """
    while after < through:
        page = await redis.xrange(
            keys.log(thread_id), min=f"({after}-0", max=f"{through}-0", count=PAGE
        )
        entries = [_entry(raw_id, fields) for raw_id, fields in page]
        for entry in entries:
            if entry.sequence != after + 1:
                break
            after = entry.sequence
        if not entries or entries[-1].sequence != after:
            raise HistoryCorruptError(f"The log has no entry {after + 1}.")
        yield entries


async def raw(redis: Redis, thread_id: str, *, after: int, count: int) -> list[bytes]:
    """Return the bytes of the next `count` events after sequence `after`, as they were appended."""
    page = await redis.xrange(keys.log(thread_id), min=f"({after}-0", count=count)
    return [fields.get(b"e", b"") for _, fields in page]


async def first(redis: Redis, thread_id: str) -> int:
    """Return the first sequence of a log, which for a fork is one after its parent's; 0 if none."""
    head = await redis.xrange(keys.log(thread_id), count=1)
    return sequence_of(head[0][0]) if head else 0


async def renew(redis: Redis, thread_ids: Iterable[str], *, ttl: int) -> None:
    """Let threads live for `ttl` seconds from now, or as long as they do anyhow.

    A fork reads its ancestors' logs, so they are kept while it goes on.
    """
    for thread_id in thread_ids:
        thread_keys = (keys.log(thread_id), keys.items(thread_id), keys.state(thread_id))
        await _renew(redis, thread_keys, (ttl,))


async def last(redis: Redis, thread_id: str) -> int:
    """Return the last sequence of a log; 0 if there is none."""
    tail = await redis.xrevrange(keys.log(thread_id), count=1)
    return sequence_of(tail[0][0]) if tail else 0


async def read_back(
    redis: Redis, thread_id: str, through: int
) -> AsyncIterator[tuple[int, ThreadEvent]]:
    """Yield sequence and event of a log's entries from `through` backwards.

    Raises:
        HistoryCorruptError: an entry is no thread event.
    """
    end = f"{through}-0"
    while page := await redis.xrevrange(keys.log(thread_id), max=end, count=PAGE):
        for raw_id, fields in page:
            entry = _entry(raw_id, fields)
            yield entry.sequence, entry.event
        end = f"({sequence_of(page[-1][0])}-0"


async def fetch(redis: Redis, records: Sequence[tuple[str, int]]) -> list[ThreadEvent]:
    """Return the events at (thread id, sequence), in one round trip for each thread.

    Raises:
        HistoryCorruptError: an entry is missing or no thread event.
    """
    # A pipeline of XRANGEs costs the client twice as much: each is a command and a reply.
    held: dict[str, list[int]] = {}
    for thread_id, sequence in records:
        held.setdefault(thread_id, []).append(sequence)
    events: dict[tuple[str, int], ThreadEvent] = {}
    for thread_id, sequences in held.items():
        raws = await _fetch(redis, (keys.log(thread_id),), (" ".join(map(str, sequences)),))
        for sequence, raw in zip(sequences, raws, strict=True):
            if raw is None:
                raise HistoryCorruptError(f"The log has no entry {sequence}.")
            events[thread_id, sequence] = event_of(sequence, raw)
    return [events[record] for record in records]


def sequence_of(raw_id: bytes) -> int:
    """Return the sequence in a stream entry's id."""
    return int(raw_id.partition(b"-")[0])


def _entry(raw_id: bytes, fields: dict[bytes, Any]) -> Entry:
    sequence = sequence_of(raw_id)
    event = event_of(sequence, fields.get(b"e", b""))
    try:
        return Entry(sequence, int(fields.get(b"p", sequence)), event)
    except ValueError:
        raise HistoryCorruptError(f"Entry {sequence} of the log has no position.") from None


def event_of(sequence: int, raw: bytes) -> ThreadEvent:
    """Return the event whose bytes are recorded at `sequence`.

    Raises:
        HistoryCorruptError: they are no thread event.
    """
    try:
        return decode_event(raw)
    except WireError as error:
        raise HistoryCorruptError(f"Entry {sequence} of the log is no event: {error}.") from None
