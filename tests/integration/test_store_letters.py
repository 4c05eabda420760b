"""Dead letters: what can be tried again, and as what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import SESSION, THREAD, conversation, document, failed, job, put, ready, switch
from helpers.waiting import until
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.services import Services
from moonfold_handoff.store import keys, letters, queue, rejected, results
from moonfold_handoff.store.letters import DeadLetter, NotRetryableError, Outcome
from moonfold_schemas.results import HandoffFailed, HandoffReady

SECRET = "private words"


async def reject(redis: Redis, argument: Any, **changes: Any) -> DeadLetter:
    """Reject a job and return its dead letter."""
    raw = argument if isinstance(argument, bytes) else json.dumps(argument).encode()
    job_id = argument["request_id"] if isinstance(argument, dict) else "job"
    told = {"job_id": job_id, "function": queue.BUILD_HANDOFF, "reason": "why", **changes}
    await rejected.reject(redis, argument=raw, **told)
    async for letter in letters.listed(redis):
        return letter
    raise AssertionError


async def queued(redis: Redis, job_id: str) -> Any:
    return json.loads(await redis.get(keys.job(job_id)) or b"null")


async def test_they_are_listed_the_latest_first_page_by_page(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "PAGE", 2)
    for number in range(5):
        await reject(redis, document(request_id=f"r{number}"))
    found = [letter async for letter in letters.listed(redis)]
    assert [letter.job_id for letter in found] == ["r4", "r3", "r2", "r1", "r0"]
    one = found[2]
    assert await letters.get(redis, one.letter_id) == one
    assert (one.function, one.reason, one.is_whole) == ("build_handoff", "why", True)
    assert f"{one.at.timestamp() * 1000:.0f}" == one.letter_id.partition("-")[0]
    assert await letters.get(redis, "1-0") is None


async def test_one_that_was_kept_by_an_earlier_version_is_not_taken_as_whole(redis: Redis) -> None:
    await redis.xadd(keys.REJECTED, {"job_id": "r", "argument": json.dumps(document())})
    await redis.expire(keys.REJECTED, 60)
    [letter] = [letter async for letter in letters.listed(redis)]
    assert not letter.is_whole
    with pytest.raises(NotRetryableError):
        await letters.retry(redis, letter)


async def test_what_is_dropped_is_gone(redis: Redis) -> None:
    letter = await reject(redis, document())
    assert await letters.drop(redis, [letter.letter_id]) == 1
    assert await letters.drop(redis, [letter.letter_id]) == 0
    assert await letters.drop(redis, []) == 0
    assert await letters.get(redis, letter.letter_id) is None


async def test_a_request_is_tried_again_with_the_length_of_its_text(redis: Redis) -> None:
    letter = await reject(redis, document(request_id="r", request={"text": SECRET}))
    assert await letters.retry(redis, letter) is Outcome.QUEUED
    body = await queued(redis, "r")
    assert body["f"] == "build_handoff"
    assert body["a"][0]["request"] == {"json_bytes": len(SECRET) + 2}
    assert await redis.zscore(keys.HANDOFFS, "r") is not None
    assert 0 < await redis.ttl(keys.job("r")) <= queue.JOB_TTL
    assert await letters.get(redis, letter.letter_id) is None


async def test_what_nobody_waits_for_goes_to_the_background(redis: Redis) -> None:
    asked = document(request_id="r", type="fork.requested", fork_thread_id="fork")
    await letters.retry(redis, await reject(redis, asked))
    assert await redis.zscore(keys.BACKGROUND, "r") is not None


async def test_trying_again_twice_is_trying_again_once(redis: Redis) -> None:
    letter = await reject(redis, document(request_id="r"))
    assert await letters.retry(redis, letter) is Outcome.QUEUED
    before = await queued(redis, "r")
    assert await letters.retry(redis, letter) is Outcome.GONE
    again = await reject(redis, document(request_id="r"))
    assert await letters.retry(redis, again) is Outcome.QUEUED
    assert await queued(redis, "r") == before
    assert await redis.zcard(keys.HANDOFFS) == 1


async def test_an_answer_that_says_it_failed_makes_room_for_the_new_one(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    request = switch()
    assert isinstance(await failed(client, request), HandoffFailed)
    await client.append(THREAD, 0, conversation())
    [letter] = [letter async for letter in letters.listed(redis)]
    assert await letters.retry(redis, letter) is Outcome.QUEUED

    async def is_answered() -> bool:
        return isinstance(await results.get(redis, request.request_id), HandoffReady)

    await until(is_answered)
    assert isinstance(await client.wait(request.request_id, timeout=10), HandoffReady)
    assert await redis.xlen(keys.results(SESSION)) == 2
    assert await redis.xlen(keys.REJECTED) == 0


async def test_any_other_answer_stays(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation())
    request = switch()
    answer = await ready(client, request)
    letter = await reject(redis, document(request_id=request.request_id))
    assert await letters.retry(redis, letter) is Outcome.ANSWERED
    assert await results.get(redis, request.request_id) == answer
    assert await letters.get(redis, letter.letter_id) == letter


async def test_a_damaged_answer_keeps_nothing_from_being_tried_again(redis: Redis) -> None:
    letter = await reject(redis, document(request_id="r"))
    await redis.set(keys.result("r"), "no json", ex=60)
    assert await letters.retry(redis, letter) is Outcome.QUEUED
    assert not await redis.exists(keys.result("r"))


async def test_attempts_begin_anew_and_nothing_supersedes_it(redis: Redis) -> None:
    letter = await reject(redis, document(request_id="r"))
    await redis.set("arq:retry:r", 20, ex=60)
    await redis.set("moonfold:superseded:r", "newer", ex=60)
    assert await letters.retry(redis, letter) is Outcome.QUEUED
    assert not await redis.exists("arq:retry:r", "moonfold:superseded:r")


async def test_a_fold_is_tried_again_by_the_name_of_its_job(
    running_worker: RunningWorker, redis: Redis
) -> None:
    await queue.enqueue_fold(redis, "nobody")

    async def is_rejected() -> bool:
        return bool(await redis.exists(keys.REJECTED))

    await until(is_rejected)
    [letter] = [letter async for letter in letters.listed(redis)]
    assert letter.function == queue.FOLD_THREAD
    assert await letters.retry(redis, letter) is Outcome.QUEUED

    async def is_rejected_again() -> bool:
        found = [one async for one in letters.listed(redis)]
        return len(found) == 1 and found[0].letter_id != letter.letter_id

    await until(is_rejected_again)


async def test_the_sentence_of_a_provider_is_not_needed(services: Services) -> None:
    asked = document(
        request_id="r",
        type="provider.limit_reached",
        limit={"kind": "quota", "message": SECRET},
        candidates=[{"provider": "codex"}],
    )
    letter = await reject(services.redis, asked)
    assert await letters.retry(services.redis, letter) is Outcome.QUEUED
    [argument] = (await queued(services.redis, "r"))["a"]
    assert argument["limit"] == {"kind": "quota"}
    await build_handoff(services, "r", json.dumps(argument).encode())
    assert isinstance(await results.get(services.redis, "r"), HandoffFailed)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (b"no json", "no valid request"),
        (b"[]", "no valid request"),
        (document(type="unheard.of"), "no valid request"),
        (document(through="x"), "no valid request"),
        (document(request=SECRET), "more than the text"),
        (document(target={"provider": "codex", "model": "a model"}), "no valid request"),
        (
            document(target={"provider": "codex", "options": {"effort": "very high"}}),
            "no valid request",
        ),
        (
            document(target={"provider": "codex", "options": {"two words": 1}}),
            "more than the text",
        ),
        (document(request={"text": [SECRET]}), "more than the text"),
        (document(request={"attachments": ["image", SECRET]}), "more than the text"),
    ],
)
async def test_what_is_not_complete_is_refused_with_a_sentence(
    asked: Any, sentence: str, redis: Redis
) -> None:
    letter = await reject(redis, asked)
    with pytest.raises(NotRetryableError, match=sentence) as refusal:
        await letters.retry(redis, letter)
    assert str(refusal.value).endswith(".")
    assert SECRET not in str(refusal.value)
    assert await letters.get(redis, letter.letter_id) == letter
    assert not await redis.exists(keys.HANDOFFS, keys.BACKGROUND)


async def test_a_job_that_is_not_its_requests_is_refused(redis: Redis) -> None:
    letter = await reject(redis, document(request_id="r"), job_id="other")
    with pytest.raises(NotRetryableError, match="different ids"):
        await letters.retry(redis, letter)


async def test_a_fold_of_nobody_knows_what_is_refused(redis: Redis) -> None:
    letter = await reject(redis, b"{", function=queue.FOLD_THREAD, job_id="fold:no id")
    with pytest.raises(NotRetryableError, match="which thread"):
        await letters.retry(redis, letter)


async def test_a_request_under_an_unknown_function_is_tried_again_as_what_it_asks_for(
    running_worker: RunningWorker, client: HandoffClient, redis: Redis
) -> None:
    await put(redis, "bad", job(document(request_id="bad"), f="unknown"))
    await client.wait("bad", timeout=10)
    [letter] = [letter async for letter in letters.listed(redis)]
    assert await letters.retry(redis, letter) is Outcome.QUEUED
