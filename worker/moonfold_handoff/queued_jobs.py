"""A job as it lies in the queue: what is to be done, or why it cannot be.

arq hands over and takes jobs by `serialize_job` and `deserialize_job`, so that the arguments stay JSON.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from moonfold_handoff.errors import HandoffError, InvalidRequestError, SupersededError
from moonfold_handoff.store.queue import BUILD_HANDOFF, FOLD_THREAD, Job, Time
from moonfold_schemas import WireError
from moonfold_schemas.codec import parse

ATTEMPTS_EVER = 20  # shutdowns count as attempts, too

serialize_job = msgspec.json.Encoder(enc_hook=lambda value: type(value).__name__).encode
_decode_job = msgspec.json.Decoder(Job).decode


def deserialize_job(raw: bytes) -> dict[str, Any]:
    """Return a job as arq wants it, its arguments still JSON.

    Raises:
        WireError: it is not a job.
    """
    try:
        job = _decode_job(raw)
    except (msgspec.DecodeError, RecursionError):
        try:
            job = msgspec.convert(parse(raw), _LenientJob).as_job()
        except msgspec.ValidationError:
            raise WireError("not a job") from None
    return {"t": job.t, "f": job.f, "a": job.a, "k": {}, "et": job.et}


class _LenientJob(msgspec.Struct):
    """A job whose arguments hold lone surrogates, which `Raw` does not take."""

    f: str
    a: list[Any]
    et: Time = 0
    t: int | None = None

    def as_job(self) -> Job:
        return Job(
            f=self.f, a=tuple(msgspec.Raw(serialize_job(a)) for a in self.a), et=self.et, t=self.t
        )


class QueuedJob(NamedTuple):
    """What a job says: its function and argument, when it was asked for, and why it is not to be run."""

    function: str
    argument: bytes
    enqueued: datetime | None = None
    refusal: HandoffError | None = None


def read_job(raw: bytes | None, attempt: int, newer: bytes | None) -> QueuedJob:
    """Return what a job says, and why it is not to be run if it is not.

    Args:
        raw: the job's body; None where it has expired.
        attempt: number of this attempt, from 1.
        newer: the request that takes its place, if one does.
    """
    if raw is None:
        return QueuedJob(BUILD_HANDOFF, b"", None, HandoffError("Expired before a worker took it."))
    try:
        job = deserialize_job(raw)
    except WireError:
        unreadable = InvalidRequestError("The job cannot be read.")
        return QueuedJob(BUILD_HANDOFF, _argument_of(raw), None, unreadable)
    argument = bytes(job["a"][0]) if job["a"] else b""
    read = QueuedJob(job["f"], argument, _time(job["et"]))
    if job["f"] not in {BUILD_HANDOFF, FOLD_THREAD}:
        unknown = InvalidRequestError("The job names an unknown function.")
        return read._replace(function=BUILD_HANDOFF, refusal=unknown)
    if newer is not None:
        name = newer.decode(errors="replace")
        superseded = SupersededError(f"Request {name} of the same session takes its place.")
        return read._replace(refusal=superseded)
    if attempt > ATTEMPTS_EVER:
        return read._replace(refusal=HandoffError("Given up after too many attempts."))
    return read


def _argument_of(raw: bytes) -> bytes:
    """Return the argument of a job that is otherwise unreadable, so that its session is answered."""
    try:
        document = parse(raw)
    except WireError:
        return raw
    arguments = document.get("a") if isinstance(document, dict) else None
    return serialize_job(arguments[0]) if isinstance(arguments, list) and arguments else raw


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
