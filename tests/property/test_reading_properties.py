"""The thread reader: it shows what an oracle says, whole characters, and nothing that is not its own."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest
from conftest import Servers
from helpers.asking import append, events
from helpers.building import assistant, command, reasoning, tool_call, user
from helpers.characters import CHARACTERS, ends, texts
from helpers.servers import RedisServer
from helpers.trees import Step, Thread, grown, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from moonfold_handoff.reading import reader
from moonfold_handoff.reading.answers import Page, ReadingError, View
from moonfold_handoff.reading.characters import floor, page_end
from moonfold_handoff.reading.reader import ThreadReader
from moonfold_handoff.store import lineage
from moonfold_schemas.events import ThreadEvent, ThreadForked, TurnsRolledBack
from moonfold_schemas.items import Item

FOREIGN = "Not of this reader's business."

_names = itertools.count()


@pytest.fixture(scope="module")
def valkey(servers: Servers) -> RedisServer:
    return servers.get("valkey")


@contextmanager
def small_steps() -> Iterator[None]:
    """Walk so little at once that short threads take several answers."""
    with (
        mock.patch.object(lineage, "ENTRIES", 3),
        mock.patch.multiple(reader, READ_STEPS=2, SEARCH_STEPS=2),
    ):
        yield


async def forwards(reading: ThreadReader, **asked: Any) -> list[tuple[int, str]]:
    """Return position and text of all items, page by page."""
    found, after = [], 0
    while True:
        page = await reading.read(after=after, **asked)
        found += [(entry.position, entry.text) for entry in page.items]
        if page.next_after is None:
            return found
        assert page.next_after > after
        after = page.next_after


async def backwards(reading: ThreadReader, before: int, **asked: Any) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while True:
        page = await reading.read(before=before, **asked)
        found[:0] = [(entry.position, entry.text) for entry in page.items]
        if page.next_before is None:
            return found
        assert page.next_before < before
        before = page.next_before


async def searched(reading: ThreadReader, query: str, limit: int) -> list[int]:
    found: list[int] = []
    after = None
    while True:
        answer = await reading.search(query, limit=limit, after=after)
        found += [hit.position for hit in answer.hits]
        assert all(answer.covered_from <= hit.position for hit in answer.hits)
        if answer.next_after is None:
            return found
        after = answer.next_after


async def checked(redis: Redis, thread: Thread, through: int, limit: int) -> None:
    """Check all ways to read a thread at a point against the oracle."""
    means = thread.means(through)
    expected = [(position, text) for position, _, text in means]
    reading = ThreadReader(redis, thread.name, through)
    activity: dict[str, Any] = {"view": View.ACTIVITY, "limit": limit}
    assert await forwards(reading, **activity) == expected
    assert await backwards(reading, through + 1, **activity) == expected
    # A command's text begins with its prompt.
    messages = [(position, text) for position, text in expected if not text.startswith("$ ")]
    assert await forwards(reading, limit=limit) == messages
    found = await searched(reading, "E", limit)  # which is in every text
    assert found == [position for position, _ in reversed(expected)]
    known = dict(expected)
    for position in range(through + 2):
        try:
            [entry] = (await reading.read(position=position)).items
        except ReadingError:
            assert position not in known
        else:
            assert entry.text == known[position]
    # Of an item id, the youngest thread's item that is alive.
    owners = {record.item_id: record.position for _, record in thread.alive(through)}
    for item_id, position in owners.items():
        [entry] = (await reading.read(item_id=item_id)).items
        assert (entry.position, entry.item_id) == (position, item_id)


@settings(max_examples=120, deadline=None)
@given(histories, st.integers(0, 1_000), st.integers(1, 4))
def test_a_reader_shows_its_lineage_as_it_was_at_its_point(
    valkey: RedisServer, history: list[Step], part: int, limit: int
) -> None:
    async def check() -> None:
        async with Redis.from_url(valkey.url) as redis:
            tree = await grown(redis, history)
            for thread in tree.threads:
                await checked(redis, thread, thread.last, limit)
                await checked(redis, thread, max(1, thread.last * part // 1_000), limit)

    with small_steps():
        asyncio.run(check())


@settings(max_examples=500, deadline=None)
@given(texts, st.integers(0, 100), st.data())
def test_a_cut_splits_no_character(characters: list[str], page: int, data: st.DataObject) -> None:
    # Two flags without a space between are two characters, and a joiner joins whatever follows.
    text, places = "".join(characters), ends(characters)
    start = floor(text, data.draw(st.integers(0, len(text))))
    assert start in places
    pieces = [text[:start]]
    while start < len(text):
        end = page_end(text, start, page)
        assert end in places
        assert end > start
        pieces.append(text[start:end])
        start = end
    assert "".join(pieces) == text


# 1,000 questions of all kinds to one thread, beside others on the same server.


class Known:
    """A fork with all that can be wrong around it, and what may be read of it."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.fork, self.parent = f"fork-{next(_names)}", f"parent-{next(_names)}"
        self.texts: dict[int, str] = {}
        self.places: dict[int, set[int]] = {}
        self.through = 0

    async def write(self) -> None:
        random_ = random.Random(7)

        def speak(size: int) -> list[str]:
            return random_.choices(CHARACTERS, k=size)

        hidden = FOREIGN
        own: dict[int, list[str]] = {}
        last = 0

        async def add(thread: str, *what: ThreadEvent | Item) -> None:
            nonlocal last
            last = await append(self.redis, events(*what), thread_id=thread, after=last)

        await append(self.redis, events(user(FOREIGN, item_id="other")), thread_id="other")
        for size in (0, 3, 40, 700):
            own[last + 1] = speak(size)
            await add(self.parent, user("".join(own[last + 1])))
            await add(self.parent, reasoning(hidden), tool_call(hidden, hidden, hidden))
        own[last + 1] = list("old")
        await add(self.parent, assistant("old", item_id="again"))
        again, to = last, last
        await add(self.parent, user(hidden), command(hidden), TurnsRolledBack(to=to))
        point = last
        await add(self.parent, user(hidden), assistant(hidden, item_id="again"))
        last = point
        await add(self.fork, ThreadForked(parent_thread_id=self.parent, through=point))
        for size in (1, 9_000):
            own[last + 1] = speak(size)
            await add(self.fork, assistant("".join(own[last + 1]), item_id=f"long-{size}"))
        self.through = last
        await add(self.fork, user(hidden), assistant(hidden, item_id="long-1"))
        assert again in own
        self.texts = {position: "".join(said) for position, said in own.items()}
        self.places = {position: ends(said) for position, said in own.items()}

    def check(self, page: Page, asked: dict[str, Any]) -> None:
        assert page.through == self.through
        for entry in page.items:
            end = entry.offset + len(entry.text)
            assert entry.text == self.texts[entry.position][entry.offset : end]
            assert {entry.offset, end} <= self.places[entry.position]
            assert entry.next_offset == (None if end == entry.characters_total else end)
        assert len(page.items) <= max(1, min(asked.get("limit", 20), reader.MAX_ITEMS))
        most = max(1, min(asked.get("characters", 8_000), reader.MAX_CHARACTERS))
        assert sum(len(entry.text) for entry in page.items) <= max(most, *map(len, CHARACTERS))


numbers = st.one_of(
    st.integers(-5, 60),
    st.integers(-20_000, 20_000),
    st.integers(-(10**30), 10**30),
    st.sampled_from([2**31, 2**53, 2**63, -(2**63)]),
)
questions = st.fixed_dictionaries(
    {},
    optional={
        "position": st.one_of(st.integers(1, 24), numbers),
        "item_id": st.sampled_from(
            ["again", "long-1", "other", "#13", "~", "@again", "", "a" * 300]
        ),
        "view": st.sampled_from(list(View)),
        "after": numbers,
        "before": numbers,
        "limit": numbers,
        "offset": numbers,
        "characters": numbers,
    },
)


@settings(max_examples=1_000, deadline=None)
@given(questions)
def test_any_question_is_answered_with_whole_characters_of_the_lineage_or_refused(
    known: tuple[asyncio.Runner, Known], asked: dict[str, Any]
) -> None:
    runner, thread = known

    async def ask() -> None:
        reading = ThreadReader(thread.redis, thread.fork, thread.through)
        try:
            page = await reading.read(**asked)
        except ReadingError:
            assert {"position", "item_id"} & asked.keys()
            return
        assert FOREIGN.encode() not in msgspec.json.encode(page)
        thread.check(page, asked)

    runner.run(ask())


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=8), st.sampled_from(CHARACTERS)), numbers, numbers)
def test_any_search_is_answered_with_whole_characters_of_the_lineage_or_refused(
    known: tuple[asyncio.Runner, Known], query: str, limit: int, after: int
) -> None:
    runner, thread = known

    async def ask() -> None:
        reading = ThreadReader(thread.redis, thread.fork, thread.through)
        assert not (await reading.search(FOREIGN[:-1])).hits
        try:
            found = await reading.search(query, limit=limit, after=after)
        except ReadingError:
            assert not query.strip()
            return
        for hit in found.hits:
            text, places = thread.texts[hit.position], thread.places[hit.position]
            assert query.casefold() in text.casefold()
            for snippet in hit.snippets:
                end = snippet.offset + len(snippet.text)
                assert snippet.text == text[snippet.offset : end]
                assert {snippet.offset, end} <= places
                assert query.casefold() in snippet.text.casefold()

    runner.run(ask())


@pytest.fixture(scope="module")
def known(valkey: RedisServer) -> Iterator[tuple[asyncio.Runner, Known]]:
    with asyncio.Runner() as runner:

        async def begin() -> Known:
            thread = Known(Redis.from_url(valkey.url))
            await thread.write()
            return thread

        thread = runner.run(begin())
        yield runner, thread
        runner.run(thread.redis.aclose())
