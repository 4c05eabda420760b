"""How the queues stand, whoever asks."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from conftest import RunningWorker
from helpers.asking import THREAD, append, conversation, document, job, put, switch
from helpers.slow import gate
from helpers.waiting import DEADLINE_SECONDS, until
from redis.asyncio import Redis

from moonfold_handoff import worker
from moonfold_handoff.ops import queues
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, threads
from moonfold_schemas import utc_now


async def handoffs(redis: Redis) -> queues.QueueFigures:
    return (await queues.read(redis)).queues[0]


async def asked_for(redis: Redis, count: int) -> list[str]:
    await append(redis, conversation())
    requests = [switch() for _ in range(count)]
    for request in requests:
        await queue.enqueue_request(redis, request)
    return [request.request_id for request in requests]


async def test_empty_queues_are_all_zero(redis: Redis) -> None:
    figures = await queues.read(redis)
    assert figures.queues == (
        queues.QueueFigures("handoffs", 0, 0, 0, 0.0),
        queues.QueueFigures("background", 0, 0, 0, 0.0),
    )
    assert (figures.rejected, figures.rejected_at) == (0, None)


async def test_jobs_that_wait_are_the_depth_of_their_own_queue(redis: Redis) -> None:
    await asked_for(redis, 3)
    await queue.enqueue_fold(redis, THREAD)
    interactive, background = (await queues.read(redis)).queues
    assert (interactive.depth, interactive.in_progress, interactive.deferred) == (3, 0, 0)
    assert (background.depth, background.in_progress, background.deferred) == (1, 0, 0)


async def test_the_age_is_that_of_the_oldest_job_that_is_due(redis: Redis) -> None:
    now = time.time() * 1000
    await redis.zadd(keys.HANDOFFS, {"late": now + 60_000})
    assert (await handoffs(redis)).oldest_seconds == 0
    await redis.zadd(keys.HANDOFFS, {"old": now - 90_000, "older": now - 120_000})
    figures = await handoffs(redis)
    assert 120 <= figures.oldest_seconds < 120 + DEADLINE_SECONDS
    assert (figures.depth, figures.deferred) == (2, 1)


async def test_what_all_workers_run_is_in_progress_and_no_longer_waits(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HANDOFF_JOBS", 2)
    held = gate(monkeypatch)
    workers = [RunningWorker(settings), RunningWorker(settings)]
    for one in workers:
        await one.start()
    await asked_for(redis, 5)

    async def all_slots_are_taken() -> bool:
        return len(held.waiting) == 4

    await until(all_slots_are_taken)
    figures = await handoffs(redis)
    assert (figures.depth, figures.in_progress) == (1, 4)
    assert figures.oldest_seconds > 0
    held.opened.set()

    async def all_is_done() -> bool:
        return (await handoffs(redis))[1:] == (0, 0, 0, 0.0)

    await until(all_is_done)
    for one in workers:
        await one.stop()


async def test_the_claim_of_a_killed_worker_counts_until_it_expires(redis: Redis) -> None:
    [request_id] = await asked_for(redis, 1)
    await redis.set(f"arq:in-progress:{request_id}", "token of a dead worker", px=30_000)
    figures = await handoffs(redis)
    assert (figures.depth, figures.in_progress) == (0, 1)
    await redis.pexpire(f"arq:in-progress:{request_id}", 0)
    figures = await handoffs(redis)
    assert (figures.depth, figures.in_progress) == (1, 0)


async def test_a_job_that_is_tried_again_is_deferred(
    redis: Redis, running_worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RETRY_BASE", 30.0)

    async def lost(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(threads, "load", lost)
    await asked_for(redis, 1)

    async def is_deferred() -> bool:
        return (await handoffs(redis))[1:] == (0, 0, 1, 0.0)

    await until(is_deferred)


async def test_dead_letters_are_counted_and_the_latest_is_dated(
    redis: Redis, running_worker: RunningWorker
) -> None:
    before = utc_now() - timedelta(milliseconds=2)
    for name in ("bad", "worse"):
        await put(redis, name, job(document(request_id=name, through=0)))

    async def both_are_rejected() -> bool:
        return (await queues.read(redis)).rejected == 2

    await until(both_are_rejected)
    at = (await queues.read(redis)).rejected_at
    assert at is not None
    assert before <= at <= utc_now() + timedelta(milliseconds=2)
    await redis.xtrim(keys.REJECTED, maxlen=0)
    figures = await queues.read(redis)
    assert (figures.rejected, figures.rejected_at) == (0, None)


async def test_a_deep_queue_costs_no_more_than_its_head(redis: Redis) -> None:
    """What is looked at is bounded, so the server is never kept from its work."""
    now = int(time.time() * 1000)
    await redis.zadd(keys.HANDOFFS, {f"job-{number}": now - number for number in range(20_000)})
    await redis.set("arq:in-progress:job-19999", "first in line", px=60_000)
    await redis.config_set("slowlog-log-slower-than", 0)
    await redis.slowlog_reset()
    async with asyncio.timeout(DEADLINE_SECONDS):
        figures = await handoffs(redis)
    calls = await redis.slowlog_get(16)
    await redis.config_set("slowlog-log-slower-than", 10_000)
    assert (figures.depth, figures.in_progress) == (19_999, 1)
    took = [call["duration"] for call in calls if call["command"].startswith(b"EVAL")]
    assert took
    assert max(took) < 20_000  # microseconds


async def test_the_figures_are_one_call(redis: Redis) -> None:
    async def calls() -> int:
        return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])

    await queues.read(redis)  # the server knows the script from here on
    before = await calls()
    await queues.read(redis)
    assert await calls() == before + 1
