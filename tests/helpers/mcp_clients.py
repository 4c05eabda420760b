"""Agents of a test: the MCP SDK's own client, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

import moonfold_handoff
import moonfold_schemas
from moonfold_handoff.delivery.reader import COMMAND
from moonfold_handoff.reading.configuration import TOKEN
from moonfold_handoff.reading.serving import http_server, local_url
from moonfold_handoff.services import Services

MODES = ("legacy", "auto")
"""The protocol with a handshake, which agents speak today, and the newest one."""

Connect = Callable[[str], AbstractAsyncContextManager[Client]]
"""How an agent gets a client for a token."""


def environment(url: str, **more: str) -> dict[str, str]:
    """Return the environment of a process that runs the code under test against a server."""
    packages = (moonfold_schemas, moonfold_handoff)
    paths = [str(Path(str(package.__file__)).parents[1]) for package in packages]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(paths),
        "MOONFOLD_REDIS_URL": url,
        **more,
    }


@asynccontextmanager
async def over_stdio(
    url: str, token: str, errors: Path, *, mode: str = "legacy"
) -> AsyncIterator[Client]:
    """Connect as an agent that starts `moonfold mcp`; what that logs goes to `errors`."""
    program, *arguments = COMMAND
    parameters = StdioServerParameters(
        command=program, args=arguments, env=environment(url, **{TOKEN: token})
    )
    with errors.open("w") as log:
        async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
            yield client


@asynccontextmanager
async def over_http(url: str, token: str, *, mode: str = "legacy") -> AsyncIterator[Client]:
    """Connect as an agent on another machine."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def http_reader(services: Services, public_url: str | None = None) -> AsyncIterator[str]:
    """Serve the reader over HTTP in this process, and give the URL where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = http_server(services, listening, public_url=public_url)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield local_url(listening)
        finally:
            server.should_exit = True
            await serving


def text_of(result: CallToolResult) -> str:
    """Return the text that a model reads."""
    [content] = result.content
    assert content.type == "text"
    return content.text


def answer_of(result: CallToolResult) -> dict[str, Any]:
    """Return the structured answer of a call that succeeded."""
    assert not result.is_error, text_of(result)
    answer: dict[str, Any] | None = result.structured_content
    assert answer is not None
    return answer
