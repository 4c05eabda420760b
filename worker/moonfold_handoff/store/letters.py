"""Dead letters as an operator handles them: listed, tried again, dropped.

A dead letter holds no text, so what is tried again is the request with the length of its text, from which
the budget is the same; only the identifiers that the text mentioned no longer weigh in the selection.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.store import keys, log, queue
from moonfold_handoff.store.queue import FOLD_THREAD, JOB_TTL, Job
from moonfold_handoff.store.scripts import worker_script
from moonfold_schemas import WireError, decode_request, encode, is_id
from moonfold_schemas.codec import parse

PAGE = 200  # dead letters read at once

_retry = worker_script("retry")
_encode = msgspec.json.Encoder().encode


class NotRetryableError(Exception):
    """A dead letter cannot be tried again; the message says why in one sentence."""


class Outcome(StrEnum):
    """What came of trying again."""

    QUEUED = "queued"
    ANSWERED = "answered"
    GONE = "gone"


class DeadLetter(NamedTuple):
    """A job that was rejected.

    Attributes:
        letter_id: its id in the stream.
        at: when it was rejected.
        job_id: the job; for a handoff, the request.
        function: what it was to do.
        reason: why it could not be done.
        argument: what was kept of its argument, as JSON.
        is_whole: whether nothing is missing but the text of the request.
    """

    letter_id: str
    at: datetime
    job_id: str
    function: str
    reason: str
    argument: bytes
    is_whole: bool


async def listed(redis: Redis) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, the latest first."""
    end = "+"
    while page := await redis.xrevrange(keys.REJECTED, end, "-", count=PAGE):
        for raw_id, fields in page:
            yield _letter(raw_id, fields)
        end = f"({page[-1][0].decode()}"


async def get(redis: Redis, letter_id: str) -> DeadLetter | None:
    """Return a dead letter, or None if there is no such (any more)."""
    found = await redis.xrange(keys.REJECTED, letter_id, letter_id)
    return _letter(*found[0]) if found else None


async def drop(redis: Redis, letter_ids: Sequence[str]) -> int:
    """Forget dead letters; return how many there were."""
    return int(await redis.xdel(keys.REJECTED, *letter_ids)) if letter_ids else 0


async def retry(redis: Redis, letter: DeadLetter) -> Outcome:
    """Put the job on its queue again; a repeated call changes nothing.

    Its session finds the new answer under the same request.

    Raises:
        NotRetryableError: what was kept of it is no job.
    """
    name, argument = _again(letter)
    now = time.time_ns() // 1_000_000
    job = Job(f=letter.function, a=(msgspec.Raw(argument),), et=now)
    job_id = letter.job_id
    outcome = await _retry(
        redis,
        (keys.REJECTED, keys.job(job_id), keys.result(job_id), name),
        (letter.letter_id, job_id, _encode(job), JOB_TTL * 1000),
    )
    return Outcome(outcome.decode())


def _again(letter: DeadLetter) -> tuple[str, bytes]:
    """Return queue and argument of the job to be done again."""
    if letter.function == FOLD_THREAD:
        thread_id = letter.job_id.removeprefix("fold:")
        if not is_id(thread_id):
            raise NotRetryableError("Its job does not say which thread is to be folded.")
        return keys.BACKGROUND, _encode(thread_id)
    try:
        document: Any = parse(letter.argument)
        if isinstance(document, dict) and isinstance(document.get("limit"), dict):
            document["limit"].pop("message", None)  # the provider's sentence decides nothing
        request = decode_request(_encode(document))
    except WireError:
        raise NotRetryableError("What was kept of it is no valid request.") from None
    if not letter.is_whole:
        raise NotRetryableError("What was kept of it lacks more than the text of its request.")
    if request.request_id != letter.job_id:
        raise NotRetryableError("Its job and its request have different ids.")
    return queue.queue_of(request), encode(request)


def _letter(raw_id: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    at = datetime.fromtimestamp(log.sequence_of(raw_id) / 1000, UTC)
    return DeadLetter(
        raw_id.decode(),
        at,
        text(b"job_id"),
        text(b"function"),
        text(b"reason"),
        fields.get(b"argument", b""),
        text(b"whole") == "1",
    )
