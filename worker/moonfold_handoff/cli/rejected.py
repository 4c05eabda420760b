"""`moonfold rejected`: what could not be done, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import click
import msgspec
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moonfold_handoff.cli.show import preview
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import letters
from moonfold_handoff.store.letters import DeadLetter, NotRetryableError, Outcome

NAME = "moonfold-rejected"  # in the server's client list
LONG = 1_000  # characters of a reason or an id shown

_SENTENCES = {
    Outcome.QUEUED: "is queued again.",
    Outcome.ANSWERED: "was answered meanwhile and is left as it is.",
    Outcome.GONE: "is not there (any more).",
}


class _Line(msgspec.Struct):
    """One dead letter, as `--json` prints it."""

    id: str
    at: datetime
    job_id: str
    function: str
    reason: str
    argument: msgspec.Raw


def _checked(
    _context: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...]
) -> str | tuple[str, ...]:
    """Refuse what is no id of a dead letter (a callback of click)."""
    for one in (value,) if isinstance(value, str) else value:
        if not re.fullmatch(r"[0-9]{1,19}-[0-9]{1,19}", one):
            raise click.BadParameter(f"{one!r} is not an id as `moonfold rejected list` shows it.")
    return value


_chosen = click.argument("ids", nargs=-1, callback=_checked, metavar="[ID]...")
_all = click.option("--all", "every", is_flag=True, help="All of them.")


@click.group()
def rejected() -> None:
    """List, show, retry or drop the jobs that could not be done.

    They are kept without any text of the conversation.
    """


@rejected.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
@click.pass_obj
def list_(settings: Settings, *, limit: int, as_json: bool) -> None:
    """List them, the latest first."""
    found = asyncio.run(_listed(settings, limit))
    if as_json:
        click.echo(msgspec.json.encode([_line(one) for one in found]))
    elif found:
        Console(emoji=False, highlight=False).print(_table(found))
    else:
        click.echo("Nothing was rejected.")


@rejected.command()
@click.argument("letter_id", callback=_checked, metavar="ID")
@click.pass_obj
def show(settings: Settings, letter_id: str) -> None:
    """Show one with all that was kept of it."""
    found = asyncio.run(_got(settings, letter_id))
    if found is None:
        raise click.ClickException(f"{letter_id} is not there (any more).")
    console = Console(emoji=False, highlight=False)
    for name, value in (
        ("id", found.letter_id),
        ("rejected", f"{found.at:%Y-%m-%d %H:%M:%S} UTC"),
        ("job", found.job_id),
        ("function", found.function),
        ("reason", found.reason),
    ):
        console.print(Text(f"{name:9} {preview(value, LONG)}"), soft_wrap=True)
    click.echo(json.dumps(json.loads(found.argument or b"null"), indent=2))


@rejected.command()
@_chosen
@_all
@click.pass_obj
def retry(settings: Settings, ids: Sequence[str], *, every: bool) -> None:
    """Put jobs on their queue again; who asked finds the new answer under the same request.

    The text of a request is not kept, so it is tried again with the length of it: the budget is the same,
    and what the text mentioned no longer weighs in the selection. What was kept of a job that was never a
    valid one cannot be tried again. The exit status is 1 where any was refused.
    """
    _check(ids, every=every)
    sys.exit(asyncio.run(_retry(settings, ids, every=every)))


@rejected.command()
@_chosen
@_all
@click.pass_obj
def drop(settings: Settings, ids: Sequence[str], *, every: bool) -> None:
    """Forget jobs for good."""
    _check(ids, every=every)
    click.echo(f"Dropped {asyncio.run(_drop(settings, ids, every=every)):,}.")


def _check(ids: Sequence[str], *, every: bool) -> None:
    if bool(ids) is every:
        raise click.UsageError("Name what is meant by id, or give --all.")


async def _listed(settings: Settings, limit: int) -> list[DeadLetter]:
    found = []
    async with open_services(settings, name=NAME) as services:
        async for letter in letters.listed(services.redis):
            found.append(letter)
            if len(found) == limit:
                break
    return found


async def _got(settings: Settings, letter_id: str) -> DeadLetter | None:
    async with open_services(settings, name=NAME) as services:
        return await letters.get(services.redis, letter_id)


async def _retry(settings: Settings, ids: Sequence[str], *, every: bool) -> int:
    refused = 0
    async with open_services(settings, name=NAME) as services:
        async for letter_id, letter in _each(services.redis, ids, every=every):
            try:
                outcome = Outcome.GONE
                if letter is not None:
                    outcome = await letters.retry(services.redis, letter)
            except NotRetryableError as error:
                refused += 1
                click.echo(f"{letter_id} cannot be tried again. {error}", err=True)
            else:
                click.echo(f"{letter_id} {_SENTENCES[outcome]}")
    return 1 if refused else 0


async def _drop(settings: Settings, ids: Sequence[str], *, every: bool) -> int:
    async with open_services(settings, name=NAME) as services:
        redis = services.redis
        named = [letter_id async for letter_id, _ in _each(redis, ids, every=every)]
        return await letters.drop(redis, named)


async def _each(
    redis: Redis, ids: Sequence[str], *, every: bool
) -> AsyncIterator[tuple[str, DeadLetter | None]]:
    """Yield the dead letters that are meant, each with its id."""
    if every:
        async for letter in letters.listed(redis):
            yield letter.letter_id, letter
    for letter_id in ids:
        yield letter_id, await letters.get(redis, letter_id)


def _table(found: Sequence[DeadLetter]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("id", style="cyan", no_wrap=True)
    table.add_column("rejected (UTC)", no_wrap=True)
    for heading in ("function", "job", "reason"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(
            one.letter_id,
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            Text(preview(one.function)),
            Text(preview(one.job_id)),
            Text(preview(one.reason, LONG)),
        )
    return table


def _line(one: DeadLetter) -> _Line:
    argument = msgspec.Raw(one.argument or b"null")
    return _Line(one.letter_id, one.at, one.job_id, one.function, one.reason, argument)
