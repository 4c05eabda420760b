"""`ThreadReader`: a thread's messages and activity up to a point, in pages, and search (R8, R9).

Each item is shown as it was at that point: what was recorded later is not there, nor what was taken back
before. What is asked is clamped to what an answer can hold, and the answer says how to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing

from redis.asyncio import Redis

from moonfold_handoff.context.portable import body, kind_of, label
from moonfold_handoff.reading import notes
from moonfold_handoff.reading.answers import (
    Entry,
    Found,
    Hit,
    Page,
    ReadingError,
    Snippet,
    View,
)
from moonfold_handoff.reading.characters import floor, page_end
from moonfold_handoff.reading.searching import search
from moonfold_handoff.store.lineage import (
    Content,
    Lineage,
    Span,
    content,
    lineage,
    position_of,
    walk,
)
from moonfold_schemas import is_id

ITEMS = 20  # entries of a range, unless told otherwise
HITS = 10  # of a search, unless told otherwise
CHARACTERS = 8_000  # of an answer, unless told otherwise
MAX_ITEMS = 100  # entries, or hits, of one answer
MAX_CHARACTERS = 64_000  # characters of one answer, a last whole one aside
MAX_QUERY = 1_000  # characters of a text that is searched for
READ_STEPS = 32  # of a walk for one answer: 4,096 entries of a log, or 16 MiB, about
SEARCH_STEPS = 256  # of a walk for one search: 32,768 entries, or 128 MiB, about


class ThreadReader:
    """Reads one thread's history up to a point, its ancestors' included, and nothing else.

    Args:
        redis: the server of threads.
        thread_id: the thread.
        through: the last sequence that may be read.
    """

    def __init__(self, redis: Redis, thread_id: str, through: int) -> None:
        self._redis = redis
        self._thread_id = thread_id
        self._through = through

    async def read(
        self,
        *,
        position: int | None = None,
        item_id: str | None = None,
        view: View = View.MESSAGES,
        after: int | None = None,
        before: int | None = None,
        limit: int = ITEMS,
        offset: int = 0,
        characters: int = CHARACTERS,
    ) -> Page:
        """Return one item, or a range of the thread.

        An item that is named is shown in either view, if it may be read at all. A range is read forwards,
        from its beginning; where only its end is given, backwards from there.

        Args:
            position: the item to read.
            item_id: the item to read, by its identifier.
            view: what a range shows.
            after: the range begins after this position.
            before: the range ends before this position.
            limit: most entries of a range.
            offset: characters of the item to pass over; for a range without meaning.
            characters: most characters of the answer.

        Raises:
            ReadingError: no such item can be read, or two are named.
            ThreadNotFoundError: the thread is gone.
            HistoryCorruptError: the log cannot be read.
        """
        characters = max(1, min(characters, MAX_CHARACTERS))
        history = await lineage(self._redis, self._thread_id, self._through)
        if position is not None or item_id is not None:
            found = await self._named(history, position, item_id)
            return _part(history, found, max(0, offset), characters)
        first = min(max(0, after or 0), history.through) + 1
        last = history.through if before is None else min(before - 1, history.through)
        page = _Room(max(1, min(limit, MAX_ITEMS)), characters)
        down = after is None and before is not None
        return await self._range(history, Span(first, max(last, first - 1)), view, page, down=down)

    async def search(self, query: str, *, limit: int = HITS, after: int | None = None) -> Found:
        """Return the items that hold a text, whatever the case of its letters, the most recent first.

        All items that may be read are searched, in bounded steps: the answer says which part it covers.

        Args:
            query: the text, taken literally.
            limit: most items of the answer.
            after: `next_after` of an earlier answer: go on with what is older.

        Raises:
            ReadingError: there is nothing to search for, or too much.
            ThreadNotFoundError: the thread is gone.
            HistoryCorruptError: the log cannot be read.
        """
        if not query.strip() or len(query) > MAX_QUERY:
            raise ReadingError(f"The text to search for must have 1 to {MAX_QUERY:,} characters.")
        needle = query.casefold()
        limit = max(1, min(limit, MAX_ITEMS))
        history = await lineage(self._redis, self._thread_id, self._through)
        newest = history.through if after is None else max(0, min(after - 1, history.through))
        hits: list[Hit] = []
        oldest, steps = 1, 0
        async with aclosing(walk(self._redis, history, Span(1, newest), down=True)) as walking:
            async for step in walking:
                steps += 1
                full = _search(step.contents, needle, hits, limit)
                if full or steps == SEARCH_STEPS:
                    oldest = hits[-1].position if full else step.reached
                    break
        return Found(
            hits=tuple(hits),
            through=history.through,
            covered_from=oldest,
            covered_to=newest,
            next_after=oldest if oldest > 1 else None,
            note=notes.of_search(len(hits), oldest, newest),
        )

    async def _named(self, history: Lineage, position: int | None, item_id: str | None) -> Content:
        if position is not None and item_id is not None:
            raise ReadingError("Name the item by its position or by its identifier, not by both.")
        if item_id is not None and is_id(item_id):
            position = await position_of(self._redis, history, item_id)
        found = None if position is None else await content(self._redis, history, position)
        if found is None or kind_of(found.item) is None:
            # The same for what is not there, was taken back, is none of this thread's, or is internal.
            raise ReadingError(
                "There is no such item to read. Positions of this thread lie between #1 and "
                f"#{history.through}."
            )
        return found

    async def _range(
        self, history: Lineage, span: Span, view: View, page: _Room, *, down: bool
    ) -> Page:
        end = span.first if down else span.last
        rest, steps = end, 0
        async with aclosing(walk(self._redis, history, span, down=down)) as walking:
            async for step in walking:
                steps += 1
                shown = (one for one in step.contents if _is_shown(one, view))
                full = not all(map(page.take, shown))
                if full or steps == READ_STEPS:
                    rest = page.entries[-1].position if full else step.reached
                    break
        following = None if rest == end else rest
        entries = tuple(reversed(page.entries) if down else page.entries)
        return Page(
            items=entries,
            through=history.through,
            next_after=None if down else following,
            next_before=following if down else None,
            note=notes.of_range(entries, following, view, down=down),
        )


class _Room:
    """What a page has room for, being filled."""

    def __init__(self, limit: int, characters: int) -> None:
        self.entries: list[Entry] = []
        self._limit = limit
        self._characters = characters

    def take(self, one: Content) -> bool:
        """Take an item; False if it does not go on this page. The first one goes, be it a part only."""
        text = body(one.item)
        if self.entries and (len(self.entries) == self._limit or len(text) > self._characters):
            return False
        self.entries.append(_entry(one, text, 0, self._characters))
        self._characters -= len(self.entries[-1].text)
        return True


def _part(history: Lineage, one: Content, offset: int, characters: int) -> Page:
    """Return one item from `offset` on, or from the beginning of the character that `offset` is within."""
    text = body(one.item)
    entry = _entry(one, text, floor(text, min(offset, len(text))), characters)
    return Page(
        items=(entry,),
        through=history.through,
        next_offset=entry.next_offset,
        note=notes.of_item(entry),
    )


def _entry(one: Content, text: str, start: int, characters: int) -> Entry:
    end = page_end(text, start, characters)
    return Entry(
        position=one.position,
        item_id=one.item.item_id,
        kind=str(one.item.__struct_config__.tag),
        label=label(one.item),
        status=one.item.status.value,
        text=text[start:end],
        time=one.recorded.time,
        offset=start,
        characters_total=len(text),
        next_offset=end if end < len(text) else None,
    )


def _is_shown(one: Content, view: View) -> bool:
    kind = kind_of(one.item)
    return kind is not None and (kind.is_message or view is View.ACTIVITY)


def _search(contents: Iterable[Content], needle: str, hits: list[Hit], limit: int) -> bool:
    """Add the items that hold `needle` to `hits`; True once there are `limit`."""
    for one in contents:
        text = "" if kind_of(one.item) is None else body(one.item)
        count, snippets = search(text, needle)
        if count:
            hits.append(_hit(one, len(text), count, snippets))
            if len(hits) == limit:
                return True
    return False


def _hit(one: Content, characters: int, count: int, snippets: tuple[Snippet, ...]) -> Hit:
    return Hit(
        position=one.position,
        item_id=one.item.item_id,
        kind=str(one.item.__struct_config__.tag),
        label=label(one.item),
        status=one.item.status.value,
        time=one.recorded.time,
        characters_total=characters,
        count=count,
        snippets=snippets,
    )
