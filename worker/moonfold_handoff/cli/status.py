"""`moonfold status`."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from typing import NoReturn

import click
import msgspec
from rich.console import Console

from moonfold_handoff.cli.standing import glance
from moonfold_handoff.embedded import EmbeddedServerError
from moonfold_handoff.ops import status as ops
from moonfold_handoff.ops.status import MAX_AGE, Server, Status
from moonfold_handoff.ops.workers import Beat
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store.connection import InvalidRedisUrlError, RedisError

NAME = "moonfold-status"  # in the server's client list
SECONDS = 10.0  # for all that is read
DEGRADED = 1  # exit status
UNREACHABLE = 2  # exit status


class _Queue(msgspec.Struct):
    """One queue, as `--json` prints it."""

    depth: int
    in_progress: int
    deferred: int
    oldest_seconds: float


class _Provider(msgspec.Struct):
    """One provider instance, as `--json` prints it."""

    name: str
    available: bool
    until: datetime | None


class _Document(msgspec.Struct):
    """What `--json` prints."""

    status: str
    problems: tuple[str, ...]
    queues: dict[str, _Queue]
    rejected: int
    rejected_at: datetime | None
    workers: list[Beat]
    providers: list[_Provider]
    server: Server


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
@click.option(
    "--max-age",
    default=MAX_AGE,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long the oldest interactive job may be due.",
)
@click.pass_obj
def status(settings: Settings, *, as_json: bool, max_age: float) -> None:
    """Show how queues, workers and providers stand.

    The exit status is 0 where all is well; 1 where it is degraded: no worker lives, the oldest job is
    older than it should be, a job was rejected within the hour, or the server is nearly full; and 2 where
    the server cannot be used.
    """
    try:
        found = asyncio.run(read(settings, max_age))
    except (RedisError, OSError, TimeoutError, EmbeddedServerError, InvalidRedisUrlError) as error:
        unreachable(error, as_json=as_json)
    if as_json:
        click.echo(msgspec.json.encode(_document(found)))
    else:
        Console(emoji=False, highlight=False).print(glance(found))
    sys.exit(0 if found.is_healthy else DEGRADED)


async def read(settings: Settings, max_age: float = MAX_AGE) -> Status:
    """Return how it stands; the errors are those of a server that cannot be used."""
    async with asyncio.timeout(SECONDS), open_services(settings, name=NAME) as services:
        return await ops.read(services, max_age=max_age)


def unreachable(error: Exception, *, as_json: bool = False) -> NoReturn:
    """Say that the server cannot be used, and end."""
    reason = str(error) or f"it did not answer within {SECONDS:.0f} s"
    if as_json:
        click.echo(msgspec.json.encode({"status": "unreachable", "problems": [reason]}))
    click.echo(f"The server cannot be used: {reason}", err=True)
    sys.exit(UNREACHABLE)


def _document(found: Status) -> _Document:
    figures = found.figures
    return _Document(
        status="healthy" if found.is_healthy else "degraded",
        problems=found.problems,
        queues={
            one.queue: _Queue(one.depth, one.in_progress, one.deferred, one.oldest_seconds)
            for one in figures.queues
        },
        rejected=figures.rejected,
        rejected_at=figures.rejected_at,
        workers=found.workers,
        providers=[
            _Provider(
                one.instance.name, one.notice is None, one.notice.until if one.notice else None
            )
            for one in found.providers
        ],
        server=found.server,
    )
