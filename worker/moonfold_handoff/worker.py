"""The worker: arq's queue discipline, woken instead of polling, that outlives a Redis outage.

Everything that knows arq is here. arq is in maintenance mode, so what is overridden stays as it is; each
override has a test. `moonfold worker` runs both queues in one process;
`arq moonfold_handoff.worker.HandoffSettings` runs one the stock way, polling.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from arq.connections import ArqRedis, RedisSettings
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from arq.worker import Function, Retry, Worker, func

from moonfold_handoff import jobs
from moonfold_handoff.catalogue import load_catalogue
from moonfold_handoff.embedded import EmbeddedServer
from moonfold_handoff.errors import (
    HandoffError,
    ServerAwayError,
)
from moonfold_handoff.ops import tracing
from moonfold_handoff.ops.monitor import Monitor
from moonfold_handoff.policy import load_policy
from moonfold_handoff.queued_jobs import (
    ATTEMPTS_EVER,
    deserialize_job,
    read_job,
    serialize_job,
)
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, rejected
from moonfold_handoff.store.addresses import Sentinels, several
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.store.queue import BUILD_HANDOFF, FOLD_THREAD, READ_LIMIT
from moonfold_handoff.store.scripts import worker_script
from moonfold_handoff.tasks import end

NAME = "moonfold-worker"  # in the server's client list
PATIENCE = 0.25  # seconds that background jobs stand back at most, while interactive ones run
IDLE_POLL = 0.5  # seconds between looks at the queue when nothing wakes the worker
JOB_SECONDS = 20  # a job that takes longer is tried again
CLAIM_SECONDS = 5.0  # lifetime of a claim; so long waits the job of a worker that was killed
KEEP_SECONDS = 1.0  # between two renewals of the claims of running jobs
STOP_SECONDS = 10.0  # what running jobs get at shutdown before they are given back
GIVE_BACK_SECONDS = 1.0  # what a cancelled job gets to let its claim go
ATTEMPTS = (
    7  # of a job that meets errors of the server; by default a cluster takes 15 s to fail over
)
RETRY_BASE = 0.2  # seconds before the second attempt, doubled each time
RETRY_CAP = 30  # seconds between attempts at most
HANDOFF_JOBS = 32  # running at once
BACKGROUND_JOBS = 2  # folding and ranking keep the loop for milliseconds; more would delay a person
HEALTH_SECONDS = 30
LISTEN_SECONDS = 10  # one wait for a hint

TROUBLE = (RedisError, OSError)
"""Whatever a server answers in place of its work: away, loading, full, read-only after a failover."""

_claim = worker_script("claim")

logger = structlog.get_logger()

JobCoroutine = Callable[[Services, str, bytes, datetime | None], Awaitable[None]]


class WakeWorker(Worker):
    """An arq worker for one queue that starts a job when a hint comes, not at the next tick.

    Jobs are claimed by a script, one round trip for as many as there are free slots. It is woken by
    the hint that `enqueue` publishes and by a slot that becomes free while more jobs wait; the poll
    every `IDLE_POLL` seconds is the fallback, so a lost hint costs latency and never a job.
    """

    def __init__(
        self,
        services: Services,
        queue: str,
        max_jobs: int,
        *,
        yields_to: WakeWorker | None = None,
    ) -> None:
        self.token = secrets.token_hex(8)
        super().__init__(
            functions=functions(),
            redis_pool=ArqRedis(
                services.redis.connection_pool,
                job_serializer=serialize_job,
                job_deserializer=deserialize_job,
                default_queue_name=queue,
            ),
            queue_name=queue,
            max_jobs=max_jobs,
            handle_signals=False,
            poll_delay=0,
            ctx={"services": services},
            health_check_key=f"moonfold:worker:{self.token}:{queue.rpartition(':')[2]}",
            health_check_interval=HEALTH_SECONDS,
            **WORKER_OPTIONS,
        )
        self._services = services
        self._wake = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._more_waiting = False
        self._listener: asyncio.Task[None] | None = None
        self._yields_to = yields_to
        self._yielding: list[WakeWorker] = []
        self._started_at = 0.0
        self.turned_at = self.polled_at = time.monotonic()
        self._kept_at = 0.0
        if yields_to is not None:
            yields_to._yielding.append(self)  # noqa: SLF001 - the same class

    async def main(self) -> None:
        """Run until cancelled."""
        self._listener = asyncio.create_task(self._listen())
        await super().main()

    async def stop(self, grace: float = STOP_SECONDS) -> None:
        """Take no more jobs; let the running ones finish for `grace` seconds, give the rest back."""
        self.allow_pick_jobs = False
        with suppress(TimeoutError):
            async with asyncio.timeout(grace), self._claiming:
                pass  # a claim under way brings jobs that run, too
        running = list(self.tasks.values())
        if running:
            _, unfinished = await asyncio.wait(running, timeout=grace)
            await asyncio.gather(*(end(task, GIVE_BACK_SECONDS) for task in unfinished))
            logger.info("queue_stopped", queue=self.queue_name, given_back=len(unfinished))
        for task in (self.main_task, self._listener):
            if task is not None:
                await end(task)
        with suppress(*TROUBLE):
            await self.pool.delete(self.health_check_key)

    async def _run(
        self, job_id: str, overdue: int, attempt: int, raw: bytes | None, newer: bytes | None
    ) -> None:
        """Run a claimed job; where the server goes away meanwhile, let the claim go when it is back.

        arq's own `run_job` would ask the server once more for what the claim has brought already.
        """
        structlog.contextvars.bind_contextvars(job_id=job_id)
        try:
            await self._perform(job_id, overdue, attempt, raw, newer)
        except TROUBLE as error:
            logger.warning("redis_lost_during_job", error=type(error).__name__)
            await self._release(job_id)
        except asyncio.CancelledError:
            await asyncio.shield(self._release(job_id))
            raise

    async def _perform(
        self, job_id: str, overdue: int, attempt: int, raw: bytes | None, newer: bytes | None
    ) -> None:
        name, argument, enqueued, refusal = read_job(raw, attempt, newer)
        if refusal is not None:
            await jobs.abandon(
                self._services,
                job_id=job_id,
                function=name,
                argument=argument,
                error=refusal,
                enqueued=enqueued,
            )
            self.jobs_failed += 1
            await self.finish_failed_job(job_id, None)
            return
        context = {**self.ctx, "job_id": job_id, "job_try": attempt, "enqueue_time": enqueued}
        later: int | None = None
        started = time.monotonic()
        try:
            await self.functions[name].coroutine(context, argument)
            self.jobs_complete += 1
        except Retry as retry:
            # The queue's score says when the job was due at first; arq moves it on from there.
            elapsed = int((time.monotonic() - started) * 1000)
            later = (retry.defer_score or 0) + elapsed + overdue
            self.jobs_retried += 1
        await asyncio.shield(
            self.finish_job(
                job_id,
                finish=later is None,
                result_data=None,
                result_timeout_s=None,
                keep_result_forever=False,
                incr_score=later,
                keep_in_progress=None,
            )
        )

    async def _poll_iteration(self) -> None:
        # Cleared before the queue is read: what is enqueued after the read sets it again.
        self._wake.clear()
        self.turned_at = time.monotonic()
        patience = self._stands_back()
        try:
            await self._keep_claims()
            async with self._claiming:
                if not patience:
                    await self._start_claimed()
            await self.record_health()
        except TROUBLE as error:
            logger.warning("redis_unavailable", error=type(error).__name__)
            self.polled_at = -math.inf
            await asyncio.sleep(IDLE_POLL)
            return
        self.polled_at = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(patience or IDLE_POLL, IDLE_POLL)):
                await self._wake.wait()

    async def _keep_claims(self) -> None:
        """Let no claim of a running job expire. One that did all the same costs work, and no answer."""
        now = time.monotonic()
        if not self.tasks or now - self._kept_at < KEEP_SECONDS:
            return
        self._kept_at = now
        async with self.pool.pipeline(transaction=False) as pipe:
            for job_id in self.tasks:
                pipe.pexpire(in_progress_key_prefix + job_id, int(CLAIM_SECONDS * 1000))
            await pipe.execute()

    async def _start_claimed(self) -> None:
        free = self.max_jobs - len(self.tasks)
        if free <= 0 or not self.allow_pick_jobs:
            return
        claimed = await _claim(
            self.pool,
            (self.queue_name,),
            (
                free,
                READ_LIMIT,
                self.token,
                int(CLAIM_SECONDS * 1000),
                *self.tasks,
            ),
        )
        for raw_id, overdue, attempt, raw, newer in zip(*[iter(claimed)] * 5, strict=True):
            try:
                job_id = raw_id.decode()
            except UnicodeDecodeError:
                await self._refuse(raw_id)
                continue
            run = self._run(job_id, overdue, attempt, raw, newer)
            task = self.loop.create_task(run)
            self.tasks[job_id] = task
            self._started_at = time.monotonic()
            task.add_done_callback(partial(self._collect, job_id))
        self._more_waiting = len(claimed) == 5 * free

    def _collect(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self.tasks[job_id]
        if self._more_waiting:
            self._wake.set()
        if not self.tasks:
            for other in self._yielding:
                other._wake.set()  # noqa: SLF001 - the same class
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job_crashed", job_id=job_id, exc_info=error)

    def _stands_back(self) -> float:
        """Return the seconds that this queue waits yet for running jobs that a person waits for."""
        if self._yields_to is None or not self._yields_to.tasks:
            return 0.0
        return max(0.0, self._started_at + PATIENCE - time.monotonic())

    async def _refuse(self, raw_id: bytes) -> None:
        """Take a job off the queue whose id no key can be made of."""
        reason = "The job's id is not UTF-8."
        job_id = raw_id.decode(errors="backslashreplace")
        await rejected.reject(
            self.pool, job_id=job_id, function=BUILD_HANDOFF, reason=reason, argument=b""
        )
        await self.pool.zrem(self.queue_name, raw_id)
        prefixes = (job_key_prefix, retry_key_prefix, in_progress_key_prefix)
        await self.pool.delete(*(prefix.encode() + raw_id for prefix in prefixes))

    async def _release(self, job_id: str) -> None:
        """Let a claim go; at shutdown without a server it is left to expire."""
        while True:
            try:
                await self.pool.delete(in_progress_key_prefix + job_id)
            except TROUBLE:
                if not self.allow_pick_jobs:
                    return
                await asyncio.sleep(IDLE_POLL)
            else:
                return  # not woken: what failed at once is not tried again at once

    async def _listen(self) -> None:
        while True:
            try:
                async with self.pool.pubsub(ignore_subscribe_messages=True) as hints:
                    await hints.subscribe(keys.wake(self.queue_name))
                    self._wake.set()  # for what was enqueued while nobody listened
                    while True:
                        if await hints.get_message(timeout=LISTEN_SECONDS) is not None:
                            self._wake.set()
            except TROUBLE as error:
                logger.warning("hints_lost", queue=self.queue_name, error=type(error).__name__)
                await asyncio.sleep(IDLE_POLL)


async def run(settings: Settings, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
    """Run both queues until `stop` is set, then finish or give back what is running.

    Raises:
        CatalogueError: the operator's file of context windows cannot be used.
        PolicyError: the operator's failover policy cannot be used.
        EmbeddedServerError: the embedded server cannot be used here.
        RedisError, OSError: the server cannot be reached at the start.
    """
    async with await _services(settings) as services:
        await services.redis.ping()
        interactive = WakeWorker(services, keys.HANDOFFS, HANDOFF_JOBS)
        background = WakeWorker(services, keys.BACKGROUND, BACKGROUND_JOBS, yields_to=interactive)
        workers = [interactive, background]
        async with Monitor(services, workers) as monitor:
            outcomes = await _serve(workers, monitor, stop, ready)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


async def _serve(
    workers: list[WakeWorker], monitor: Monitor, stop: asyncio.Event, ready: asyncio.Event | None
) -> list[BaseException | None]:
    """Run the queues until `stop` is set or one of them ends; return what each came to."""
    running = [asyncio.create_task(worker.async_run()) for worker in workers]
    stopping = asyncio.create_task(stop.wait())
    logger.info("worker_started", queues=[worker.queue_name for worker in workers])
    if ready is not None:
        ready.set()
    try:
        await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        monitor.health.stop()
        await asyncio.gather(*(worker.stop() for worker in workers))
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        logger.info("worker_stopped")
    return outcomes


async def _services(settings: Settings) -> AbstractAsyncContextManager[Services]:
    """Return what jobs work with, still to be opened; the operator's files are read now."""
    catalogue = await asyncio.to_thread(load_catalogue, settings.model_windows)
    policy = await asyncio.to_thread(load_policy, settings.failover_policy)
    return open_services(settings, name=NAME, catalogue=catalogue, policy=policy)


def functions() -> list[Function]:
    """Return the jobs as arq functions."""
    return [
        _function(BUILD_HANDOFF, jobs.build_handoff),
        _function(FOLD_THREAD, jobs.fold_thread),
    ]


def _function(name: str, coroutine: JobCoroutine) -> Function:
    """Wrap a job: bind its log context, retry what may pass, answer what will not."""

    async def run_one(ctx: dict[str, Any], *arguments: bytes) -> None:
        services: Services = ctx["services"]
        job_id, attempt, enqueued = ctx["job_id"], ctx["job_try"], ctx["enqueue_time"]
        started = time.perf_counter()
        argument = bytes(arguments[0]) if arguments else b""
        structlog.contextvars.bind_contextvars(job_id=job_id, attempt=attempt)
        try:
            with tracing.spans.processing(
                services.redis,
                ctx["redis"].default_queue_name,
                function=name,
                job_id=job_id,
                attempt=attempt,
                argument=argument,
            ):
                async with asyncio.timeout(JOB_SECONDS - 1):
                    await coroutine(services, job_id, argument, enqueued)
        except TROUBLE as error:
            logger.warning("job_retried", function=name, error=type(error).__name__)
            if attempt < ATTEMPTS:
                services.metrics.retried(name)
                raise Retry(defer=_pause(attempt)) from error
            failure: HandoffError = ServerAwayError(
                f"Given up after {attempt} attempts; the server did not answer."
            )
        except Exception:
            logger.exception("job_failed", function=name)
            failure = HandoffError("An internal error; its place is in the worker's log.")
        else:
            return
        try:
            await jobs.abandon(
                services,
                job_id=job_id,
                function=name,
                argument=argument,
                error=failure,
                started=started,
                enqueued=enqueued,
            )
        except TROUBLE as error:
            services.metrics.retried(name)
            raise Retry(defer=_pause(attempt)) from error

    return func(run_one, name=name, keep_result=0, timeout=JOB_SECONDS, max_tries=ATTEMPTS_EVER)


def _pause(attempt: int) -> float:
    return min(RETRY_CAP, RETRY_BASE * 2.0 ** (attempt - 1))


WORKER_OPTIONS: dict[str, Any] = {
    "job_serializer": serialize_job,
    "job_deserializer": deserialize_job,
    "keep_result": 0,
    "job_timeout": JOB_SECONDS,
    "queue_read_limit": READ_LIMIT,
    "max_tries": ATTEMPTS_EVER,
    "log_results": False,
}


def __getattr__(name: str) -> Any:
    """Give `arq` its settings classes, made when asked for: they read the environment."""
    queues = {
        "HandoffSettings": (keys.HANDOFFS, HANDOFF_JOBS),
        "BackgroundSettings": (keys.BACKGROUND, BACKGROUND_JOBS),
    }
    if name not in queues:
        raise AttributeError(name)
    queue, max_jobs = queues[name]
    settings = Settings.from_environment()
    options = {
        **WORKER_OPTIONS,
        "functions": functions(),
        "queue_name": queue,
        "max_jobs": max_jobs,
        "redis_settings": _redis_settings(settings),
        "on_startup": _open,
        "on_shutdown": _close,
    }
    return type(name, (), options)


def _redis_settings(settings: Settings) -> RedisSettings:
    if settings.redis_url is None:
        # arq connects before anything of ours runs: another moonfold process must keep the server up.
        return RedisSettings(unix_socket_path=str(EmbeddedServer().socket))
    sentinels = several(settings.redis_url)
    if isinstance(sentinels, Sentinels):
        # arq asks Sentinels without TLS options and without a password of theirs.
        return RedisSettings(
            host=list(sentinels.hosts),
            sentinel=True,
            sentinel_master=sentinels.service,
            database=sentinels.database,
            username=sentinels.options.get("username"),
            password=sentinels.options.get("password"),
            ssl=sentinels.options.get("ssl", False),
        )
    return RedisSettings.from_dsn(settings.redis_url)


async def _open(ctx: dict[str, Any]) -> None:
    ctx["exit"] = AsyncExitStack()
    tracing.set_up()
    settings = Settings.from_environment()
    ctx["services"] = await ctx["exit"].enter_async_context(await _services(settings))


async def _close(ctx: dict[str, Any]) -> None:
    await ctx["exit"].aclose()
