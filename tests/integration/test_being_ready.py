"""What folds tell of providers, and what is prepared before a limit is reached."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import (
    CLAUDE,
    CODEX,
    FULL,
    THREAD,
    append,
    limited,
    near,
    prepared,
    ready,
)
from helpers.building import started
from helpers.limits import (
    SECRET,
    answered,
    later,
    quota,
    refused,
    use_up,
    used_up,
)
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.availability import Instance
from moonfold_handoff.jobs import fold_thread
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, providers
from moonfold_schemas import ThreadEvent, utc_now
from moonfold_schemas.events import (
    Limit,
    LimitKind,
    QuotaReported,
    QuotaWindow,
    TurnEnded,
    TurnStatus,
)
from moonfold_schemas.requests import Target
from moonfold_schemas.results import (
    FailureCode,
    HandoffPrepared,
    PassedOverReason,
)

LIMITED, NO_ROOM = PassedOverReason.AT_ITS_LIMIT, PassedOverReason.NO_ROOM

pytestmark = pytest.mark.usefixtures("recorded")


# Folding tells


def ended(status: TurnStatus, hours: float | None, limit: Limit | None = None) -> TurnEnded:
    time = None if hours is None else later(hours)
    return TurnEnded(turn_id="turn", status=status, time=time, limit=limit)


async def folded(services: Services, *what: ThreadEvent, after: int = 8) -> int:
    """Append to the thread and fold it, twice."""
    last = await append(services.redis, what, after=after)
    for _ in range(2):
        await fold_thread(services, f"fold:{THREAD}", f'"{THREAD}"'.encode())
    return last


async def test_a_turn_that_ends_at_a_limit_marks_its_provider(
    services: Services, logged: Logged
) -> None:
    limit = quota(3)
    await folded(services, ended(TurnStatus.LIMITED, -0.5, limit))
    notice = (await used_up(services.redis))["codex"]
    assert notice.until == limit.resets_at
    assert len(logged.events("provider_used_up")) == 1
    assert SECRET not in logged.text


async def test_a_turn_that_is_completed_later_ends_the_limit(
    services: Services, logged: Logged
) -> None:
    last = await folded(services, ended(TurnStatus.LIMITED, -0.5, quota(3)))
    last = await folded(services, ended(TurnStatus.COMPLETED, -0.6), after=last)
    assert set(await used_up(services.redis)) == {"codex"}
    await folded(services, ended(TurnStatus.COMPLETED, -0.4), after=last)
    assert await used_up(services.redis) == {}
    [line] = logged.events("provider_available")
    assert line["provider"] == "codex"


@pytest.mark.parametrize(
    "event",
    [
        ended(TurnStatus.LIMITED, -0.1, Limit(kind=LimitKind.THROTTLE, retry_after=10)),
        ended(TurnStatus.LIMITED, -0.1, Limit(kind=LimitKind.CONTEXT)),
        ended(TurnStatus.LIMITED, -0.1),
        ended(TurnStatus.LIMITED, -30, quota(-20)),
        ended(TurnStatus.LIMITED, -2, quota(None)),
        ended(TurnStatus.FAILED, -0.1, quota(3)),
        ended(TurnStatus.COMPLETED, None),
    ],
    ids=str,
)
async def test_other_turns_change_nothing(event: TurnEnded, services: Services) -> None:
    other = await use_up(services.redis, CLAUDE, 1)
    await folded(services, event)
    found = await used_up(services.redis)
    assert {name: notice.until for name, notice in found.items()} == {"claude-code": other}


async def test_a_limit_at_an_unknown_time_is_noticed_now_and_not_again(services: Services) -> None:
    await folded(services, ended(TurnStatus.LIMITED, None, quota(None)))
    first = (await used_up(services.redis))["codex"]
    await folded(services, after=9)
    assert (await used_up(services.redis))["codex"] == first
    await providers.clear(services.redis, Instance.of(CODEX), now=utc_now())
    await folded(services, after=9)
    assert await used_up(services.redis) == {}


# Being ready


def near_quota(percent: float, resets: float | None = 2, **changes: Any) -> QuotaReported:
    resets_at = None if resets is None else later(resets)
    window = QuotaWindow(name="primary", used_percent=percent, resets_at=resets_at)
    return QuotaReported(conversation_id="c", windows=(window,), **changes)


async def test_a_fold_prepares_the_handoff_that_the_end_of_a_quota_will_ask_for(
    ruled: Services, logged: Logged
) -> None:
    await append(ruled.redis, [near_quota(90)], after=8)
    await fold_thread(ruled, f"fold:{THREAD}", f'"{THREAD}"'.encode())
    [line] = logged.events("handoff_prepared")
    assert (line["provider"], line["passed_over"]) == ("claude-code/team", 1)
    assert (line["selected"], line["omitted"]) == (6, 0)
    assert line["allowance"] > 0


@pytest.mark.parametrize(
    "report",
    [
        near_quota(89.9),
        near_quota(100, has_credits=True),
        near_quota(100, resets=-1),
        QuotaReported(conversation_id="unknown", windows=near_quota(99).windows),
    ],
    ids=range(4),
)
async def test_nothing_is_prepared_while_there_is_quota(
    report: QuotaReported, ruled: Services, logged: Logged
) -> None:
    await folded(ruled, report)
    assert len(logged.events("thread_folded")) == 2
    assert not logged.events("handoff_prepared")


async def test_nothing_is_prepared_without_candidates(services: Services, logged: Logged) -> None:
    await folded(services, near_quota(99))
    assert not logged.events("handoff_prepared")
    assert not logged.events("handoff_not_prepared")


async def test_where_nobody_could_go_on_the_fold_says_so(ruled: Services, logged: Logged) -> None:
    await use_up(ruled.redis, Target(provider="claude-code", instance="team"), 1)
    await folded(ruled, near_quota(99, resets=None))
    line, _ = logged.events("handoff_not_prepared")
    assert line["code"] == "no_target_available"
    assert not await ruled.redis.exists(keys.REJECTED)


@pytest.mark.parametrize(
    ("event", "folds"),
    [
        (near_quota(90), 1),
        (near_quota(89), 0),
        (near_quota(99, has_credits=True), 0),
        (QuotaReported(conversation_id="c", windows=()), 0),
        (ended(TurnStatus.COMPLETED, 0), 1),
        (started("d"), 0),
    ],
    ids=range(6),
)
async def test_a_client_asks_for_a_fold_when_a_quota_is_nearly_used_up(
    event: ThreadEvent, folds: int, client: HandoffClient, redis: Redis
) -> None:
    await client.append(THREAD, 8, [event])
    assert await redis.zcard(keys.BACKGROUND) == folds


async def test_the_setting_says_what_nearly_is(server: Any, redis: Redis) -> None:
    settings = Settings(redis_url=server.url, limit_near_percent=50)
    async with HandoffClient("session", settings) as client:
        await client.append(THREAD, 8, [near_quota(50)])
    assert await redis.zcard(keys.BACKGROUND) == 1


async def test_a_limit_that_is_near_is_answered_with_what_is_prepared(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    request = near(candidates=(CODEX, FULL, CLAUDE))
    result = await prepared(client, request)
    assert result.target == CLAUDE
    assert [one.reason for one in result.passed_over] == [LIMITED, NO_ROOM]
    final = await ready(client, limited(candidates=(CODEX, FULL, CLAUDE), request=None))
    assert (result.coverage, result.budget.allowance) == (final.coverage, final.budget.allowance)
    assert result.budget.own_text_bytes == final.budget.own_text_bytes
    assert await used_up(redis) == {}


async def test_a_limit_that_is_near_waits_in_the_background(
    client: HandoffClient, redis: Redis
) -> None:
    await client.request(near())
    assert await redis.zcard(keys.BACKGROUND) == 1
    assert not await redis.exists(keys.HANDOFFS)


async def test_a_preparation_takes_the_policy_where_it_names_nobody(ruled: Services) -> None:
    result = await answered(ruled, near(candidates=()))
    assert isinstance(result, HandoffPrepared)
    assert result.target.instance == "team"


async def test_a_preparation_that_nobody_can_take_says_so(services: Services, redis: Redis) -> None:
    until = await use_up(redis, CLAUDE, 1)
    result = await refused(services, near())
    assert (result.code, result.resets_at) == (FailureCode.NO_TARGET_AVAILABLE, until)
