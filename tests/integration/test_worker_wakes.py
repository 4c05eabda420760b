from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import THREAD, append, conversation, listening, switch
from helpers.slow import gate
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue
from moonfold_handoff.worker import WakeWorker

NEVER = 3600  # seconds


async def asked(client: HandoffClient) -> None:
    request = switch()
    async with asyncio.timeout(5):
        await client.request(request)
        await client.wait(request.request_id)


@pytest.fixture
async def drowsy_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningWorker]:
    """A worker that looks at its queue only when it is woken."""
    monkeypatch.setattr(worker, "IDLE_POLL", NEVER)
    running = RunningWorker(settings)
    await running.start()
    yield running
    await running.stop()


async def test_a_hint_wakes_the_worker(drowsy_worker: RunningWorker, client: HandoffClient) -> None:
    await client.append(THREAD, 0, conversation())
    for _ in range(5):
        await asked(client)


async def test_what_was_queued_before_the_worker_came_is_done(
    redis: Redis, client: HandoffClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", NEVER)
    await client.append(THREAD, 0, conversation())
    request = switch()
    await client.request(request)
    running = RunningWorker(settings)
    await running.start()
    await client.wait(request.request_id, timeout=5)
    await running.stop()


async def test_a_listener_whose_connection_is_killed_listens_again(
    drowsy_worker: RunningWorker, redis: Redis, client: HandoffClient
) -> None:
    await client.append(THREAD, 0, conversation())
    await listening(redis)
    await redis.client_kill_filter(_type="pubsub")
    await listening(redis)
    await asked(client)


async def test_without_hints_the_poll_finds_jobs(
    settings: Settings, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_: WakeWorker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WakeWorker, "_listen", deaf)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.02)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    await asked(client)
    await running.stop()


async def test_a_worker_that_may_not_listen_polls(
    settings: Settings,
    client: HandoffClient,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NoPermissionError("private")

    monkeypatch.setattr(WakeWorker, "_listen", WakeWorker._listen)
    monkeypatch.setattr("arq.connections.ArqRedis.pubsub", refuse)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.02)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    await asked(client)
    await running.stop()
    assert logged.events("hints_lost")[0]["error"] == "NoPermissionError"


async def test_silence_is_no_error_for_the_listener(
    settings: Settings, client: HandoffClient, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LISTEN_SECONDS", 0.001)
    monkeypatch.setattr(worker, "IDLE_POLL", NEVER)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    for _ in range(3):
        await asked(client)
    await running.stop()
    assert not logged.events("hints_lost")


async def test_more_jobs_than_slots_are_all_done_without_a_poll(
    settings: Settings, redis: Redis, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", NEVER)
    monkeypatch.setattr(worker, "HANDOFF_JOBS", 2)
    held = gate(monkeypatch)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    requests = [switch() for _ in range(25)]
    for request in requests:
        await client.request(request)

    async def are_two() -> bool:
        return len(held.waiting) == 2

    await until(are_two)
    held.opened.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*(client.wait(request.request_id) for request in requests))
    assert held.passed == 25
    await running.stop()


async def test_a_backlog_in_the_background_does_not_hold_up_handoffs(
    running_worker: RunningWorker,
    redis: Redis,
    client: HandoffClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = gate(monkeypatch, only_folds=True)
    names = [f"thread-{number}" for number in range(3 * worker.BACKGROUND_JOBS)]
    for name in names:
        await append(redis, conversation(), thread_id=name)
        await queue.enqueue_fold(redis, name)

    async def is_full() -> bool:
        return len(held.waiting) == worker.BACKGROUND_JOBS

    await until(is_full)
    await client.append(THREAD, 0, conversation())
    await asked(client)
    assert len(held.waiting) == worker.BACKGROUND_JOBS
    held.opened.set()

    async def all_folded() -> bool:
        return int(await redis.exists(*map(keys.state, names))) == len(names)

    await until(all_folded)


async def test_two_workers_share_the_jobs_and_do_each_once(
    settings: Settings, redis: Redis, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HANDOFF_JOBS", 4)
    held = gate(monkeypatch)
    workers = [RunningWorker(settings), RunningWorker(settings)]
    for one in workers:
        await one.start()
    await client.append(THREAD, 0, conversation())
    requests = [switch() for _ in range(30)]
    for request in requests:
        await client.request(request)

    async def are_eight() -> bool:
        return len(held.waiting) == 8

    await until(are_eight)
    held.opened.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*(client.wait(request.request_id) for request in requests))
    assert held.passed == 30
    for one in workers:
        await one.stop()


async def test_a_claim_whose_reply_was_lost_is_taken_up_again(
    services: Services, redis: Redis
) -> None:
    one = WakeWorker(services, keys.HANDOFFS, 2)
    await append(redis, conversation())
    mine, others = switch(), switch()
    for request, token in ((mine, one.token), (others, "another")):
        await queue.enqueue_request(redis, request)
        await redis.set(f"arq:in-progress:{request.request_id}", token, px=30_000)
    await one._start_claimed()
    assert list(one.tasks) == [mine.request_id]
    await one._start_claimed()
    assert list(one.tasks) == [mine.request_id]
    await asyncio.gather(*one.tasks.values())


async def claim(redis: Redis, token: str, *running: str, wanted: int = 10) -> list[Any]:
    arguments: list[str | bytes | int] = [
        wanted,
        queue.READ_LIMIT,
        token,
        30_000,
        *running,
    ]
    reply = await worker._claim(redis, (keys.HANDOFFS,), arguments)
    return list(zip(*[iter(reply)] * 5, strict=True))


async def test_a_claim_brings_jobs_with_their_bodies_and_counts_attempts(redis: Redis) -> None:
    requests = [switch(), switch(), switch()]
    for request in requests:
        await queue.enqueue_request(redis, request)
    first, second, _ = [request.request_id for request in requests]
    body = await redis.get(keys.job(first))
    [(job_id, overdue, attempt, raw, newer)] = await claim(redis, "a", wanted=1)
    assert (job_id, attempt, raw) == (first.encode(), 1, body)
    assert 0 <= overdue < 10_000
    assert newer is None
    assert 0 < await redis.ttl(f"arq:retry:{first}") <= 88_400
    assert 0 < await redis.pttl(f"arq:in-progress:{first}") <= 30_000
    # What another worker has is passed over; what is due later is left.
    await redis.zadd(keys.HANDOFFS, {requests[2].request_id: 10**14})
    assert [(j, n) for j, _, n, *_ in await claim(redis, "b")] == [(second.encode(), 1)]
    # What this worker is running is, too; a claim whose reply was lost is another attempt.
    assert await claim(redis, "a", first) == []
    assert [(j, n) for j, _, n, *_ in await claim(redis, "a")] == [(first.encode(), 2)]
    await redis.delete(f"arq:in-progress:{first}", keys.job(first))
    assert [(j, n, r) for j, _, n, r, _ in await claim(redis, "b", second)] == [
        (first.encode(), 3, None)
    ]


async def test_the_attempts_of_a_job_that_is_done_are_forgotten(
    running_worker: RunningWorker, redis: Redis, client: HandoffClient
) -> None:
    await client.append(THREAD, 0, conversation())
    await asked(client)

    async def none_is_left() -> bool:
        return [key async for key in redis.scan_iter("arq:*")] == []

    await until(none_is_left)


async def test_a_worker_shows_that_it_is_well_until_it_stops(
    settings: Settings, redis: Redis
) -> None:
    running = RunningWorker(settings)
    await running.start()

    async def shown() -> list[bytes]:
        return [key async for key in redis.scan_iter("moonfold:worker:*:*")]

    async def are_both() -> bool:
        return len(await shown()) == 2

    await until(are_both)
    assert {key.rpartition(b":")[2] for key in await shown()} == {b"handoffs", b"background"}
    await running.stop()
    assert await shown() == []
