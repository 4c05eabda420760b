"""`moonfold top`."""

from __future__ import annotations

import asyncio
import contextlib

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from moonfold_handoff.cli.standing import everything
from moonfold_handoff.cli.status import read, unreachable
from moonfold_handoff.embedded import EmbeddedServerError
from moonfold_handoff.ops import status as ops
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store.connection import InvalidRedisUrlError, RedisError

NAME = "moonfold-top"  # in the server's client list
READ_SECONDS = 3.0  # for one look


@click.command()
@click.option("--once", is_flag=True, help="Look once and end, as it does off a terminal.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Between two looks.",
)
@click.pass_obj
def top(settings: Settings, *, once: bool, interval: float) -> None:
    """Show live how queues, workers, providers and the latest handoffs stand. Ctrl-C ends it."""
    console = Console(emoji=False, highlight=False)
    try:
        if once or not console.is_terminal:
            console.print(everything(asyncio.run(read(settings))))
        else:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(_watch(settings, console, interval))
    except (RedisError, OSError, TimeoutError, EmbeddedServerError, InvalidRedisUrlError) as error:
        unreachable(error)


async def _watch(settings: Settings, console: Console, interval: float) -> None:
    async with open_services(settings, name=NAME) as services:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(await _look(services), refresh=True)
                await asyncio.sleep(interval)


async def _look(services: Services) -> RenderableType:
    """Return what there is to see; a server that is away may come back."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return everything(await ops.read(services))
    except (RedisError, OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {READ_SECONDS:.0f} s"
        return Text(f"The server cannot be used: {reason}", style="bold red")
