from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

import pytest
from conftest import RunningWorker
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
    prepared,
    ready,
    switch,
)
from helpers.building import assistant, command, started, user
from helpers.slow import gate
from helpers.waiting import until
from msgspec.structs import replace
from redis.asyncio import Redis

from moonfold_handoff import demo, jobs, worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, log, queue
from moonfold_handoff.store import threads as thread_store
from moonfold_handoff.store.past import PastStates
from moonfold_handoff.transcripts import read_transcript
from moonfold_schemas import Target
from moonfold_schemas.events import (
    ItemRecorded,
    ModelSelected,
    ThreadEvent,
    ThreadForked,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import ItemStatus, UserMessage
from moonfold_schemas.requests import NativeAbilities, NewRequest
from moonfold_schemas.results import (
    Delivery,
    FailureCode,
)

RECORDING = "recorded-2.1-slugger-limit.jsonl"
FORKS_NATIVELY = NativeAbilities(fork=True)


def ended(turn_id: str) -> TurnEnded:
    return TurnEnded(turn_id=turn_id, status=TurnStatus.COMPLETED)


def turn(name: str) -> list[Any]:
    """Return four events: a whole turn."""
    return [TurnStarted(turn_id=name), user(f"ask {name}"), assistant(f"say {name}"), ended(name)]


def turns() -> list[ThreadEvent]:
    """Return two whole turns, to 6 and 10, and one that runs, to 13."""
    return events(
        ThreadStarted(),
        started(),
        *turn("one"),
        *turn("two"),
        TurnStarted(turn_id="three"),
        user("ask three"),
        command("make three", "half", exit_code=None, status=ItemStatus.IN_PROGRESS),
    )


@pytest.fixture(autouse=True)
def _no_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the past states that another test left in this process."""
    monkeypatch.setattr(thread_store, "_past", PastStates())


# What a fork has


async def test_a_fork_without_a_request_is_prepared(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await prepared(client, fork(request=None))
    assert (result.thread_id, result.target) == ("fork", CLAUDE)
    assert (result.coverage.selected_items, result.coverage.through) == (6, 9)
    assert result.budget.cost > 0
    assert result.budget.request.value == 0
    [event] = await log.fetch(redis, [("fork", 9)])
    assert event == ThreadForked(parent_thread_id=THREAD, through=8)
    assert await redis.exists(keys.state("fork"))


async def test_preparing_is_the_work_of_the_background(client: HandoffClient, redis: Redis) -> None:
    await client.request(fork(request=None))
    assert (await redis.zcard(keys.BACKGROUND), await redis.zcard(keys.HANDOFFS)) == (1, 0)
    await client.request(fork())
    assert (await redis.zcard(keys.BACKGROUND), await redis.zcard(keys.HANDOFFS)) == (1, 1)


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_fork_with_a_request_is_ready(
    is_prepared: bool, client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    if is_prepared:
        await prepared(client, fork(request=None))
    result = await ready(client, fork())
    assert (result.thread_id, result.target) == ("fork", CLAUDE)
    for text in ("question 0", "answer 0", "question 1", "answer 1"):
        assert text in result.text
    other = await ready(client, switch(thread_id="fork", through=9))
    assert other.coverage == result.coverage


async def test_the_size_of_the_request_counts_in_the_final_budget(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    target = Target(provider="opencode", capacity=20_000)
    before = await prepared(client, fork(target=target, request=None))
    text = NewRequest(text="z" * 3_000)
    after = await ready(client, fork(target=target, request=text))
    assert after.budget.request.value == 3_002
    assert after.budget.allowance == before.budget.allowance - 3_002
    full = await failed(client, fork(target=target, request=NewRequest(json_bytes=4_000)))
    assert full.code is FailureCode.REFERENCES_DO_NOT_FIT


@pytest.mark.parametrize(
    ("where", "last", "present", "absent"),
    [
        ({"through": 6}, 6, ["say one"], ["ask two"]),
        ({"through": 4}, 4, ["ask one"], ["say one"]),
        ({"turn_id": "one"}, 6, ["say one"], ["ask two"]),
        ({"turn_id": "two"}, 10, ["say two"], ["ask three"]),
        ({"settled": True}, 10, ["say one", "say two"], ["ask three", "make three"]),
        ({"settled": True, "through": 9}, 6, ["say one"], ["ask two"]),
        ({"settled": True, "turn_id": "one"}, 6, ["say one"], ["ask two"]),
        ({}, 13, ["say two", "ask three", "command, in progress", "make three"], []),
    ],
    ids=["sequence", "amid a turn", "turn", "last turn", "settled", "earlier", "both", "running"],
)
async def test_a_fork_has_its_parents_history_up_to_the_point(  # noqa: PLR0917
    where: dict[str, Any],
    last: int,
    present: list[str],
    absent: list[str],
    client: HandoffClient,
    running_worker: RunningWorker,
) -> None:
    await client.append(THREAD, 0, turns())
    result = await ready(client, fork(**{"through": 13, **where}))
    assert result.coverage.through == last + 1
    for text in present:
        assert text in result.text
    for text in absent:
        assert text not in result.text


async def test_a_turn_that_was_rolled_back_is_no_point_to_fork_at(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = events(ThreadStarted(), *turn("one"), *turn("two"), TurnsRolledBack(to=5))
    history += events(*turn("three"), TurnsRolledBack(to=5), TurnsRolledBack(to=8))
    await client.append(THREAD, 0, history)
    result = await ready(client, fork(through=16, settled=True))
    assert result.coverage.through == 6
    assert "say one" in result.text
    for name in ("two", "three"):
        assert f"say {name}" not in result.text
        gone = await failed(client, fork(through=16, turn_id=name, fork_thread_id=name))
        assert gone.code is FailureCode.INVALID_REQUEST
    there = await ready(client, fork(through=9, turn_id="two", fork_thread_id="before"))
    assert "say two" in there.text


async def test_rolled_back_turns_do_not_travel_with_a_fork_after_them(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = events(ThreadStarted(), *turn("one"), *turn("two"), TurnsRolledBack(to=5))
    await client.append(THREAD, 0, history)
    result = await ready(client, fork(through=10))
    assert "say one" in result.text
    assert "say two" not in result.text


async def test_a_turn_of_an_ancestor_is_a_point_of_its_forks(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, turns())
    await prepared(client, fork(through=10, fork_thread_id="b", request=None))
    await prepared(client, fork(thread_id="b", through=11, fork_thread_id="c", request=None))
    where = {"thread_id": "c", "through": 12}
    result = await ready(client, fork(settled=True, fork_thread_id="d", **where))
    assert result.coverage.through == 11
    assert "say two" in result.text
    result = await ready(client, fork(turn_id="one", fork_thread_id="e", **where))
    assert result.coverage.through == 7
    assert "say one" in result.text
    assert "ask two" not in result.text


async def test_a_fork_of_a_fork_carries_the_original_request_of_the_recorded_session(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    with resources.as_file(resources.files(demo) / RECORDING) as path:
        transcript = read_transcript(path)
    asked = [
        event.item
        for event in transcript.events
        if isinstance(event, ItemRecorded) and isinstance(event.item, UserMessage)
    ]
    last = await client.append("a", 0, transcript.events)
    await prepared(
        client, fork(thread_id="a", through=last, fork_thread_id="b", request=None, target=CODEX)
    )
    last = await client.append("b", last + 1, events(user("in b"), assistant("of b")))
    result = await ready(
        client, fork(thread_id="b", through=last, fork_thread_id="c", target=CODEX)
    )
    assert result.target.provider == "codex"
    assert asked[0].text in [part.text for item in result.items for part in item.content] or (
        asked[0].text in result.text
    )
    assert "in b" in result.text


async def test_what_becomes_of_the_parent_does_not_change_its_fork(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, turns())
    early = await ready(client, fork(through=10))
    last = await client.append(THREAD, 13, events(assistant("later"), ended("three")))
    went_on = await ready(client, fork(through=10))
    await client.append(THREAD, last, [TurnsRolledBack(to=6)])
    rolled_back = await ready(client, fork(through=10))
    other = await ready(client, fork(through=10, fork_thread_id="other"))
    for result in (went_on, rolled_back, other):
        assert result.coverage == early.coverage
        assert "say two" in result.text
        assert "later" not in result.text
    now = await ready(client, switch(through=last + 1))
    assert "say two" not in now.text


async def test_repeating_a_fork_is_harmless(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    request = fork(request=None)
    await prepared(client, request)
    assert not await client.request(request)
    await asyncio.gather(*(answer(client, fork(request=None)) for _ in range(5)))
    assert await redis.xlen(keys.log("fork")) == 1
    await client.append("fork", 9, events(user("in the fork")))
    again = await ready(client, fork())
    assert again.coverage.through == 9  # what the request means, whatever came after
    assert await redis.xlen(keys.log("fork")) == 2


# What cannot be


@pytest.mark.parametrize("settled", [False, True])
async def test_an_id_that_belongs_to_another_thread_is_refused_and_the_thread_left_alone(
    settled: bool, client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, turns())
    for name, length in (("shorter", 4), ("as-long", 10), ("longer", 12)):
        await client.append(name, 0, turns()[:length])
        changes = {"settled": settled, "through": 13 if settled else 10}
        result = await failed(client, fork(fork_thread_id=name, **changes))
        assert (result.code, result.retryable) == (FailureCode.INVALID_REQUEST, False)
        assert name in result.message
        assert await redis.xlen(keys.log(name)) == length


async def test_a_thread_is_no_fork_of_itself(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, turns())
    result = await failed(client, fork(fork_thread_id=THREAD, through=last))
    assert result.code is FailureCode.INVALID_REQUEST
    assert await client.last(THREAD) == last


async def test_a_fork_of_another_parent_or_point_is_refused(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    for name in (THREAD, "cousin"):
        await client.append(name, 0, turns())
    await ready(client, fork(through=10))
    for changes in ({"thread_id": "cousin", "through": 10}, {"through": 9}, {"through": 11}):
        result = await failed(client, fork(**changes))
        assert result.code is FailureCode.INVALID_REQUEST
    assert await client.last("fork") == 11


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"turn_id": "unknown"}, FailureCode.INVALID_REQUEST),
        ({"turn_id": "three"}, FailureCode.INVALID_REQUEST),  # runs yet
        ({"settled": True, "through": 5}, FailureCode.INVALID_REQUEST),
        ({"thread_id": "nobody"}, FailureCode.THREAD_NOT_FOUND),
        ({"thread_id": "nobody", "through": 0}, FailureCode.THREAD_NOT_FOUND),
        ({"through": 14}, FailureCode.HISTORY_INCOMPLETE),
        ({"through": 14, "settled": True}, FailureCode.HISTORY_INCOMPLETE),
    ],
)
@pytest.mark.parametrize("request_", [None, NewRequest(text="go on")])
async def test_a_point_that_is_not_there_is_said_to_and_nothing_made(
    changes: dict[str, Any],
    code: FailureCode,
    request_: NewRequest | None,
    client: HandoffClient,
    running_worker: RunningWorker,
) -> None:
    await client.append(THREAD, 0, turns())
    result = await failed(client, fork(**{"through": 13, "request": request_, **changes}))
    assert result.code is code
    assert result.retryable is (code is FailureCode.HISTORY_INCOMPLETE)
    assert await client.last("fork") == 0


async def test_a_fork_of_nothing_yet_is_empty(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, turns())
    result = await ready(client, fork(through=0))
    assert (result.coverage.through, result.items, result.text) == (1, (), "")
    await client.append("fork", 1, events(user("in the fork")))
    assert "in the fork" in (await ready(client, switch(thread_id="fork", through=2))).text


# What it costs


async def test_what_a_fork_keeps_does_not_grow_with_its_parent(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    kept = []
    for name, count in (("short", 300), ("long", 3_000)):
        last = await client.append(name, 0, conversation(count))
        parent = await client.append(name, last, events(assistant("of the parent")))
        await prepared(
            client, fork(thread_id=name, through=parent, fork_thread_id=f"of-{name}", request=None)
        )
        thread_keys = [key async for key in redis.scan_iter(f"moonfold:{{of-{name}}}:*")]
        assert sorted(thread_keys) == sorted(
            part(f"of-{name}").encode() for part in (keys.log, keys.state)
        )
        assert await redis.xlen(keys.log(f"of-{name}")) == 1
        kept.append(sum([int(await redis.memory_usage(key) or 0) for key in thread_keys]))
    assert kept[1] < 1.2 * kept[0]


async def test_many_forks_of_one_past_point_fold_it_once(
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = await client.append(THREAD, 0, conversation(50))
    await thread_store.load(redis, THREAD)
    reads: list[str] = []
    original = log.read

    def read(redis: Redis, thread_id: str, *, after: int, through: int) -> Any:
        reads.append(thread_id)
        return original(redis, thread_id, after=after, through=through)

    monkeypatch.setattr(log, "read", read)
    for number in range(20):
        await prepared(
            client, fork(through=last - 3, fork_thread_id=f"fork-{number}", request=None)
        )
    assert reads.count(THREAD) == 1


async def test_the_past_of_a_thread_that_began_anew_is_another(redis: Redis) -> None:
    await append(redis, events(user("first"), assistant("then"), assistant("last")))
    await thread_store.load(redis, THREAD)
    before = await thread_store.load(redis, THREAD, 2)
    assert await thread_store.load(redis, THREAD, 2) is before
    await redis.delete(keys.log(THREAD), keys.state(THREAD), keys.items(THREAD))
    await append(redis, events(user("another"), assistant("one"), assistant("longer")))
    await thread_store.load(redis, THREAD)
    assert await thread_store.load(redis, THREAD, 2) != before


async def test_only_the_past_states_used_last_are_kept(redis: Redis) -> None:
    await append(redis, conversation(5))
    state = await thread_store.load(redis, THREAD)
    past = PastStates(limit=2)
    first, second, third = ((THREAD, number, b"") for number in range(3))
    past.put(first, state)
    past.put(second, state)
    assert past.get(first) is state
    past.put(third, state)
    assert past.get(second) is None
    assert past.get(first) is state
    assert past.get(third) is state


# What is prepared is never stale


async def test_a_fork_that_moved_after_it_was_prepared_gets_a_fresh_handoff(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    before = await prepared(client, fork(request=None))
    last = await client.append("fork", 9, events(user("moved on"), assistant("so it is")))
    result = await ready(client, switch(thread_id="fork", through=last))
    assert result.coverage.selected_items == before.coverage.selected_items + 2
    for text in ("question 0", "moved on", "so it is"):
        assert text in result.text
    await client.append("fork", last, [TurnsRolledBack(to=5)])
    result = await ready(client, switch(thread_id="fork", through=last + 1))
    assert "answer 0" in result.text
    assert "question 1" not in result.text
    assert "moved on" not in result.text


async def test_another_target_than_the_prepared_one_gets_a_handoff_of_its_own(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    before = await prepared(client, fork(request=None))
    small = Target(provider="claude-code", model="small", capacity=17_500)
    after = await ready(client, fork(target=small))
    assert after.target == small
    assert after.budget.window.value == 17_500
    assert after.budget.allowance < before.budget.allowance
    assert (await failed(client, fork(target=FULL))).code is FailureCode.REFERENCES_DO_NOT_FIT


async def test_a_model_selected_after_it_was_prepared_counts(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    before = await prepared(client, fork(request=None))
    new = started("in-fork", provider="claude-code", model="large", capacity=100_000)
    await client.append("fork", 9, [new])
    selected = ModelSelected(conversation_id="in-fork", model="small", capacity=18_000)
    await client.append("fork", 10, [selected])
    target = replace(CLAUDE, conversation_id="in-fork")
    result = await ready(client, switch(thread_id="fork", through=11, target=target))
    assert result.budget.window.value == 18_000
    assert result.budget.allowance < before.budget.allowance


# Native forks


def native(conversation_id: str | None = "c", **changes: Any) -> Target:
    return Target(
        **{
            "provider": "codex",
            "conversation_id": conversation_id,
            "native": FORKS_NATIVELY,
            **changes,
        }
    )


async def test_a_provider_that_forks_by_itself_needs_no_history(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    request = fork(target=native(), request=NewRequest(text="four words to go"))
    result = await ready(client, request)
    assert result.delivery is Delivery.NATIVE
    assert (result.items, result.text, result.budget.cost) == ((), "", 0)
    assert (result.coverage.selected_items, result.coverage.omitted_items) == (0, 0)
    assert result.budget.request.value == len('"four words to go"')
    portable = await ready(
        client,
        fork(target=native(), request=NewRequest(text="four words to go"), native_failed=True),
    )
    assert portable.delivery is not Delivery.NATIVE
    assert "question 0" in portable.text
    assert portable.budget.request == result.budget.request
    assert portable.coverage.selected_items == 6


@pytest.mark.parametrize(
    "target",
    [
        native(None),
        native("unknown"),
        native(provider="claude-code"),
        native(native=NativeAbilities()),
        native(native=NativeAbilities(resume=True)),
    ],
    ids=["no conversation", "unknown", "another provider", "cannot", "can only resume"],
)
async def test_only_a_conversation_of_the_thread_is_forked_natively(
    target: Target, client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await ready(client, fork(target=target))
    assert result.delivery is not Delivery.NATIVE
    assert "question 0" in result.text


async def test_a_conversation_that_has_not_seen_all_is_not_forked_natively(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    new = events(started("d", provider="claude-code"), user("elsewhere"))
    last = await client.append(THREAD, 8, new)
    result = await ready(client, fork(target=native(), through=last))
    assert result.delivery is not Delivery.NATIVE
    early = await ready(client, fork(target=native(), fork_thread_id="early"))
    assert early.delivery is Delivery.NATIVE


# In the background


async def test_a_handoff_goes_first_while_forks_wait(
    settings: Settings, redis: Redis, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 30)
    held = gate(monkeypatch, only_folds=True)
    names = [f"slow-{number}" for number in range(10)]
    for name in names:
        await append(redis, conversation(), thread_id=name)
        await queue.enqueue_fold(redis, name)
    await client.append(THREAD, 0, conversation())
    running = RunningWorker(settings)
    await running.start()

    async def are_full() -> bool:
        return len(held.waiting) == worker.BACKGROUND_JOBS

    await until(are_full)
    async with asyncio.timeout(5):
        for _ in range(5):
            await ready(client, switch())
    assert len(held.waiting) == worker.BACKGROUND_JOBS
    assert held.passed == 0
    held.opened.set()

    async def are_folded() -> bool:
        return held.passed == len(names)

    await until(are_folded, 5)
    await running.stop()


class Held:
    """Interactive jobs that run until they are let go, and background jobs that are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = asyncio.Event()
        self.held = 0
        self.folds: list[float] = []
        original = thread_store.load

        async def load(
            redis: Redis, thread_id: str, through: int | None = None, **more: Any
        ) -> Any:
            if through is None:
                self.folds.append(asyncio.get_running_loop().time())
            else:
                self.held += 1
                await self.opened.wait()
            return await original(redis, thread_id, through, **more)

        monkeypatch.setattr(thread_store, "load", load)

    async def is_held(self) -> bool:
        return self.held > 0


async def _backlog(redis: Redis, count: int) -> None:
    for number in range(count):
        await append(redis, conversation(), thread_id=f"slow-{number}")
        await queue.enqueue_fold(redis, f"slow-{number}")


async def test_background_jobs_go_on_in_time_however_long_a_handoff_takes(
    settings: Settings, redis: Redis, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 30)
    monkeypatch.setattr(worker, "PATIENCE", 0.05)
    jobs = Held(monkeypatch)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    request = switch()
    await client.request(request)
    await until(jobs.is_held)
    await _backlog(redis, 9)

    async def are_done() -> bool:
        return len(jobs.folds) == 9

    await until(are_done, 5)
    assert not jobs.opened.is_set()
    # They come in batches of as many as run at once, one batch each time patience is at its end.
    assert jobs.folds[-1] - jobs.folds[0] >= 3 * 0.05
    jobs.opened.set()
    await client.wait(request.request_id, 5)
    await running.stop()


async def test_background_jobs_go_on_as_soon_as_no_handoff_runs(
    settings: Settings, redis: Redis, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_POLL", 30)
    monkeypatch.setattr(worker, "PATIENCE", 30)
    monkeypatch.setattr(worker, "BACKGROUND_JOBS", 1)
    jobs = Held(monkeypatch)
    running = RunningWorker(settings)
    await running.start()
    await client.append(THREAD, 0, conversation())
    await _backlog(redis, 1)

    async def is_first_done() -> bool:
        return len(jobs.folds) == 1 and not await redis.exists(keys.BACKGROUND)

    await until(is_first_done, 5)
    request = switch()
    await client.request(request)
    await until(jobs.is_held)
    for number in range(1, 4):
        await append(redis, conversation(), thread_id=f"slow-{number}")
        await queue.enqueue_fold(redis, f"slow-{number}")
    await asyncio.sleep(0.1)  # nothing is to happen
    assert len(jobs.folds) == 1
    jobs.opened.set()
    await client.wait(request.request_id, 5)

    async def are_done() -> bool:
        return len(jobs.folds) == 4

    await until(are_done, 5)
    await running.stop()


async def test_a_fork_is_told_from_a_thread_whose_log_ends_where_it_begins(
    services: Services,
) -> None:
    redis = services.redis
    assert await log.first(redis, THREAD) == await log.last(redis, THREAD) == 0
    await append(redis, conversation())
    assert (await log.first(redis, THREAD), await log.last(redis, THREAD)) == (1, 8)
    await append(redis, [ThreadForked(parent_thread_id=THREAD, through=8)], thread_id="b", after=8)
    assert (await log.first(redis, "b"), await log.last(redis, "b")) == (9, 9)


async def test_a_fork_that_goes_on_keeps_its_ancestors_alive(
    services: Services, redis: Redis
) -> None:
    await append(redis, events(user("one"), assistant("two")), thread_id="parent")
    forked: list[ThreadEvent] = [ThreadForked(parent_thread_id="parent", through=2)]
    await append(redis, [*forked, *events(user("three"))], thread_id="child", after=2)
    for key in (keys.log("parent"), keys.items("parent")):
        await redis.expire(key, 100)
    await jobs.fold_thread(services, "fold:child", b'"child"')
    for key in (keys.log("parent"), keys.items("parent")):
        assert await redis.ttl(key) > services.settings.thread_ttl - 100
    # A thread that lives longer anyhow is left as it is.
    await redis.expire(keys.log("parent"), 2 * services.settings.thread_ttl)
    await jobs.fold_thread(services, "fold:child", b'"child"')
    assert await redis.ttl(keys.log("parent")) > services.settings.thread_ttl
