"""`moonfold threads` and `moonfold thread`."""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moonfold_handoff.cli import show
from moonfold_handoff.context.portable import body, label
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import log
from moonfold_handoff.store import threads as thread_store
from moonfold_schemas import is_id
from moonfold_schemas.events import ItemRecorded

NAME = "moonfold-threads"  # in the server's client list


@click.command()
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000))
@click.pass_obj
def threads(settings: Settings, limit: int) -> None:
    """List the threads that are recorded."""
    asyncio.run(_threads(settings, limit))


@click.command()
@click.argument("thread_id")
@click.option(
    "--items",
    default=40,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Newest items shown.",
)
@click.pass_obj
def thread(settings: Settings, thread_id: str, items: int) -> None:
    """Show a thread: where it comes from, its conversations, and its newest items."""
    if not is_id(thread_id):
        raise click.BadParameter("not an identifier", param_hint="THREAD_ID")
    asyncio.run(_thread(settings, thread_id, items))


async def _threads(settings: Settings, limit: int) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("thread", style="cyan", overflow="fold")
    for heading in ("events", "days left"):
        table.add_column(heading, justify="right", no_wrap=True)
    async with open_services(settings, name=NAME) as services:
        async for found in thread_store.listed(services.threads, limit):
            table.add_row(Text(found.thread_id), f"{found.last:,}", f"{found.days_left:.1f}")
    Console(emoji=False).print(table)


async def _thread(settings: Settings, thread_id: str, items: int) -> None:
    async with open_services(settings, name=NAME) as services:
        try:
            state = await thread_store.load(services.threads, thread_id)
            shown = await _items(services, thread_id, state, items)
        except HandoffError as error:
            raise click.ClickException(str(error)) from None
    console = Console(emoji=False, highlight=False)
    console.print(f"[bold]{thread_id}[/bold], {state.items:,} items, up to #{state.through:,}")
    for ancestor in reversed(state.lineage):
        console.print(f"forked from {ancestor.thread_id} after #{ancestor.through:,}")
    console.print()
    console.print(_conversations(state))
    console.print()
    console.print(shown)


async def _items(services: Services, thread_id: str, state: ThreadState, count: int) -> Table:
    table = Table(title="Newest items", title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("from", style="cyan", no_wrap=True)
    table.add_column("begins", no_wrap=True, overflow="ellipsis", ratio=1)
    refs = state.window[-count:] if count else ()
    records = [(state.holder(thread_id, ref.record), ref.record) for ref in refs]
    for ref, event in zip(refs, await log.fetch(services.threads, records), strict=True):
        if isinstance(event, ItemRecorded):
            text = Text(show.preview(body(event.item)))
            table.add_row(str(ref.position), label(event.item), text)
    return table


def _conversations(state: ThreadState) -> Table:
    table = Table(title="Conversations", title_justify="left", box=None, pad_edge=False)
    table.add_column("conversation", style="cyan", overflow="fold")
    for heading in ("provider", "model"):
        table.add_column(heading)
    for heading in ("window", "holds", "seen to"):
        table.add_column(heading, justify="right")
    for known in state.conversations:
        window = known.max_tokens or known.capacity
        reported = known.used_tokens is not None
        table.add_row(
            Text(known.conversation_id),
            Text(known.provider),
            Text(show.preview(known.model or "")),
            f"{window:,}" if window else "",
            f"{known.held:,}{'' if reported else ' (estimated)'}",
            f"#{known.seen}",
        )
    return table
