"""Thread states: loaded, brought up to a sequence, and kept for the next time.

There are no locks: two workers may fold the same tail, and the save that covers more of the log wins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis

from moonfold_handoff.context.fold import (
    RebuildNeededError,
    adopt,
    fold,
    rollbacks,
    surviving,
)
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.state import STATE_VERSION, ThreadState
from moonfold_handoff.errors import (
    HistoryCorruptError,
    HistoryIncompleteError,
    ThreadNotFoundError,
)
from moonfold_handoff.store import keys, log
from moonfold_handoff.store.past import PastStates
from moonfold_handoff.store.scripts import worker_script
from moonfold_schemas import is_id
from moonfold_schemas.events import ThreadForked

MAX_LINEAGE = 64  # forks of forks
MILLISECONDS_A_DAY = 24 * 3600 * 1000
KEEP_PAGES = 32  # pages folded between two savings of a long fold

_past = PastStates()
_load_state = worker_script("load_state")
_save = worker_script("save_state")
_decode = msgspec.json.Decoder(ThreadState).decode
_encode = msgspec.json.Encoder().encode


async def load(
    redis: Redis,
    thread_id: str,
    through: int | None = None,
    *,
    behind: Callable[[int], None] = lambda _: None,
) -> ThreadState:
    """Return the state of a thread at `through`, the end of its log if None; it is saved if it moved.

    Args:
        redis: the server.
        thread_id: the thread.
        through: up to where.
        behind: is told how many events the kept state is behind that, 0 where it is not.

    Raises:
        ThreadNotFoundError: the thread has no log.
        HistoryIncompleteError: the log ends before `through`, or an ancestor's does.
        HistoryCorruptError: the log cannot be read.
    """
    return await _load(redis, thread_id, through, depth=0, behind=behind)


async def _load(
    redis: Redis,
    thread_id: str,
    through: int | None,
    depth: int,
    behind: Callable[[int], None] = lambda _: None,
) -> ThreadState:
    kept, last = await _kept(redis, thread_id)
    if last is None:
        raise ThreadNotFoundError(f"There is no log of thread {thread_id}.")
    if through is None:
        through = last
    if through > last:
        raise HistoryIncompleteError(
            f"The request means the history up to {through}; the log of thread {thread_id} ends at "
            f"{last}."
        )
    if kept is not None and kept.through > through:
        return await _before(redis, thread_id, through, depth)
    if kept is None:
        kept = await _beginning(redis, thread_id, through, depth)
    behind(max(0, through - kept.through))
    if kept.through >= through:
        return kept
    state = await _brought_up(redis, thread_id, kept, through, depth, keep=True)
    await save(redis, thread_id, state)
    return state


async def _before(redis: Redis, thread_id: str, through: int, depth: int) -> ThreadState:
    """Return a state that lies before the kept one: folded from the start, once for many forks."""
    [entry] = await redis.xrange(keys.log(thread_id), f"{through}-0", count=1) or [(b"", {})]
    key = (thread_id, through, entry[1].get(b"e", b""))
    state = _past.get(key)
    if state is None:
        beginning = await _beginning(redis, thread_id, through, depth)
        state = beginning
        if beginning.through < through:
            state = await _brought_up(redis, thread_id, beginning, through, depth, keep=False)
        _past.put(key, state)
    return state


async def _brought_up(
    redis: Redis, thread_id: str, state: ThreadState, through: int, depth: int, *, keep: bool
) -> ThreadState:
    """Return `state` with the log folded in up to `through`, and ranked."""
    try:
        state = await _fold(redis, thread_id, state, through, keep=keep)
    except RebuildNeededError:
        state = await _rebuild(redis, thread_id, through, depth)
    return state if state.ranking else replace(state, ranking=rank(state))


async def _beginning(redis: Redis, thread_id: str, through: int, depth: int) -> ThreadState:
    """Return the state before a log's first entry, or an ancestor's where `through` lies before it."""
    origin = await _origin(redis, thread_id, depth)
    return await _inherited(redis, origin, min(through, origin.before), depth)


class Listed(NamedTuple):
    """A thread that is recorded: its last sequence, and how long it is kept yet."""

    thread_id: str
    last: int
    days_left: float


async def listed(redis: Redis, limit: int) -> AsyncIterator[Listed]:
    """Yield threads in no order, `limit` at most; it goes through all keys, so it is for people only."""
    pattern = keys.log("*")
    found = 0
    async for raw in redis.scan_iter(match=pattern, count=1_000):
        thread_id = raw.decode(errors="replace").partition("{")[2].partition("}")[0]
        if not is_id(thread_id):
            continue  # no thread of ours, and nothing to print
        days = await redis.pttl(raw) / MILLISECONDS_A_DAY
        yield Listed(thread_id, await log.last(redis, thread_id), days)
        found += 1
        if found >= limit:
            return


async def save(redis: Redis, thread_id: str, state: ThreadState) -> bool:
    """Keep `state`; False if one that covers as much is kept already, or the thread is gone."""
    thread_keys = (keys.state(thread_id), keys.log(thread_id))
    return bool(await _save(redis, thread_keys, (STATE_VERSION, state.through, _encode(state))))


async def _kept(redis: Redis, thread_id: str) -> tuple[ThreadState | None, int | None]:
    """Return the kept state, if it can be read, and the last sequence of the log."""
    version, raw, tail = await _load_state(redis, (keys.state(thread_id), keys.log(thread_id)), ())
    last = log.sequence_of(tail) if tail else None
    if version != str(STATE_VERSION).encode():
        return None, last
    try:
        return _decode(raw or b""), last
    except (msgspec.DecodeError, UnicodeError):
        # The log is the truth. The damaged state goes, so that a save need not cover more than it did.
        await redis.delete(keys.state(thread_id))
        return None, last


class _Origin(NamedTuple):
    """Where a log begins: after sequence `before`, which for a fork is its parent's."""

    before: int
    parent_id: str | None


async def _origin(redis: Redis, thread_id: str, depth: int) -> _Origin:
    first = await redis.xrange(keys.log(thread_id), count=1)
    if not first:
        raise ThreadNotFoundError(f"There is no log of thread {thread_id}.")
    before = log.sequence_of(first[0][0]) - 1
    if before == 0:
        return _Origin(0, None)
    [event] = await log.fetch(redis, [(thread_id, before + 1)])
    if not isinstance(event, ThreadForked) or event.through != before:
        raise HistoryCorruptError(f"The log of thread {thread_id} begins at {before + 1}.")
    if depth >= MAX_LINEAGE:
        raise HistoryCorruptError(f"Thread {thread_id} has more than {MAX_LINEAGE} ancestors.")
    return _Origin(before, event.parent_thread_id)


async def _inherited(redis: Redis, origin: _Origin, through: int, depth: int) -> ThreadState:
    """Return the state before a log's first entry: empty, or what a fork has of its parent's."""
    if origin.parent_id is None:
        return ThreadState()
    parent = await _load(redis, origin.parent_id, through, depth + 1)
    return adopt(parent, origin.parent_id)


async def _fold(
    redis: Redis, thread_id: str, state: ThreadState, through: int, *, keep: bool
) -> ThreadState:
    """Fold what follows; in a long log, `keep` what is done so far, so that a next attempt goes on there."""
    pages = 0
    async for entries in log.read(redis, thread_id, after=state.through, through=through):
        state = fold(state, entries)
        pages += 1
        if keep and pages % KEEP_PAGES == 0:
            await save(redis, thread_id, state)
    return state


async def _rebuild(
    redis: Redis,
    thread_id: str,
    through: int,
    depth: int,
    voided_later: Sequence[tuple[int, int]] = (),
) -> ThreadState:
    """Fold the log from its start, its rollbacks known beforehand.

    Where a fork rolled back into what it took from its parent, so is the parent's part, and what the
    parent itself rolled back before stays so.

    Args:
        redis: the server.
        thread_id: the thread.
        through: up to where.
        depth: number of forks below it.
        voided_later: what forks below it rolled back.
    """
    origin = await _origin(redis, thread_id, depth)
    point = min(through, origin.before)  # a fork can be forked before it begins
    voided = list(voided_later)
    async for entries in log.read(redis, thread_id, after=origin.before, through=through):
        voided.extend(rollbacks(entries))
    if origin.parent_id is None or all(first > origin.before for first, _ in voided):
        state = await _inherited(redis, origin, point, depth)
    else:
        parent = await _rebuild(redis, origin.parent_id, point, depth + 1, voided)
        state = adopt(parent, origin.parent_id)
    async for entries in log.read(redis, thread_id, after=origin.before, through=through):
        state = fold(state, surviving(entries, voided))
    return state
