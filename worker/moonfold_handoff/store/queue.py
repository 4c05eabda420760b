"""Queues: an arq-compatible job put once, with a hint that wakes a worker."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.store import keys
from moonfold_handoff.store.scripts import producer_script
from moonfold_schemas import HandoffRequest, encode
from moonfold_schemas.requests import ForkRequested, ProviderLimitNear

AT_ONCE = 0  # by the server's clock: that of another machine may be wrong by minutes
JOB_TTL = 24 * 3600  # seconds a job waits for a worker before its body is dropped
READ_LIMIT = 1_000  # ids at the head looked at; running jobs stay there: more than all workers run

BUILD_HANDOFF = "build_handoff"
FOLD_THREAD = "fold_thread"

_enqueue = producer_script("enqueue")
_encode = msgspec.json.Encoder().encode


Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since the epoch, within the years that a `datetime` knows."""


class Job(msgspec.Struct, frozen=True):
    """A job as arq lays it out: try, function, arguments, keyword arguments, time enqueued in ms."""

    f: str
    a: tuple[msgspec.Raw, ...] = ()
    k: dict[str, msgspec.Raw] = {}
    et: Time = 0
    t: int | None = None


async def enqueue_request(redis: Redis, request: HandoffRequest) -> bool:
    """Put a request on its queue; False if it is queued, running or answered already.

    A newer request of a session for a thread takes the place of one that waits; forks and preparations
    stand apart.
    """
    queue = queue_of(request)
    function, job_id, argument = BUILD_HANDOFF, request.request_id, encode(request)
    if isinstance(request, ForkRequested | ProviderLimitNear):
        return await enqueue(redis, queue, function, job_id, argument)
    pending = keys.pending(request.session_id, request.thread_id)
    return await enqueue(redis, queue, function, job_id, argument, among=(pending, request.through))


def queue_of(request: HandoffRequest) -> str:
    """Return the queue of a request: in the background what nobody waits for."""
    prepares = isinstance(request, ProviderLimitNear) or (
        isinstance(request, ForkRequested) and request.request is None
    )
    return keys.BACKGROUND if prepares else keys.HANDOFFS


async def enqueue_fold(redis: Redis, thread_id: str) -> bool:
    """Ask for a thread to be folded; False if that is asked for already."""
    return await enqueue(
        redis, keys.BACKGROUND, FOLD_THREAD, f"fold:{thread_id}", _encode(thread_id)
    )


async def enqueue(
    redis: Redis,
    queue: str,
    function: str,
    job_id: str,
    argument: bytes,
    *,
    among: tuple[str, int] | None = None,
) -> bool:
    """Put a job with one JSON argument on `queue`; False if its id is taken.

    Args:
        redis: the server.
        queue: the queue's key.
        function: what is to be done.
        job_id: the job.
        argument: what it is to be done with.
        among: key of the jobs of which the one that reaches furthest counts, and how far this one does.
    """
    now = time.time_ns() // 1_000_000
    job = Job(f=function, a=(msgspec.Raw(argument),), et=now)
    marker, reached = ((), ()) if among is None else ((among[0],), (among[1],))
    queued = await _enqueue(
        redis,
        (keys.job(job_id), keys.result(job_id), queue, *marker),
        (job_id, _encode(job), AT_ONCE, JOB_TTL * 1000, *reached),
    )
    return bool(queued)
