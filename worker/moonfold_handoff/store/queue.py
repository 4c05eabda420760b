"""Queues: an arq-compatible job put once, with a hint that wakes a worker."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.store import keys
from moonfold_handoff.store.scripts import producer_script
from moonfold_schemas import HandoffRequest, encode
from moonfold_schemas.requests import ForkRequested

JOB_TTL = 24 * 3600  # seconds a job waits for a worker before its body is dropped

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
    """Put a request on its queue; False if it is queued, running or answered already."""
    preparing = isinstance(request, ForkRequested) and request.request is None
    queue = keys.BACKGROUND if preparing else keys.HANDOFFS
    return await enqueue(redis, queue, BUILD_HANDOFF, request.request_id, encode(request))


async def enqueue_fold(redis: Redis, thread_id: str) -> bool:
    """Ask for a thread to be folded; False if that is asked for already."""
    return await enqueue(
        redis, keys.BACKGROUND, FOLD_THREAD, f"fold:{thread_id}", _encode(thread_id)
    )


async def enqueue(redis: Redis, queue: str, function: str, job_id: str, argument: bytes) -> bool:
    """Put a job with one JSON argument on `queue`; False if its id is taken."""
    now = time.time_ns() // 1_000_000
    job = Job(f=function, a=(msgspec.Raw(argument),), et=now)
    queued = await _enqueue(
        redis,
        (keys.job(job_id), keys.result(job_id), queue),
        (job_id, _encode(job), now, JOB_TTL * 1000),
    )
    return bool(queued)
