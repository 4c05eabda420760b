"""`moonfold read`: what the agents' thread reader shows, for people."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import click
import msgspec

from moonfold_handoff.cli import show
from moonfold_handoff.errors import ThreadNotFoundError
from moonfold_handoff.reading.access import open_reader
from moonfold_handoff.reading.answers import Found, Page, View
from moonfold_handoff.reading.reader import (
    CHARACTERS,
    ITEMS,
    MAX_CHARACTERS,
    MAX_ITEMS,
    ThreadReader,
)
from moonfold_handoff.reading.showing import found_text, page_text
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import log, tokens
from moonfold_schemas import is_id

Question = Callable[[ThreadReader], Awaitable[Page | Found]]


@click.command()
@click.argument("thread", metavar="THREAD_OR_TOKEN")
@click.argument("position", type=click.IntRange(min=1), required=False)
@click.option(
    "--view",
    type=click.Choice([view.value for view in View]),
    default=View.MESSAGES.value,
    show_default=True,
    help="What a range shows: messages only, or activity as well.",
)
@click.option("--after", type=int, help="Begin after this position; with --search, go on there.")
@click.option("--before", type=int, help="End before this position.")
@click.option(
    "--limit",
    default=ITEMS,
    show_default=True,
    type=click.IntRange(1, MAX_ITEMS),
    help="Most items shown.",
)
@click.option("--offset", default=0, type=click.IntRange(min=0), help="Characters to pass over.")
@click.option(
    "--characters",
    default=CHARACTERS,
    show_default=True,
    type=click.IntRange(1, MAX_CHARACTERS),
    help="Most characters shown.",
)
@click.option("--search", "query", help="Find this text instead, the most recent items first.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, nothing else.")
@click.pass_obj
def read(
    settings: Settings,
    *,
    thread: str,
    position: int | None,
    view: str,
    after: int | None,
    before: int | None,
    limit: int,
    offset: int,
    characters: int,
    query: str | None,
    as_json: bool,
) -> None:
    """Read a thread: the item at POSITION, or a range of it.

    Whoever reaches the server may name any thread. A token reads what it opens, as an agent would.
    """
    if not is_id(thread):
        raise click.BadParameter("not an identifier", param_hint="THREAD_OR_TOKEN")
    if query is not None and position is not None:
        raise click.UsageError("A search takes no POSITION.")

    def ask(reader: ThreadReader) -> Awaitable[Page | Found]:
        if query is not None:
            return reader.search(query, after=after, limit=limit)
        return reader.read(
            position=position,
            view=View(view),
            after=after,
            before=before,
            limit=limit,
            offset=offset,
            characters=characters,
        )

    answer = asyncio.run(_answer(settings, thread, ask))
    if as_json:
        click.echo(msgspec.json.encode(answer))
        return
    text = page_text(answer) if isinstance(answer, Page) else found_text(answer)
    if sys.stdout.isatty():
        click.echo(show.harmless(text))
    else:
        click.echo(text.encode())  # UTF-8 whatever the terminal: another program reads it


async def _answer(settings: Settings, thread: str, ask: Question) -> Page | Found:
    async with open_services(settings, name="moonfold-read") as services:
        return await ask(await _reader(services, thread))


async def _reader(services: Services, thread: str) -> ThreadReader:
    if tokens.is_token(thread):
        return await open_reader(services, thread)
    last = await log.last(services.threads, thread)
    if not last:
        raise ThreadNotFoundError(f"There is no log of thread {thread}.")
    return ThreadReader(services.threads, thread, last)
