"""Forks: a new thread whose history is its parent's up to a point. Nothing is copied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from redis.asyncio import Redis

from moonfold_handoff.errors import HistoryIncompleteError, InvalidRequestError, ThreadNotFoundError
from moonfold_handoff.services import Services
from moonfold_handoff.store import log
from moonfold_schemas.events import ThreadEvent, ThreadForked, TurnEnded, TurnsRolledBack
from moonfold_schemas.requests import ForkRequested


async def link(services: Services, request: ForkRequested) -> int:
    """Make the fork's log begin at its parent, once, and return the sequence of its first event.

    Raises:
        ThreadNotFoundError: there is no log of the parent.
        HistoryIncompleteError: the parent's log ends before the point.
        InvalidRequestError: there is no such turn, or the fork's id belongs to another thread.
    """
    point, begins = await asyncio.gather(
        _point(services.threads, request), log.first(services.threads, request.fork_thread_id)
    )
    if begins not in {0, point + 1}:
        raise _taken(request)
    forked = ThreadForked(parent_thread_id=request.thread_id, through=point)
    try:
        await log.append(
            services.threads,
            request.fork_thread_id,
            point,
            [forked],
            ttl=services.settings.thread_ttl,
            max_event_bytes=services.settings.max_event_bytes,
        )
    except (log.SequenceConflictError, log.SequenceGapError):
        raise _taken(request) from None
    return point + 1


def _taken(request: ForkRequested) -> InvalidRequestError:
    return InvalidRequestError(
        f"Thread {request.fork_thread_id} is there already and is no fork of this point."
    )


async def _point(redis: Redis, request: ForkRequested) -> int:
    """Return the sequence up to which the fork has its parent's history."""
    last = await log.last(redis, request.thread_id)
    if not last:
        raise ThreadNotFoundError(f"There is no log of thread {request.thread_id}.")
    if request.through > last:
        raise HistoryIncompleteError(
            f"The request means the history up to {request.through}; the log of thread "
            f"{request.thread_id} ends at {last}."
        )
    if request.turn_id is None and not request.settled:
        return request.through
    kept = request.through  # what was recorded after it is rolled back
    async for sequence, event in _history(redis, request.thread_id, request.through):
        if isinstance(event, TurnsRolledBack):
            kept = min(kept, event.to)
        elif (
            isinstance(event, TurnEnded)
            and sequence <= kept
            and request.turn_id in {None, event.turn_id}
        ):
            return sequence
    raise InvalidRequestError("No such turn has ended in the history that the request means.")


async def _history(
    redis: Redis, thread_id: str, through: int
) -> AsyncIterator[tuple[int, ThreadEvent]]:
    """Yield sequence and event from `through` backwards, through the logs of all ancestors."""
    holder: str | None = thread_id
    while holder is not None:
        thread_id, holder = holder, None
        async for sequence, event in log.read_back(redis, thread_id, through):
            yield sequence, event
            if isinstance(event, ThreadForked) and event.through == sequence - 1:
                holder, through = event.parent_thread_id, event.through
