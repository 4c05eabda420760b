from __future__ import annotations

import asyncio

from helpers.asking import SESSION
from redis.asyncio import Redis

from moonfold_handoff.store import keys, results
from moonfold_schemas.results import FailureCode, HandoffFailed, HandoffWaiting

RESULTS = keys.results(SESSION)


def waiting(request_id: str = "request", seconds: float = 1) -> HandoffWaiting:
    return HandoffWaiting(request_id=request_id, session_id=SESSION, retry_after=seconds)


async def test_a_result_is_stored_and_told_to_its_session(redis: Redis) -> None:
    assert await results.get(redis, "request") is None
    assert await results.publish(redis, waiting(), ttl=60)
    assert await results.get(redis, "request") == waiting()
    [(_, fields)] = await redis.xrange(RESULTS)
    assert fields == {b"request_id": b"request", b"type": b"handoff.waiting"}


async def test_the_first_result_stays(redis: Redis) -> None:
    other = HandoffFailed(
        request_id="request", session_id=SESSION, code=FailureCode.INTERNAL, message="late"
    )
    assert await results.publish(redis, waiting(), ttl=60)
    assert not await results.publish(redis, other, ttl=6000)
    assert await results.get(redis, "request") == waiting()
    assert await redis.xlen(RESULTS) == 1
    assert await redis.ttl(keys.result("request")) <= 60


async def test_of_results_published_at_once_one_stays(redis: Redis) -> None:
    outcomes = await asyncio.gather(
        *(results.publish(redis, waiting(seconds=number), ttl=60) for number in range(20))
    )
    assert sum(outcomes) == 1
    assert await redis.xlen(RESULTS) == 1
    assert await results.get(redis, "request") == waiting(seconds=outcomes.index(True))


async def test_results_and_their_stream_expire(redis: Redis) -> None:
    await results.publish(redis, waiting("a"), ttl=10)
    await results.publish(redis, waiting("b"), ttl=1000)
    assert 0 < await redis.pttl(keys.result("a")) <= 10_000
    assert 990_000 < await redis.pttl(keys.result("b")) <= 1_000_000
    assert 990_000 < await redis.pttl(RESULTS) <= 1_000_000


async def test_the_stream_of_a_session_is_capped(redis: Redis) -> None:
    for start in range(0, 1500, 100):
        await asyncio.gather(
            *(results.publish(redis, waiting(f"r{start + n}"), ttl=60) for n in range(100))
        )
    length = await redis.xlen(RESULTS)
    assert results.SESSION_RESULTS <= length < results.SESSION_RESULTS + 200
