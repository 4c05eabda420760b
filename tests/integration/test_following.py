from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Logged
from redis.asyncio import Redis

from moonfold_handoff import following
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Follower, FollowError
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, log, sources, threads
from moonfold_handoff.transcripts import Session, claude_code
from moonfold_schemas import ThreadEvent, decode_event, encode
from moonfold_schemas.events import (
    HandoffDelivered,
    ItemRecorded,
    OpaqueEvent,
    ThreadStarted,
    TurnsRolledBack,
)

SESSION = "3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"
THREAD = f"claude-code:{SESSION}"
SOMEONE_ELSE = HandoffDelivered(conversation_id="other", through=1)


class File:
    """A session's file, written as Claude Code does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0

    def add(self, count: int = 1, **fields: Any) -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                self.written += 1
                file.write(self.line(self.written, **fields))

    def line(self, number: int, **fields: Any) -> bytes:
        type_ = "user" if number % 2 else "assistant"
        document = {
            "type": type_,
            "uuid": f"r{number}",
            "parentUuid": f"r{number - 1}" if number > 1 else None,
            "message": {"role": type_, "content": f"text {number}"},
            **fields,
        }
        return json.dumps(document).encode() + b"\n"

    @property
    def session(self) -> Session:
        (session,) = claude_code.AGENT.sessions(self.path)
        return session


@pytest.fixture
def file(tmp_path: Path) -> File:
    file = File(tmp_path / f"{SESSION}.jsonl")
    file.add(2)
    return file


@pytest.fixture
def follower(client: HandoffClient, file: File) -> Follower:
    return Follower(client, file.session)


async def recorded(redis: Redis) -> list[ThreadEvent]:
    return [decode_event(raw) for raw in await log.raw(redis, THREAD, after=0, count=10_000)]


async def meant(redis: Redis) -> list[str]:
    """Return the texts that the thread has, by its folded state."""
    state = await threads.load(redis, THREAD)
    events = await log.fetch(redis, [(THREAD, ref.record) for ref in state.window])
    return [getattr(e.item, "text", "") for e in events if isinstance(e, ItemRecorded)]


def texts(*numbers: int) -> list[str]:
    return [f"text {n}" for n in numbers]


async def test_a_session_is_recorded_as_it_grows(
    follower: Follower, file: File, redis: Redis
) -> None:
    first = await follower.catch_up()
    assert first.added == first.through == await log.last(redis, THREAD)
    assert (await follower.catch_up()).added == 0
    file.add(2)
    second = await follower.catch_up()
    assert second.through == first.through + second.added
    assert await meant(redis) == texts(1, 2, 3, 4)


async def test_another_process_goes_on_where_one_stopped(
    follower: Follower, file: File, redis: Redis, client: HandoffClient
) -> None:
    await follower.catch_up()
    file.add(2)
    again = Follower(client, file.session)
    followed = await again.catch_up()
    assert 0 < followed.added < followed.through == len(await recorded(redis))
    assert await meant(redis) == texts(1, 2, 3, 4)
    # Where nothing was added, what is known is known all the same.
    assert (await Follower(client, file.session).catch_up()).facts == followed.facts


async def test_a_process_that_dies_before_it_keeps_its_place_doubles_nothing(
    follower: Follower, file: File, redis: Redis, client: HandoffClient
) -> None:
    await follower.catch_up()
    kept = await redis.get(keys.source(THREAD))
    file.add(4)
    await follower.catch_up()
    events = await recorded(redis)
    await redis.set(keys.source(THREAD), kept, ex=60)
    file.add(2)
    await Follower(client, file.session).catch_up()
    after = await recorded(redis)
    assert after[: len(events)] == events
    assert await meant(redis) == texts(*range(1, 9))
    assert not [e for e in after if isinstance(e, TurnsRolledBack)]


@pytest.mark.parametrize("kept", [None, b"\xc1 no place"])
async def test_a_place_that_is_lost_costs_time_and_no_event(
    follower: Follower, file: File, redis: Redis, client: HandoffClient, kept: bytes | None
) -> None:
    await follower.catch_up()
    events = await recorded(redis)
    if kept is None:
        await redis.delete(keys.source(THREAD))
    else:
        await redis.set(keys.source(THREAD), kept, ex=60)
    followed = await Follower(client, file.session).catch_up()
    assert followed.through == len(events)
    assert await recorded(redis) == events


async def test_a_log_that_is_lost_is_written_again(
    follower: Follower, file: File, redis: Redis, logged: Logged
) -> None:
    await follower.catch_up()
    await redis.delete(keys.log(THREAD), keys.items(THREAD), keys.state(THREAD))
    file.add(2)
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2, 3, 4)
    assert [line["thread_id"] for line in logged.events("log_lost")] == [THREAD]


async def test_a_replaced_file_keeps_what_is_still_true(
    follower: Follower, file: File, redis: Redis, logged: Logged
) -> None:
    file.add(2)
    await follower.catch_up()
    file.path.write_bytes(file.line(1) + file.line(2, uuid="other"))
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2)
    (back,) = [e for e in await recorded(redis) if isinstance(e, TurnsRolledBack)]
    kept = (await recorded(redis))[: back.to]
    assert [e.item.item_id for e in kept if isinstance(e, ItemRecorded)] == ["r1"]
    (line,) = logged.events("session_changed")
    assert (line["thread_id"], line["kept"]) == (THREAD, back.to)
    assert "text" not in logged.ours.getvalue()
    # And the thread goes on after it.
    file.written = 1
    with file.path.open("ab") as more:
        more.write(file.line(3, parentUuid="other"))
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2, 3)


async def test_a_file_that_was_cut_takes_back_what_it_lost(
    follower: Follower, file: File, redis: Redis
) -> None:
    file.add(4)
    await follower.catch_up()
    before = await recorded(redis)
    file.path.write_bytes(file.line(1) + file.line(2))
    await follower.catch_up()
    after = await recorded(redis)
    assert after[:-1] == before
    assert isinstance(after[-1], TurnsRolledBack)
    assert await meant(redis) == texts(1, 2)
    with file.path.open("ab") as more:
        more.write(file.line(3))
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2, 3)


async def test_a_rewind_takes_back_the_abandoned_branch(
    follower: Follower, file: File, redis: Redis, client: HandoffClient
) -> None:
    file.add(2)
    await follower.catch_up()
    file.add(1, parentUuid="r2")
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2, 5)
    file.add(1)
    await Follower(client, file.session).catch_up()
    assert await meant(redis) == texts(1, 2, 5, 6)
    # A second one reaches into what the first one left.
    file.add(1, parentUuid="r5")
    await Follower(client, file.session).catch_up()
    assert await meant(redis) == texts(1, 2, 5, 7)


async def test_the_session_goes_on_behind_what_others_wrote(
    follower: Follower, file: File, redis: Redis, client: HandoffClient
) -> None:
    followed = await follower.catch_up()
    last = await client.append(THREAD, followed.through, [SOMEONE_ELSE, SOMEONE_ELSE])
    file.add(2)
    second = await follower.catch_up()
    assert second.through == last + second.added
    file.add(2)
    await Follower(client, file.session).catch_up()
    assert await meant(redis) == texts(1, 2, 3, 4, 5, 6)
    assert (await recorded(redis)).count(SOMEONE_ELSE) == 2
    # A rewind means the session's own events, wherever they stand.
    file.add(1, parentUuid="r4")
    await follower.catch_up()
    assert await meant(redis) == texts(1, 2, 3, 4, 7)


async def test_two_processes_that_follow_one_session_double_nothing(
    follower: Follower, file: File, redis: Redis, client: HandoffClient
) -> None:
    other = Follower(client, file.session)
    followed = await follower.catch_up()
    await other.catch_up()
    await client.append(THREAD, followed.through, [SOMEONE_ELSE])
    for _ in range(5):
        file.add(2)
        await follower.catch_up()
        await other.catch_up()
    assert await meant(redis) == texts(*range(1, 13))
    events = await recorded(redis)
    file.add(2)
    await asyncio.gather(follower.catch_up(), other.catch_up())
    assert await meant(redis) == texts(*range(1, 15))
    assert (await recorded(redis))[: len(events)] == events


async def test_an_event_that_is_too_large_leaves_its_size(
    file: File, services: Services, settings: Settings, redis: Redis
) -> None:
    small = Settings(redis_url=settings.redis_url, max_event_bytes=2_000)
    file.add(1, message={"role": "user", "content": "x" * 5_000})
    file.add(2)
    async with HandoffClient("session", small) as client:
        await Follower(client, file.session).catch_up()
    (opaque,) = [e for e in await recorded(redis) if isinstance(e, OpaqueEvent)]
    assert opaque.original_type == "item.recorded"
    assert 5_000 < opaque.size < 6_000
    assert await meant(redis) == texts(1, 2, 4, 5)


async def test_writers_without_end_are_told(
    file: File, client: HandoffClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ATTEMPTS", 3)
    append = client.append

    async def contested(thread_id: str, expected: int, events: Sequence[ThreadEvent]) -> int:
        await append(thread_id, expected, [ThreadStarted(title="someone else's")])
        return await append(thread_id, expected, events)

    monkeypatch.setattr(client, "append", contested)
    with pytest.raises(FollowError, match=f"Others write to thread {THREAD} all the time"):
        await Follower(client, file.session).catch_up()


async def test_every_key_has_the_lifetime_of_the_thread(follower: Follower, redis: Redis) -> None:
    await follower.catch_up()
    lifetime = await redis.ttl(keys.log(THREAD))
    assert abs(await redis.ttl(keys.source(THREAD)) - lifetime) <= 1


def test_a_place_numbers_what_comes_after_a_shift_and_not_what_came_before() -> None:
    place = sources.Place(count=5).going_on_after(8)
    assert [place.sequence(n) for n in (0, 5, 6, 7)] == [0, 5, 9, 10]
    again = sources.Place(count=5, shifts=place.shifts).going_on_after(12)
    assert [again.sequence(n) for n in (5, 6)] == [5, 13]


async def test_a_session_that_will_not_grow_says_how_it_ended(
    file: File, client: HandoffClient, redis: Redis
) -> None:
    class Ended(type(file.session)):  # type: ignore[misc]
        def last_words(self, cursor: bytes) -> tuple[ThreadEvent, ...]:
            return (ThreadStarted(title="its end"),)

    session = Ended(claude_code.AGENT, SESSION, file.path)
    followed = await Follower(client, session).catch_up(to_the_end=True)
    events = await recorded(redis)
    assert encode(events[-1]) == encode(ThreadStarted(title="its end"))
    assert followed.through == len(events)
    # Said once, however often it is read.
    assert (await Follower(client, session).catch_up(to_the_end=True)).through == len(events)
    file.add(2)
    await Follower(client, file.session).catch_up()
    assert await meant(redis) == texts(1, 2, 3, 4)
