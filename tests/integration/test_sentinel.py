from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
from arq.connections import create_pool
from conftest import Logged, RunningWorker
from helpers.asking import SESSION, THREAD, conversation, ready, switch
from helpers.clusters import Node, Watched, watched
from helpers.servers import KINDS, binary_of, free_port
from helpers.slow import gate
from helpers.waiting import until
from redis.exceptions import ConnectionError  # noqa: A004

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, sentinel
from moonfold_handoff.store.connection import connect
from moonfold_schemas.results import HandoffReady

PASSWORD = "open-sesame"
HINTS = (keys.wake(keys.HANDOFFS), keys.wake(keys.BACKGROUND))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if binary_of(request.param) is None:
        pytest.skip("redis-server is not installed")
    return str(request.param)


@pytest.fixture
def trio(kind: str) -> Iterator[Watched]:
    """A primary to be killed, its replica, and a Sentinel."""
    binary = binary_of(kind)
    assert binary is not None
    with watched(binary) as running:
        yield running


@pytest.fixture
def settings(trio: Watched, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(sentinel, "REPLY_TIMEOUT", 1)
    return Settings(redis_url=trio.url)


@pytest.fixture
async def session(
    settings: Settings, running_worker: RunningWorker
) -> AsyncIterator[HandoffClient]:
    """A client that was answered once, and listens."""
    async with HandoffClient(SESSION, settings) as client:
        await client.append(THREAD, 0, conversation())
        await ready(client, switch())
        yield client


async def is_listened_to(server: Node, *channels: str) -> None:
    async def has_listeners() -> bool:
        reply = await asyncio.to_thread(server.ask, "PUBSUB NUMSUB", *HINTS, *channels)
        return {int(count) for _, count in reply} == {1}

    await until(has_listeners)


async def test_worker_and_session_follow_a_failover(session: HandoffClient, trio: Watched) -> None:
    await asyncio.to_thread(trio.is_replicated)
    trio.primary.kill()
    await ready(session, switch())
    assert trio.replica.ask("ROLE")[0] == "master"
    await is_listened_to(trio.replica, keys.results(SESSION))


async def test_what_runs_while_the_primary_fails_is_answered_by_the_new_one(
    session: HandoffClient, trio: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    requests = [switch(thread_id=THREAD, session_id=f"s-{number}") for number in range(5)]
    for request in requests:
        await session.request(request)
    await asyncio.to_thread(trio.is_replicated)
    trio.primary.kill()
    held.opened.set()
    for request in requests:
        assert isinstance(await session.wait(request.request_id, timeout=15), HandoffReady)
    assert held.passed >= len(requests)


async def test_a_primary_that_hangs_is_left(session: HandoffClient, trio: Watched) -> None:
    await asyncio.to_thread(trio.is_replicated)
    await is_listened_to(trio.primary, keys.results(SESSION))
    trio.primary.hang()
    await ready(session, switch())
    await is_listened_to(trio.replica, keys.results(SESSION))


async def test_a_primary_that_is_replaced_is_left_while_it_still_serves(
    session: HandoffClient, trio: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "ASK_SECONDS", 0.1)
    await asyncio.to_thread(trio.is_replicated)
    await asyncio.to_thread(trio.switch_over)
    await asyncio.to_thread(trio.has_failed_over)
    await is_listened_to(trio.replica)
    request = switch()
    await ready(session, request)
    assert trio.replica.ask("EXISTS", keys.result(request.request_id))
    assert trio.primary.ask("ROLE")[0] == "master"


async def test_what_the_new_primary_never_heard_of_is_asked_again(
    session: HandoffClient, trio: Watched, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    await asyncio.to_thread(trio.is_replicated)
    trio.replica.hang()
    trio.primary.ask("CLIENT KILL", "TYPE", "replica")
    request = switch()
    assert await session.request(request)
    trio.primary.kill()
    trio.replica.go_on()
    held.opened.set()
    await asyncio.to_thread(trio.has_failed_over)
    assert isinstance(await session.wait(request.request_id, timeout=15), HandoffReady)
    assert [line["request_id"] for line in logged.events("request_repeated")] == [
        request.request_id
    ]
    assert trio.replica.ask("XLEN", keys.results(SESSION)) == 2


async def test_servers_and_sentinels_have_passwords_of_their_own(kind: str) -> None:
    binary = binary_of(kind)
    assert binary is not None
    with watched(binary, PASSWORD) as trio:
        place = urlsplit(trio.url)
        url = f"redis+sentinel://:{PASSWORD}@{place.netloc}{place.path}/1"
        async with connect(f"{url}?sentinel_password={PASSWORD[::-1]}", name="it") as redis:
            assert await redis.client_getname() == "it"
            await redis.set("key", "value", ex=60)
        assert trio.primary.ask("INFO", "keyspace").keys() == {"db1"}
        async with connect(url, name="it") as redis:
            with pytest.raises(ConnectionError, match="Authentication required"):
                await redis.ping()


async def test_nobody_is_asked_before_the_first_command() -> None:
    redis = connect(f"redis+sentinel://127.0.0.1:{free_port()}/it", name="it")
    await redis.aclose()
    assert vars(redis)["_pool"].master_address is None


async def test_sentinels_that_are_away_are_trouble_that_may_pass() -> None:
    async with connect(f"redis+sentinel://127.0.0.1:{free_port()}/it", name="it") as redis:
        with pytest.raises(ConnectionError, match="No master found for 'it'"):
            await redis.ping()


async def test_a_primary_is_used_while_its_sentinels_are_away(
    session: HandoffClient, trio: Watched, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "ASK_SECONDS", 0)
    trio.sentinel.kill()

    async def is_noticed() -> bool:
        await ready(session, switch())
        return bool(logged.events("sentinels_unavailable"))

    await until(is_noticed)
    # New connections go there, too.
    redis = session.services.redis
    await redis.connection_pool.disconnect()
    assert all(await asyncio.gather(*(redis.ping() for _ in range(5))))


async def test_arqs_command_asks_the_sentinel(trio: Watched) -> None:
    settings = worker._redis_settings(Settings(redis_url=f"{trio.url}/2"))
    pool = await create_pool(settings)
    assert (await pool.info("replication"))["role"] == "master"
    assert (await pool.client_info())["db"] == 2
    for asked in vars(pool.connection_pool)["sentinel_manager"].sentinels:
        await asked.aclose()
    await pool.aclose()
