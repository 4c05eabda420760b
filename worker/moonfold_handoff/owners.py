"""Producers that share a service and are kept apart: each owns the ids that begin with its name and a dot.

The server's ACLs keep a producer to keys that are named after it, the key of its jobs among them. What a job
says is its own word, so here its other ids, and the threads that its history comes from, are held against the
job's. Without it a worker, which may read every thread, would read another's for whoever names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import InvalidRequestError
from moonfold_handoff.services import Services
from moonfold_handoff.store import threads
from moonfold_handoff.store.queue import BUILD_HANDOFF
from moonfold_schemas import HandoffResult
from moonfold_schemas.requests import ForkRequested, HandoffRequest


def owner(name: str) -> str | None:
    """Return the producer who owns an id, or None where the id names none."""
    producer, dot, _ = name.partition(".")
    return producer if dot else None


def is_one_producers(names: Iterable[str]) -> bool:
    """Return whether all ids are owned, and by the same producer."""
    owners = {owner(name) for name in names}
    return len(owners) == 1 and None not in owners


def check(services: Services, job_id: str, request: HandoffRequest) -> None:
    """Refuse a request that reaches out of what belongs to the producer of its job.

    Raises:
        InvalidRequestError: producers are kept apart, and the ids are not all one producer's.
    """
    names = [job_id, request.request_id, request.session_id, request.thread_id]
    if isinstance(request, ForkRequested):
        names.append(request.fork_thread_id)
    if services.settings.separate_producers and not is_one_producers(names):
        raise InvalidRequestError(
            "The ids of a job, and of its request, session and threads must begin with the same "
            "producer's name and a dot."
        )


def may_answer(services: Services, job_id: str, result: HandoffResult) -> bool:
    """Return whether a result may be published: where producers are kept apart, to the job's only."""
    return not services.settings.separate_producers or is_one_producers(
        [job_id, result.request_id, result.session_id]
    )


async def history(services: Services, thread_id: str, through: int) -> ThreadState:
    """Return the state of a thread at `through`, for a handoff.

    Raises:
        InvalidRequestError: producers are kept apart, and some of the history is another's.
        HandoffError: as `threads.load`.
    """
    behind = partial(services.metrics.behind, BUILD_HANDOFF)
    state = await threads.load(services.threads, thread_id, through, behind=behind)
    held_by = [ancestor.thread_id for ancestor in state.lineage]
    if services.settings.separate_producers and not is_one_producers([thread_id, *held_by]):
        raise InvalidRequestError("The thread takes its history from another producer's thread.")
    return state
