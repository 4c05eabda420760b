from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from unittest import mock

import pytest
from helpers.asking import THREAD, append, conversation, events
from helpers.building import (
    assistant,
    command,
    error,
    file_change,
    interruption,
    opaque_item,
    plan,
    reasoning,
    tool_call,
    user,
)
from redis.asyncio import Redis

from moonfold_handoff.errors import HistoryCorruptError, ThreadNotFoundError
from moonfold_handoff.reading import reader
from moonfold_handoff.reading.answers import Entry, Page, ReadingError, View
from moonfold_handoff.reading.reader import MAX_CHARACTERS, MAX_ITEMS, MAX_QUERY, ThreadReader
from moonfold_handoff.store import keys, lineage, threads
from moonfold_schemas import encode
from moonfold_schemas.events import (
    ItemRecorded,
    ThreadEvent,
    ThreadForked,
    ThreadStarted,
    TurnsRolledBack,
)
from moonfold_schemas.items import Item, ItemStatus

FAMILY = "👨‍👩‍👧‍👦"
TIME = datetime(2026, 11, 30, 12, tzinfo=UTC)


async def written(
    redis: Redis, *what: ThreadEvent | Item, thread_id: str = THREAD, after: int = 0
) -> ThreadReader:
    """Record what happened and return the reader of all of it."""
    last = await append(
        redis, events(*what), thread_id=thread_id, after=after, max_event_bytes=2**23
    )
    return ThreadReader(redis, thread_id, last)


def texts(page: Page) -> list[str]:
    return [entry.text for entry in page.items]


def positions(entries: Sequence[Entry]) -> list[int]:
    return [entry.position for entry in entries]


async def test_messages_are_read_from_the_beginning(redis: Redis) -> None:
    reading = await written(redis, *conversation(2))
    page = await reading.read()
    assert texts(page) == ["question 0", "answer 0", "question 1", "answer 1"]
    assert positions(page.items) == [3, 5, 6, 8]
    assert [entry.label for entry in page.items] == ["user", "assistant"] * 2
    assert (page.next_after, page.next_before, page.next_offset, page.note) == (None,) * 3 + ("",)
    assert page.through == 8


async def test_activity_is_read_with_its_attribution(redis: Redis) -> None:
    reading = await written(
        redis,
        user("look", images=1, item_id="ask"),
        command("make", "broken", 2),
        file_change("a.py", diff="+x"),
        plan("first this"),
        error("bad luck", status=ItemStatus.FAILED),
        interruption("stop"),
        ItemRecorded(item=assistant("half", status=ItemStatus.INTERRUPTED), time=TIME),
    )
    page = await reading.read(view=View.ACTIVITY)
    assert [(entry.label, entry.text) for entry in page.items] == [
        ("user, 1 image", "look"),
        ("command, exit 2", "$ make\nbroken"),
        ("file update", "a.py\n+x"),
        ("plan", "first this"),
        ("error, failed", "bad luck"),
        ("interruption", "stop"),
        ("assistant, interrupted", "half"),
    ]
    first, *_, last = page.items
    assert (first.item_id, first.kind, first.status, first.time) == (
        "ask",
        "user_message",
        "completed",
        None,
    )
    assert (last.kind, last.status, last.time) == ("assistant_message", "interrupted", TIME)


@pytest.mark.parametrize("view", View)
async def test_reasoning_and_the_insides_of_tools_are_never_shown(redis: Redis, view: View) -> None:
    reading = await written(
        redis,
        user("ask"),
        reasoning("private", item_id="thought"),
        tool_call("private", "private", "private", item_id="call"),
        opaque_item(3, item_id="later"),
        assistant("say"),
        assistant("public", item_id="turned"),
        reasoning("private", item_id="turned"),
    )
    assert texts(await reading.read(view=view)) == ["ask", "say"]
    assert not (await reading.search("private")).hits
    for position in range(9):
        if position not in {1, 5}:
            with pytest.raises(ReadingError, match="no such item"):
                await reading.read(position=position, view=view)
    for item_id in ("thought", "call", "later", "turned"):
        with pytest.raises(ReadingError, match="no such item"):
            await reading.read(item_id=item_id, view=view)


async def test_a_range_goes_from_after_to_before(redis: Redis) -> None:
    reading = await written(redis, *(user(f"{number}") for number in range(1, 10)))
    assert texts(await reading.read(after=3, before=6)) == ["4", "5"]
    assert texts(await reading.read(after=3, before=4)) == []
    assert texts(await reading.read(after=6, before=3)) == []
    assert texts(await reading.read(after=-5, limit=2)) == ["1", "2"]
    assert texts(await reading.read(after=10**30)) == []
    assert texts(await reading.read(before=-1)) == []
    assert texts(await reading.read(after=7, before=10**30)) == ["8", "9"]


async def test_a_range_says_how_to_go_on(redis: Redis) -> None:
    reading = await written(redis, *(user(f"{number}") for number in range(1, 8)))
    page = await reading.read(limit=3)
    assert (texts(page), page.next_after, page.note) == (["1", "2", "3"], 3, "More is at after=3.")
    page = await reading.read(after=3, limit=4)
    assert (texts(page), page.next_after, page.note) == (["4", "5", "6", "7"], None, "")
    page = await reading.read(after=3, before=6, limit=1)
    assert (texts(page), page.next_after, page.next_before) == (["4"], 4, None)


async def test_with_an_end_only_a_range_is_what_precedes_it(redis: Redis) -> None:
    reading = await written(redis, *(user(f"{number}") for number in range(1, 8)))
    page = await reading.read(before=6, limit=3)
    assert (texts(page), page.next_after, page.next_before) == (["3", "4", "5"], None, 3)
    assert page.note == "What precedes is at before=3."
    page = await reading.read(before=3, limit=3)
    assert (texts(page), page.next_before, page.note) == (["1", "2"], None, "")


@pytest.mark.parametrize(("limit", "shown"), [(0, 1), (-7, 1), (10**30, MAX_ITEMS), (-(10**30), 1)])
async def test_a_limit_is_clamped(redis: Redis, limit: int, shown: int) -> None:
    reading = await written(redis, *(user("x") for _ in range(MAX_ITEMS + 1)))
    assert len((await reading.read(limit=limit)).items) == shown
    assert len((await reading.search("x", limit=limit)).hits) == shown


async def test_an_answer_has_no_more_characters_than_asked_for(redis: Redis) -> None:
    reading = await written(redis, user("a" * 60), user("b" * 30), user("c" * 20), user("d" * 500))
    page = await reading.read(characters=100)
    assert ([len(text) for text in texts(page)], page.next_after) == ([60, 30], 2)
    page = await reading.read(after=3, characters=100)
    assert texts(page) == ["d" * 100]
    assert (page.items[0].next_offset, page.items[0].characters_total) == (100, 500)
    assert page.next_after is None
    assert page.note == (
        "#4 is cut at 100 of 500 characters; its rest is at position=4, offset=100."
    )


async def test_after_an_item_that_is_cut_the_range_goes_on(redis: Redis) -> None:
    reading = await written(redis, user("a" * 500), user("", images=1), user("b"))
    page = await reading.read(characters=100)
    assert (positions(page.items), page.next_after) == ([1, 2], 2)
    assert texts(await reading.read(after=2)) == ["b"]


@pytest.mark.parametrize(("characters", "shown"), [(0, 1), (-9, 1), (10**30, MAX_CHARACTERS)])
async def test_the_size_of_an_answer_is_clamped(redis: Redis, characters: int, shown: int) -> None:
    reading = await written(redis, user("a" * (MAX_CHARACTERS + 1)))
    assert len(texts(await reading.read(characters=characters))[0]) == shown


async def test_an_item_is_read_by_position_and_by_id_in_any_view(redis: Redis) -> None:
    reading = await written(redis, user("ask"), command("make", "done", item_id="run"))
    for page in (await reading.read(position=2), await reading.read(item_id="run")):
        assert texts(page) == ["$ make\ndone"]
        assert (page.next_offset, page.next_after, page.note) == (None, None, "")


async def test_a_long_output_is_paged_and_put_together_byte_for_byte(redis: Redis) -> None:
    output = "".join(f"line {number} é {FAMILY} done\r\n" for number in range(100_000))
    assert len(output.encode()) > 3_000_000
    reading = await written(redis, user("run"), command("make", output))
    pieces, offset = [], 0
    while True:
        page = await reading.read(position=2, offset=offset, characters=50_000)
        [entry] = page.items
        assert entry.offset == offset
        pieces.append(entry.text)
        if page.next_offset is None:
            break
        assert f"offset={page.next_offset}" in page.note
        offset = page.next_offset
    assert "".join(pieces).encode() == f"$ make\n{output}".encode()


async def test_an_offset_within_a_character_is_its_beginning(redis: Redis) -> None:
    reading = await written(redis, user(f"ab{FAMILY}cd"))
    page = await reading.read(position=1, offset=5)
    assert (page.items[0].offset, texts(page)) == (2, [f"{FAMILY}cd"])


async def test_an_offset_outside_of_the_item_is_clamped(redis: Redis) -> None:
    reading = await written(redis, user("abc"))
    assert texts(await reading.read(position=1, offset=-(10**30))) == ["abc"]
    page = await reading.read(position=1, offset=10**30)
    assert (page.items[0].offset, texts(page), page.next_offset) == (3, [""], None)
    assert page.note == "#1 has 3 characters; nothing follows."


@pytest.mark.parametrize("position", [0, -1, 2, 4, 5, 10**30])
async def test_what_is_no_item_is_one_clear_error(redis: Redis, position: int) -> None:
    await written(redis, ThreadStarted(), TurnsRolledBack(to=1), user("a"))
    await written(redis, user("b", item_id="later"), after=3)
    reading = ThreadReader(redis, THREAD, 3)
    refusal = "no such item to read. Positions of this thread lie between #1 and #3"
    with pytest.raises(ReadingError, match=refusal):
        await reading.read(position=position)
    with pytest.raises(ReadingError, match=refusal):
        await reading.read(item_id="later")


@pytest.mark.parametrize("item_id", ["~", "#1", "#1.1", "@a", "", "a" * 201, "a\n"])
async def test_what_is_no_item_id_opens_nothing_of_the_index(redis: Redis, item_id: str) -> None:
    again = user("b", item_id="a")
    what = events(user("a", item_id="a"), TurnsRolledBack(to=0), again, again)
    reading = await written(redis, *what)
    with pytest.raises(ReadingError, match="no such item"):
        await reading.read(item_id=item_id)


async def test_an_item_is_named_in_one_way(redis: Redis) -> None:
    reading = await written(redis, user("a", item_id="a"))
    with pytest.raises(ReadingError, match="not by both"):
        await reading.read(position=1, item_id="a")


async def test_an_item_is_shown_as_it_was_at_the_readers_point(redis: Redis) -> None:
    await written(redis, *(user(f"text {number}", item_id="i") for number in range(1, 601)))
    assert await redis.hexists(keys.items(THREAD), "#1.2")  # type: ignore[misc]
    for through in (*range(1, 601, 37), 600):
        reading = ThreadReader(redis, THREAD, through)
        for page in (await reading.read(position=1), await reading.read(item_id="i")):
            assert texts(page) == [f"text {through}"]
        assert texts(await reading.read()) == [f"text {through}"]
        assert [hit.position for hit in (await reading.search("text")).hits] == [1]
        assert not (await reading.search(f"text {through + 1}")).hits
        with pytest.raises(ReadingError):
            await reading.read(position=through + 1)


async def test_an_item_is_what_it_was_before_later_records_were_taken_back(redis: Redis) -> None:
    what = [user("first", item_id="i"), user("second", item_id="i")]
    reading = await written(redis, *what, TurnsRolledBack(to=1), user("third", item_id="i"))
    assert texts(await ThreadReader(redis, THREAD, 2).read()) == ["second"]
    assert texts(await ThreadReader(redis, THREAD, 3).read()) == ["first"]
    assert texts(await reading.read()) == ["third"]
    assert positions((await reading.read()).items) == [1]


async def test_what_was_taken_back_is_read_by_those_only_who_came_before(redis: Redis) -> None:
    what = events(user("kept"), assistant("gone", item_id="i"), TurnsRolledBack(to=1))
    reading = await written(redis, *what, assistant("anew", item_id="i"))
    assert texts(await reading.read()) == ["kept", "anew"]
    assert texts(await reading.read(item_id="i")) == ["anew"]
    assert not (await reading.search("gone")).hits
    with pytest.raises(ReadingError):
        await reading.read(position=2)
    before = ThreadReader(redis, THREAD, 2)
    assert texts(await before.read()) == ["kept", "gone"]
    assert texts(await before.read(item_id="i")) == ["gone"]
    with pytest.raises(ReadingError):
        await ThreadReader(redis, THREAD, 3).read(item_id="i")


async def test_a_fork_reads_its_parents_part_and_nothing_else_of_it(redis: Redis) -> None:
    await written(redis, user("one"), assistant("two", item_id="i"), thread_id="parent")
    fork = events(ThreadForked(parent_thread_id="parent", through=2), user("own"))
    reading = await written(redis, *fork, thread_id="fork", after=2)
    await written(redis, user("late"), assistant("late", item_id="i"), thread_id="parent", after=2)
    assert texts(await reading.read()) == ["one", "two", "own"]
    assert positions((await reading.read()).items) == [1, 2, 4]
    assert texts(await reading.read(item_id="i")) == ["two"]
    assert texts(await reading.read(before=4, limit=1)) == ["two"]
    assert [hit.position for hit in (await reading.search("o")).hits] == [4, 2, 1]
    # A point before the fork begins is its parent's.
    assert texts(await ThreadReader(redis, "fork", 1).read()) == ["one"]


async def test_an_item_that_a_fork_records_anew_is_the_forks_own(redis: Redis) -> None:
    await written(redis, assistant("old", item_id="i"), thread_id="parent")
    fork = events(ThreadForked(parent_thread_id="parent", through=1), assistant("new", item_id="i"))
    reading = await written(redis, *fork, thread_id="fork", after=1)
    assert texts(await reading.read(item_id="i")) == ["new"]
    assert texts(await reading.read(position=1)) == ["old"]
    back = await written(redis, TurnsRolledBack(to=2), thread_id="fork", after=3)
    assert texts(await back.read(item_id="i")) == ["old"]


async def test_a_fork_of_a_fork_reads_all_of_its_lineage(redis: Redis) -> None:
    await written(redis, user("grandparent"), thread_id="a")
    parent = events(ThreadForked(parent_thread_id="a", through=1), user("parent"))
    await written(redis, *parent, thread_id="b", after=1)
    child = events(ThreadForked(parent_thread_id="b", through=3), user("child"))
    reading = await written(redis, *child, thread_id="c", after=3)
    assert texts(await reading.read()) == ["grandparent", "parent", "child"]
    undone = await written(redis, TurnsRolledBack(to=1), thread_id="c", after=5)
    assert texts(await undone.read()) == ["grandparent"]
    assert texts(await reading.read()) == ["grandparent", "parent", "child"]


async def test_a_point_beyond_the_log_is_its_end(redis: Redis) -> None:
    await written(redis, user("a"))
    page = await ThreadReader(redis, THREAD, 2**53).read()
    assert (texts(page), page.through) == (["a"], 1)


async def test_a_search_finds_the_most_recent_first_and_goes_on(redis: Redis) -> None:
    reading = await written(redis, *(user(f"Number {n % 2}", item_id=f"{n}") for n in range(10)))
    found = await reading.search("NUMBER 1", limit=2)
    assert [(hit.position, hit.item_id, hit.label) for hit in found.hits] == [
        (10, "9", "user"),
        (8, "7", "user"),
    ]
    assert (found.covered_from, found.covered_to, found.next_after) == (8, 10, 8)
    assert found.note.endswith("go on with after=8.")
    rest = await reading.search("NUMBER 1", after=found.next_after)
    assert [hit.position for hit in rest.hits] == [6, 4, 2]
    assert (rest.covered_from, rest.covered_to, rest.next_after) == (1, 7, None)


async def test_a_search_looks_at_activity_and_says_where_in_the_item(redis: Redis) -> None:
    reading = await written(redis, command("make", "x" * 200 + "FAILED test_a", 1))
    [hit] = (await reading.search("failed")).hits
    assert (hit.label, hit.count, hit.kind) == ("command, exit 1", 1, "command")
    [snippet] = hit.snippets
    [entry] = (await reading.read(position=1, offset=snippet.offset)).items
    assert entry.text.startswith(snippet.text)


@pytest.mark.parametrize("query", ["", "  \n", "x" * (MAX_QUERY + 1)])
async def test_a_search_for_nothing_or_too_much_is_refused(redis: Redis, query: str) -> None:
    reading = await written(redis, user("a"))
    with pytest.raises(ReadingError, match="must have 1 to 1,000 characters"):
        await reading.search(query)


async def test_a_search_after_everything_finds_nothing(redis: Redis) -> None:
    reading = await written(redis, user("a"))
    for after in (1, 0, -(10**30)):
        found = await reading.search("a", after=after)
        assert (found.hits, found.next_after) == ((), None)
        assert found.note == "There is nothing older to search."
    assert (await reading.search("a", after=10**30)).hits


async def test_an_answer_that_takes_too_long_is_given_in_parts(redis: Redis) -> None:
    silent = [command(f"step {number}") for number in range(30)]
    reading = await written(redis, user("first"), *silent, user("last"))
    with (
        mock.patch.object(lineage, "ENTRIES", 5),
        mock.patch.multiple(reader, READ_STEPS=2, SEARCH_STEPS=2),
    ):
        page = await reading.read(after=1)
        assert (texts(page), page.next_after) == ([], 11)
        assert page.note == (
            "There is nothing to show here (view=activity shows more). More is at after=11."
        )
        page = await reading.read(before=32)
        assert (texts(page), page.next_before) == ([], 22)
        found = await reading.search("first")
        assert (found.hits, found.covered_from, found.next_after) == ((), 23, 23)
        assert found.note == (
            "Searched #23 to #32: no items were found. Older items are not searched yet: go on with "
            "after=23."
        )


async def test_steps_are_bounded_by_bytes_too(redis: Redis) -> None:
    reading = await written(redis, *(user("x" * 1_000) for _ in range(10)))
    history = await lineage.lineage(redis, THREAD, 10)
    with mock.patch.object(lineage, "BYTES", 2_500):
        span = lineage.Span(1, 10)
        steps = [step async for step in lineage.walk(redis, history, span)]
        assert [len(step.contents) for step in steps] == [3, 3, 3, 1]
        assert len((await reading.read()).items) == 8  # as many as there is room for


async def test_a_thread_that_is_gone_is_not_found(redis: Redis) -> None:
    reading = ThreadReader(redis, THREAD, 5)
    with pytest.raises(ThreadNotFoundError):
        await reading.read()
    fork = events(ThreadForked(parent_thread_id="parent", through=2), user("own"))
    orphan = await written(redis, *fork, thread_id="fork", after=2)
    with pytest.raises(ThreadNotFoundError, match="parent"):
        await orphan.search("own")


async def test_a_log_that_begins_nowhere_is_corrupt(redis: Redis) -> None:
    for number, event in enumerate(
        [ThreadStarted(), ThreadForked(parent_thread_id="parent", through=3)]
    ):
        log = keys.log(f"broken-{number}")
        await redis.xadd(log, {"e": encode(event)}, id="5-0")
        await redis.expire(log, 60)
        with pytest.raises(HistoryCorruptError, match="begins at 5"):
            await ThreadReader(redis, f"broken-{number}", 5).read()


async def test_forks_without_end_are_corrupt(redis: Redis) -> None:
    what = encode(ThreadForked(parent_thread_id=THREAD, through=4))
    await redis.xadd(keys.log(THREAD), {"e": what}, id="5-0")
    await redis.expire(keys.log(THREAD), 60)
    with pytest.raises(HistoryCorruptError, match=f"more than {threads.MAX_LINEAGE}"):
        await ThreadReader(redis, THREAD, 5).read()


async def test_an_entry_that_is_no_event_is_named_and_not_quoted(redis: Redis) -> None:
    await written(redis, user("a"))
    await redis.xadd(keys.log(THREAD), {"x": "private"}, id="2-0")
    await redis.xadd(keys.log(THREAD), {"e": "private"}, id="3-0")
    for through in (2, 3):
        with pytest.raises(HistoryCorruptError, match=f"Entry {through} of the log") as refusal:
            await ThreadReader(redis, THREAD, through).read(after=through - 1)
        assert "private" not in str(refusal.value)
