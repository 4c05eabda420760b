"""`moonfold explain`."""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.table import Table

from moonfold_handoff.cli import show
from moonfold_handoff.context.selection import Selection, select
from moonfold_handoff.context.state import ItemRef, Progress
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import results, threads
from moonfold_schemas import is_id
from moonfold_schemas.results import HandoffFailed, HandoffReady, HandoffResult


@click.command()
@click.argument("request_id")
@click.pass_obj
def explain(settings: Settings, request_id: str) -> None:
    """Say why a handoff is as it is: its budget, and each item with the reason it went or not.

    REQUEST_ID is the id of a request that was answered within the lifetime of results (a day).
    """
    if not is_id(request_id):
        raise click.BadParameter("not an identifier", param_hint="REQUEST_ID")
    asyncio.run(_explain(settings, request_id))


async def _explain(settings: Settings, request_id: str) -> None:
    async with open_services(settings, name="moonfold-explain") as services:
        result = await results.get(services.redis, request_id)
        if result is None:
            raise click.ClickException(f"There is no result for request {request_id}.")
        console = Console()
        if not isinstance(result, HandoffReady):
            console.print(_other(result))
            return
        console.print(
            f"{result.target.provider}, delivered as {result.delivery}, "
            f"thread {result.thread_id} up to #{result.coverage.through}"
        )
        console.print()
        console.print(show.budget_table(result.budget))
        console.print()
        try:
            selection = await _again(services, result)
        except HandoffError as error:
            console.print(f"The items cannot be explained any more: {error}")
            return
        console.print(_items(selection))
        if selection.coverage != result.coverage:
            console.print("The worker that built it chose differently; this is what this one does.")


async def _again(services: Services, result: HandoffReady) -> Selection:
    """Choose once more, which gives the same choice and its reasons: selection is deterministic."""
    thread_id = result.thread_id or ""
    state = await threads.load(services.threads, thread_id, result.coverage.through)
    return select(state, thread_id, result.budget.allowance)


def _items(selection: Selection) -> Table:
    table = Table(title="Items", title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("what", style="cyan", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("went", no_wrap=True)
    table.add_column("why")
    rows = [
        (choice.ref, "whole" if choice.limit is None else f"{choice.limit:,}", choice.reason)
        for choice in selection.choices
    ]
    rows += [(omission.ref, "no", omission.reason) for omission in selection.omissions]
    for ref, went, reason in sorted(rows, key=lambda row: row[0].position):
        table.add_row(str(ref.position), _what(ref), f"{ref.cost:,}", went, reason.value)
    unlisted = selection.coverage.omitted_items - len(selection.omissions)
    if unlisted:
        table.add_row("", f"{unlisted:,} older items", "", "no", "too far back to be candidates")
    return table


def _what(ref: ItemRef) -> str:
    name = ref.kind.name.lower().replace("_", " ")
    if ref.exit_code is not None:
        return f"{name}, exit {ref.exit_code}"
    if ref.progress is Progress.COMPLETED:
        return name
    return f"{name}, {ref.progress.name.lower().replace('_', ' ')}"


def _other(result: HandoffResult) -> str:
    tag = str(result.__struct_config__.tag)
    if not isinstance(result, HandoffFailed):
        return tag
    room = (
        f" Needed {result.needed:,} bytes, left {result.available:,}."
        if result.needed is not None and result.available is not None
        else ""
    )
    again = " The same request can succeed later." if result.retryable else ""
    return f"{tag} ({result.code}): {result.message}{room}{again}"
