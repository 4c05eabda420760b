from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from helpers.asking import THREAD, append, conversation, events
from helpers.building import assistant, reasoning, user
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from moonfold_handoff.errors import HistoryCorruptError
from moonfold_handoff.store import keys, log
from moonfold_handoff.store.log import (
    EventTooLargeError,
    SequenceConflictError,
    SequenceGapError,
)
from moonfold_schemas import ThreadEvent, WireError, encode
from moonfold_schemas.events import (
    OpaqueEvent,
    ThreadForked,
    ThreadStarted,
    TurnsRolledBack,
    TurnStarted,
)

LOG, ITEMS, STATE = keys.log(THREAD), keys.items(THREAD), keys.state(THREAD)


def turns(count: int, name: str = "turn") -> list[ThreadEvent]:
    return [TurnStarted(turn_id=f"{name}-{number}") for number in range(count)]


async def entries(redis: Redis, through: int = 2**53) -> list[tuple[int, int, ThreadEvent]]:
    tail = await redis.xrevrange(LOG, count=1)
    last = min(through, log.sequence_of(tail[0][0]))
    return [
        (entry.sequence, entry.position, entry.event)
        async for page in log.read(redis, THREAD, after=0, through=last)
        for entry in page
    ]


async def dump(redis: Redis) -> list[object]:
    return [await redis.xrange(LOG), await redis.hgetall(ITEMS)]  # type: ignore[misc]


async def test_events_are_numbered_one_after_the_other(redis: Redis) -> None:
    assert await append(redis, turns(3)) == 3
    assert await append(redis, turns(2, "more"), after=3) == 5
    assert [raw_id for raw_id, _ in await redis.xrange(LOG)] == [
        b"1-0",
        b"2-0",
        b"3-0",
        b"4-0",
        b"5-0",
    ]
    assert [event for _, _, event in await entries(redis)] == [*turns(3), *turns(2, "more")]


async def test_appending_nothing_changes_nothing(redis: Redis) -> None:
    assert await append(redis, [], after=4) == 4
    assert not await redis.exists(LOG)


async def test_a_gap_is_refused_with_the_true_last_sequence(redis: Redis) -> None:
    with pytest.raises(SequenceGapError) as refusal:
        await append(redis, turns(1), after=7)
    assert refusal.value.last == 0
    await append(redis, turns(3))
    with pytest.raises(SequenceGapError, match="ends at sequence 3") as refusal:
        await append(redis, turns(1), after=4)
    assert refusal.value.last == 3
    assert await redis.xlen(LOG) == 3


@pytest.mark.parametrize(
    ("after", "repeated"), [(0, 4), (0, 2), (1, 2), (3, 1)], ids=["all", "head", "middle", "tail"]
)
async def test_repeating_a_call_or_a_part_of_it_changes_nothing(
    redis: Redis, after: int, repeated: int
) -> None:
    what = events(TurnStarted(turn_id="t"), user("a"), assistant("b"), TurnStarted(turn_id="u"))
    await append(redis, what)
    before = await dump(redis)
    assert await append(redis, what[after : after + repeated], after=after) == 4
    assert await dump(redis) == before


async def test_an_overlap_goes_on_with_what_is_new(redis: Redis) -> None:
    await append(redis, turns(3))
    assert await append(redis, turns(5)[1:], after=1) == 5
    assert [event for _, _, event in await entries(redis)] == turns(5)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_conflict_anywhere_records_nothing_of_the_call(redis: Redis, place: int) -> None:
    await append(redis, turns(3))
    before = await dump(redis)
    changed = [*turns(3), *events(user("new"))]
    changed[place] = TurnStarted(turn_id="another")
    with pytest.raises(SequenceConflictError, match=f"sequence {place + 1}") as refusal:
        await append(redis, changed)
    assert refusal.value.sequence == place + 1
    assert await dump(redis) == before


async def test_an_event_too_large_records_nothing_of_the_call(redis: Redis) -> None:
    large = events(user("x" * 500))[0]
    with pytest.raises(EventTooLargeError, match="the log accepts 200") as refusal:
        await append(redis, [*turns(2), large], max_event_bytes=200)
    assert (refusal.value.sequence, refusal.value.limit) == (3, 200)
    assert refusal.value.size == len(encode(large))
    assert not await redis.exists(LOG, ITEMS)


async def test_an_item_recorded_again_points_to_its_first_record(redis: Redis) -> None:
    first, other, again = (
        user("a", item_id="x"),
        user("b", item_id="y"),
        user("c", item_id="x"),
    )
    await append(redis, events(first, other))
    await append(redis, events(again, again), after=2)
    assert [(sequence, position) for sequence, position, _ in await entries(redis)] == [
        (1, 1),
        (2, 2),
        (3, 1),
        (4, 1),
    ]
    raw = await redis.xrange(LOG)
    assert [sorted(fields) for _, fields in raw] == [[b"e"], [b"e"], [b"e", b"p"], [b"e", b"p"]]
    assert await redis.hgetall(ITEMS) == {b"x": b"1", b"y": b"2", b"#1": b"0 3 4"}  # type: ignore[misc]


async def test_an_item_recorded_twice_in_one_call_points_to_its_first_record(redis: Redis) -> None:
    await append(redis, events(user("a", item_id="x"), user("b", item_id="x")))
    assert [position for _, position, _ in await entries(redis)] == [1, 1]


async def test_an_item_recorded_again_after_it_was_taken_back_is_a_new_one(redis: Redis) -> None:
    kept, gone = user("kept", item_id="k"), user("gone", item_id="g")
    await append(redis, events(kept, gone, TurnsRolledBack(to=1)))
    await append(redis, events(gone, kept, gone), after=3)
    assert [position for _, position, _ in await entries(redis)] == [1, 2, 3, 4, 1, 4]
    # Taken back once more, together with an earlier rollback; and what came after stays.
    await append(redis, events(TurnsRolledBack(to=2), gone, TurnsRolledBack(to=8), gone), after=6)
    assert [position for _, position, _ in await entries(redis)][6:] == [7, 8, 9, 8]
    await append(redis, events(TurnsRolledBack(to=0), kept), after=10)
    assert [position for _, position, _ in await entries(redis)][10:] == [11, 12]


async def test_the_later_records_of_an_item_are_noted_in_lists_of_bounded_length(
    redis: Redis,
) -> None:
    await append(redis, events(*(user(f"{number}", item_id="i") for number in range(1_000))))
    index = await redis.hgetall(ITEMS)  # type: ignore[misc]
    count, *latest = index[b"#1"].split()
    older = [index[b"#1.%d" % number].split() for number in range(1, int(count) + 1)]
    assert len(index) == 2 + len(older)  # the item's position and its lists
    assert max(map(len, index.values())) < 600
    noted = [int(sequence) for one in (*older, latest) for sequence in one]
    assert noted == list(range(2, 1_001))


async def test_the_positions_an_item_had_before_it_was_taken_back_are_noted(redis: Redis) -> None:
    gone = user("gone", item_id="g")
    await append(
        redis, events(gone, TurnsRolledBack(to=0), gone, TurnsRolledBack(to=0), gone, gone)
    )
    assert await redis.hgetall(ITEMS) == {  # type: ignore[misc]
        b"g": b"5",
        b"@g": b"1 3 ",
        b"#5": b"0 6",
        b"~": b"1-1 1-3 ",
    }


async def test_an_item_that_speaks_of_a_rollback_takes_nothing_back(redis: Redis) -> None:
    item = user('{"type":"turns.rolled_back","to":0}', item_id="i")
    unknown = OpaqueEvent(original_type="turns.rolled_back")
    await append(redis, events(item, unknown, item))
    assert [position for _, position, _ in await entries(redis)] == [1, 2, 1]


async def test_an_append_renews_the_lifetime_of_all_that_is_the_threads(redis: Redis) -> None:
    await append(redis, events(user("a")), ttl=10)
    await redis.hset(STATE, "v", "1")  # type: ignore[misc]
    assert await redis.pttl(LOG) <= 10_000
    await append(redis, events(user("b")), after=1, ttl=1000)
    for key in (LOG, ITEMS, STATE):
        assert 990_000 < await redis.pttl(key) <= 1_000_000
    await append(redis, [], after=2, ttl=5000)
    assert await redis.pttl(LOG) <= 1_000_000


async def test_a_repeated_append_renews_the_lifetime_too(redis: Redis) -> None:
    await append(redis, turns(1), ttl=10)
    await append(redis, turns(1), ttl=1000)
    assert await redis.pttl(LOG) > 990_000


async def test_a_log_may_begin_where_its_fork_says(redis: Redis) -> None:
    begin: list[ThreadEvent] = [ThreadForked(parent_thread_id="parent", through=40)]
    assert await append(redis, [*begin, *turns(2)], after=40) == 43
    assert [raw_id for raw_id, _ in await redis.xrange(LOG)] == [b"41-0", b"42-0", b"43-0"]
    assert await append(redis, [*begin, *turns(3)], after=40) == 44


@pytest.mark.parametrize(
    "begin",
    [
        ThreadForked(parent_thread_id="parent", through=39),
        ThreadForked(parent_thread_id="parent", through=41),
        ThreadStarted(),
    ],
)
async def test_a_log_begins_nowhere_else(redis: Redis, begin: ThreadEvent) -> None:
    with pytest.raises(SequenceGapError) as refusal:
        await append(redis, [begin], after=40)
    assert refusal.value.last == 0
    assert not await redis.exists(LOG)


async def test_what_is_no_json_begins_no_log(redis: Redis) -> None:
    with pytest.raises(ResponseError, match="SEQUENCE_GAP expected=0"):
        await log._append(redis, (LOG, ITEMS, STATE), (40, 1000, 1000, "no json", ""))


async def test_many_events_are_sent_in_several_calls(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def counted(redis_: Redis, keys_: object, arguments: list[Any]) -> object:
        calls.append((arguments[0], len(arguments[3:]) // 2))
        return await original(redis_, keys_, arguments)  # type: ignore[arg-type]

    original = log._append
    monkeypatch.setattr(log, "_append", counted)
    assert await append(redis, turns(1201)) == 1201
    assert calls == [(0, 500), (500, 500), (1000, 201)]
    assert len(await entries(redis)) == 1201


async def test_large_events_are_sent_in_several_calls(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "BATCH_BYTES", 1000)
    what = events(*(user("x" * size) for size in (500, 300, 600, 5000, 100)))
    assert [(first, len(batch) // 2) for first, batch in log._batches(0, what)] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
    ]
    small = events(*(user("x" * 100) for _ in range(10)))
    assert sum(len(batch) // 2 for _, batch in log._batches(0, small)) == 10
    assert await append(redis, [*what, *small]) == 15


async def test_an_invalid_event_late_in_a_call_is_found_before_anything_is_sent(
    redis: Redis,
) -> None:
    with pytest.raises(WireError):
        await append(redis, [*turns(600), TurnStarted(turn_id="not an id")])
    assert not await redis.exists(LOG)


@pytest.mark.parametrize("thread_id", ["", "with space", "x" * 201, "a\n", "brace}"])
async def test_an_invalid_thread_id_is_refused(redis: Redis, thread_id: str) -> None:
    with pytest.raises(WireError, match="thread id"):
        await append(redis, turns(1), thread_id=thread_id)
    assert await redis.dbsize() == 0


async def test_producers_racing_for_one_thread_share_it_without_loss(redis: Redis) -> None:
    wins: list[int] = []

    async def produce(name: str) -> None:
        last = 0
        for number in range(15):
            event = TurnStarted(turn_id=f"{name}-{number}")
            while True:
                try:
                    last = await append(redis, [event], after=last)
                except SequenceConflictError as refusal:
                    last = refusal.sequence
                else:
                    wins.append(last)
                    break

    await asyncio.gather(*(produce(f"producer-{number}") for number in range(8)))
    assert sorted(wins) == list(range(1, 121))
    recorded = [event for _, _, event in await entries(redis)]
    assert len({encode(event) for event in recorded}) == 120


async def test_of_producers_appending_at_one_place_exactly_one_wins(redis: Redis) -> None:
    outcomes = await asyncio.gather(
        *(append(redis, [TurnStarted(turn_id=f"t{number}")]) for number in range(30)),
        return_exceptions=True,
    )
    assert sum(outcome == 1 for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SequenceConflictError) for outcome in outcomes) == 29


async def test_lone_surrogates_and_nul_are_recorded(redis: Redis) -> None:
    await append(redis, events(user("cut \ud83d here"), user("a\x00b")))
    raw = json.dumps({"type": "turn.started", "turn_id": "t", "note": "\udc00"})
    await redis.xadd(LOG, {"e": raw}, id="3-0")
    first, second, third = [event for _, _, event in await entries(redis)]
    assert "cut \ufffd here" in str(first)
    assert "a\\x00b" in str(second)
    assert third == TurnStarted(turn_id="t")


async def test_repeating_an_event_with_a_lone_surrogate_is_harmless(redis: Redis) -> None:
    what = events(user("cut \ud83d"))
    assert await append(redis, what) == await append(redis, what) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"e": "no json"},
        {"e": '{"type": "turn.started"}'},
        {"e": "[]"},
        {"e": b"\xff"},
        {"other": "x"},
    ],
)
async def test_an_entry_that_is_no_event_is_named_and_not_quoted(
    redis: Redis, fields: dict[str, str | bytes]
) -> None:
    await append(redis, turns(2))
    await redis.xadd(LOG, fields, id="3-0")  # type: ignore[arg-type]
    with pytest.raises(HistoryCorruptError, match="Entry 3 of the log") as error:
        await entries(redis)
    assert "private" not in str(error.value)
    with pytest.raises(HistoryCorruptError, match="Entry 3 of the log"):
        await log.fetch(redis, [(THREAD, 1), (THREAD, 3)])


async def test_an_entry_without_a_position_is_named_and_not_quoted(redis: Redis) -> None:
    await append(redis, turns(2))
    fields = {"e": '{"type":"turn.started","turn_id":"t"}', "p": "private words"}
    await redis.xadd(LOG, fields, id="3-0")  # type: ignore[arg-type]
    with pytest.raises(HistoryCorruptError, match="Entry 3 of the log has no position") as error:
        await entries(redis)
    assert "private" not in str(error.value)


async def test_fields_of_newer_producers_are_passed_over(redis: Redis) -> None:
    fields = {"a": "x", "e": encode(TurnStarted(turn_id="t")), "z": "y"}
    await redis.xadd(LOG, fields, id="1-0")  # type: ignore[arg-type]
    await redis.expire(LOG, 60)
    assert await log.fetch(redis, [(THREAD, 1)]) == [TurnStarted(turn_id="t")]
    assert [event for _, _, event in await entries(redis)] == [TurnStarted(turn_id="t")]


@pytest.mark.parametrize(("missing", "named"), [(1, 1), (2, 2), (4, 4)])
async def test_a_hole_in_the_log_is_named(redis: Redis, missing: int, named: int) -> None:
    await append(redis, turns(5))
    await redis.xdel(LOG, f"{missing}-0")
    with pytest.raises(HistoryCorruptError, match=f"no entry {named}"):
        await entries(redis)
    with pytest.raises(HistoryCorruptError, match=f"no entry {named}"):
        await log.fetch(redis, [(THREAD, missing)])


async def test_a_hole_at_the_end_of_what_is_read_is_named(redis: Redis) -> None:
    await append(redis, turns(5))
    await redis.xdel(LOG, "5-0")
    with pytest.raises(HistoryCorruptError, match="no entry 5"):
        [page async for page in log.read(redis, THREAD, after=4, through=5)]


async def test_a_log_is_read_a_page_at_a_time(redis: Redis) -> None:
    await append(redis, turns(600))
    pages = [len(page) async for page in log.read(redis, THREAD, after=10, through=590)]
    assert pages == [log.PAGE] * 9 + [4]
    assert [page async for page in log.read(redis, THREAD, after=5, through=5)] == []


async def test_events_of_newer_producers_are_kept_as_opaque(redis: Redis) -> None:
    raw = json.dumps({"type": "thought.shared", "with": "someone"}).encode()
    script_keys = (LOG, ITEMS, STATE)
    await log._append(redis, script_keys, (0, 60_000, 1000, raw, ""))
    [(_, _, event)] = await entries(redis)
    assert event == OpaqueEvent(original_type="thought.shared", size=len(raw))


async def test_records_are_fetched_in_the_order_asked_for(redis: Redis) -> None:
    what = conversation()
    await append(redis, what)
    await append(redis, events(reasoning("hm")), thread_id="other")
    assert await log.fetch(redis, []) == []
    fetched = await log.fetch(redis, [(THREAD, 5), ("other", 1), (THREAD, 3)])
    assert [encode(fetched[0]), encode(fetched[2])] == [encode(what[4]), encode(what[2])]


async def test_an_error_of_the_server_is_not_taken_for_a_refusal(redis: Redis) -> None:
    await redis.set(LOG, "no stream", ex=60)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await append(redis, turns(1))


async def test_a_server_that_forgot_the_scripts_gets_them_again(redis: Redis) -> None:
    for number in itertools.count():
        await redis.script_flush()
        assert await append(redis, turns(number + 1)) == number + 1
        if number == 2:
            break
