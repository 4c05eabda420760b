"""A limit is reached, and the thread goes on elsewhere."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import (
    CLAUDE,
    CODEX,
    FULL,
    THREAD,
    answer,
    append,
    conversation,
    events,
    failed,
    fork,
    limited,
    near,
    ready,
    restart,
    switch,
)
from helpers.building import assistant, started, user
from helpers.limits import (
    GEMINI,
    OPENCODE,
    POLICY,
    SECRET,
    WORK,
    answered,
    later,
    quota,
    refused,
    taken,
    use_up,
    used_up,
)
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.availability import HOLD, Instance, Notice
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.policy import load_policy
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import failovers, keys, providers, threads
from moonfold_handoff.transcripts import sessions_in
from moonfold_handoff.transfer import transfer
from moonfold_schemas import encode, utc_now
from moonfold_schemas.events import (
    Limit,
    LimitKind,
)
from moonfold_schemas.requests import Target
from moonfold_schemas.results import (
    FailureCode,
    HandoffReady,
    HandoffWaiting,
    PassedOverReason,
)

LIMITED, NO_ROOM = PassedOverReason.AT_ITS_LIMIT, PassedOverReason.NO_ROOM
HOUR = timedelta(hours=1)
SESSION = Path(__file__).parents[1] / "fixtures/claude-code/synthetic-limit-hit.jsonl"

pytestmark = pytest.mark.usefixtures("recorded")


# Choosing


async def test_a_failover_says_whom_it_passed_over_and_why(
    services: Services, logged: Logged
) -> None:
    until = await use_up(services.redis, GEMINI, 2)
    limit = quota(3)
    candidates = (CODEX, GEMINI, FULL, CLAUDE, OPENCODE)
    result = await taken(services, limited(candidates=candidates, limit=limit))
    assert result.target == CLAUDE
    left, at_limit, full = result.passed_over
    assert (left.target, left.reason, left.until) == (CODEX, LIMITED, limit.resets_at)
    assert (at_limit.target, at_limit.reason, at_limit.until) == (GEMINI, LIMITED, until)
    assert (full.target, full.reason) == (FULL, NO_ROOM)
    lines = logged.events("candidate_passed_over")
    assert [(line["provider"], line["reason"]) for line in lines] == [
        ("codex", "at_its_limit"),
        ("gemini-cli", "at_its_limit"),
        ("opencode", "no_room"),
    ]
    [line] = logged.events("handoff_ready")
    assert line["passed_over"] == 3


async def test_a_provider_whose_limit_is_over_is_taken_again(services: Services) -> None:
    notice = Notice(LimitKind.QUOTA, later(-2), later(-1))
    await providers.limited(services.redis, Instance.of(CLAUDE), notice, now=later(-2))
    assert (await taken(services, limited())).target == CLAUDE


async def test_where_nobody_is_left_the_earliest_reset_is_told(
    services: Services, redis: Redis
) -> None:
    await use_up(redis, CLAUDE, 2)
    earliest = await use_up(redis, GEMINI, 1)
    await use_up(redis, OPENCODE, 0.5, assumed=True)
    result = await refused(services, limited(candidates=(CODEX, CLAUDE, GEMINI, OPENCODE)))
    assert (result.code, result.retryable) == (FailureCode.NO_TARGET_AVAILABLE, True)
    assert result.resets_at == earliest
    assert [one.target for one in result.passed_over] == [CODEX, CLAUDE, GEMINI, OPENCODE]
    assert not await redis.exists(keys.REJECTED)  # nobody has to look into it


async def test_the_limit_itself_may_be_the_earliest_reset(services: Services, redis: Redis) -> None:
    await use_up(redis, CLAUDE, 2)
    limit = quota(1)
    result = await refused(services, limited(limit=limit))
    assert result.resets_at == limit.resets_at


async def test_a_later_reset_that_is_known_already_counts(services: Services, redis: Redis) -> None:
    until = await use_up(redis, CODEX, 5)
    result = await refused(services, limited(limit=quota(1), candidates=(CODEX,)))
    assert result.resets_at == until


async def test_a_single_candidate_without_room_says_so(services: Services) -> None:
    result = await refused(services, limited(candidates=(FULL,)))
    assert (result.code, result.retryable) == (FailureCode.REFERENCES_DO_NOT_FIT, False)
    assert result.needed is not None
    [passed] = result.passed_over
    assert (passed.reason, passed.needed) == (NO_ROOM, result.needed)


async def test_a_candidate_without_room_for_the_newest_request_is_passed_over(
    services: Services,
) -> None:
    await append(services.redis, events(user("long " * 600), assistant("answer")), after=8)
    small = Target(provider="opencode", capacity=18_000)
    result = await taken(services, limited(candidates=(small, CLAUDE), through=10))
    assert result.target == CLAUDE
    [passed] = result.passed_over
    assert (passed.target, passed.reason) == (small, NO_ROOM)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, CODEX),
        ({"conversation_id": "d"}, WORK),
        ({"conversation_id": "unknown"}, CODEX),
        ({"conversation_id": "d", "provider": "claude-code"}, CLAUDE),
        ({"provider": "codex", "instance": "work"}, WORK),
    ],
)
async def test_the_thread_leaves_the_instance_that_the_request_means(
    said: dict[str, str], left: Target, services: Services
) -> None:
    work = started("d", provider="codex", instance="work")
    last = await append(services.redis, events(work, started("c")), after=8)
    candidates = (CODEX, WORK, CLAUDE)
    limit = quota()
    result = await taken(
        services, limited(candidates=candidates, limit=limit, through=last, **said)
    )
    assert result.target == next(one for one in candidates if Instance.of(one) != Instance.of(left))
    found = await used_up(services.redis)
    assert {name: notice.until for name, notice in found.items()} == {
        Instance.of(left).name: limit.resets_at
    }


async def test_where_nobody_knows_who_reached_the_limit_the_first_is_taken(
    services: Services,
) -> None:
    await append(services.redis, events(user("hello")), thread_id="bare")
    request = limited(thread_id="bare", through=1, limit=quota())
    assert (await taken(services, request)).target == CODEX
    assert await used_up(services.redis) == {}


@pytest.mark.parametrize("make", [switch, restart, fork])
async def test_what_a_person_asks_for_is_not_refused_for_a_limit(
    make: Any, services: Services, redis: Redis
) -> None:
    await use_up(redis, CODEX, 2)
    for number in range(6):
        await failovers.count(redis, THREAD, number, now=utc_now())
    assert (await taken(services, make(target=CODEX))).target == CODEX


async def test_a_session_at_its_limit_goes_wherever_and_as_often_as_a_person_says(
    settings: Settings, running_worker: RunningWorker
) -> None:
    [session] = sessions_in(SESSION)
    target = Target(provider=session.provider)
    for _ in range(settings.failovers_per_hour + 1):
        outcome = await transfer(settings, session, target)
        assert outcome.facts.limit is not None
        assert isinstance(outcome.result, HandoffReady)


# Limits


async def test_a_limit_is_kept_for_all_threads(services: Services, logged: Logged) -> None:
    limit = quota(3)
    await taken(services, limited(limit=limit))
    found = await used_up(services.redis)
    assert found["codex"].until == limit.resets_at
    assert not found["codex"].assumed
    [line] = logged.events("provider_used_up")
    assert (line["provider"], line["kind"]) == ("codex", "quota")
    assert SECRET not in logged.text
    await append(services.redis, events(started("x", provider="claude-code")), thread_id="other")
    result = await refused(
        services, limited(thread_id="other", through=1, candidates=(CODEX,), conversation_id="x")
    )
    assert result.resets_at == limit.resets_at


@pytest.mark.parametrize("kind", [LimitKind.QUOTA, LimitKind.CREDITS])
async def test_a_limit_without_a_clock_holds_for_an_hour(
    kind: LimitKind, services: Services
) -> None:
    before = utc_now()
    await taken(services, limited(limit=quota(None, kind=kind)))
    notice = (await used_up(services.redis))["codex"]
    assert notice.assumed
    assert before - timedelta(seconds=1) < notice.until - HOLD <= utc_now()


async def test_a_limit_is_kept_though_nobody_can_go_on(services: Services) -> None:
    await refused(services, limited(limit=quota(), candidates=(FULL,)))
    await refused(services, limited(limit=quota(), candidates=()))
    assert set(await used_up(services.redis)) == {"codex"}


@pytest.mark.parametrize(
    ("kind", "target"), [(LimitKind.AUTHENTICATION, CLAUDE), (LimitKind.CONTEXT, CODEX)]
)
async def test_what_is_no_limit_marks_nobody(
    kind: LimitKind, target: Target, services: Services
) -> None:
    result = await taken(services, limited(limit=Limit(kind=kind, resets_at=later(1))))
    assert result.target == target  # a full conversation's provider can go on in another
    assert await used_up(services.redis) == {}


async def test_a_throttle_is_waited_for_and_marks_nobody(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    limit = Limit(kind=LimitKind.THROTTLE, retry_after=299.5)
    result = await answer(client, limited(limit=limit))
    assert isinstance(result, HandoffWaiting)
    assert result.retry_after == 299.5
    assert await used_up(redis) == {}
    assert not await redis.exists(keys.failovers(THREAD))


async def test_a_throttle_without_a_delay_is_waited_for_all_the_same(services: Services) -> None:
    result = await answered(services, limited(limit=Limit(kind=LimitKind.THROTTLE)))
    assert isinstance(result, HandoffWaiting)
    assert result.retry_after > 0


async def test_a_throttle_of_half_an_hour_is_a_limit(services: Services) -> None:
    before = utc_now()
    limit = Limit(kind=LimitKind.THROTTLE, retry_after=1_806)
    assert (await taken(services, limited(limit=limit))).target == CLAUDE
    notice = (await used_up(services.redis))["codex"]
    assert notice.kind is LimitKind.QUOTA
    assert notice.until >= before + timedelta(seconds=1_805)


# How often


async def test_a_thread_does_not_go_back_and_forth_without_end(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    first = utc_now()
    for through in range(2, 8):
        await ready(client, limited(through=through))
        # Asked for again from the same point, it is no other failover.
        await ready(client, limited(through=through))
    result = await failed(client, limited())
    assert (result.code, result.retryable) == (FailureCode.NO_TARGET_AVAILABLE, True)
    assert result.resets_at is not None
    assert timedelta() <= result.resets_at - first - HOUR < timedelta(seconds=30)
    assert "6 times" in result.message
    await append(redis, conversation(), thread_id="other")
    await ready(client, limited(thread_id="other"))


async def test_a_request_that_is_tried_again_counts_once(services: Services) -> None:
    requests = [limited(through=through) for through in range(3, 9)]
    for request in (*requests, *requests):
        await build_handoff(services, request.request_id, encode(request))
    assert await services.redis.zcard(keys.failovers(THREAD)) == 6


async def test_only_a_handoff_that_is_ready_counts(services: Services) -> None:
    throttle = Limit(kind=LimitKind.THROTTLE)
    for request in (limited(candidates=(FULL,)), limited(limit=throttle), switch(), near()):
        await answered(services, request)
    assert not await services.redis.exists(keys.failovers(THREAD))


async def test_the_next_failover_is_allowed_as_the_oldest_is_an_hour_ago(
    services: Services,
) -> None:
    oldest = later(-0.9)
    await failovers.count(services.redis, THREAD, 100, now=later(-1.1))
    for number in range(6):
        time = oldest + number * timedelta(minutes=1)
        await failovers.count(services.redis, THREAD, number, now=time)
    assert (await refused(services, limited())).resets_at == oldest + HOUR


async def test_the_setting_and_before_it_the_policy_say_how_often(
    server: Any, tmp_path: Path
) -> None:
    settings = Settings(redis_url=server.url, failovers_per_hour=1)
    async with open_services(settings, name="test") as services:
        await taken(services, limited(through=7))
        await refused(services, limited())
    file = tmp_path / "policy.toml"
    file.write_text("failovers_per_hour = 2", encoding="utf-8")
    async with open_services(settings, name="test", policy=load_policy(file)) as services:
        await taken(services, limited())
        await refused(services, limited(through=6))


# The operator's policy


async def test_without_candidates_the_policy_says_where_a_thread_goes_on(ruled: Services) -> None:
    result = await taken(ruled, limited(candidates=()))
    assert result.target == Target(provider="claude-code", instance="team")
    assert [one.target for one in result.passed_over] == [CODEX]


async def test_candidates_of_the_request_come_before_the_policy(ruled: Services) -> None:
    assert (await taken(ruled, limited(candidates=(OPENCODE,)))).target == OPENCODE


async def test_the_policy_knows_who_is_used_up(ruled: Services) -> None:
    until = await use_up(ruled.redis, CODEX, 1)
    request = limited(candidates=(), provider="claude-code", instance="team")
    result = await taken(ruled, request)
    assert result.target == GEMINI
    assert [(one.target, one.until) for one in result.passed_over] == [(CODEX, until)]


async def test_neither_candidates_nor_a_policy_is_said_clearly(services: Services) -> None:
    result = await refused(services, limited(candidates=()))
    assert (result.code, result.retryable) == (FailureCode.NO_TARGET_AVAILABLE, False)
    assert "MOONFOLD_FAILOVER_POLICY" in result.message


async def test_a_policy_that_serves_other_providers_is_said_clearly(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[[candidate]]\nprovider = 'a'\nfrom = ['b']", encoding="utf-8")
    async with open_services(settings, name="test", policy=load_policy(file)) as services:
        result = await refused(services, limited(candidates=()))
    assert (result.code, result.retryable) == (FailureCode.NO_TARGET_AVAILABLE, False)
    assert "codex" in result.message


async def test_a_worker_reads_the_policy_of_its_settings(
    server: Any, tmp_path: Path, client: HandoffClient
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY, encoding="utf-8")
    running = RunningWorker(Settings(redis_url=server.url, failover_policy=file))
    await running.start()
    result = await ready(client, limited(candidates=()))
    await running.stop()
    assert result.target.instance == "team"


# In the same time


async def test_what_else_is_known_is_read_beside_the_thread(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Barrier(2)

    def meeting(original: Any) -> Any:
        async def read(*arguments: Any, **named: Any) -> Any:
            async with asyncio.timeout(5):
                await both.wait()
            return await original(*arguments, **named)

        return read

    monkeypatch.setattr(threads, "load", meeting(threads.load))
    monkeypatch.setattr(failovers, "situation", meeting(failovers.situation))
    assert (await taken(services, limited())).target == CLAUDE


async def test_a_thread_that_is_not_there_is_said_to(services: Services) -> None:
    result = await refused(services, limited(thread_id="nobody", limit=quota()))
    assert result.code is FailureCode.THREAD_NOT_FOUND
