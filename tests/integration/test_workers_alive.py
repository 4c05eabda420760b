"""Which workers live, as they say themselves."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from importlib.metadata import version

import msgspec
import pytest
from conftest import Logged, RunningWorker
from helpers.asking import SESSION, THREAD, conversation, ready, switch
from helpers.waiting import until
from redis.asyncio import Redis

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.ops import monitor, workers
from moonfold_handoff.ops.workers import Beat
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys
from moonfold_schemas import utc_now


def beat(token: str, *, ago: int = 0) -> Beat:
    started = utc_now() - timedelta(seconds=ago)
    return Beat(token=token, version="1", host="h", pid=1, started_at=started)


async def test_those_that_live_are_listed_by_age(redis: Redis) -> None:
    assert await workers.alive(redis) == []
    for token, ago in (("b", 10), ("a", 20), ("c", 0)):
        await workers.beat(redis, beat(token, ago=ago))
    assert [one.token for one in await workers.alive(redis)] == ["a", "b", "c"]
    assert await workers.count(redis) == 3


async def test_who_says_nothing_any_more_is_gone(redis: Redis) -> None:
    await workers.beat(redis, beat("dead"))
    assert 0 < await redis.ttl(keys.worker("dead")) <= workers.ALIVE_SECONDS
    assert 0 < await redis.ttl(keys.WORKERS) <= workers.ALIVE_SECONDS
    long_ago = utc_now().timestamp() - workers.ALIVE_SECONDS - 1
    await redis.zadd(keys.WORKERS, {"dead": long_ago})
    assert await workers.count(redis) == 0
    await redis.delete(keys.worker("dead"))
    assert await workers.alive(redis) == []
    await workers.beat(redis, beat("other"))
    assert await redis.zrange(keys.WORKERS, 0, -1) == [b"other"]


async def test_what_cannot_be_read_hides_nobody_else(redis: Redis, logged: Logged) -> None:
    await workers.beat(redis, beat("damaged"))
    await redis.set(keys.worker("damaged"), "private words", ex=10)
    await workers.beat(redis, beat("well"))
    assert [one.token for one in await workers.alive(redis)] == ["well"]
    [line] = logged.events("worker_beat_unreadable")
    assert line["bytes"] == 13
    assert "private" not in logged.text


async def test_a_worker_says_what_it_is_and_does_without_whose(
    settings: Settings,
    redis: Redis,
    client: HandoffClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.02)
    before = utc_now()
    running = [RunningWorker(settings), RunningWorker(settings)]
    for one in running:
        await one.start()
    await client.append(THREAD, 0, conversation())
    request = switch()
    await ready(client, request)

    async def has_told() -> bool:
        return sum(one.answered for one in await workers.alive(redis)) == 1

    await until(has_told)
    found = await workers.alive(redis)
    assert len({one.token for one in found}) == len({one.metrics for one in found}) == 2
    for said in found:
        assert (said.version, said.pid) == (version("moonfold-handoff"), os.getpid())
        assert said.host == socket.gethostname()
        assert before <= said.started_at <= utc_now()
        assert {name: slots.slots for name, slots in said.queues.items()} == {
            "handoffs": worker.HANDOFF_JOBS,
            "background": worker.BACKGROUND_JOBS,
        }
    [told] = [one for one in found if one.answered]
    [recent] = told.recent
    assert (recent.reason, recent.outcome) == ("provider.switch_requested", "ready")
    assert recent.provider == "claude-code"
    assert recent.whole_ms is not None
    assert told.p50_ms == told.p99_ms == recent.whole_ms
    everything = msgspec.json.encode(found)
    for private in (request.request_id, SESSION, f'"{THREAD}"', "question"):
        assert private.encode() not in everything
    for one in running:
        await one.stop()
    assert await workers.alive(redis) == []
    assert await workers.count(redis) == 0
