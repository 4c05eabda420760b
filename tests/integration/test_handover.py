from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import CLAUDE, conversation
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from moonfold_handoff import handover as handovers
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Followed
from moonfold_handoff.handover import Answered, Handover, Notice, Prepared, Reached, Unanswered
from moonfold_handoff.store import keys
from moonfold_handoff.transcripts import Session, codex
from moonfold_handoff.transcripts.base import Facts
from moonfold_handoff.transcripts.json_lines import JsonLinesSession
from moonfold_schemas import NewRequest, Target
from moonfold_schemas.events import Limit, LimitKind, QuotaReported, QuotaWindow
from moonfold_schemas.results import FailureCode, HandoffFailed, HandoffReady

OPENCODE = Target(provider="opencode")
THREAD = "codex:s"


def limit(hours: float | None = 2, kind: LimitKind = LimitKind.QUOTA) -> Limit:
    at = None if hours is None else datetime.now(UTC) + timedelta(hours=hours)
    return Limit(kind=kind, resets_at=at)


def at_its_limit(hours: float | None = 2, *, number: int = 8, through: int = 8) -> Followed:
    return Followed(through, 1, Facts(limit=limit(hours), limited_at=number), None)


def used(*percents: float, has_credits: bool = False) -> Followed:
    windows = tuple(
        QuotaWindow(name=f"w{number}", used_percent=percent)
        for number, percent in enumerate(percents)
    )
    quota = QuotaReported(conversation_id="s", windows=windows, has_credits=has_credits)
    return Followed(8, 1, Facts(), quota)


class Watched:
    """A session that is being followed, and what is told of it."""

    def __init__(self, client: HandoffClient) -> None:
        self.client = client
        self.told: list[Notice] = []
        self.session: Session = JsonLinesSession(codex.AGENT, "s", Path("session.jsonl"))
        self.handover = self.watch()

    def watch(self, *targets: Target, **options: Any) -> Handover:
        return Handover(
            self.client, targets or (CLAUDE,), tell=self.told.append, near_percent=90, **options
        )

    def find(self, followed: Followed, *, age: float = 0, by: Handover | None = None) -> None:
        written = datetime.now(UTC).timestamp() - age
        (by or self.handover).found(self.session, followed, written)

    async def tells(self, count: int) -> list[Notice]:
        async def is_told() -> bool:
            return len(self.told) >= count

        await until(is_told)
        assert len(self.told) == count
        return self.told


@pytest.fixture
async def watched(client: HandoffClient) -> AsyncIterator[Watched]:
    await client.append(THREAD, 0, conversation())
    watched = Watched(client)
    yield watched
    await watched.handover.finish()


@pytest.mark.usefixtures("running_worker")
async def test_a_limit_is_told_and_answered(watched: Watched) -> None:
    followed = at_its_limit()
    watched.find(followed)
    reached, answered = await watched.tells(2)
    assert reached == Reached(watched.session, followed.facts.limit or limit())
    assert isinstance(answered, Answered)
    assert isinstance(answered.result, HandoffReady)
    assert (answered.result.target, answered.result.thread_id) == (CLAUDE, THREAD)
    assert (answered.followed, answered.session) == (followed, watched.session)
    assert 0 < answered.seconds < 15


@pytest.mark.usefixtures("running_worker")
async def test_a_limit_is_asked_about_once(watched: Watched, redis: Redis) -> None:
    followed = at_its_limit()
    watched.find(followed)
    await watched.tells(2)
    watched.find(followed)
    # Another watcher, or this one started again, gets the same answer.
    other = watched.watch()
    watched.find(followed, by=other)
    *_, second, third = await watched.tells(4)
    assert isinstance(second, Reached)
    assert isinstance(third, Answered)
    assert third.result == watched.told[1].result  # type: ignore[union-attr]
    assert len([key async for key in redis.scan_iter("moonfold:result:*")]) == 1
    # The next limit is another question.
    watched.find(at_its_limit(number=9))
    assert isinstance((await watched.tells(6))[-1], Answered)
    await other.finish()


@pytest.mark.usefixtures("running_worker")
async def test_what_the_person_wants_and_how_much_is_asked_for(watched: Watched) -> None:
    request = NewRequest(text="Go on with it.")
    handover = watched.watch(OPENCODE, request=request, token_cap=2_000)
    watched.find(at_its_limit(), by=handover)
    answered = (await watched.tells(2))[1]
    assert isinstance(answered, Answered)
    assert isinstance(answered.result, HandoffReady)
    assert answered.result.budget.cap.value == 2_000
    assert answered.result.budget.request.value == len('"Go on with it."')
    await handover.finish()


@pytest.mark.usefixtures("running_worker")
async def test_an_account_that_is_used_up_is_passed_over(watched: Watched) -> None:
    handover = watched.watch(Target(provider="codex"), OPENCODE)
    watched.find(at_its_limit(), by=handover)
    answered = (await watched.tells(2))[1]
    assert isinstance(answered, Answered)
    assert isinstance(answered.result, HandoffReady)
    assert answered.result.target == OPENCODE
    assert [one.target.provider for one in answered.result.passed_over] == ["codex"]
    await handover.finish()


@pytest.mark.usefixtures("running_worker")
async def test_where_nobody_can_go_on_that_is_the_answer(watched: Watched) -> None:
    handover = watched.watch(Target(provider="codex"))
    watched.find(at_its_limit(), by=handover)
    answered = (await watched.tells(2))[1]
    assert isinstance(answered, Answered)
    assert isinstance(answered.result, HandoffFailed)
    assert answered.result.code is FailureCode.NO_TARGET_AVAILABLE
    await handover.finish()


@pytest.mark.parametrize(
    ("hours", "age", "is_live"),
    [
        (0.1, 999_999, True),  # still closed, whenever it was written
        (-0.1, 0, False),
        (None, 60, True),
        (None, handovers.STALE_SECONDS + 60, False),
    ],
)
async def test_only_a_limit_that_still_holds_is_handed_over(
    watched: Watched, hours: float | None, age: float, is_live: bool
) -> None:
    watched.find(at_its_limit(hours), age=age)
    assert bool(watched.told) == is_live


async def test_a_session_without_a_limit_is_left_alone(watched: Watched) -> None:
    watched.find(Followed(8, 3, Facts(), None))
    assert watched.told == []


@pytest.mark.usefixtures("running_worker")
async def test_a_quota_that_is_nearly_used_up_is_prepared_for_once(watched: Watched) -> None:
    watched.find(used(40, 91.5, 90))
    watched.find(used(40, 92, 90))
    (prepared,) = await watched.tells(1)
    assert isinstance(prepared, Prepared)
    assert (prepared.window.name, prepared.window.used_percent) == ("w1", 91.5)
    assert prepared.result.target == CLAUDE  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "followed", [used(), used(89.9), used(99, has_credits=True)], ids=["none", "low", "credits"]
)
async def test_a_quota_that_lasts_is_prepared_for_by_nobody(
    watched: Watched, redis: Redis, followed: Followed
) -> None:
    watched.find(followed)
    assert not watched.handover._tasks
    assert not await redis.exists(keys.BACKGROUND)


async def test_without_a_worker_it_says_so_and_asks_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(handovers, "WAIT_SECONDS", 0.05)
    followed = at_its_limit()
    watched.find(followed)
    reached, unanswered = await watched.tells(2)
    assert isinstance(reached, Reached)
    assert unanswered == Unanswered(watched.session, "No worker answered within 0 s.")
    monkeypatch.setattr(handovers, "WAIT_SECONDS", 10)
    worker = RunningWorker(settings)
    await worker.start()
    watched.find(followed)
    assert isinstance((await watched.tells(4))[3], Answered)
    await worker.stop()


async def test_a_server_that_is_away_is_told(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Any) -> bool:
        raise RedisConnectionError("secret")

    monkeypatch.setattr(watched.client, "request", away)
    watched.find(at_its_limit())
    unanswered = (await watched.tells(2))[1]
    assert unanswered == Unanswered(watched.session, "The server cannot be used: ConnectionError.")


async def test_what_is_still_waited_for_can_be_ended(watched: Watched) -> None:
    watched.find(at_its_limit())
    await asyncio.sleep(0)
    await watched.handover.finish()
    assert [type(notice) for notice in watched.told] == [Reached]
