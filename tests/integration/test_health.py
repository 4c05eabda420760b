"""Whether a worker lives and is ready, also while its servers are away."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partialmethod

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import append, conversation, switch
from helpers.scraping import Answer, get
from helpers.servers import RedisServer
from helpers.slow import gate
from helpers.spoiling import full, not_full, read_only, writable
from helpers.waiting import DEADLINE_SECONDS, until
from redis.asyncio import Redis

from moonfold_handoff import worker
from moonfold_handoff.ops import health, monitor, workers
from moonfold_handoff.ops.health import Health
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import OFF, Settings
from moonfold_handoff.store import keys, queue, results, scripts
from moonfold_handoff.worker import WakeWorker
from moonfold_schemas.results import HandoffReady


class Queue:
    """A queue that was looked at just now."""

    queue_name = "moonfold:handoffs"

    def __init__(self) -> None:
        self.turned_at = self.polled_at = time.monotonic()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the servers again and again."""
    monkeypatch.setattr(worker, "IDLE_POLL", 0.05)
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "TROUBLE_SECONDS", 0.05)


def address_in(logged: Logged) -> str:
    return str(logged.events("metrics_served")[0]["address"])


async def answers(address: str, path: str, status: int) -> Answer:
    found: list[Answer] = []

    async def is_answered() -> bool:
        found.append(await get(address, path))
        return found[-1].status == status

    await until(is_answered)
    return found[-1]


async def logs(event: str, times: int, logged: Logged) -> None:
    async def is_logged() -> bool:
        return len(logged.events(event)) == times

    await until(is_logged)


async def requested(redis: Redis) -> str:
    if not await redis.exists(keys.log("thread")):
        await append(redis, conversation())
    request = switch()
    await queue.enqueue_request(redis, request)
    return request.request_id


async def answered(redis: Redis, request_id: str) -> None:
    async def is_answered() -> bool:
        return bool(await redis.exists(keys.result(request_id)))

    await until(is_answered)
    assert isinstance(await results.get(redis, request_id), HandoffReady)


# What is told


def test_a_worker_is_not_ready_before_it_has_seen_its_servers() -> None:
    one = Health([Queue()])
    assert one.why_not_ready()
    assert not one.why_dead()
    one.heard()
    assert not one.why_not_ready()


def test_a_worker_that_cannot_write_is_not_ready() -> None:
    one = Health([Queue()])
    one.heard("the server cannot be used: OutOfMemoryError")
    assert one.why_not_ready() == "the server cannot be used: OutOfMemoryError"
    assert not one.why_dead()


def test_a_worker_that_stops_is_not_ready_whatever_it_hears() -> None:
    one = Health([Queue()])
    one.stop()
    one.heard()
    assert one.why_not_ready() == "it is stopping"
    assert not one.why_dead()


def test_a_queue_that_nobody_looks_at_is_told_of() -> None:
    served, forgotten = Queue(), Queue()
    one = Health([served, forgotten])
    one.heard()
    forgotten.polled_at -= health.TURN_SECONDS + 1
    assert one.why_not_ready().startswith("moonfold:handoffs:")
    assert not one.why_dead()
    forgotten.turned_at -= health.LIVE_SECONDS + 1
    assert "not looked at for 181 s" in one.why_dead()


# A running worker


async def test_a_worker_is_live_and_ready_until_it_stops(
    settings: Settings, redis: Redis, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    running = RunningWorker(settings)
    await running.start()
    address = address_in(logged)
    assert (await answers(address, "/readyz", 200)).body == "ok\n"
    assert (await answers(address, "/livez", 200)).body == "ok\n"
    request_id = await requested(redis)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await held.arrived.wait()
    stopping = asyncio.create_task(running.stop())
    assert (await answers(address, "/readyz", 503)).body == "it is stopping\n"
    assert (await get(address, "/livez")).status == 200
    held.opened.set()
    await stopping
    await answered(redis, request_id)
    with pytest.raises(ConnectionError):
        await get(address, "/livez")


async def test_the_scripts_are_there_before_the_first_job(
    settings: Settings, redis: Redis, logged: Logged
) -> None:
    await redis.script_flush()
    running = RunningWorker(settings)
    await running.start()
    await answers(address_in(logged), "/readyz", 200)
    shas = [script.sha for script in await asyncio.to_thread(scripts.everything)]
    assert all(await redis.script_exists(*shas))
    assert len(shas) > 8
    await running.stop()


@pytest.mark.usefixtures("quick")
async def test_a_worker_that_loses_its_server_is_not_ready_until_it_is_back(
    own_server: RedisServer, logged: Logged
) -> None:
    running = RunningWorker(Settings(redis_url=own_server.url))
    await running.start()
    address = address_in(logged)
    async with open_services(running.settings, name="test") as services:
        await answers(address, "/readyz", 200)
        before = await requested(services.redis)
        await answered(services.redis, before)
        own_server.kill()
        refusal = await answers(address, "/readyz", 503)
        assert "server" in refusal.body
        assert str(own_server.socket) not in refusal.body
        assert (await get(address, "/livez")).status == 200

        await logs("worker_not_ready", 1, logged)
        own_server.start()
        after = await requested(services.redis)
        await answers(address, "/readyz", 200)
        await answered(services.redis, after)
        assert await results.get(services.redis, before) is not None
        await logs("worker_ready", 2, logged)
    await running.stop()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("spoil", "repair"), [(full, not_full), (read_only, writable)], ids=["full", "read-only"]
)
async def test_a_server_that_takes_no_data_is_not_enough(
    spoil: Callable[[Redis], Awaitable[None]],
    repair: Callable[[Redis], Awaitable[None]],
    own_server: RedisServer,
    logged: Logged,
) -> None:
    running = RunningWorker(Settings(redis_url=own_server.url))
    await running.start()
    address = address_in(logged)
    async with open_services(running.settings, name="test") as services:
        await answers(address, "/readyz", 200)
        await spoil(services.redis)
        await answers(address, "/readyz", 503)
        await repair(services.redis)
        await answers(address, "/readyz", 200)
    await running.stop()


@pytest.mark.usefixtures("quick")
async def test_the_server_of_threads_counts_too(
    server: RedisServer, own_server: RedisServer, logged: Logged
) -> None:
    running = RunningWorker(Settings(redis_url=server.url, threads_url=own_server.url))
    await running.start()
    address = address_in(logged)
    await answers(address, "/readyz", 200)
    own_server.kill()
    await answers(address, "/readyz", 503)
    own_server.start()
    await answers(address, "/readyz", 200)
    await running.stop()


@pytest.mark.usefixtures("quick")
async def test_a_server_that_hangs_is_not_waited_for(
    settings: Settings, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = RunningWorker(settings)
    await running.start()
    address = address_in(logged)
    await answers(address, "/readyz", 200)
    monkeypatch.setattr(monitor, "VISIT_SECONDS", 0.02)
    monkeypatch.setattr(health, "TURN_SECONDS", 0.02)

    async def hang(_: WakeWorker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WakeWorker, "_start_claimed", hang)
    await answers(address, "/readyz", 503)
    monkeypatch.setattr(health, "LIVE_SECONDS", 0.02)
    assert "not looked at" in (await answers(address, "/livez", 503)).body
    monkeypatch.setattr(WakeWorker, "stop", partialmethod(WakeWorker.stop, grace=0.01))
    await running.stop()


# Where it is served


async def test_a_port_that_is_taken_is_a_warning_and_the_worker_serves_on(
    settings: Settings, redis: Redis, logged: Logged
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = RunningWorker(Settings(redis_url=settings.redis_url, metrics_address=address))
        await running.start()
        await answered(redis, await requested(redis))
        await running.stop()
    [line] = logged.events("metrics_not_served")
    assert line["address"] == address
    assert "in use" in line["reason"]
    assert not logged.events("metrics_served")


async def test_it_can_be_switched_off(settings: Settings, redis: Redis, logged: Logged) -> None:
    running = RunningWorker(Settings(redis_url=settings.redis_url, metrics_address=OFF))
    await running.start()

    async def has_said() -> bool:
        return bool(await workers.alive(redis))

    await until(has_said)
    [beat] = await workers.alive(redis)
    assert beat.metrics is None
    await running.stop()
    assert not logged.events("metrics_served")


async def test_a_fixed_port_is_used(settings: Settings, logged: Logged) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = RunningWorker(Settings(redis_url=settings.redis_url, metrics_address=address))
    await running.start()
    assert address_in(logged) == address
    assert (await get(address, "/livez")).status == 200
    await running.stop()
