from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from helpers.asking import THREAD, append, conversation, events
from helpers.building import assistant, command, folded, meant, rebuilt, started, usage, user
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import ConnectionError  # noqa: A004

from moonfold_handoff.context.fold import Entry, adopt
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.selection import select
from moonfold_handoff.context.state import STATE_VERSION, WINDOW_ITEMS, Ancestor, ThreadState
from moonfold_handoff.errors import (
    HistoryCorruptError,
    HistoryIncompleteError,
    ThreadNotFoundError,
)
from moonfold_handoff.store import keys, log, threads
from moonfold_schemas import ThreadEvent
from moonfold_schemas.events import ItemRecorded, ThreadForked, TurnsRolledBack, TurnStarted
from moonfold_schemas.items import Item

STATE = keys.state(THREAD)


async def whole(redis: Redis, thread_id: str = THREAD, after: int = 0) -> list[Entry]:
    [(raw_id, _)] = await redis.xrevrange(keys.log(thread_id), count=1)
    pages = log.read(redis, thread_id, after=after, through=log.sequence_of(raw_id))
    return [entry async for page in pages for entry in page]


async def kept(redis: Redis, thread_id: str = THREAD) -> tuple[bytes | None, bytes | None]:
    version, through = await redis.hmget(keys.state(thread_id), ["v", "t"])  # type: ignore[misc]
    return version, through


def ranked(state: ThreadState) -> ThreadState:
    """Return a state as `load` gives it."""
    return replace(state, ranking=rank(state))


def forked(parent: str, through: int) -> ThreadForked:
    return ThreadForked(parent_thread_id=parent, through=through)


async def test_a_state_is_folded_and_kept(redis: Redis) -> None:
    await append(redis, conversation())
    state = await threads.load(redis, THREAD)
    assert state == ranked(folded(await whole(redis)))
    assert state.through == 8
    assert await kept(redis) == (str(STATE_VERSION).encode(), b"8")
    assert await threads.load(redis, THREAD, 8) == state


async def test_folding_as_the_log_grows_is_folding_it_in_one_go(redis: Redis) -> None:
    last = 0
    for turn in range(6):
        last = await append(redis, conversation(turn)[last:], after=last)
        await append(redis, [], after=last)
        await append(redis, [usage(turn * 100)], after=last)
        last += 1
        await threads.load(redis, THREAD)
    grown = await threads.load(redis, THREAD)
    await redis.delete(STATE)
    assert await threads.load(redis, THREAD) == grown


async def test_only_the_tail_is_read(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    what = conversation(100)
    await append(redis, what[:200])
    await threads.load(redis, THREAD)
    await append(redis, what[200:], after=200)
    spans = []

    def watched(redis_: Redis, thread_id: str, *, after: int, through: int) -> object:
        spans.append((after, through))
        return original(redis_, thread_id, after=after, through=through)

    original = log.read
    monkeypatch.setattr(log, "read", watched)
    await threads.load(redis, THREAD)
    await threads.load(redis, THREAD)
    assert spans == [(200, 302)]


async def test_the_past_can_be_asked_for_while_the_state_is_ahead(redis: Redis) -> None:
    await append(redis, conversation())
    ahead = await threads.load(redis, THREAD)
    past = await threads.load(redis, THREAD, 5)
    assert past == ranked(folded((await whole(redis))[:5]))
    assert await kept(redis) == (str(STATE_VERSION).encode(), b"8")
    assert await threads.load(redis, THREAD) == ahead


async def test_nothing_of_a_thread_can_be_asked_for(redis: Redis) -> None:
    await append(redis, conversation())
    assert await threads.load(redis, THREAD, 0) == ThreadState()


async def test_more_than_the_log_has_is_incomplete(redis: Redis) -> None:
    await append(redis, conversation())
    with pytest.raises(HistoryIncompleteError, match="up to 9; the log of thread thread ends at 8"):
        await threads.load(redis, THREAD, 9)


@pytest.mark.parametrize("through", [None, 0, 3])
async def test_a_thread_without_a_log_is_not_found(redis: Redis, through: int | None) -> None:
    with pytest.raises(ThreadNotFoundError, match="no log of thread thread"):
        await threads.load(redis, THREAD, through)


@pytest.mark.parametrize("version", ["0", "999", "x"])
async def test_a_state_of_another_version_is_not_read(redis: Redis, version: str) -> None:
    await append(redis, conversation())
    await redis.hset(STATE, mapping={"v": version, "t": 8, "s": "unreadable"})  # type: ignore[misc]
    await redis.expire(STATE, 60)
    if version == "x":
        await redis.delete(STATE)
        await redis.hset(STATE, mapping={"v": "1.5", "t": 8})  # type: ignore[misc]
        await redis.expire(STATE, 60)
    assert await threads.load(redis, THREAD) == ranked(folded(await whole(redis)))


@pytest.mark.parametrize(
    "fields", [{"s": "unreadable"}, {"s": b"\xff"}, {}, {"s": '{"through":"8"}'}]
)
async def test_a_state_that_cannot_be_read_is_folded_anew(
    redis: Redis, fields: dict[str, str | bytes]
) -> None:
    await append(redis, conversation())
    damaged = {"v": STATE_VERSION, "t": 3, **fields}
    await redis.hset(STATE, mapping=damaged)  # type: ignore[misc]
    await redis.expire(STATE, 60)
    assert await threads.load(redis, THREAD) == ranked(folded(await whole(redis)))
    assert (await kept(redis))[1] == b"8"


async def test_a_newer_state_is_not_replaced_by_an_older_version(redis: Redis) -> None:
    await append(redis, conversation())
    await redis.hset(STATE, mapping={"v": STATE_VERSION + 1, "t": 2, "s": "new"})  # type: ignore[misc]
    await redis.expire(STATE, 60)
    assert (await threads.load(redis, THREAD)).through == 8
    assert await kept(redis) == (str(STATE_VERSION + 1).encode(), b"2")


async def test_an_older_version_is_replaced_whatever_it_covers(redis: Redis) -> None:
    await append(redis, conversation())
    await redis.hset(STATE, mapping={"v": STATE_VERSION - 1, "t": 99, "s": "old"})  # type: ignore[misc]
    await redis.expire(STATE, 60)
    await threads.load(redis, THREAD)
    assert await kept(redis) == (str(STATE_VERSION).encode(), b"8")


async def test_a_save_wins_only_if_it_covers_more(redis: Redis) -> None:
    await append(redis, conversation())
    full = await threads.load(redis, THREAD)
    part = folded((await whole(redis))[:4])
    assert not await threads.save(redis, THREAD, part)
    assert not await threads.save(redis, THREAD, full)
    await redis.delete(STATE)
    assert await threads.save(redis, THREAD, part)
    assert await threads.save(redis, THREAD, full)
    assert (await kept(redis))[1] == b"8"


async def test_nothing_is_kept_of_a_thread_that_is_gone(redis: Redis) -> None:
    assert not await threads.save(redis, THREAD, ThreadState(through=3))
    assert not await redis.exists(STATE)


async def test_a_state_lives_as_long_as_its_log(redis: Redis) -> None:
    await append(redis, conversation(), ttl=100)
    await threads.load(redis, THREAD)
    assert abs(await redis.pttl(STATE) - await redis.pttl(keys.log(THREAD))) < 1000


async def test_a_state_of_a_log_without_an_end_has_none_either(redis: Redis) -> None:
    await append(redis, conversation())
    await redis.persist(keys.log(THREAD))
    await threads.load(redis, THREAD)
    assert await redis.pttl(STATE) == -1
    await append(redis, [], after=8)
    await append(redis, conversation()[:1])  # repeated: gives lifetimes again


async def test_workers_folding_the_same_tail_at_once_agree(redis: Redis) -> None:
    what = conversation(200)
    await append(redis, what[:300])
    await threads.load(redis, THREAD)
    await append(redis, what[300:], after=300)
    states = await asyncio.gather(
        *(threads.load(redis, THREAD, through) for through in (602, 400, 602, 350, None) * 4)
    )
    assert states[0] == states[2] == states[4] == ranked(folded(await whole(redis)))
    assert (await kept(redis))[1] == b"602"
    assert await threads.load(redis, THREAD) == states[0]


class Cut:
    """The reading of a log, cut off after some pages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
        self.starts: list[int] = []
        self.pages = pages
        self._read = log.read
        monkeypatch.setattr(log, "read", self.read)

    async def read(
        self, redis: Redis, thread_id: str, *, after: int, through: int
    ) -> AsyncIterator[list[Entry]]:
        self.starts.append(after)
        count = 0
        async for page in self._read(redis, thread_id, after=after, through=through):
            if count == self.pages:
                raise ConnectionError
            count += 1
            yield page


async def test_a_long_fold_that_fails_midway_goes_on_from_there(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "KEEP_PAGES", 2)
    what = conversation(200)
    await append(redis, what)
    cut = Cut(monkeypatch, pages=5)
    with pytest.raises(ConnectionError):
        await threads.load(redis, THREAD)
    assert (await kept(redis))[1] == str(4 * log.PAGE).encode()
    assert abs(await redis.pttl(STATE) - await redis.pttl(keys.log(THREAD))) < 1000
    monkeypatch.undo()
    cut = Cut(monkeypatch, pages=100)
    state = await threads.load(redis, THREAD)
    assert cut.starts == [4 * log.PAGE]
    assert state == ranked(folded(await whole(redis)))
    assert (await kept(redis))[1] == str(len(what)).encode()


async def test_what_a_long_fold_kept_midway_serves_a_request_up_to_there(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "KEEP_PAGES", 1)
    await append(redis, conversation(200))
    Cut(monkeypatch, pages=3)
    with pytest.raises(ConnectionError):
        await threads.load(redis, THREAD)
    monkeypatch.undo()
    midway = 3 * log.PAGE
    state = await threads.load(redis, THREAD, midway)
    expected = ranked(folded((await whole(redis))[:midway]))
    assert select(state, THREAD, 4_000) == select(expected, THREAD, 4_000)
    grown = await threads.load(redis, THREAD)
    assert grown == ranked(folded(await whole(redis)))


async def test_nothing_is_kept_midway_of_what_lies_behind_the_kept_state(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "KEEP_PAGES", 1)
    await append(redis, conversation(200))
    await threads.load(redis, THREAD)
    raw = await redis.hget(STATE, "s")  # type: ignore[misc]
    await threads.load(redis, THREAD, 3 * log.PAGE)
    assert await redis.hget(STATE, "s") == raw  # type: ignore[misc]


async def test_the_state_is_kept_with_its_ranking(redis: Redis) -> None:
    await append(redis, conversation(30))
    state = await threads.load(redis, THREAD)
    raw = await redis.hget(STATE, "s")  # type: ignore[misc]
    assert raw is not None
    saved = msgspec.json.decode(raw, type=ThreadState)
    assert saved.ranking == state.ranking == rank(state) != ()


async def test_a_rollback_within_the_state_is_folded(redis: Redis) -> None:
    await append(redis, [*conversation(), TurnsRolledBack(to=5)])
    await threads.load(redis, THREAD, 8)
    assert await threads.load(redis, THREAD) == ranked(folded(await whole(redis)))


async def test_a_rollback_past_the_state_is_folded_from_the_start(redis: Redis) -> None:
    count = WINDOW_ITEMS + 300
    what = events(*(user(f"u{number}") for number in range(count)))
    await append(redis, what)
    await threads.load(redis, THREAD)
    back: list[ThreadEvent] = [TurnsRolledBack(to=100), *events(user("again"))]
    await append(redis, back, after=count)
    state = await threads.load(redis, THREAD)
    assert state == ranked(rebuilt(await whole(redis)))
    assert state.items == 101
    assert (await kept(redis))[1] == str(count + 2).encode()


async def test_a_fork_of_a_fork_reads_all_three_logs(redis: Redis) -> None:
    await append(redis, conversation(), thread_id="a")
    await append(
        redis, events(forked("a", 5), user("in b"), assistant("b says")), thread_id="b", after=5
    )
    await append(redis, events(forked("b", 7), user("in c")), thread_id="c", after=7)
    state = await threads.load(redis, "c")
    assert state.lineage == (Ancestor("a", 5), Ancestor("b", 7))
    assert state.through == 9
    assert state.conversations == ()
    positions = [ref.position for ref in state.kept]
    assert positions == [3, 4, 5, 7, 9]
    records = [(state.holder("c", ref.record), ref.record) for ref in state.kept]
    assert records == [("a", 3), ("a", 4), ("a", 5), ("b", 7), ("c", 9)]
    assert [str(event.item.item_id) for event in await log.fetch(redis, records)]  # type: ignore[union-attr]
    assert (await kept(redis, "a"))[1] == b"5"
    assert (await kept(redis, "b"))[1] == b"7"
    await append(redis, events(assistant("c says")), thread_id="c", after=9)
    grown = await threads.load(redis, "c")
    assert [ref.position for ref in grown.kept] == [3, 4, 5, 7, 9, 10]


async def test_a_fork_made_in_the_past_of_its_parent_sees_nothing_later(redis: Redis) -> None:
    await append(redis, conversation(), thread_id="a")
    await threads.load(redis, "a")
    await append(redis, events(forked("a", 3), user("in b")), thread_id="b", after=3)
    assert [ref.position for ref in (await threads.load(redis, "b")).kept] == [3, 5]


async def test_a_rollback_in_a_fork_can_reach_what_it_took_from_its_parent(redis: Redis) -> None:
    await append(redis, conversation(), thread_id="a")
    await append(
        redis,
        events(forked("a", 8), user("in b"), TurnsRolledBack(to=5), user("again")),
        thread_id="b",
        after=8,
    )
    assert [ref.position for ref in (await threads.load(redis, "b")).kept] == [3, 4, 5, 12]


FAMILY = (("a", 8), ("b", 14), ("c", None))


async def family(redis: Redis) -> None:
    """Append three logs: c forks from b at 14, and b from a at 8; each records an item anew."""
    again = user("question", item_id="asked")
    await append(
        redis,
        events(user("one"), again, assistant("two"), user("three"), again, *talk(3)),
        thread_id="a",
    )
    same = assistant("in b", item_id="said")
    await append(redis, events(forked("a", 8), same, *talk(3), same), thread_id="b", after=8)
    await append(redis, events(forked("b", 14), *talk(3)), thread_id="c", after=14)


def talk(count: int) -> list[Item]:
    return [command(f"make {number}", "done") for number in range(count)]


async def oracle(
    redis: Redis, lineage: Sequence[tuple[str, int | None]], through: int | None = None
) -> list[tuple[int, int, str]]:
    """Return the items (position, record, thread) that logs, read as one, mean."""
    entries: list[Entry] = []
    holders: dict[int, str] = {}
    for thread_id, last in lineage:
        own = await whole(redis, thread_id, after=entries[-1].sequence if entries else 0)
        own = [entry for entry in own if last is None or entry.sequence <= last]
        entries += own
        holders |= {entry.sequence: thread_id for entry in own}
    entries = [entry for entry in entries if through is None or entry.sequence <= through]
    return [(e.position, e.sequence, holders[e.sequence]) for e, _ in meant(entries)]


def held(state: ThreadState, thread_id: str) -> list[tuple[int, int, str]]:
    return [(r.position, r.record, state.holder(thread_id, r.record)) for r in state.kept]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("to", range(18))
async def test_a_fork_of_a_fork_can_roll_back_to_anywhere(
    redis: Redis, to: int, warm: bool
) -> None:
    await family(redis)
    if warm:
        await threads.load(redis, "c")
    back: list[ThreadEvent] = [TurnsRolledBack(to=to), *events(user("again"))]
    await append(redis, back, thread_id="c", after=18)
    state = await threads.load(redis, "c")
    assert held(state, "c") == await oracle(redis, FAMILY)
    assert (state.through, state.items) == (20, len(state.window))
    assert state.lineage == (Ancestor("a", 8), Ancestor("b", 14))
    assert state.ranking == rank(state)
    records = [(holder, record) for _, record, holder in held(state, "c")]
    assert all(isinstance(event, ItemRecorded) for event in await log.fetch(redis, records))
    assert await threads.load(redis, "c") == state
    await append(redis, [forked("c", 20), *events(*talk(1))], thread_id="d", after=20)
    younger = await threads.load(redis, "d")
    assert held(younger, "d") == await oracle(redis, (*FAMILY[:2], ("c", 20), ("d", None)))


@pytest.mark.parametrize("to", range(9))
async def test_what_a_parent_rolled_back_stays_so_where_its_fork_rolls_back(
    redis: Redis, to: int
) -> None:
    again = user("again", item_id="asked")
    what = [
        *events(user("one"), again, *talk(2), again),
        TurnsRolledBack(to=3),
        *events(again, *talk(1)),
    ]
    await append(redis, what, thread_id="a")
    await append(
        redis, [forked("a", 8), *events(user("b")), TurnsRolledBack(to=to)], thread_id="b", after=8
    )
    state = await threads.load(redis, "b")
    assert held(state, "b") == await oracle(redis, (("a", 8), ("b", None)))
    # A fork that learnt of it in two steps.
    await redis.delete(keys.state("b"))
    await threads.load(redis, "b", 10)
    assert await threads.load(redis, "b") == state


@pytest.mark.parametrize("to", [5, WINDOW_ITEMS])
async def test_a_long_fork_can_roll_back_into_its_parent(redis: Redis, to: int) -> None:
    count = WINDOW_ITEMS + 100
    await append(redis, events(*talk(count)), thread_id="a")
    await append(redis, events(forked("a", count), *talk(count)), thread_id="b", after=count)
    await threads.load(redis, "b")
    end = 2 * count + 1
    back = [TurnsRolledBack(to=to), *events(*talk(2))]
    await append(redis, back, thread_id="b", after=end)
    state = await threads.load(redis, "b")
    alive = await oracle(redis, (("a", count), ("b", None)))
    assert held(state, "b") == alive[-WINDOW_ITEMS:]
    assert (state.items, state.evicted) == (to + 2, max(0, to + 2 - WINDOW_ITEMS))


async def test_a_fork_that_rolls_back_into_a_parent_that_is_gone_is_not_found(
    redis: Redis,
) -> None:
    count = WINDOW_ITEMS
    await append(redis, events(*talk(10)), thread_id="a")
    await append(redis, events(forked("a", 10), *talk(count)), thread_id="b", after=10)
    await threads.load(redis, "b")
    await redis.delete(keys.log("a"), keys.state("a"), keys.items("a"))
    await append(redis, [TurnsRolledBack(to=5)], thread_id="b", after=count + 11)
    with pytest.raises(ThreadNotFoundError, match="no log of thread a"):
        await threads.load(redis, "b")


async def test_what_the_parent_learnt_of_windows_stays_known_after_a_rollback(
    redis: Redis,
) -> None:
    learnt = [started(model="large", capacity=100_000), *events(*talk(WINDOW_ITEMS + 10))]
    await append(redis, learnt, thread_id="a")
    end = len(learnt)
    await append(redis, [forked("a", end)], thread_id="b", after=end)
    before = await threads.load(redis, "b")
    assert before.windows
    await append(redis, [TurnsRolledBack(to=0)], thread_id="b", after=end + 1)
    after = await threads.load(redis, "b")
    assert (after.items, after.windows) == (0, before.windows)


async def test_a_rebuilt_fork_begins_with_its_parent(redis: Redis) -> None:
    count = WINDOW_ITEMS + 100
    await append(redis, events(*(user(f"u{n}") for n in range(10))), thread_id="a")
    await append(
        redis,
        events(forked("a", 10), *(user(f"v{n}") for n in range(count)), TurnsRolledBack(to=12)),
        thread_id="b",
        after=10,
    )
    state = await threads.load(redis, "b")
    assert [ref.position for ref in state.kept] == [*range(1, 11), 12]
    assert state.lineage == (Ancestor("a", 10),)


async def test_a_fork_whose_parent_is_gone_is_not_found(redis: Redis) -> None:
    await append(redis, events(forked("a", 5), user("in b")), thread_id="b", after=5)
    with pytest.raises(ThreadNotFoundError, match="no log of thread a"):
        await threads.load(redis, "b")


async def test_a_fork_that_was_folded_needs_its_parents_no_more(redis: Redis) -> None:
    await append(redis, conversation(), thread_id="a")
    await append(redis, events(forked("a", 8), user("in b")), thread_id="b", after=8)
    state = await threads.load(redis, "b")
    await redis.delete(keys.log("a"), keys.state("a"), keys.items("a"))
    await append(redis, [TurnStarted(turn_id="t")], thread_id="b", after=10)
    assert (await threads.load(redis, "b")).kept == state.kept


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("through", [0, 3, 4, 5])
async def test_a_fork_can_be_asked_for_what_it_has_of_its_parent(
    redis: Redis, through: int, warm: bool
) -> None:
    await append(redis, conversation(), thread_id="a")
    await append(redis, events(forked("a", 5), user("in b")), thread_id="b", after=5)
    if warm:
        await threads.load(redis, "a")
        await threads.load(redis, "b")
    state = await threads.load(redis, "b", through)
    assert state == adopt(await threads.load(redis, "a", through), "a")
    assert state.through == through
    assert state.lineage == (Ancestor("a", through),)
    assert [ref.position for ref in state.kept] == [p for p in (3, 4, 5) if p <= through]
    assert {state.holder("b", ref.record) for ref in state.kept} <= {"a"}
    assert (await kept(redis, "b"))[1] == (b"7" if warm else None)


async def test_a_fork_of_a_fork_can_be_asked_for_what_it_has_of_either(redis: Redis) -> None:
    await family(redis)
    for through in range(12):
        state = await threads.load(redis, "c", through)
        assert held(state, "c") == await oracle(redis, FAMILY, through)
        assert state.through == through


@pytest.mark.parametrize("parent_through", [3, None])
async def test_a_fork_of_more_than_its_parent_has_is_incomplete(
    redis: Redis, parent_through: int | None
) -> None:
    await append(redis, conversation()[:parent_through], thread_id="a")
    through = 9 if parent_through is None else 5
    await append(redis, events(forked("a", through), user("b")), thread_id="b", after=through)
    with pytest.raises(HistoryIncompleteError):
        await threads.load(redis, "b")


async def test_a_log_that_begins_late_without_a_fork_is_corrupt(redis: Redis) -> None:
    await append(redis, conversation())
    await redis.xdel(keys.log(THREAD), "1-0")
    with pytest.raises(HistoryCorruptError, match="begins at 2"):
        await threads.load(redis, THREAD)


async def test_a_log_that_vanishes_meanwhile_is_not_found_and_not_kept(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(redis, conversation())

    async def vanish(redis_: Redis, thread_id: str) -> tuple[None, int]:
        await redis_.delete(keys.log(thread_id))
        return None, 8

    monkeypatch.setattr(threads, "_kept", vanish)
    with pytest.raises(ThreadNotFoundError, match="no log of thread thread"):
        await threads.load(redis, THREAD)
    assert not await redis.exists(STATE)


async def test_a_lineage_without_end_is_corrupt(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_LINEAGE", 3)
    await append(redis, [started()], thread_id="t0")
    for number in range(1, 6):
        what: list[ThreadEvent] = [forked(f"t{number - 1}", number)]
        await append(redis, what, thread_id=f"t{number}", after=number)
    assert len((await threads.load(redis, "t2")).lineage) == 2
    await redis.delete(*(keys.state(f"t{number}") for number in range(6)))
    with pytest.raises(HistoryCorruptError, match="more than 3 ancestors"):
        await threads.load(redis, "t5")


async def test_a_thread_that_is_its_own_ancestor_is_corrupt(redis: Redis) -> None:
    await append(redis, [forked(THREAD, 5)], after=5)
    with pytest.raises((HistoryCorruptError, HistoryIncompleteError)):
        await threads.load(redis, THREAD)
