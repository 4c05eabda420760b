"""When a followed session reaches its limit: the handoff is asked for at once, and prepared before.

A request's id is made from what it answers, so a watcher that was killed and started again, or a second
one, asks the same question, which is answered once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Followed
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.tasks import end
from moonfold_handoff.transcripts import Session
from moonfold_schemas import HandoffResult, NewRequest, Target, encode
from moonfold_schemas.events import Limit, QuotaWindow
from moonfold_schemas.requests import ProviderLimitNear, ProviderLimitReached
from moonfold_schemas.results import HandoffPrepared

WAIT_SECONDS = 60.0  # for a result; a worker answers in milliseconds
STALE_SECONDS = 3600  # after which a limit without a reset time is an old story

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reached:
    """A session's provider will not go on."""

    session: Session
    limit: Limit


@dataclass(frozen=True, slots=True)
class Answered:
    """A handoff was asked for, and this is the answer.

    Attributes:
        seconds: from the session's file being read to the result being in hand.
    """

    session: Session
    followed: Followed
    result: HandoffResult
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session's quota is nearly used up, and its handoff is prepared."""

    session: Session
    window: QuotaWindow
    result: HandoffResult


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Nobody answered in time, or the server is away."""

    session: Session
    message: str


Notice = Reached | Answered | Prepared | Unanswered


class Handover:
    """Asks for handoffs of sessions that are being followed.

    Args:
        client: the connection to the service.
        targets: where a thread may go on, the first choice first; none: the operator's policy says.
        tell: called with what happens.
        request: what the person wants next, if they said.
        token_cap: most tokens of history, if they said.
        near_percent: how far a quota is used up when the handoff is prepared.
    """

    def __init__(
        self,
        client: HandoffClient,
        targets: Sequence[Target],
        *,
        tell: Callable[[Notice], None],
        near_percent: float,
        request: NewRequest | None = None,
        token_cap: int | None = None,
    ) -> None:
        self._client = client
        self._targets = tuple(targets)
        self._tell = tell
        self._near_percent = near_percent
        self._request = request
        self._token_cap = token_cap
        self._asked: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def found(self, session: Session, followed: Followed, written: float) -> None:
        """Take note of a session that was read; its file was written at `written`, in epoch seconds."""
        limit = followed.facts.limit
        if limit is not None and _is_live(limit, written):
            request_id = _id("limit", session, followed.facts.limited_at, encode(limit))
            if self._is_new(request_id):
                self._tell(Reached(session, limit))
                self._start(self._hand_over(session, followed, limit, request_id))
        elif followed.quota is not None and not followed.quota.has_credits:
            fullest = max(followed.quota.windows, key=lambda w: w.used_percent, default=None)
            if fullest is not None and fullest.used_percent >= self._near_percent:
                request_id = _id("near", session, fullest.name, fullest.resets_at)
                if self._is_new(request_id):
                    self._start(self._prepare(session, followed, fullest, request_id))

    async def finish(self) -> None:
        """End what is still being waited for; the results stay to be found."""
        for task in list(self._tasks):
            await end(task)

    def _is_new(self, request_id: str) -> bool:
        if request_id in self._asked:
            return False
        self._asked.add(request_id)
        return True

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(
        self, session: Session, followed: Followed, limit: Limit, request_id: str
    ) -> None:
        started = time.perf_counter()
        request = ProviderLimitReached(**self._question(session, followed, request_id), limit=limit)
        result = await self._ask(session, request)
        if result is not None:
            seconds = time.perf_counter() - started
            self._tell(Answered(session, followed, result, seconds))

    async def _prepare(
        self, session: Session, followed: Followed, window: QuotaWindow, request_id: str
    ) -> None:
        request = ProviderLimitNear(**self._question(session, followed, request_id))
        result = await self._ask(session, request)
        if isinstance(result, HandoffPrepared):
            self._tell(Prepared(session, window, result))

    def _question(self, session: Session, followed: Followed, request_id: str) -> dict[str, Any]:
        """Return the fields that both requests have."""
        return {
            "request_id": request_id,
            "session_id": self._client.session_id,
            "thread_id": session.thread_id,
            "through": followed.through,
            "request": self._request,
            "token_cap": self._token_cap,
            "candidates": self._targets,
            "conversation_id": session.conversation_id,
            "provider": session.provider,
        }

    async def _ask(
        self, session: Session, request: ProviderLimitReached | ProviderLimitNear
    ) -> HandoffResult | None:
        try:
            await self._client.request(request)
            return await self._client.wait(request.request_id, WAIT_SECONDS)
        except TimeoutError:
            message = f"No worker answered within {WAIT_SECONDS:.0f} s."
        except RedisError as error:
            message = f"The server cannot be used: {type(error).__name__}."
        # Asked again when the session is read next; a question that arrived is answered once all the same.
        self._asked.discard(request.request_id)
        self._tell(Unanswered(session, message))
        return None


def _is_live(limit: Limit, written: float) -> bool:
    """Tell whether a limit, which has the last word in a file written at `written`, still holds."""
    now = datetime.now(UTC)
    if limit.resets_at is not None:
        return limit.resets_at > now
    return now.timestamp() - written < STALE_SECONDS


def _id(kind: str, session: Session, *what: object) -> str:
    """Return the id of the request that answers this."""
    text = "\0".join(map(str, (session.thread_id, *what)))
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
