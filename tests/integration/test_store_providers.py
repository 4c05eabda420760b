"""What is known of provider instances, and how often a thread failed over."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import timedelta

import pytest
from conftest import Logged
from redis.asyncio import Redis

from moonfold_handoff.context.availability import HOLD, Instance, Notice
from moonfold_handoff.store import failovers, keys, providers
from moonfold_handoff.store.providers import Known
from moonfold_schemas import utc_now
from moonfold_schemas.events import LimitKind

CODEX, WORK = Instance("codex"), Instance("codex", "work")
NOW = utc_now().replace(microsecond=0)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def notice(until: float = 5, noticed: float = -1, kind: LimitKind = LimitKind.QUOTA) -> Notice:
    """Return a notice by hours from now."""
    return Notice(kind, NOW + noticed * HOUR, NOW + until * HOUR)


async def limited(redis: Redis, what: Notice, instance: Instance = CODEX) -> bool:
    return await providers.limited(redis, instance, what, now=NOW)


async def succeeded(redis: Redis, hours: float, instance: Instance = CODEX) -> bool:
    return await providers.succeeded(redis, instance, NOW + hours * HOUR, now=NOW)


async def known(redis: Redis, hours: float = 0) -> dict[Instance, Notice]:
    """Return who is used up, so many hours from now."""
    listed = await providers.listed(redis, now=NOW + hours * HOUR)
    return {one.instance: one.notice for one in listed if one.notice is not None}


async def contents(redis: Redis) -> object:
    """Return all that is stored, the members of JSON in any order."""
    standings = await redis.hgetall(keys.PROVIDERS)  # type: ignore[misc]
    return {name: json.loads(raw) for name, raw in standings.items()}, await expires(redis)


async def expires(redis: Redis) -> int:
    at: int = await redis.pexpiretime(keys.PROVIDERS)  # type: ignore[misc]
    return at


async def test_an_instance_is_used_up_until_its_limit_ends(redis: Redis) -> None:
    assert await limited(redis, notice(), WORK)
    assert await known(redis, 4.99) == {WORK: notice()}
    assert await known(redis, 5) == {}


async def test_what_lies_in_the_hash_is_the_name_and_json(redis: Redis) -> None:
    await limited(redis, notice(), WORK)
    [(name, raw)] = (await redis.hgetall(keys.PROVIDERS)).items()  # type: ignore[misc]
    assert name == b"codex/work"
    assert json.loads(raw)["kind"] == "quota"
    assert json.loads(raw)["until"] == providers.milliseconds(notice().until)


async def test_the_hash_expires_with_the_latest_limit(redis: Redis) -> None:
    await limited(redis, notice(3))
    await limited(redis, notice(5), WORK)
    await limited(redis, notice(4), Instance("opencode"))
    assert await expires(redis) == providers.milliseconds(notice(5).until)


async def test_the_latest_reset_of_several_notices_wins(redis: Redis) -> None:
    notices = [
        notice(3, -1, LimitKind.QUOTA),
        notice(5, -2, LimitKind.CREDITS),
        notice(4, -0.5, LimitKind.QUOTA),
    ]
    for order in itertools.permutations(notices):
        await redis.delete(keys.PROVIDERS)
        for one in order:
            await limited(redis, one)
        expected = Notice(LimitKind.CREDITS, NOW - 0.5 * HOUR, NOW + 5 * HOUR)
        assert await known(redis) == {CODEX: expected}


async def test_a_newer_success_ends_a_limit_and_an_older_one_does_not(redis: Redis) -> None:
    await limited(redis, notice())
    assert not await succeeded(redis, -1.5)
    assert await known(redis) == {CODEX: notice()}
    assert await succeeded(redis, -0.5)
    assert await known(redis) == {}
    assert not await succeeded(redis, -0.5)


async def test_a_success_of_one_account_says_nothing_of_another(redis: Redis) -> None:
    await limited(redis, notice())
    await succeeded(redis, -0.5, WORK)
    assert await known(redis) == {CODEX: notice()}


async def test_a_notice_from_before_the_success_does_not_come_back(redis: Redis) -> None:
    await limited(redis, notice())
    await succeeded(redis, -0.5)
    assert not await limited(redis, notice())
    assert await known(redis) == {}
    assert await limited(redis, notice(6, -0.25))
    assert await known(redis) == {CODEX: notice(6, -0.25)}


async def test_a_notice_that_comes_after_a_newer_success_is_known_to_be_old(redis: Redis) -> None:
    await succeeded(redis, -0.5)
    assert not await limited(redis, notice())
    assert await known(redis) == {}


async def test_telling_the_same_again_changes_nothing(redis: Redis) -> None:
    assert await limited(redis, notice())
    once = await contents(redis)
    assert not await limited(redis, notice())
    assert await contents(redis) == once
    await succeeded(redis, -0.5)
    once = await contents(redis)
    assert not await succeeded(redis, -0.5)
    assert not await limited(redis, notice())
    assert await contents(redis) == once


async def test_what_is_over_already_is_not_kept(redis: Redis) -> None:
    assert not await limited(redis, notice(-0.5))
    assert not await succeeded(redis, -2)
    assert not await redis.exists(keys.PROVIDERS)


async def test_a_notice_without_a_time_counts_where_nothing_is_known(redis: Redis) -> None:
    timeless = Notice(LimitKind.QUOTA, None, NOW + 2 * HOUR)
    assert await limited(redis, timeless)
    assert await known(redis) == {CODEX: Notice(LimitKind.QUOTA, NOW, NOW + 2 * HOUR)}
    await succeeded(redis, 0)
    assert not await limited(redis, timeless)
    assert await known(redis) == {}


async def test_no_clock_that_is_ahead_keeps_a_success_from_counting(redis: Redis) -> None:
    await limited(redis, notice(noticed=3))
    assert await succeeded(redis, 0)
    await succeeded(redis, 3)
    later = NOW + MINUTE
    again = Notice(LimitKind.QUOTA, later, NOW + HOUR)
    assert await providers.limited(redis, CODEX, again, now=later)


async def test_what_means_nothing_any_more_goes_as_the_hash_is_written(redis: Redis) -> None:
    await limited(redis, notice(1))
    await redis.hset(keys.PROVIDERS, mapping={"damaged": "{", "no/standing": "5"})  # type: ignore[misc]
    await limited(redis, notice(9), WORK)
    later = NOW + 2 * HOUR
    await providers.succeeded(redis, Instance("opencode"), later, now=later)
    assert set(await redis.hkeys(keys.PROVIDERS)) == {b"codex/work", b"opencode"}  # type: ignore[misc]


async def test_many_instances_do_not_pile_up(redis: Redis) -> None:
    for number in range(100):
        await limited(redis, notice(1), Instance("codex", str(number)))
    later = NOW + 2 * HOUR
    for number in range(100):
        again = Notice(LimitKind.QUOTA, later, later + HOUR)
        await providers.limited(redis, Instance("opencode", str(number)), again, now=later)
    assert await redis.hlen(keys.PROVIDERS) <= 110  # type: ignore[misc]


async def test_an_operator_ends_a_limit_whatever_was_noticed(redis: Redis) -> None:
    assert not await providers.clear(redis, WORK, now=NOW)
    await limited(redis, notice(noticed=0), WORK)
    before = NOW - MINUTE  # a clock behind that of the machine that noticed
    assert await providers.clear(redis, WORK, now=before)
    assert await known(redis) == {}
    assert not await limited(redis, notice(noticed=-0.5), WORK)


async def test_all_that_is_known_is_listed_by_name(redis: Redis) -> None:
    await limited(redis, notice(), WORK)
    await succeeded(redis, -0.5)
    assert await providers.listed(redis, now=NOW) == [
        Known(CODEX, None, NOW - 0.5 * HOUR),
        Known(WORK, notice(), None),
    ]
    assert await providers.listed(redis, now=NOW + 0.5 * HOUR) == [Known(WORK, notice(), None)]


async def test_a_damaged_standing_is_told_and_its_instance_tried(
    redis: Redis, logged: Logged
) -> None:
    await limited(redis, notice(), WORK)
    damaged = {"codex": '{"expires":', "not a name": '{"expires":1}'}
    await redis.hset(keys.PROVIDERS, mapping=damaged)  # type: ignore[misc]
    assert await known(redis) == {WORK: notice()}
    found = await failovers.situation(redis, "thread", 8, [CODEX, WORK], now=NOW)
    assert found.notices == {WORK: notice()}
    assert len(logged.events("provider_standing_unreadable")) == 2


# What a failover depends on


async def test_only_the_instances_asked_about_are_read(redis: Redis) -> None:
    await limited(redis, notice(), WORK)
    await limited(redis, notice(), Instance("opencode"))
    await limited(redis, notice(-0.5 + 1), CODEX)
    found = await failovers.situation(redis, "thread", 8, [WORK, CODEX, WORK], now=NOW + HOUR)
    assert found.notices == {WORK: notice()}
    assert found.earlier == ()
    assert await failovers.situation(redis, "thread", 8, [], now=NOW) == failovers.Situation()


async def test_failovers_of_the_last_hour_are_counted_once_each(redis: Redis) -> None:
    times = [NOW - 61 * MINUTE, NOW - 59 * MINUTE, NOW - MINUTE]
    for number, time in enumerate(times):
        await failovers.count(redis, "thread", number, now=time)
    await failovers.count(redis, "thread", 1, now=NOW)  # asked for again
    found = await failovers.situation(redis, "thread", 8, [], now=NOW)
    assert found.earlier == tuple(times[1:])
    own = await failovers.situation(redis, "thread", 2, [], now=NOW)
    assert own.earlier == (times[1],)
    other = await failovers.situation(redis, "other", 8, [], now=NOW)
    assert other.earlier == ()


async def test_the_count_of_a_thread_is_bounded_and_expires(redis: Redis) -> None:
    await failovers.count(redis, "thread", 9, now=NOW - 2 * HOUR)
    await asyncio.gather(
        *(failovers.count(redis, "thread", number, now=NOW) for number in range(5))
    )
    key = keys.failovers("thread")
    assert await redis.zcard(key) == 5
    assert 0 < await redis.pttl(key) <= 3_600_000


@pytest.mark.parametrize("hours", [0.5, 1])
async def test_a_success_is_remembered_for_an_hour(hours: float, redis: Redis) -> None:
    await succeeded(redis, 0)
    listed = await providers.listed(redis, now=NOW + hours * HOUR)
    assert bool(listed) is (hours * HOUR < HOLD)
