"""`moonfold mcp`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from ipaddress import ip_address
from typing import Any

import click
import structlog

from moonfold_handoff.reading.configuration import INSTALL, TOKEN, is_installed
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings

NAME = "moonfold-reader"  # in the server's client list
DEFAULT_ADDRESS = "127.0.0.1:0"

logger = structlog.get_logger()


class _Address(click.ParamType[tuple[str, int]]):
    name = "address"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:8080", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option(
    "--http",
    "address",
    type=_Address(),
    is_flag=False,
    flag_value=DEFAULT_ADDRESS,
    metavar="HOST:PORT",
    help=f"Serve agents over HTTP instead; without an address {DEFAULT_ADDRESS}, where 0 is a free port.",
)
@click.pass_obj
def mcp(settings: Settings, *, address: tuple[str, int] | None) -> None:
    """Serve an agent what its handoff left out, as an MCP server.

    An agent starts it and talks to it over standard input and output; what it may read says the token
    in MOONFOLD_READER_TOKEN. With --http it serves agents elsewhere, each with its own bearer token,
    and prints its URL.
    """
    if not is_installed():
        raise click.ClickException(INSTALL)
    for warning in settings.warnings:
        logger.warning("setting_ignored", reason=warning)
    asyncio.run(_stdio(settings) if address is None else _http(settings, *address))


async def _stdio(settings: Settings) -> None:
    from moonfold_handoff.reading.serving import serve_stdio  # noqa: PLC0415 - an extra, and slow

    async with open_services(settings, name=NAME) as services:
        await serve_stdio(services, os.environ.get(TOKEN, ""))


async def _http(settings: Settings, host: str, port: int) -> None:
    from moonfold_handoff.reading import serving  # noqa: PLC0415 - an extra, and slow

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        async with open_services(settings, name=NAME) as services:
            server = serving.http_server(services, listening, public_url=settings.reader_url)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                # The HTTP server listens to them only once it serves, and raises them again at its end.
                loop.add_signal_handler(number, setattr, server, "should_exit", True)
            if (
                settings.reader_url is None
                and ip_address(listening.getsockname()[0]).is_unspecified
            ):
                # By which name they will call it cannot be known, and any name is what attacks use.
                logger.warning(
                    "agents_elsewhere_are_refused", reason="MOONFOLD_READER_URL is not set"
                )
            click.echo(serving.local_url(listening))
            await server.serve(sockets=[listening])
