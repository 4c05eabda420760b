from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from conftest import Logged, RunningWorker
from helpers.asking import (
    CLAUDE,
    FULL,
    SESSION,
    THREAD,
    answer,
    append,
    conversation,
    document,
    events,
    failed,
    fork,
    job,
    limited,
    put,
    ready,
    restart,
    switch,
)
from helpers.building import assistant, command, user
from helpers.waiting import until
from redis.asyncio import Redis

from moonfold_handoff import jobs
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.queued_jobs import ATTEMPTS_EVER
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, results, threads
from moonfold_schemas import HandoffRequest, encode
from moonfold_schemas.events import Limit, LimitKind, ThreadEvent, ThreadForked, ThreadStarted
from moonfold_schemas.requests import NewRequest
from moonfold_schemas.results import (
    Delivery,
    FailureCode,
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffWaiting,
)

SECRET = "a-very-private-wish"


async def idle(redis: Redis) -> None:
    """Wait until both queues are empty."""

    async def is_idle() -> bool:
        return not await redis.exists(keys.HANDOFFS, keys.BACKGROUND)

    await until(is_idle)


@pytest.mark.parametrize("make", [switch, restart, limited, fork])
async def test_every_request_is_answered(
    make: Callable[..., HandoffRequest],
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
) -> None:
    await client.append(THREAD, 0, conversation())
    request = make()
    result = await answer(client, request)
    assert isinstance(result, HandoffReady | HandoffPrepared)
    assert (result.request_id, result.session_id) == (request.request_id, SESSION)
    assert result.created_at is not None
    assert result.duration_ms is not None
    await idle(redis)
    assert not await redis.exists(keys.job(request.request_id))


async def test_a_preparation_is_answered(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await answer(client, fork(request=None))
    assert isinstance(result, HandoffReady | HandoffPrepared)


async def test_a_handoff_holds_the_conversation_in_both_deliveries(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await ready(client, restart())
    assert result.delivery is Delivery.ITEMS
    assert result.coverage.selected_items == 6
    for text in ("question 0", "answer 0", "make step-1", "answer 1"):
        assert text in result.text
        assert text in str(result.items)
    assert (await ready(client, switch())).delivery is Delivery.TEXT


async def test_a_warm_thread_gives_the_same_handoff_as_a_cold_one(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation(30))
    cold = await ready(client, switch(through=92))
    assert await redis.exists(keys.state(THREAD))
    warm = await ready(client, switch(through=92))
    assert warm.coverage == cold.coverage
    assert warm.budget == cold.budget


async def test_a_handoff_of_the_past_holds_nothing_later(
    client: HandoffClient, running_worker: RunningWorker, services: Services
) -> None:
    await client.append(THREAD, 0, conversation())
    await threads.load(services.redis, THREAD)
    result = await ready(client, switch(through=5))
    assert "answer 0" in result.text
    assert "question 1" not in result.text
    assert result.coverage.through == 5


async def test_a_fork_carries_its_ancestors(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append("a", 0, conversation())
    await client.append("b", 5, events(ThreadForked(parent_thread_id="a", through=5), user("in b")))
    await client.append("c", 7, events(ThreadForked(parent_thread_id="b", through=7), user("in c")))
    result = await ready(client, switch(thread_id="c", through=9))
    for text in ("question 0", "answer 0", "in b", "in c"):
        assert text in result.text
    assert "question 1" not in result.text


@pytest.mark.parametrize(
    ("what", "selected"),
    [
        ([ThreadStarted()], 0),
        (events(ThreadStarted(), assistant("nobody asked")), 1),
        (events(command("ls", "x")), 1),
    ],
)
async def test_a_thread_without_a_request_is_handed_off_as_it_is(
    what: list[Any], selected: int, client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, what)
    result = await ready(client, switch(through=last))
    assert result.coverage.selected_items == selected


async def test_history_up_to_nothing_is_an_empty_handoff(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    assert (await ready(client, switch(through=0))).coverage.selected_items == 0


async def test_a_thread_that_does_not_exist_is_said_to(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    request = switch(thread_id="nobody")
    result = await failed(client, request)
    assert (result.code, result.retryable) == (FailureCode.THREAD_NOT_FOUND, False)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert fields[b"job_id"].decode() == request.request_id
    assert b"no log" in fields[b"reason"]


async def test_history_that_is_not_there_yet_can_be_asked_for_again(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await failed(client, switch(through=9))
    assert (result.code, result.retryable) == (FailureCode.HISTORY_INCOMPLETE, True)


@pytest.mark.parametrize("damage", ["no json", '{"type":"turn.ended"}', None])
async def test_a_damaged_log_is_answered_and_the_worker_lives(
    damage: str | None, client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    if damage is None:
        await redis.xdel(keys.log(THREAD), "4-0")
    else:
        await redis.xadd(keys.log(THREAD), {"e": damage}, id="9-0")
    result = await failed(client, switch(through=8 if damage is None else 9))
    assert result.code is FailureCode.HISTORY_CORRUPT
    assert ("entry 4" if damage is None else "Entry 9") in result.message
    await client.append("healthy", 0, conversation())
    await ready(client, switch(thread_id="healthy"))


async def test_a_state_that_names_no_item_is_answered(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    await threads.load(redis, THREAD)
    state = await redis.hget(keys.state(THREAD), "s")  # type: ignore[misc]
    swapped = state.replace(b"[3,3,", b"[3,1,")
    assert swapped != state
    await redis.hset(keys.state(THREAD), "s", swapped)  # type: ignore[misc]
    result = await failed(client, switch())
    assert result.code is FailureCode.HISTORY_CORRUPT
    assert "Entry 1" in result.message


async def test_events_of_newer_producers_do_no_harm(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    await redis.xadd(keys.log(THREAD), {"e": '{"type":"thought.shared","x":1}'}, id="9-0")
    raw = '{"type":"item.recorded","item":{"kind":"hologram","item_id":"h","turn_id":"t"}}'
    await redis.xadd(keys.log(THREAD), {"e": raw}, id="10-0")
    assert (await ready(client, switch(through=10))).coverage.selected_items == 6


async def test_a_throttle_is_waited_for(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    limit = Limit(kind=LimitKind.THROTTLE, retry_after=12.5)
    result = await answer(client, limited(thread_id="nobody", limit=limit))
    assert isinstance(result, HandoffWaiting)
    assert result.retry_after == 12.5


@pytest.mark.parametrize(
    "limit",
    [
        Limit(kind=LimitKind.THROTTLE, retry_after=301),
        Limit(kind=LimitKind.QUOTA, retry_after=60),
        None,
    ],
)
async def test_any_other_limit_is_handed_off(
    limit: Limit | None, client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    await ready(client, limited(limit=limit))


async def test_a_candidate_without_room_is_passed_over(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await ready(client, limited(candidates=(FULL, FULL, CLAUDE)))
    assert result.target == CLAUDE


async def test_where_no_candidate_has_room_the_last_one_says_why(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    result = await failed(client, limited(candidates=(FULL, FULL)))
    assert result.code is FailureCode.REFERENCES_DO_NOT_FIT
    assert result.needed is not None
    assert result.available is not None
    assert result.needed > result.available
    assert not await redis.exists(keys.REJECTED)  # nobody has to look into it
    await ready(client, limited())


async def test_a_stale_run_does_not_publish_again(services: Services) -> None:
    redis = services.redis
    await append(redis, conversation())
    request = switch()
    await asyncio.gather(
        *(jobs.build_handoff(services, request.request_id, encode(request)) for _ in range(5))
    )
    first = await redis.get(keys.result(request.request_id))
    await jobs.build_handoff(services, request.request_id, encode(request))
    assert await redis.get(keys.result(request.request_id)) == first
    assert await redis.xlen(keys.results(SESSION)) == 1


async def test_a_failure_does_not_replace_an_answer(services: Services) -> None:
    redis = services.redis
    await append(redis, conversation())
    request = switch()
    await jobs.build_handoff(services, request.request_id, encode(request))
    await redis.delete(keys.log(THREAD), keys.state(THREAD))
    await jobs.build_handoff(services, request.request_id, encode(request))
    assert isinstance(await results.get(redis, request.request_id), HandoffReady)


async def test_the_end_of_a_turn_folds_the_thread(
    running_worker: RunningWorker, redis: Redis
) -> None:
    await append(redis, conversation())
    await queue.enqueue_fold(redis, THREAD)

    async def is_folded() -> bool:
        return bool(await redis.hget(keys.state(THREAD), "t") == b"8")  # type: ignore[misc]

    await until(is_folded)
    await idle(redis)
    assert not await redis.exists(keys.REJECTED)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ('"not an id"', b"not a thread id"),
        ("7", b"not a thread id"),
        ("{", b"cannot be read"),
        ('"nobody"', b"no log"),
    ],
)
async def test_a_fold_that_cannot_be_done_is_kept_with_its_reason(
    argument: str, reason: bytes, running_worker: RunningWorker, redis: Redis
) -> None:
    body = b'{"t":null,"f":"fold_thread","a":[%s],"k":{},"et":0}' % argument.encode()
    await put(redis, "fold:x", body, queue=keys.BACKGROUND)
    await idle(redis)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert reason in fields[b"reason"]


async def test_a_fold_called_with_no_json_is_rejected(services: Services) -> None:
    await jobs.fold_thread(services, "fold:x", b"{")
    [(_, fields)] = await services.redis.xrange(keys.REJECTED)
    assert fields[b"reason"] == b"The argument is not a thread id."


def request_body(**changes: Any) -> dict[str, Any]:
    return document(request_id="bad", request={"text": SECRET}, **changes)


BAD_JOBS = {
    "unknown type": (job(request_body(type="provider.vanished")), "cannot be read"),
    "no type": (job({**request_body(), "type": None}), "cannot be read"),
    "wrong types": (job(request_body(through="8")), "cannot be read"),
    "out of range": (job(request_body(through=-1)), "cannot be read"),
    "no target": (job(request_body(target=None)), "cannot be read"),
    "no candidate": (job(request_body(type="provider.limit_reached", candidates=[{}])), "read"),
    "text of a wrong type": (job({**request_body(), "request": {"text": [SECRET]}}), "read"),
    "unknown function": (job(request_body(), f="os.system"), "unknown function"),
    "function is no name": (job(request_body(), f=5), "job cannot be read"),
    "time is no number": (job(request_body(), et="now"), "job cannot be read"),
    "time beyond all calendars": (job(request_body(), et=10**18), "job cannot be read"),
    "time without end": (job(request_body(), et=10**400), "job cannot be read"),
    "given up before": (job(request_body()), "too many attempts"),
}


@pytest.mark.parametrize("name", BAD_JOBS)
async def test_a_bad_job_is_answered_and_kept_without_its_text(
    name: str,
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
) -> None:
    body, reason = BAD_JOBS[name]
    if name == "given up before":
        await redis.set("arq:retry:bad", ATTEMPTS_EVER, ex=60)
    await put(redis, "bad", body)
    result = await client.wait("bad", timeout=10)
    assert isinstance(result, HandoffFailed)
    assert result.session_id == SESSION
    expected = FailureCode.INTERNAL if name == "given up before" else FailureCode.INVALID_REQUEST
    assert result.code is expected
    assert reason in result.message
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert fields[b"job_id"] == b"bad"
    assert reason in fields[b"reason"].decode()
    await idle(redis)
    assert not await redis.exists("arq:job:bad", "arq:retry:bad", "arq:in-progress:bad")
    await client.append(THREAD, 0, conversation())
    await ready(client, switch())
    assert SECRET not in await everything(redis) + logged.text


UNANSWERABLE = {
    "not JSON": b'{"f": "build_handoff", "a": ["a-very-private-wish"',
    "not UTF-8": b"\xff\xfe a-very-private-wish",
    "pickle": b"\x80\x05\x95a-very-private-wish.",
    "a list": b'["a-very-private-wish"]',
    "a number": b"5",
    "too deep": b'{"f":"build_handoff","a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "empty": b"",
    "no argument": job({}, a=[]),
    "no request": job(SECRET),
    "null": job(None),
    "no session": job({**request_body(), "session_id": None}),
    "a bad session": job(request_body(session_id="not an id")),
}


@pytest.mark.parametrize("name", UNANSWERABLE)
async def test_a_job_that_tells_no_session_is_kept_with_its_reason(
    name: str,
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
) -> None:
    await put(redis, "bad", UNANSWERABLE[name])
    await idle(redis)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert fields[b"job_id"] == b"bad"
    assert fields[b"reason"]
    await client.append(THREAD, 0, conversation())
    await ready(client, switch())
    assert SECRET not in await everything(redis) + logged.text


async def test_a_job_whose_body_expired_is_kept_with_its_reason(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await redis.zadd(keys.HANDOFFS, {"gone": 1})
    await redis.publish(keys.wake(keys.HANDOFFS), "gone")
    await idle(redis)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert (fields[b"job_id"], fields[b"reason"]) == (b"gone", b"Expired before a worker took it.")
    await client.append(THREAD, 0, conversation())
    await ready(client, switch())


@pytest.mark.parametrize("kind", ["list", "hash"])
async def test_a_job_whose_body_is_of_a_wrong_type_is_kept_with_its_reason(
    kind: str, client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    request = switch()
    async with redis.pipeline(transaction=True) as pipe:
        if kind == "list":
            pipe.rpush(keys.job("bad"), SECRET)
        else:
            pipe.hset(keys.job("bad"), "f", SECRET)
        pipe.zadd(keys.HANDOFFS, {"bad": 1})  # due before the other
        await pipe.execute()
    await ready(client, request)
    await idle(redis)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert fields[b"job_id"] == b"bad"
    assert fields[b"reason"]
    assert [key async for key in redis.scan_iter("arq:*")] == []


@pytest.mark.parametrize(
    ("key", "kind"), [("arq:retry", "list"), ("arq:retry", "text"), ("arq:in-progress", "list")]
)
async def test_a_spoilt_key_of_a_job_does_not_block_the_queue(  # noqa: PLR0917
    key: str,
    kind: str,
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
) -> None:
    await client.append(THREAD, 0, conversation())
    spoilt = switch()
    name = f"{key}:{spoilt.request_id}"
    await (redis.rpush(name, "x") if kind == "list" else redis.set(name, "x"))  # type: ignore[misc]
    await redis.expire(name, 60)
    await ready(client, spoilt)
    await ready(client, switch())
    await idle(redis)
    assert not logged.events("redis_unavailable")
    assert [key async for key in redis.scan_iter("arq:*")] == []


async def test_a_job_whose_id_is_no_text_is_kept_with_its_reason(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await put(redis, b"\xff\xfe", job(document()))
    await client.append(THREAD, 0, conversation())
    await ready(client, switch())
    await idle(redis)
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert b"id" in fields[b"reason"]
    assert [key async for key in redis.scan_iter("arq:*")] == []


async def test_a_request_with_a_lone_surrogate_is_answered(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    await put(redis, "cut", job(document(request_id="cut", request={"text": "cut \ud83d"})))
    result = await client.wait("cut", timeout=10)
    assert isinstance(result, HandoffReady)
    assert result.budget.request.value == len('"cut \ufffd"'.encode())


async def test_the_text_of_a_request_appears_nowhere(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis, logged: Logged
) -> None:
    await client.append(THREAD, 0, conversation())
    text = NewRequest(text=SECRET)
    for request in (
        switch(request=text),
        restart(request=text),
        limited(request=text, candidates=(FULL,)),
        fork(request=text),
        switch(request=text, thread_id="nobody"),
        switch(request=text, through=99),
    ):
        assert SECRET.encode() not in encode(await answer(client, request))
    await idle(redis)
    assert await redis.xlen(keys.REJECTED) == 2
    found = await everything(redis) + logged.text
    assert "handoff_ready" in found
    assert SECRET not in found
    for text_of_thread in ("question 0", "answer 1", "make step-1"):
        assert text_of_thread not in logged.ours.getvalue()


def long_ago() -> list[ThreadEvent]:
    """Return a conversation that mentions one thing at its beginning and never again."""
    return events(
        ThreadStarted(),
        user("please look around"),
        command("cat notes.txt", f"the flag is called frobnicate_widgets_{SECRET}"),
        *(command(f"make target_{n}", f"built target_{n} in /srv/{n}/out.log") for n in range(150)),
        user("and now?"),
        assistant("done"),
    )


@pytest.mark.parametrize("make", [switch, limited])
async def test_what_the_new_request_mentions_goes_however_long_ago_it_was(
    make: Callable[..., HandoffRequest],
    client: HandoffClient,
    running_worker: RunningWorker,
    redis: Redis,
    logged: Logged,
) -> None:
    last = await client.append(THREAD, 0, long_ago())
    asked = "Rename frobnicate_widgets_a-very-private-wish, please: xyzzy_plugh"
    changes = {"through": last, "token_cap": 2_000}
    without = await ready(client, make(request=NewRequest(text="go on"), **changes))
    result = await ready(client, make(request=NewRequest(text=asked), **changes))
    length = await ready(client, make(request=NewRequest(json_bytes=9), **changes))
    for one, goes in ((without, False), (length, False), (result, True)):
        assert any(span.first <= 3 <= span.last for span in one.coverage.selected) is goes
        assert ("frobnicate_widgets" in one.text) is goes
        assert ("frobnicate_widgets" in str(one.items)) is goes
        assert one.budget.cost is not None
        assert one.budget.cost <= one.budget.allowance <= 2_000
    await idle(redis)
    found = await everything(redis) + logged.text
    for private in ("xyzzy_plugh", "Rename"):
        assert private not in found


async def everything(redis: Redis) -> str:
    """Return all that a server holds, as text."""
    found = []
    async for key in redis.scan_iter():
        kind = (await redis.type(key)).decode()
        if kind == "string":
            value: object = await redis.get(key)
        elif kind == "stream":
            value = await redis.xrange(key)
        elif kind == "hash":
            value = await redis.hgetall(key)  # type: ignore[misc]
        else:
            value = await redis.zrange(key, 0, -1)
        found.append(f"{key!r} {value!r}")
    return "\n".join(found)


async def test_every_line_of_a_job_says_which_job(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis, logged: Logged
) -> None:
    await client.append(THREAD, 0, conversation())
    good, full = switch(), limited(candidates=(FULL, CLAUDE))
    unfit, lost = limited(candidates=(FULL,)), switch(thread_id="nobody")
    for request in (good, full, unfit, lost):
        await answer(client, request)
    await put(redis, "bad", job(request_body(through="x")))
    await put(redis, "worse", job(document(request_id="worse"), f="unknown"))
    await client.wait("bad", 10)
    await client.wait("worse", 10)
    await queue.enqueue_fold(redis, THREAD)
    await idle(redis)
    lines = [line for line in logged.lines if not line["event"].startswith("worker_")]
    assert sorted(line["event"] for line in lines) == sorted(
        ["handoff_ready"] * 2
        + ["candidate_passed_over"] * 2
        + ["handoff_failed"] * 4
        + ["thread_folded"]
    )
    for line in lines:
        if line["event"] == "thread_folded":
            assert (line["job_id"], line["thread_id"]) == (f"fold:{THREAD}", THREAD)
        else:
            assert line["job_id"] == line["request_id"]
            assert line["thread_id"] in {THREAD, "nobody"}
        if line["job_id"] != "worse":  # never ran
            assert line["attempt"] == 1
        assert line["level"] in {"info", "warning"}
        assert line["timestamp"].endswith("Z")


@contextmanager
def no_blocking() -> Iterator[None]:
    with blockbuster_ctx("moonfold_handoff"):
        yield


async def test_neither_worker_nor_client_block_the_event_loop(
    settings: Settings, redis: Redis
) -> None:
    running = RunningWorker(settings)
    with no_blocking():
        await running.start()
        async with HandoffClient(SESSION, settings) as client:
            await client.append(THREAD, 0, conversation(50))
            await queue.enqueue_fold(client.services.redis, THREAD)
            await ready(client, switch(through=152))
            await put(client.services.redis, "bad", job(request_body(through="x")))
            await client.wait("bad", timeout=10)
        await running.stop()
    assert running.task is not None
    assert running.task.exception() is None
    assert json.loads(await redis.get(keys.result("bad")) or b"")["code"] == "invalid_request"
