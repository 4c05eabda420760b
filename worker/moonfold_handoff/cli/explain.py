"""`moonfold explain`."""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.table import Table

from moonfold_handoff.cli import show
from moonfold_handoff.context.choices import Reason
from moonfold_handoff.context.selection import omissions, select
from moonfold_handoff.context.state import ItemRef, Progress
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import results, threads
from moonfold_schemas import is_id
from moonfold_schemas.results import HandoffFailed, HandoffReady, HandoffResult, HandoffWaiting


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
            show.passed_over(console, getattr(result, "passed_over", ()))
            return
        console.print(
            f"{result.target.provider}, delivered as {result.delivery}, "
            f"thread {result.thread_id} up to #{result.coverage.through}"
        )
        show.passed_over(console, result.passed_over)
        console.print()
        console.print(show.budget_table(result.budget))
        console.print()
        try:
            table = await _items(services, result)
        except HandoffError as error:
            console.print(f"The items cannot be explained any more: {error}")
            return
        console.print(table)


async def _items(services: Services, result: HandoffReady) -> Table:
    """Return each item, whether it went, and why, as far as choosing once more can tell.

    Choosing is deterministic, but for what the new request mentions: its text is kept nowhere.
    """
    thread_id = result.thread_id or ""
    state = await threads.load(services.threads, thread_id, result.coverage.through)
    state = state.since(state.conversation(result.target.conversation_id))
    selection = select(state, thread_id, result.budget.allowance)
    went = {choice.ref.position: choice for choice in selection.choices}
    stayed = {omission.ref.position: omission for omission in omissions(state, selection)}
    table = Table(title="Items", title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("what", style="cyan", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("went", no_wrap=True)
    table.add_column("why")
    listed = 0
    for ref in state.kept:
        position, part = ref.position, ""
        goes = any(span.first <= position <= span.last for span in result.coverage.selected)
        if goes:
            part = "part" if position in result.coverage.abridged else "whole"
            reason = went[position].reason if position in went else Reason.ASKED
        else:
            listed += 1
            reason = stayed[position].reason if position in stayed else Reason.NO_ROOM
        table.add_row(str(position), _what(ref), f"{ref.cost:,}", part or "no", reason.value)
    unlisted = result.coverage.omitted_items - listed
    if unlisted > 0:
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
    if isinstance(result, HandoffWaiting):
        return f"{tag}: {result.message} Retry after {result.retry_after:g} s."
    if not isinstance(result, HandoffFailed):
        return tag
    room = (
        f" Needed {result.needed:,} bytes, left {result.available:,}."
        if result.needed is not None and result.available is not None
        else ""
    )
    again = " The same request can succeed later." if result.retryable else ""
    return f"{tag} ({result.code}): {result.message}{room}{again}"
