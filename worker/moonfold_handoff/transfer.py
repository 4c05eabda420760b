"""From a session's file to its handoff, through the same queue that every session uses."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Followed, Follower
from moonfold_handoff.settings import OFF, Settings
from moonfold_handoff.store import log, threads
from moonfold_handoff.transcripts import Session, TranscriptError
from moonfold_handoff.transcripts.base import Facts
from moonfold_schemas import HandoffRequest, HandoffResult, NewRequest, Target
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import Item
from moonfold_schemas.requests import ProviderLimitReached, ProviderSwitchRequested
from moonfold_schemas.results import HandoffReady

WAIT_SECONDS = 30.0  # for a result; a worker answers in milliseconds

Progress = Callable[[str], None]


class NoWorkerError(Exception):
    """Nobody answered the request."""

    @classmethod
    def after(cls, seconds: float) -> NoWorkerError:
        """Return the error for a wait of so many seconds."""
        return cls(f"No worker answered within {seconds:.0f} s; start one with `moonfold worker`.")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What came of it.

    Attributes:
        session: what was moved.
        facts: what is known of it.
        result: what was published for the request.
        items: what travels, by position, each as it was recorded last.
        seconds: from the request being queued to its result being in hand.
    """

    session: Session
    facts: Facts
    result: HandoffResult
    items: dict[int, Item]
    seconds: float


async def transfer(
    settings: Settings,
    session: Session,
    target: Target,
    *,
    request: NewRequest | None = None,
    token_cap: int | None = None,
    at_its_limit: bool = False,
    progress: Progress = lambda _: None,
) -> Transfer:
    """Record a session in its thread, ask for a handoff to `target`, and wait for it.

    A person named the target, so it is a switch, whether or not the session ends at a limit. With
    `at_its_limit` it is what a watcher asks for there: a failover to the one candidate.

    With the embedded server a worker runs in this process meanwhile; otherwise one must be running.

    Raises:
        NoWorkerError: no worker answered within `WAIT_SECONDS`.
        TranscriptError: the file cannot be read, or has no conversation.
    """
    async with (
        worker_if_embedded(settings),
        HandoffClient(f"cli:{uuid.uuid4()}", settings) as client,
    ):
        progress("Reading the session")
        followed = await Follower(client, session).catch_up(to_the_end=True)
        if not followed.through:
            raise TranscriptError("The session file has no conversation.")
        asked = _request(
            client,
            session,
            followed,
            target=target,
            request=request,
            token_cap=token_cap,
            at_its_limit=at_its_limit,
        )
        progress("Waiting for the handoff")
        started = time.perf_counter()
        await client.request(asked)
        try:
            result = await client.wait(asked.request_id, WAIT_SECONDS)
        except TimeoutError:
            raise NoWorkerError.after(WAIT_SECONDS) from None
        seconds = time.perf_counter() - started
        items = await _carried(client, result)
        return Transfer(session, followed.facts, result, items, seconds)


@asynccontextmanager
async def worker_if_embedded(settings: Settings) -> AsyncIterator[None]:
    """Run a worker in this process meanwhile, unless workers serve a server of the settings."""
    if settings.redis_url is not None:
        yield
        return
    stop, ready = asyncio.Event(), asyncio.Event()
    unwatched = replace(settings, metrics_address=OFF)
    running = asyncio.create_task(worker.run(unwatched, stop, ready))
    starting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((running, starting), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            yield
    finally:
        starting.cancel()
        stop.set()
        await running


async def _carried(client: HandoffClient, result: HandoffResult) -> dict[int, Item]:
    """Return what a handoff carries, by position."""
    if not isinstance(result, HandoffReady) or result.thread_id is None:
        return {}
    thread_id, redis = result.thread_id, client.services.threads
    state = await threads.load(redis, thread_id, result.coverage.through)
    selected = result.coverage.selected
    refs = [r for r in state.kept if any(s.first <= r.position <= s.last for s in selected)]
    records = [(state.holder(thread_id, ref.record), ref.record) for ref in refs]
    events = await log.fetch(redis, records)
    return {
        ref.position: event.item
        for ref, event in zip(refs, events, strict=True)
        if isinstance(event, ItemRecorded)
    }


def _request(
    client: HandoffClient,
    session: Session,
    followed: Followed,
    *,
    target: Target,
    request: NewRequest | None,
    token_cap: int | None,
    at_its_limit: bool,
) -> HandoffRequest:
    """Return what is asked: a switch, since a person named the target; for a demonstration, a failover."""
    fields: dict[str, Any] = {
        "request_id": str(uuid.uuid4()),
        "session_id": client.session_id,
        "thread_id": session.thread_id,
        "through": followed.through,
        "request": request,
        "token_cap": token_cap,
    }
    if not at_its_limit:
        return ProviderSwitchRequested(**fields, target=target)
    return ProviderLimitReached(
        **fields,
        candidates=(target,),
        conversation_id=session.conversation_id,
        limit=followed.facts.limit,
    )
