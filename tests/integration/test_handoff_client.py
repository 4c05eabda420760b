from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import SESSION, THREAD, conversation, switch
from helpers.building import user
from helpers.servers import RedisServer
from helpers.waiting import until
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import NoPermissionError, ResponseError

from moonfold_handoff import client as client_module
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, results
from moonfold_handoff.store.log import (
    EventTooLargeError,
    SequenceConflictError,
    SequenceGapError,
)
from moonfold_schemas import HandoffResult, WireError, encode
from moonfold_schemas.events import ItemRecorded, TurnEnded, TurnStarted, TurnStatus
from moonfold_schemas.results import HandoffReady, HandoffWaiting


async def publish(redis: Redis, request_id: str = "r", session_id: str = SESSION) -> HandoffWaiting:
    result = HandoffWaiting(request_id=request_id, session_id=session_id, retry_after=1)
    await results.publish(redis, result, ttl=60)
    return result


async def listeners(redis: Redis, session_id: str = SESSION) -> int:
    [(_, count)] = await redis.pubsub_numsub(keys.results(session_id))
    return int(count)


async def listening(redis: Redis, session_id: str = SESSION) -> None:
    async def one_is() -> bool:
        return await listeners(redis, session_id) == 1

    await until(one_is)


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look for a result just because it is silent."""
    monkeypatch.setattr(client_module, "LISTEN_SECONDS", 3600)


async def test_a_session_records_asks_and_gets_its_handoff(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    assert await client.append(THREAD, 0, conversation()) == 8
    request = switch()
    assert await client.request(request)
    result = await client.wait(request.request_id, timeout=10)
    assert isinstance(result, HandoffReady)
    assert not await client.request(request)
    assert await client.wait(request.request_id, timeout=10) == result


async def test_a_result_published_before_is_there_at_once(
    client: HandoffClient, redis: Redis
) -> None:
    result = await publish(redis)
    assert await client.wait("r", timeout=5) == result


@pytest.mark.parametrize("session_id", [SESSION, "another"])
async def test_a_session_that_reconnects_finds_its_result(
    session_id: str, settings: Settings, redis: Redis
) -> None:
    result = await publish(redis)
    async with HandoffClient(session_id, settings) as again:
        assert await again.wait("r", timeout=5) == result


async def test_another_session_can_wait_for_a_result(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LISTEN_SECONDS", 0.02)
    async with HandoffClient("another", settings) as other:
        waiting = asyncio.create_task(other.wait("r", timeout=10))
        await listening(redis, "another")
        result = await publish(redis)
        assert await waiting == result


@pytest.mark.usefixtures("never_looks")
async def test_a_result_comes_with_the_news_of_it(
    client: HandoffClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = watched_looks(monkeypatch)
    waiting = asyncio.create_task(client.wait("r", timeout=10))

    async def has_looked_twice() -> bool:
        return looks == ["r", "r"]  # at first, and at the subscription

    await until(has_looked_twice)
    result = await publish(redis)
    assert await waiting == result
    assert looks == ["r", "r"]


def watched_looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    looks: list[str] = []
    original = results.get

    async def get(redis: Redis, request_id: str) -> HandoffResult | None:
        result = await original(redis, request_id)
        looks.append(request_id)
        return result

    monkeypatch.setattr(results, "get", get)
    return looks


@pytest.mark.usefixtures("never_looks")
async def test_a_result_published_while_the_listener_is_cut_off_is_found(
    client: HandoffClient, redis: Redis
) -> None:
    waits = [asyncio.create_task(client.wait(name, timeout=10)) for name in ("r", "r", "other")]
    await listening(redis)
    await publish(redis, "warm-up")  # the server knows the script now
    result = HandoffWaiting(request_id="r", session_id=SESSION, retry_after=1)
    other = HandoffWaiting(request_id="other", session_id=SESSION, retry_after=2)
    async with redis.pipeline(transaction=True) as pipe:
        pipe.client_kill_filter(_type="pubsub")
        for one in (result, other):
            pipe.evalsha(
                results._publish.sha,
                2,
                keys.result(one.request_id),
                keys.results(SESSION),
                encode(one),  # type: ignore[arg-type]
                one.request_id,
                "handoff.waiting",
                60_000,  # type: ignore[arg-type]
                1000,  # type: ignore[arg-type]
            )
        killed, *published = await pipe.execute()
    assert (killed, published) == (1, [1, 1])
    assert await asyncio.gather(*waits) == [result, result, other]
    assert await listeners(redis) == 1


@pytest.mark.usefixtures("never_looks")
async def test_a_result_published_before_anybody_listens_is_found(
    client: HandoffClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = watched_looks(monkeypatch)
    go_on = asyncio.Event()
    subscribe = PubSub.subscribe

    async def late(channel: PubSub, *names: str) -> None:
        await go_on.wait()
        await subscribe(channel, *names)

    monkeypatch.setattr(PubSub, "subscribe", late)
    waiting = asyncio.create_task(client.wait("r", timeout=10))

    async def has_looked() -> bool:
        return bool(looks)

    await until(has_looked)
    result = await publish(redis)
    assert await listeners(redis) == 0
    go_on.set()
    assert await waiting == result


async def test_a_result_of_which_no_news_comes_is_found_by_looking(
    client: HandoffClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LISTEN_SECONDS", 0.02)
    waiting = asyncio.create_task(client.wait("r", timeout=10))
    await listening(redis)
    result = HandoffWaiting(request_id="r", session_id=SESSION, retry_after=1)
    await redis.set(keys.result("r"), encode(result), ex=60)
    assert await waiting == result


async def lost(redis: Redis, request_id: str) -> None:
    """Forget a request, as a replica does that took the primary's place before it heard of it."""
    await redis.delete(keys.job(request_id), keys.HANDOFFS)


async def test_a_request_that_the_server_forgot_is_asked_again(
    client: HandoffClient, redis: Redis, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LISTEN_SECONDS", 0.02)
    request = switch()
    await client.request(request)
    body = await redis.get(keys.job(request.request_id))
    await lost(redis, request.request_id)
    waiting = asyncio.create_task(client.wait(request.request_id, timeout=10))

    async def is_queued() -> bool:
        return await redis.zscore(keys.HANDOFFS, request.request_id) is not None

    await until(is_queued)
    again = await redis.get(keys.job(request.request_id))
    assert body is not None
    assert again is not None
    assert json.loads(body)["a"] == json.loads(again)["a"]
    result = await publish(redis, request.request_id)
    assert await waiting == result
    assert len(logged.events("request_repeated")) == 1
    # It has its answer, so it is not asked again, whoever waits for it.
    await lost(redis, request.request_id)
    await redis.delete(keys.result(request.request_id))
    with pytest.raises(TimeoutError):
        await client.wait(request.request_id, timeout=0.1)
    assert not await redis.exists(keys.HANDOFFS)


async def test_a_server_that_takes_no_request_again_does_not_end_the_wait(
    client: HandoffClient, redis: Redis, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LISTEN_SECONDS", 0.02)
    request = switch()
    await client.request(request)
    failing = ResponseError("NOREPLICAS Not enough good replicas to write.")
    with monkeypatch.context() as patch:
        patch.setattr(queue, "enqueue_request", AsyncMock(side_effect=failing))
        waiting = asyncio.create_task(client.wait(request.request_id, timeout=10))

        async def is_refused() -> bool:
            return len(logged.events("request_not_repeated")) >= 2

        await until(is_refused)
    result = await publish(redis, request.request_id)
    assert await waiting == result


async def test_the_newest_requests_are_remembered_to_be_asked_again(
    client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "REMEMBERED", 2)
    requests = [switch(session_id=f"s-{number}") for number in range(3)]
    for request in requests:
        await client.request(request)
    assert list(client._asked) == [request.request_id for request in requests[1:]]


@pytest.mark.usefixtures("never_looks")
@pytest.mark.parametrize("message", ["", "no json", "[]", "{}", '{"request_id":5}', b"\xff"])
async def test_what_is_no_result_does_no_harm_on_the_channel(
    message: str | bytes, client: HandoffClient, redis: Redis
) -> None:
    waiting = asyncio.create_task(client.wait("r", timeout=10))
    await listening(redis)
    listener = client._listener
    assert await redis.publish(keys.results(SESSION), message) == 1
    result = await publish(redis)
    assert await waiting == result
    assert client._listener is listener


async def test_waiting_twice_for_one_result_is_fine(client: HandoffClient, redis: Redis) -> None:
    waits = [asyncio.create_task(client.wait("r", timeout=10)) for _ in range(2)]
    await listening(redis)
    result = await publish(redis)
    assert await asyncio.gather(*waits) == [result, result]
    assert client._waiting == {}


async def test_many_waits_share_one_listener(client: HandoffClient, redis: Redis) -> None:
    ids = [f"r{number}" for number in range(100)]
    waits = [asyncio.create_task(client.wait(request_id, timeout=10)) for request_id in ids]
    await listening(redis)
    await publish(redis, "of-nobody-here")
    published = [await publish(redis, request_id) for request_id in ids]
    assert await listeners(redis) == 1
    assert await asyncio.gather(*waits) == published
    assert client._waiting == {}


async def test_a_wait_ends_when_its_time_is_up(client: HandoffClient, redis: Redis) -> None:
    with pytest.raises(TimeoutError):
        await client.wait("r", timeout=0.05)
    assert client._waiting == {}
    result = await publish(redis)
    assert await client.wait("r", timeout=5) == result


async def test_one_wait_that_gives_up_does_not_end_another(
    client: HandoffClient, redis: Redis
) -> None:
    patient = asyncio.create_task(client.wait("r", timeout=10))
    with pytest.raises(TimeoutError):
        await client.wait("r", timeout=0.02)
    result = await publish(redis)
    assert await patient == result


async def test_a_server_that_restarts_does_not_end_a_wait(
    own_server: RedisServer, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 0.05)
    settings = Settings(redis_url=own_server.url)
    async with (
        open_services(settings, name="test") as services,
        HandoffClient(SESSION, settings) as client,
    ):
        waiting = asyncio.create_task(client.wait("r", timeout=20))
        await listening(services.redis)
        own_server.kill()

        async def is_noticed() -> bool:
            return bool(logged.events("session_channel_lost"))

        await until(is_noticed)
        late = asyncio.create_task(client.wait("late", timeout=20))

        async def waits_for_server() -> bool:
            return bool(logged.events("session_waits_for_server"))

        await until(waits_for_server)
        own_server.start()
        result, other = await publish(services.redis), await publish(services.redis, "late")
        assert await waiting == result
        assert await late == other


async def test_a_listener_whose_connection_is_killed_goes_on(
    client: HandoffClient, redis: Redis
) -> None:
    waiting = asyncio.create_task(client.wait("r", timeout=10))
    await listening(redis)
    assert await redis.client_kill_filter(_type="pubsub") == 1
    await listening(redis)
    result = await publish(redis)
    assert await waiting == result


async def test_an_error_that_does_not_pass_ends_the_wait_and_not_the_client(
    client: HandoffClient, redis: Redis
) -> None:
    await redis.hset(keys.result("r"), "no", "result")  # type: ignore[misc]
    await redis.expire(keys.result("r"), 60)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await client.wait("r", timeout=5)
    await redis.delete(keys.result("r"))
    result = await publish(redis)
    assert await client.wait("r", timeout=5) == result
    assert client._waiting == {}


@pytest.fixture
async def deaf(server: RedisServer, redis: Redis) -> AsyncIterator[Settings]:
    """Settings of a user who may not subscribe."""
    await redis.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "resetchannels"
    )
    yield Settings(redis_url=server.url.replace("unix://", "unix://deaf:x@"))
    await redis.execute_command("ACL", "DELUSER", "deaf")  # type: ignore[no-untyped-call]


async def test_a_client_that_may_not_listen_says_so_and_can_be_closed(
    deaf: Settings, redis: Redis
) -> None:
    async with HandoffClient(SESSION, deaf) as client:
        for _ in range(2):
            with pytest.raises(NoPermissionError):
                await client.wait("r", timeout=5)
        assert client._waiting == {}
        result = await publish(redis)
        assert await client.wait("r", timeout=5) == result
    with pytest.raises(RuntimeError):
        await client.wait("r")


async def test_a_wait_ends_when_its_client_is_closed(settings: Settings, redis: Redis) -> None:
    async with HandoffClient(SESSION, settings) as client:
        waits = [asyncio.create_task(client.wait(name, timeout=10)) for name in ("r", "s")]
        await listening(redis)
    for waiting in waits:
        with pytest.raises(RuntimeError, match="async with"):
            await waiting
    assert (client._waiting, client._listener) == ({}, None)


async def test_a_client_whose_listener_broke_can_be_closed(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with HandoffClient(SESSION, settings) as client:
        waiting = asyncio.create_task(client.wait("r", timeout=10))
        await listening(redis)
        monkeypatch.setattr(client, "_tell", broken)
        await publish(redis)
        with pytest.raises(ZeroDivisionError):
            await waiting
    with pytest.raises(RuntimeError):
        await client.wait("r")


@pytest.mark.parametrize(
    "change",
    [
        {"thread_id": "not an id"},
        {"request_id": ""},
        {"session_id": "x" * 201},
        {"through": -1},
        {"through": 2**53},
    ],
)
async def test_an_invalid_request_is_refused_at_the_door(
    change: dict[str, object], client: HandoffClient, redis: Redis
) -> None:
    with pytest.raises(WireError):
        await client.request(switch(**change))
    assert await redis.dbsize() == 0


async def test_an_invalid_event_is_refused_at_the_door(client: HandoffClient, redis: Redis) -> None:
    with pytest.raises(WireError):
        await client.append(THREAD, 0, [TurnStarted(turn_id="not an id")])
    with pytest.raises(WireError, match="thread id"):
        await client.append("not an id", 0, [TurnStarted(turn_id="t")])
    assert await redis.dbsize() == 0


async def test_what_the_log_refuses_is_told(server: RedisServer) -> None:
    settings = Settings(redis_url=server.url, max_event_bytes=200)
    async with HandoffClient(SESSION, settings) as client:
        with pytest.raises(SequenceGapError):
            await client.append(THREAD, 1, [TurnStarted(turn_id="t")])
        with pytest.raises(EventTooLargeError):
            await client.append(THREAD, 0, [ItemRecorded(item=user("x" * 200))])
        await client.append(THREAD, 0, [TurnStarted(turn_id="t")])
        with pytest.raises(SequenceConflictError):
            await client.append(THREAD, 0, [TurnStarted(turn_id="u")])


async def test_the_end_of_a_turn_asks_for_one_fold(client: HandoffClient, redis: Redis) -> None:
    await client.append(THREAD, 0, conversation())
    assert await redis.zcard(keys.BACKGROUND) == 0
    last = 8
    for number in range(3):
        end = TurnEnded(turn_id=f"t{number}", status=TurnStatus.COMPLETED)
        last = await client.append(THREAD, last, [end])
    assert await redis.zrange(keys.BACKGROUND, 0, -1) == [b"fold:thread"]


async def test_a_client_is_used_inside_its_context_only(settings: Settings) -> None:
    client = HandoffClient(SESSION, settings)
    with pytest.raises(RuntimeError, match="async with"):
        await client.append(THREAD, 0, [])
    async with client:
        assert await client.append(THREAD, 0, []) == 0
    with pytest.raises(RuntimeError):
        await client.request(switch())
    with pytest.raises(RuntimeError):
        await client.wait("r")
    assert client._listener is None


async def test_a_client_reads_the_environment(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONFOLD_REDIS_URL", server.url)
    monkeypatch.setenv("MOONFOLD_THREAD_TTL", "5m")
    async with HandoffClient(str(uuid.uuid4())) as client:
        await client.append(THREAD, 0, conversation())
    assert 290 < await redis.ttl(keys.log(THREAD)) <= 300
