"""What reading costs: a page of a long thread beside one of a short one, an item, a long item, a search."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.reading.answers import View
from moonfold_handoff.reading.reader import MAX_CHARACTERS, ThreadReader
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import Command

from .content import conversation, record
from .figures import Advance, Figure
from .servers import Server, server

SHORT = 1_000  # items
OUTPUT = 3_000_000  # characters
WARM_UP = 10  # reads of each kind before those that count
RECORD_SHARE = 0.6  # of the whole benchmark is spent on recording the long thread

Reading = Callable[[], Awaitable[object]]


def measure(advance: Advance, *, items: int, reads: int) -> list[Figure]:
    with server() as own:
        return asyncio.run(_measure(own, items, reads, advance))


async def _measure(own: Server, items: int, reads: int, advance: Advance) -> list[Figure]:
    async with (
        HandoffClient("benchmark", own.settings) as client,
        Redis.from_url(own.settings.redis_url or "") as redis,
    ):
        short = await _reader(client, redis, SHORT)
        long = await _reader(client, redis, items)
        advance(RECORD_SHARE)
        middle = items // 2
        kinds: dict[str, tuple[Reading, Reading]] = {
            "page of messages": (
                lambda: short.read(after=SHORT // 2),
                lambda: long.read(after=middle),
            ),
            "page of activity": (
                lambda: short.read(after=SHORT // 2, view=View.ACTIVITY),
                lambda: long.read(after=middle, view=View.ACTIVITY),
            ),
            "newest page": (
                lambda: short.read(before=SHORT + 1),
                lambda: long.read(before=items + 1),
            ),
            "item by position": (
                lambda: short.read(position=SHORT // 2),
                lambda: long.read(position=middle),
            ),
        }
        figures: list[Figure] = []
        for number, (name, pair) in enumerate(kinds.items()):
            of_short, of_long = await _alternately(pair, reads)
            figures += [
                Figure(f"{name}, {SHORT:,} items", of_short, "ms"),
                Figure(f"{name}, {items:,} items", of_long, "ms"),
                Figure(f"{name}, long / short", of_long / of_short, "×", at_most=1.2),
            ]
            advance(RECORD_SHARE + (1 - RECORD_SHARE) * number / len(kinds))
        seconds, pages = await _paged(client, redis)
        began = time.perf_counter()
        searched = await _searched(long, "no such words in it")
        return [
            *figures,
            Figure(f"paging an output of {OUTPUT:,} characters", seconds, "s"),
            Figure("of which one page", seconds / pages * 1_000, "ms"),
            Figure("items searched", items / (time.perf_counter() - began), "per second"),
            Figure(f"searches that cover {items:,} items", searched),
        ]


async def _reader(client: HandoffClient, redis: Redis, items: int) -> ThreadReader:
    return ThreadReader(redis, await record(client, conversation(items)), items)


async def _alternately(pair: tuple[Reading, Reading], times: int) -> list[float]:
    """Return the median milliseconds of each, taken in turns."""
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(WARM_UP + times):
        for reading, of_it in zip(pair, taken, strict=True):
            began = time.perf_counter()
            await reading()
            of_it.append((time.perf_counter() - began) * 1_000)
    return [statistics.median(of_it[WARM_UP:]) for of_it in taken]


async def _paged(client: HandoffClient, redis: Redis) -> tuple[float, int]:
    """Return the seconds and the pages it takes to read a long output in the largest pages there are."""
    output = "".join(f"{number:>9} tests passed\n" for number in range(OUTPUT // 23))
    ran = Command(item_id="run", turn_id="turn", command="make", output=output)
    reader = ThreadReader(redis, await record(client, [ItemRecorded(item=ran)]), 1)
    began, pieces, offset = time.perf_counter(), [], 0
    while True:
        page = await reader.read(position=1, offset=offset, characters=MAX_CHARACTERS)
        pieces.append(page.items[0].text)
        if page.next_offset is None:
            break
        offset = page.next_offset
    seconds = time.perf_counter() - began
    if "".join(pieces) != f"$ make\n{output}":
        raise RuntimeError("the pages put together are not the output")
    return seconds, len(pieces)


async def _searched(reader: ThreadReader, query: str) -> int:
    """Return how many searches it takes to look at all of a thread."""
    searches, after = 0, None
    while True:
        found = await reader.search(query, after=after)
        searches, after = searches + 1, found.next_after
        if after is None:
            return searches
