"""What a worker does to be watched: it says that it lives, visits its servers, and answers over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol, Self

import structlog
from redis.asyncio import Redis

from moonfold_handoff.ops import exposition, queues, workers
from moonfold_handoff.ops.health import Health, Polling
from moonfold_handoff.ops.http import HttpServer, Page
from moonfold_handoff.ops.metrics import VERSION
from moonfold_handoff.ops.workers import Beat, Slots
from moonfold_handoff.services import Services
from moonfold_handoff.settings import endpoint
from moonfold_handoff.store import keys, scripts
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.tasks import end
from moonfold_schemas import utc_now

BEAT_SECONDS = 5.0  # between two visits to the servers
TROUBLE_SECONDS = 0.5  # between two visits while something is wrong, so that its end is noticed
VISIT_SECONDS = 10.0  # a visit takes at most
PROBE_SECONDS = 60  # lifetime of what is written to see that a server takes it

TROUBLE = (RedisError, OSError, TimeoutError)

logger = structlog.get_logger()


class Queue(Polling, Protocol):
    """What runs the jobs of one queue.

    Attributes:
        tasks: the jobs it is running.
        max_jobs: how many it runs at once.
    """

    tasks: dict[str, asyncio.Task[Any]]
    max_jobs: int


class Monitor:
    """Lets one worker process be watched; an async context manager.

    Args:
        services: what the worker works with.
        serving: the queues it serves.
    """

    def __init__(self, services: Services, serving: Sequence[Queue]) -> None:
        self.health = Health(serving)
        self._services, self._serving = services, serving
        self._token, self._started_at = secrets.token_hex(8), utc_now()
        self._exit = AsyncExitStack()
        self._address: str | None = None
        self._scripts: list[scripts.Script] = []
        for queue in serving:
            name = queues.name(queue.queue_name)
            services.metrics.slots.labels(name).set(queue.max_jobs)
            services.metrics.running.labels(name).set_function(partial(_running, queue))
        services.metrics.ready.set_function(lambda: float(not self.health.why_not_ready()))

    async def __aenter__(self) -> Self:
        self._scripts = await asyncio.to_thread(scripts.everything)
        await self._serve()
        beating = asyncio.create_task(self._beat())
        self._exit.push_async_callback(self._leave)
        self._exit.push_async_callback(end, beating)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit.aclose()

    async def _serve(self) -> None:
        """Serve over HTTP. Who cannot be watched can work all the same: then there is a warning."""
        address = self._services.settings.metrics_address
        place = endpoint(address)
        if place is None:
            return
        pages = {"/metrics": self._metrics, "/livez": self._livez, "/readyz": self._readyz}
        try:
            server = await self._exit.enter_async_context(HttpServer(*place, pages))
        except OSError as error:
            logger.warning("metrics_not_served", address=address, reason=error.strerror)
            return
        self._address = server.address
        logger.info("metrics_served", address=self._address)

    async def _metrics(self) -> Page:
        return await exposition.page(self._services)

    async def _livez(self) -> Page:
        return _verdict(self.health.why_dead())

    async def _readyz(self) -> Page:
        return _verdict(self.health.why_not_ready())

    async def _beat(self) -> None:
        was_ready = False
        while True:
            self.health.heard(await self._visit())
            trouble = self.health.why_not_ready()
            if was_ready and trouble:
                logger.warning("worker_not_ready", reason=trouble)
            elif not was_ready and not trouble:
                logger.info("worker_ready")
            was_ready = not trouble
            await asyncio.sleep(TROUBLE_SECONDS if trouble else BEAT_SECONDS)

    async def _visit(self) -> str:
        """Visit the servers as a job would use them; return why they cannot be used, or nothing."""
        try:
            async with asyncio.timeout(VISIT_SECONDS):
                for name, redis in self._services.servers.items():
                    await self._look_at(name, redis)
                await workers.beat(self._services.redis, self._said())
        except TROUBLE as error:
            return f"the server cannot be used: {type(error).__name__}"
        return ""

    async def _look_at(self, name: str, redis: Redis) -> None:
        began = time.perf_counter()
        await redis.ping()
        self._services.metrics.round_trip(name, time.perf_counter() - began)
        await redis.set(keys.PROBE, "", ex=PROBE_SECONDS)
        await scripts.load(redis, self._scripts)

    def _said(self) -> Beat:
        metrics = self._services.metrics
        return Beat(
            token=self._token,
            version=VERSION,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            metrics=self._address,
            queues={
                queues.name(queue.queue_name): Slots(len(queue.tasks), queue.max_jobs)
                for queue in self._serving
            },
            answered=metrics.answers,
            p50_ms=metrics.latency_ms(0.5),
            p99_ms=metrics.latency_ms(0.99),
            recent=tuple(metrics.recent),
        )

    async def _leave(self) -> None:
        with suppress(*TROUBLE):  # a server that is away forgets it by itself
            async with asyncio.timeout(VISIT_SECONDS):
                await workers.leave(self._services.redis, self._token)


def _running(queue: Queue) -> float:
    return float(len(queue.tasks))


def _verdict(trouble: str) -> Page:
    if trouble:
        return Page(f"{trouble}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return Page(b"ok\n")
