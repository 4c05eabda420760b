"""A newer request of a session for a thread takes the place of one that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import (
    THREAD,
    append,
    conversation,
    document,
    events,
    fork,
    job,
    limited,
    near,
    put,
    restart,
    switch,
)
from helpers.building import user
from helpers.slow import gate
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, log, queue, results
from moonfold_schemas import HandoffRequest
from moonfold_schemas.results import (
    FailureCode,
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
)

Make = Callable[..., HandoffRequest]


async def answers(
    settings: Settings, client: HandoffClient, *requests: HandoffRequest
) -> list[HandoffResult]:
    """Start a worker, and return the answers to requests that wait."""
    running = RunningWorker(settings)
    await running.start()
    found = [await client.wait(request.request_id, timeout=10) for request in requests]
    await running.stop()
    return found


def forked(**changes: Any) -> HandoffRequest:
    return fork(fork_thread_id=f"fork-{changes['through']}", **changes)


def prepared_fork(**changes: Any) -> HandoffRequest:
    return forked(request=None, **changes)


def superseded(result: HandoffResult, newer: HandoffRequest) -> bool:
    if not isinstance(result, HandoffFailed) or result.code is not FailureCode.SUPERSEDED:
        return False
    assert not result.retryable
    return newer.request_id in result.message


@pytest.fixture(autouse=True)
async def _thread(redis: Redis) -> None:
    await append(redis, conversation(3))


@pytest.mark.parametrize("older", [switch, restart, limited])
@pytest.mark.parametrize("newer", [switch, restart, limited])
async def test_the_request_that_reaches_further_is_answered(
    older: Make, newer: Make, settings: Settings, client: HandoffClient, redis: Redis
) -> None:
    first, second = older(through=5), newer(through=8)
    await queue.enqueue_request(redis, first)
    await queue.enqueue_request(redis, second)
    gone, done = await answers(settings, client, first, second)
    assert superseded(gone, second)
    assert isinstance(done, HandoffReady)
    assert not await redis.exists(keys.REJECTED)  # nobody has to look into it


async def test_the_order_in_which_they_come_does_not_matter(
    settings: Settings, client: HandoffClient, redis: Redis
) -> None:
    second, first = switch(through=8), switch(through=5)
    await queue.enqueue_request(redis, second)
    await queue.enqueue_request(redis, first)
    gone, done = await answers(settings, client, first, second)
    assert superseded(gone, second)
    assert isinstance(done, HandoffReady)


async def test_of_many_the_one_that_reaches_furthest_is_answered(
    settings: Settings, client: HandoffClient, redis: Redis
) -> None:
    requests = [switch(through=through) for through in (3, 5, 5, 4, 8)]
    for request in requests:
        await queue.enqueue_request(redis, request)
    found = await answers(settings, client, *requests)
    assert isinstance(found.pop(), HandoffReady)
    assert all(
        isinstance(one, HandoffFailed) and one.code is FailureCode.SUPERSEDED for one in found
    )


@pytest.mark.parametrize(
    "changes",
    [{"through": 5}, {"through": 8, "session_id": "other"}, {"through": 8, "thread_id": "other"}],
    ids=str,
)
async def test_requests_of_the_same_point_another_session_or_another_thread_stand_beside(
    changes: dict[str, Any],
    settings: Settings,
    client: HandoffClient,
    redis: Redis,
) -> None:
    await append(redis, conversation(), thread_id="other")
    first, second = switch(through=5), switch(**changes)
    await queue.enqueue_request(redis, first)
    await queue.enqueue_request(redis, second)
    for result in await answers(settings, client, first, second):
        assert isinstance(result, HandoffReady)


@pytest.mark.parametrize("other", [forked, prepared_fork, near])
async def test_forks_and_preparations_neither_take_a_place_nor_lose_it(
    other: Make, settings: Settings, client: HandoffClient, redis: Redis
) -> None:
    apart = [other(through=8), other(through=3)]
    request = switch(through=5)
    for one in (apart[1], request, apart[0]):
        await queue.enqueue_request(redis, one)
    for result in await answers(settings, client, request, *apart):
        assert isinstance(result, HandoffReady | HandoffPrepared)


async def test_what_is_published_stays(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    first, second = switch(through=5), switch(through=8)
    await client.request(first)
    done = await client.wait(first.request_id, 10)
    await client.request(second)
    assert isinstance(await client.wait(second.request_id, 10), HandoffReady)
    assert await results.get(redis, first.request_id) == done
    assert isinstance(done, HandoffReady)


async def test_of_requests_for_one_point_only_those_that_wait_lose_their_place(
    redis: Redis,
) -> None:
    done, waiting = sorted((switch(through=5), switch(through=5)), key=lambda one: one.request_id)
    for request in (done, waiting):
        await queue.enqueue_request(redis, request)
    await redis.delete(keys.job(done.request_id))
    await queue.enqueue_request(redis, switch(through=8))
    found = [name async for name in redis.scan_iter("moonfold:superseded:*")]
    assert found == [f"moonfold:superseded:{waiting.request_id}".encode()]


async def test_what_runs_is_answered(
    client: HandoffClient,
    running_worker: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = gate(monkeypatch)
    first, second = switch(through=5), switch(through=8)
    await client.request(first)
    await held.arrived.wait()
    await client.request(second)
    held.opened.set()
    for request in (first, second):
        assert isinstance(await client.wait(request.request_id, 10), HandoffReady)


async def test_what_is_tried_again_loses_its_place(
    client: HandoffClient,
    running_worker: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
    redis: Redis,
) -> None:
    fetch = log.fetch

    async def lost(*_: Any) -> Any:
        raise RedisConnectionError

    monkeypatch.setattr(log, "fetch", lost)
    first, second = switch(through=5), switch(through=8)
    await client.request(first)

    async def failed_once() -> bool:
        attempts = await redis.get(f"arq:retry:{first.request_id}")
        claimed = await redis.exists(f"arq:in-progress:{first.request_id}")
        return attempts is not None and not claimed

    await until(failed_once)
    monkeypatch.setattr(log, "fetch", fetch)
    await client.request(second)
    assert isinstance(await client.wait(second.request_id, 10), HandoffReady)
    assert superseded(await client.wait(first.request_id, 10), second)


async def test_a_producer_that_tells_no_place_works_as_before(
    settings: Settings, client: HandoffClient, redis: Redis
) -> None:
    first, second = switch(through=5), switch(through=8)
    for request in (first, second):
        fields = {"request_id": request.request_id, "through": request.through}
        await put(redis, request.request_id, job(document(**fields)))
    for result in await answers(settings, client, first, second):
        assert isinstance(result, HandoffReady)


async def test_what_tells_of_places_is_bounded_and_expires(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    last = await client.last(THREAD)
    for _ in range(5):
        request = switch(through=last)
        await client.request(request)
        await client.wait(request.request_id, 10)

        async def is_done(request: HandoffRequest = request) -> bool:
            return not await redis.exists(keys.job(request.request_id))

        await until(is_done)
    key = keys.pending(client.session_id, THREAD)
    assert await redis.zcard(key) == 1
    assert 0 < await redis.ttl(key) <= queue.JOB_TTL
    await client.append(THREAD, last, events(user("more")))
    await client.request(switch(through=last + 1))
    assert not [name async for name in redis.scan_iter("moonfold:superseded:*")]
