from __future__ import annotations

import asyncio
import json
import time

import pytest
from arq.connections import ArqRedis
from arq.worker import Worker, create_worker
from conftest import RunningWorker
from helpers.asking import THREAD, append, conversation, fork, limited, switch
from helpers.servers import RedisServer
from helpers.slow import gate
from helpers.waiting import until
from redis.asyncio import Redis

from moonfold_handoff import worker
from moonfold_handoff.services import Services
from moonfold_handoff.store import keys, queue, results
from moonfold_schemas import encode
from moonfold_schemas.results import HandoffReady


async def test_a_request_lies_on_the_queue_as_arq_has_its_jobs(redis: Redis) -> None:
    request = switch()
    before = time.time() * 1000
    assert await queue.enqueue_request(redis, request)
    body = json.loads(await redis.get(keys.job(request.request_id)) or b"")
    assert body.pop("et") >= int(before)
    assert body.get("t") is None
    assert body["f"] == "build_handoff"
    assert json.dumps(body["a"][0], separators=(",", ":")).encode() == encode(request)
    [(job_id, score)] = await redis.zrange(keys.HANDOFFS, 0, -1, withscores=True)
    assert job_id.decode() == request.request_id
    assert before - 1 <= score <= time.time() * 1000
    assert 0 < await redis.ttl(keys.job(request.request_id)) <= queue.JOB_TTL


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_producer_whose_clock_is_wrong_is_served_at_once_and_in_turn(
    hours: int, redis: Redis, running_worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    await append(redis, conversation())
    request = switch()
    wrong = time.time_ns() + hours * 3600 * 10**9
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: wrong)
        await queue.enqueue_request(redis, request)
    async with asyncio.timeout(10):
        await held.arrived.wait()
    score = await redis.zscore(keys.HANDOFFS, request.request_id)
    held.opened.set()
    assert score is not None
    assert abs(score - time.time() * 1000) < 10_000


async def test_only_preparations_and_folds_wait_in_the_background(redis: Redis) -> None:
    await queue.enqueue_request(redis, fork(request=None))
    assert await queue.enqueue_fold(redis, THREAD)
    assert await redis.zcard(keys.BACKGROUND) == 2
    await queue.enqueue_request(redis, fork())
    await queue.enqueue_request(redis, limited(request=None))
    assert await redis.zcard(keys.HANDOFFS) == 2


async def test_an_id_that_is_queued_is_refused(redis: Redis) -> None:
    request = switch()
    assert await queue.enqueue_request(redis, request)
    assert not await queue.enqueue_request(redis, request)
    assert await redis.zcard(keys.HANDOFFS) == 1
    assert await queue.enqueue_fold(redis, THREAD)
    assert not await queue.enqueue_fold(redis, THREAD)


async def test_an_id_that_is_running_is_refused(
    redis: Redis, running_worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    await append(redis, conversation())
    request = switch()
    await queue.enqueue_request(redis, request)
    async with asyncio.timeout(10):
        await held.arrived.wait()
    assert not await queue.enqueue_request(redis, request)
    held.opened.set()
    await until(lambda: results.get(redis, request.request_id))
    assert held.passed == 1


async def test_an_id_that_is_answered_is_refused(
    redis: Redis, running_worker: RunningWorker
) -> None:
    await append(redis, conversation())
    request = switch()
    assert await queue.enqueue_request(redis, request)
    await until(lambda: results.get(redis, request.request_id))

    async def is_done() -> bool:
        return not await redis.exists(keys.job(request.request_id))

    await until(is_done)
    assert not await queue.enqueue_request(redis, request)
    assert await redis.zcard(keys.HANDOFFS) == 0


async def test_enqueueing_wakes_who_listens(redis: Redis) -> None:
    async with redis.pubsub(ignore_subscribe_messages=True) as hints:
        await hints.subscribe(keys.wake(keys.HANDOFFS))
        await hints.get_message(timeout=5)  # the subscription
        request = switch()
        await queue.enqueue_request(redis, request)
        message = await hints.get_message(timeout=5)
    assert message is not None
    assert message["data"].decode() == request.request_id


async def test_a_stock_arq_worker_runs_the_jobs(services: Services) -> None:
    await append(services.redis, conversation())
    request = switch()
    await queue.enqueue_request(services.redis, request)
    stock = Worker(
        redis_pool=ArqRedis(services.redis.connection_pool),
        functions=worker.functions(),
        queue_name=keys.HANDOFFS,
        burst=True,
        poll_delay=0,
        handle_signals=False,
        health_check_interval=1,
        ctx={"services": services},
        **worker.WORKER_OPTIONS,
    )
    await stock.async_run()
    result = await results.get(services.redis, request.request_id)
    assert isinstance(result, HandoffReady)
    assert await services.redis.zcard(keys.HANDOFFS) == 0


@pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")  # arq's
@pytest.mark.parametrize("name", ["HandoffSettings", "BackgroundSettings"])
async def test_arqs_command_finds_its_settings_classes(
    name: str, redis: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONFOLD_REDIS_URL", server.url)
    await append(redis, conversation())
    request = switch() if name == "HandoffSettings" else fork(request=None)
    await queue.enqueue_request(redis, request)
    stock = create_worker(getattr(worker, name), burst=True, poll_delay=0, handle_signals=False)
    await stock.async_run()
    await stock.close()
    assert await results.get(redis, request.request_id) is not None


def test_without_a_url_arqs_command_uses_the_embedded_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MOONFOLD_REDIS_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    settings = vars(worker.HandoffSettings)["redis_settings"]
    assert settings.unix_socket_path == "/state/moonfold/server.sock"


def test_the_worker_module_has_no_other_made_up_names() -> None:
    with pytest.raises(AttributeError, match="OtherSettings"):
        _ = worker.OtherSettings
