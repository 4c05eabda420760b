"""From a session's transcript to its handoff, through the same queue that every session uses."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings
from moonfold_handoff.store.log import SequenceConflictError
from moonfold_handoff.transcripts import Transcript
from moonfold_schemas import HandoffResult, NewRequest, Target, encode
from moonfold_schemas.requests import ProviderSwitchRequested

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
        result: what was published for the request.
        thread_id: the thread the transcript was recorded as.
        seconds: from the request being queued to its result being in hand.
    """

    result: HandoffResult
    thread_id: str
    seconds: float


async def transfer(
    settings: Settings,
    transcript: Transcript,
    target: Target,
    *,
    request: NewRequest | None = None,
    token_cap: int | None = None,
    progress: Progress = lambda _: None,
) -> Transfer:
    """Record a transcript as a thread, ask for a handoff to `target`, and wait for it.

    A person named the target, so it is a switch, whether or not the transcript ends at a limit.

    With the embedded server a worker runs in this process meanwhile; otherwise one must be running.

    Raises:
        NoWorkerError: no worker answered within `WAIT_SECONDS`.
    """
    async with (
        worker_if_embedded(settings),
        HandoffClient(f"cli:{uuid.uuid4()}", settings) as client,
    ):
        progress(f"Recording {len(transcript.events):,} events")
        thread_id, through = await _record(client, transcript)
        asked = ProviderSwitchRequested(
            request_id=str(uuid.uuid4()),
            session_id=client.session_id,
            thread_id=thread_id,
            through=through,
            request=request,
            token_cap=token_cap,
            target=target,
        )
        progress("Waiting for the handoff")
        started = time.perf_counter()
        await client.request(asked)
        try:
            result = await client.wait(asked.request_id, WAIT_SECONDS)
        except TimeoutError:
            raise NoWorkerError.after(WAIT_SECONDS) from None
        return Transfer(result, thread_id, time.perf_counter() - started)


@asynccontextmanager
async def worker_if_embedded(settings: Settings) -> AsyncIterator[None]:
    """Run a worker in this process meanwhile, unless workers serve a server of the settings."""
    if settings.redis_url is not None:
        yield
        return
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(worker.run(settings, stop, ready))
    starting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((running, starting), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            yield
    finally:
        starting.cancel()
        stop.set()
        await running


async def _record(client: HandoffClient, transcript: Transcript) -> tuple[str, int]:
    """Append the transcript; a session that was rewound since it was recorded becomes a thread anew."""
    try:
        through = await client.append(transcript.thread_id, 0, transcript.events)
    except SequenceConflictError:
        digest = hashlib.blake2b(b"\n".join(map(encode, transcript.events)), digest_size=6)
        thread_id = f"{transcript.thread_id}:{digest.hexdigest()}"
        return thread_id, await client.append(thread_id, 0, transcript.events)
    return transcript.thread_id, min(through, len(transcript.events))
