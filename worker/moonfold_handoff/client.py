"""`HandoffClient`: what a switching session uses to record activity and to get its handoff."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec
import structlog
from redis.exceptions import ResponseError

from moonfold_handoff.context.availability import fullest
from moonfold_handoff.ops import tracing
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, log, queue, results
from moonfold_handoff.store.connection import TRANSIENT
from moonfold_handoff.tasks import end
from moonfold_schemas import (
    HandoffRequest,
    HandoffResult,
    ThreadEvent,
    decode_request,
    decode_result,
    encode,
)
from moonfold_schemas.events import QuotaReported, TurnEnded

LISTEN_SECONDS = 2  # one wait for news of the session, after which a waiting call looks for itself
RECONNECT_SECONDS = 0.5
REMEMBERED = 64  # requests without an answer that are asked again, the newest ones

logger = structlog.get_logger()


class HandoffClient:
    """A session's connection to the handoff service; an async context manager.

    Args:
        session_id: the session, under which its results are published. A session that reconnects
            under the same id, or only with the request's id, finds its results for a day.
        settings: what the environment says, by default.
    """

    def __init__(self, session_id: str, settings: Settings | None = None) -> None:
        self.session_id = session_id
        self._settings = settings or Settings.from_environment()
        self._exit = AsyncExitStack()
        self._open: Services | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[str, set[asyncio.Future[bytes | None]]] = {}
        self._asked: dict[str, HandoffRequest] = {}

    async def __aenter__(self) -> Self:
        self._open = await self._exit.enter_async_context(
            open_services(self._settings, name="moonfold-client")
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = None
        if self._listener is not None:
            await end(self._listener)
            self._listener = None
        await self._exit.aclose()

    async def append(self, thread_id: str, expected: int, events: Sequence[ThreadEvent]) -> int:
        """Record events after sequence `expected`, and return the log's last sequence.

        Repeating a call whose reply was lost is harmless. At the end of a turn the thread is folded in
        the background, and so it is when a quota is reported to be nearly used up.

        Raises:
            SequenceGapError: the log ends before `expected`; the error says where.
            SequenceConflictError: other events are recorded there.
            EventTooLargeError: an event is larger than `MOONFOLD_MAX_EVENT_BYTES`.
            WireError: an event, or the thread id, is not valid.
        """
        last = await log.append(
            self.services.threads,
            thread_id,
            expected,
            events,
            ttl=self._settings.thread_ttl,
            max_event_bytes=self._settings.max_event_bytes,
        )
        if any(map(self._asks_for_fold, events)):
            await queue.enqueue_fold(self.services.redis, thread_id)
        return last

    async def last(self, thread_id: str) -> int:
        """Return the last sequence of a thread's log; 0 if there is no such thread."""
        return await log.last(self.services.threads, thread_id)

    async def request(self, request: HandoffRequest) -> bool:
        """Ask for a handoff; False if this request is asked or answered already, which is harmless.

        The request carries the trace context that it is given, else that of the session, if it traces.

        Raises:
            WireError: the request is not valid.
        """
        sound = decode_request(encode(request))
        redis, name = self.services.redis, queue.queue_of(sound)
        with tracing.spans.sending(redis, name, sound) as traced:
            accepted = await queue.enqueue_request(redis, traced)
            self._asked[traced.request_id] = traced
        if len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return accepted

    async def wait(
        self,
        request_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 - callers in plain asyncio expect it
    ) -> HandoffResult:
        """Return the result of a request, at once if it is there, else when it is published.

        What this client asked for is asked again now and then, which is harmless: a replica that took its
        primary's place may never have heard of it.

        Args:
            request_id: a request of this session.
            timeout: seconds to wait; None: as long as it takes, whatever the server does meanwhile.

        Raises:
            TimeoutError: there is no result yet.
            RuntimeError: the client was closed meanwhile.
        """
        redis = self.services.redis
        result = self._result(request_id, timeout)
        return await tracing.spans.receiving(redis, self.session_id, request_id, result)

    async def _result(self, request_id: str, seconds: float | None) -> HandoffResult:
        async with asyncio.timeout(seconds):
            looked = False
            while True:
                news = self._expect(request_id)
                try:
                    redis = self.services.redis
                    listener = self._listening()
                    result = await results.get(redis, request_id)
                    if result is not None:
                        return self._answered(result)
                    if looked and request_id in self._asked:
                        await self._ask_again(self._asked[request_id])
                    looked = True
                    await asyncio.wait((news, listener), return_when=asyncio.FIRST_COMPLETED)
                    if news.done() and (raw := news.result()) is not None:
                        return self._answered(decode_result(raw))
                    if listener.done() and not listener.cancelled():
                        listener.result()
                except TRANSIENT as error:
                    logger.warning("session_waits_for_server", error=type(error).__name__)
                    await asyncio.sleep(RECONNECT_SECONDS)
                finally:
                    self._forget(request_id, news)

    def _answered(self, result: HandoffResult) -> HandoffResult:
        self._asked.pop(result.request_id, None)
        return result

    async def _ask_again(self, request: HandoffRequest) -> None:
        try:
            lost = await queue.enqueue_request(self.services.redis, request)
        except ResponseError as error:
            # Full, or read-only for now. The one that was asked first may be done all the same.
            logger.warning("request_not_repeated", error=type(error).__name__)
            return
        if lost:
            logger.warning("request_repeated", request_id=request.request_id)

    def _asks_for_fold(self, event: ThreadEvent) -> bool:
        if isinstance(event, QuotaReported):
            window = fullest(event)
            return window is not None and window.used_percent >= self._settings.limit_near_percent
        return isinstance(event, TurnEnded)

    def _expect(self, request_id: str) -> asyncio.Future[bytes | None]:
        news: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(request_id, set()).add(news)
        return news

    def _forget(self, request_id: str, news: asyncio.Future[bytes | None]) -> None:
        self._waiting[request_id].discard(news)
        if not self._waiting[request_id]:
            del self._waiting[request_id]

    def _listening(self) -> asyncio.Task[None]:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())
        return self._listener

    @property
    def services(self) -> Services:
        """The open connections and the settings.

        Raises:
            RuntimeError: the client is not open.
        """
        if self._open is None:
            raise RuntimeError("HandoffClient is used outside `async with`")
        return self._open

    async def _listen(self) -> None:
        """Hand results to waiting calls as they are published.

        What is published while nobody listens, or for another session, is found by looking: at each
        subscription, and now and then. A lost message costs time and never a result.
        """
        while True:
            try:
                async with self.services.redis.pubsub() as channel:
                    await channel.subscribe(keys.results(self.session_id))
                    while True:
                        message = await channel.get_message(timeout=LISTEN_SECONDS)
                        if message is not None and message["type"] == "message":
                            self._tell_of(message["data"])
                        else:
                            self._tell_all_to_look()
            except TRANSIENT as error:
                logger.warning("session_channel_lost", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_SECONDS)

    def _tell_of(self, raw: bytes) -> None:
        try:
            request_id = _decode_id(raw).request_id
        except msgspec.DecodeError:
            return  # no result; whoever published it
        self._tell(request_id, raw)

    def _tell_all_to_look(self) -> None:
        for request_id in list(self._waiting):
            self._tell(request_id, None)

    def _tell(self, request_id: str, raw: bytes | None) -> None:
        for news in self._waiting.get(request_id, ()):
            if not news.done():
                news.set_result(raw)


class _Identified(msgspec.Struct):
    """As much of a result as tells whose it is."""

    request_id: str


_decode_id = msgspec.json.Decoder(_Identified).decode
