from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import arq
import pytest
from arq.connections import ArqRedis
from conftest import Logged, RunningWorker
from helpers.asking import THREAD, append, conversation, document, job, listening, put, switch
from helpers.servers import RedisServer
from helpers.slow import gate
from helpers.spoiling import full, not_full, read_only, writable
from helpers.waiting import DEADLINE_SECONDS, until
from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004
    ResponseError,
    TimeoutError,  # noqa: A004
)

from moonfold_handoff import jobs, worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.queued_jobs import ATTEMPTS_EVER
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, results, threads
from moonfold_handoff.worker import WakeWorker
from moonfold_schemas import HandoffRequest, HandoffResult
from moonfold_schemas.results import FailureCode, HandoffFailed, HandoffReady

SECRET = "a-very-private-wish"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr(worker, "RETRY_BASE", 0.001)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.01)


def failing(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, error: Exception, times: int = 10**6
) -> list[int]:
    """Let a function fail `times` times; returns a list that grows with each failure."""
    original: Callable[..., Awaitable[Any]] = getattr(module, name)
    failures: list[int] = []

    async def fail(*arguments: Any, **more: Any) -> Any:
        if len(failures) < times:
            failures.append(len(failures))
            raise error
        return await original(*arguments, **more)

    monkeypatch.setattr(module, name, fail)
    return failures


async def asked(client: HandoffClient, request: HandoffRequest) -> HandoffResult:
    await client.append(THREAD, 0, conversation())
    await client.request(request)
    return await client.wait(request.request_id, timeout=15)


async def is_empty(redis: Redis) -> bool:
    return not await redis.exists(keys.HANDOFFS, keys.BACKGROUND)


async def asked_for(redis: Redis, count: int) -> list[str]:
    if not await redis.exists(keys.log(THREAD)):
        await append(redis, conversation())
    requests = [switch() for _ in range(count)]
    for request in requests:
        await queue.enqueue_request(redis, request)
    return [request.request_id for request in requests]


async def all_answered(redis: Redis, request_ids: list[str]) -> None:
    async def done() -> bool:
        return int(await redis.exists(*map(keys.result, request_ids))) == len(request_ids)

    await until(done)
    for request_id in request_ids:
        assert isinstance(await results.get(redis, request_id), HandoffReady)
    assert await redis.xlen(keys.results("session")) == len(request_ids)


# Retries


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error",
    [
        ConnectionError(SECRET),
        TimeoutError(SECRET),
        BusyLoadingError(SECRET),
        OSError(SECRET),
        ResponseError(f"MISCONF {SECRET}"),
    ],
)
async def test_what_may_pass_is_tried_again_and_answered_once(  # noqa: PLR0917
    error: Exception,
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = failing(monkeypatch, threads, "load", error, times=3)
    assert isinstance(await asked(client, switch()), HandoffReady)
    assert len(failures) == 3
    retries = logged.events("job_retried")
    assert [line["attempt"] for line in retries] == [1, 2, 3]
    assert {line["error"] for line in retries} == {type(error).__name__}
    assert logged.events("handoff_ready")[0]["attempt"] == 4
    assert await redis.xlen(keys.results("session")) == 1
    assert not await redis.exists(keys.REJECTED)
    assert SECRET not in logged.ours.getvalue()


@pytest.mark.usefixtures("quick")
async def test_what_does_not_pass_is_given_up_and_answered(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = failing(monkeypatch, threads, "load", ConnectionError(SECRET))
    result = await asked(client, switch())
    assert isinstance(result, HandoffFailed)
    assert (result.code, result.retryable) == (FailureCode.INTERNAL, True)
    assert f"{worker.ATTEMPTS} attempts" in result.message
    assert len(failures) == worker.ATTEMPTS
    assert await redis.xlen(keys.REJECTED) == 1


@pytest.mark.usefixtures("quick", "logged")
async def test_an_answer_that_cannot_be_given_is_tried_again(
    client: HandoffClient,
    running_worker: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, threads, "load", RuntimeError("x"))
    failures = failing(monkeypatch, jobs, "abandon", ResponseError("OOM"), times=3)
    assert isinstance(await asked(client, switch()), HandoffFailed)
    assert len(failures) == 3


async def test_an_answer_to_a_job_given_up_unrun_is_tried_again(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, jobs, "abandon", ConnectionError("x"), times=2)
    await put(redis, "bad", job(document(request_id="bad"), f="unknown"))
    assert isinstance(await client.wait("bad", timeout=10), HandoffFailed)


async def test_an_answer_that_cannot_be_kept_is_tried_again_with_a_pause(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 0.1)
    await redis.set(keys.REJECTED, "no stream", ex=60)
    await listening(redis)
    await put(redis, "bad", job(document(request_id="bad"), f="unknown"))
    started = time.monotonic()

    async def was_tried_often() -> bool:
        return len(logged.events("redis_lost_during_job")) >= 4

    await until(was_tried_often)
    # A hint that comes late can bring the second attempt on at once; the others wait for the poll.
    assert time.monotonic() - started >= 0.2
    await redis.delete(keys.REJECTED)
    assert isinstance(await client.wait("bad", timeout=10), HandoffFailed)
    assert await redis.xlen(keys.REJECTED) == 1


def test_pauses_grow_and_stay_bearable() -> None:
    pauses = [worker._pause(attempt) for attempt in range(1, ATTEMPTS_EVER + 1)]
    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == worker.RETRY_CAP


async def test_an_error_of_ours_is_answered_without_its_words(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, threads, "load", RuntimeError(SECRET))
    result = await asked(client, switch())
    assert isinstance(result, HandoffFailed)
    assert (result.code, result.retryable) == (FailureCode.INTERNAL, False)
    [line] = logged.events("job_failed")
    assert line["error"] == "RuntimeError"
    assert any("build_handoff" in place for place in line["at"])
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert SECRET not in f"{result}{fields}{logged.text}"


async def test_a_job_that_takes_too_long_is_tried_again(
    quick: None, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "JOB_SECONDS", 1.01)
    held = gate(monkeypatch)
    [function] = [f for f in worker.functions() if f.name == queue.BUILD_HANDOFF]
    pool = ArqRedis(services.redis.connection_pool, default_queue_name=keys.HANDOFFS)
    context = {
        "services": services,
        "redis": pool,
        "job_id": "r",
        "job_try": 1,
        "enqueue_time": None,
    }
    request = job(document())[
        len(b'{"t": null, "f": "build_handoff", "a": [') : -len(b'], "k": {}, "et": 0}')
    ]
    with pytest.raises(arq.Retry):
        await function.coroutine(context, request)
    assert held.waiting == []


@pytest.mark.usefixtures("quick")
async def test_a_job_that_crashes_does_not_end_the_worker(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, WakeWorker, "finish_job", RuntimeError(SECRET), times=1)
    assert isinstance(await asked(client, switch()), HandoffReady)
    await until(lambda: is_empty(redis))
    [line] = logged.events("job_crashed")
    assert line["error"] == "RuntimeError"
    assert SECRET not in logged.ours.getvalue()
    assert await redis.xlen(keys.results("session")) == 1


# A server that is away, full or read-only


async def test_a_worker_outlives_its_server(
    own_server: RedisServer, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 0.05)
    settings = Settings(redis_url=own_server.url)
    running = RunningWorker(settings)
    await running.start()
    held = gate(monkeypatch)
    async with open_services(settings, name="test") as services:
        before = await asked_for(services.redis, 3)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.arrived.wait()
        own_server.kill()

        async def is_noticed() -> bool:
            return bool(logged.events("hints_lost")) and bool(logged.events("redis_unavailable"))

        await until(is_noticed)
        held.opened.set()
        own_server.start()
        after = await asked_for(services.redis, 3)
        await all_answered(services.redis, before + after)
        await until(lambda: is_empty(services.redis))
    await running.stop()


async def test_a_job_that_loses_its_server_is_done_when_it_is_back(
    own_server: RedisServer, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 0.05)
    settings = Settings(redis_url=own_server.url)
    running = RunningWorker(settings)
    await running.start()
    held = gate(monkeypatch)
    async with open_services(settings, name="test") as services:
        ids = await asked_for(services.redis, 1)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.arrived.wait()
        own_server.kill()
        held.opened.set()

        async def is_noticed() -> bool:
            return bool(logged.events("redis_lost_during_job"))

        await until(is_noticed)
        own_server.start()
        await all_answered(services.redis, ids)
    await running.stop()


async def test_a_worker_stops_while_its_server_is_away(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WakeWorker, "stop", partialmethod(WakeWorker.stop, grace=0.1))
    settings = Settings(redis_url=own_server.url)
    running = RunningWorker(settings)
    await running.start()
    held = gate(monkeypatch)
    async with open_services(settings, name="test") as services:
        await asked_for(services.redis, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await held.arrived.wait()
    own_server.kill()
    async with asyncio.timeout(8):
        await running.stop()


async def test_a_worker_needs_its_server_to_start(own_server: RedisServer) -> None:
    own_server.kill()
    with pytest.raises((ConnectionError, OSError)):
        await worker.run(Settings(redis_url=own_server.url), asyncio.Event())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("spoil", "repair"), [(full, not_full), (read_only, writable)], ids=["full", "read-only"]
)
async def test_nothing_is_lost_on_a_server_that_takes_no_data(
    spoil: Callable[[Redis], Awaitable[None]],
    repair: Callable[[Redis], Awaitable[None]],
    own_server: RedisServer,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(redis_url=own_server.url)
    running = RunningWorker(settings)
    await running.start()
    held = gate(monkeypatch)
    async with open_services(settings, name="test") as services:
        ids = await asked_for(services.redis, 40)  # more than the worker takes at once
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.arrived.wait()
        await spoil(services.redis)
        held.opened.set()

        async def is_noticed() -> bool:
            noticed = logged.events("redis_unavailable") + logged.events("redis_lost_during_job")
            return len(noticed) >= 3

        await until(is_noticed)
        await repair(services.redis)
        await all_answered(services.redis, ids)
    await running.stop()


# The end of a worker


async def test_a_worker_that_stops_finishes_what_it_runs(
    redis: Redis, running_worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    ids = await asked_for(redis, 3)

    async def all_run() -> bool:
        return len(held.waiting) == 3

    await until(all_run)
    stopping = asyncio.create_task(running_worker.stop())
    await asyncio.sleep(0)
    late = await asked_for(redis, 1)
    held.opened.set()
    await stopping
    await all_answered(redis, ids)
    assert not await redis.exists(keys.result(late[0]))
    assert await redis.zcard(keys.HANDOFFS) == 1


async def test_what_takes_longer_is_given_back_to_another_worker(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    first, second = RunningWorker(settings), RunningWorker(settings)
    with monkeypatch.context() as patch:
        patch.setattr(WakeWorker, "stop", partialmethod(WakeWorker.stop, grace=0.01))
        await first.start()
        ids = await asked_for(redis, 3)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.arrived.wait()
        await first.stop()
    assert held.waiting == []
    assert await redis.zcard(keys.HANDOFFS) == 3
    assert [key async for key in redis.scan_iter("arq:in-progress:*")] == []
    held.opened.set()
    await second.start()
    await all_answered(redis, ids)
    await second.stop()


async def test_jobs_claimed_while_the_worker_stops_are_not_lost(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()
    claim = worker._claim

    async def slow_claim(pool: Redis, claim_keys: Any, arguments: Any) -> Any:
        reply = await claim(pool, claim_keys, arguments)
        if reply:
            claimed.set()
            await go_on.wait()
        return reply

    monkeypatch.setattr(worker, "_claim", slow_claim)
    running = RunningWorker(settings)
    await running.start()
    ids = await asked_for(redis, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await claimed.wait()
    stopping = asyncio.create_task(running.stop())
    await redis.ping()
    go_on.set()
    await stopping
    await all_answered(redis, ids)
    assert [key async for key in redis.scan_iter("arq:in-progress:*")] == []


async def test_a_claim_that_hangs_does_not_keep_the_worker_from_stopping(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming = asyncio.Event()

    async def hang(*_: Any) -> Any:
        claiming.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(worker, "_claim", hang)
    monkeypatch.setattr(WakeWorker, "stop", partialmethod(WakeWorker.stop, grace=0.01))
    running = RunningWorker(settings)
    await running.start()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await claiming.wait()
        await running.stop()


async def test_a_cancelled_job_lets_go_of_its_claim(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(WakeWorker, "_perform", cancelled)
    one = WakeWorker(services, keys.HANDOFFS, 1)
    await services.redis.set("arq:in-progress:j", one.token, px=30_000)
    with pytest.raises(asyncio.CancelledError):
        await one._run("j", 0, 1, None, None)
    assert not await services.redis.exists("arq:in-progress:j")


async def test_a_worker_that_never_ran_can_be_stopped(services: Services) -> None:
    await WakeWorker(services, keys.HANDOFFS, 1).stop()


async def test_a_queue_that_breaks_ends_the_worker_with_its_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: WakeWorker) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(WakeWorker, "_start_claimed", broken)
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(ZeroDivisionError):
            await worker.run(settings, asyncio.Event())


HANGING = """
import asyncio, sys
from moonfold_handoff import worker
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import threads

async def hang(*_, **__):
    print("running", flush=True)
    await asyncio.Event().wait()

threads.load = hang
asyncio.run(worker.run(Settings(redis_url=sys.argv[1]), asyncio.Event()))
"""


async def test_a_killed_worker_delays_its_job_no_longer_than_its_claim(
    settings: Settings, redis: Redis
) -> None:
    assert settings.redis_url is not None
    [request_id] = await asked_for(redis, 1)
    with subprocess.Popen(  # noqa: ASYNC220 - started once, and read in a thread
        [sys.executable, "-c", HANGING, settings.redis_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                lines = [await asyncio.to_thread(process.stdout.readline)]
                while "running" not in lines[-1]:
                    assert lines[-1]
                    lines.append(await asyncio.to_thread(process.stdout.readline))
        finally:
            process.kill()
    claim = f"arq:in-progress:{request_id}"
    assert 0 < await redis.pttl(claim) <= worker.CLAIM_SECONDS * 1000
    running = RunningWorker(settings)
    await running.start()
    assert not await redis.exists(keys.result(request_id))
    await redis.delete(claim)
    await all_answered(redis, [request_id])
    await running.stop()


async def test_a_job_that_runs_on_keeps_its_claim(
    redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.05)
    held = gate(monkeypatch)
    running = RunningWorker(settings)
    await running.start()
    [request_id] = await asked_for(redis, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await held.arrived.wait()
    lifetimes = [await redis.pttl(f"arq:in-progress:{request_id}")]

    async def is_renewed() -> bool:
        lifetimes.append(await redis.pttl(f"arq:in-progress:{request_id}"))
        return bool(lifetimes[-1] > lifetimes[-2] > 0)

    await until(is_renewed)
    await until(is_renewed)
    held.opened.set()
    await all_answered(redis, [request_id])
    await running.stop()


async def test_a_job_whose_claim_expired_is_answered_once_though_two_workers_run_it(
    redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    first, second = RunningWorker(settings), RunningWorker(settings)
    await first.start()
    [request_id] = await asked_for(redis, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await held.arrived.wait()
    await redis.delete(f"arq:in-progress:{request_id}")
    await second.start()

    async def both_run_it() -> bool:
        return held.waiting == [THREAD, THREAD]

    await until(both_run_it)
    held.opened.set()
    await all_answered(redis, [request_id])
    await until(lambda: is_empty(redis))
    await first.stop()
    await second.stop()


async def test_sigterm_ends_the_worker_cleanly_and_loses_nothing(
    settings: Settings, redis: Redis
) -> None:
    assert settings.redis_url is not None
    moonfold = Path(sys.executable).with_name("moonfold")
    with subprocess.Popen(  # noqa: ASYNC220 - started once, and read in a thread
        [moonfold, "worker"],
        env={**os.environ, "MOONFOLD_REDIS_URL": settings.redis_url},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            ids = await asked_for(redis, 300)

            async def has_begun() -> bool:
                return bool(await redis.xlen(keys.results("session")))

            await until(has_begun)
            process.send_signal(signal.SIGTERM)
            _, logged = await asyncio.to_thread(process.communicate, timeout=15)
        finally:
            process.kill()
    assert process.returncode == 0, logged
    assert '"event":"worker_stopped"' in logged.replace(" ", "")
    running = RunningWorker(settings)
    await running.start()
    await all_answered(redis, ids)
    await running.stop()
