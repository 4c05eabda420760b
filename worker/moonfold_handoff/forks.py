"""Forks: a new thread whose history is its parent's up to a point. Nothing is copied."""

from __future__ import annotations

from redis.asyncio import Redis

from moonfold_handoff.errors import HistoryIncompleteError, InvalidRequestError, ThreadNotFoundError
from moonfold_handoff.services import Services
from moonfold_handoff.store import log
from moonfold_schemas.events import ThreadForked, TurnEnded
from moonfold_schemas.requests import ForkRequested


async def link(services: Services, request: ForkRequested) -> int:
    """Make the fork's log begin at its parent, once, and return the sequence of its first event.

    Raises:
        HistoryIncompleteError: the parent's log ends before the point.
        InvalidRequestError: there is no such turn, or the fork's id belongs to another thread.
    """
    point = await _point(services.threads, request)
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
        raise InvalidRequestError(
            f"Thread {request.fork_thread_id} is there already and is no fork of this point."
        ) from None
    return point + 1


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
    async for sequence, event in log.read_back(redis, request.thread_id, request.through):
        if isinstance(event, TurnEnded) and request.turn_id in {None, event.turn_id}:
            return sequence
    raise InvalidRequestError("No such turn has ended in the history that the request means.")
