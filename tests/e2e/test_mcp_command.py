from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner
from helpers.asking import append, conversation
from helpers.mcp_clients import answer_of, environment, over_http
from helpers.servers import RedisServer
from redis.asyncio import Redis

from moonfold_handoff.cli import main
from moonfold_handoff.delivery.reader import COMMAND
from moonfold_handoff.reading import configuration
from moonfold_handoff.reading.configuration import INSTALL
from moonfold_handoff.store import tokens


@asynccontextmanager
async def serving(
    server: RedisServer, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `moonfold mcp --http` and give it with the URL that it prints."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        env=environment(server.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def finished(
    server: RedisServer, arguments: Sequence[str], given: bytes
) -> tuple[int | None, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        env=environment(server.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(given)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_over_http_it_prints_its_url_serves_and_stops_when_told(
    server: RedisServer, redis: Redis, number: signal.Signals
) -> None:
    await append(redis, conversation())
    token = await tokens.issue(redis, tokens.granted("thread", 8, ttl=60), 60)
    async with serving(server, "--http") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        async with over_http(url, token) as client:
            page = answer_of(await client.call_tool("thread_read", {"position": 3}))
        assert page["items"][0]["text"] == "question 0"
        process.send_signal(number)
        out, err = await process.communicate()
        assert (process.returncode, out, err) == (0, b"", b"")


async def test_agents_elsewhere_need_to_be_told_a_name(server: RedisServer) -> None:
    async with serving(server, "--http", "0.0.0.0:0") as (process, url):
        assert url.startswith("http://0.0.0.0:")
        process.terminate()
        _, err = await process.communicate()
    assert b"MOONFOLD_READER_URL is not set" in err


async def test_over_stdio_it_ends_with_its_agent_and_prints_nothing_of_its_own(
    server: RedisServer,
) -> None:
    assert await finished(server, (), b"") == (0, b"", b"")
    code, out, _ = await finished(server, (), b"not a message\n")
    assert code == 0
    assert all(line.startswith(b'{"jsonrpc"') for line in out.splitlines())


@pytest.mark.parametrize("address", ["8080", "127.0.0.1:", ":80", "h:65536", "h:-1", "h:x"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    done = CliRunner().invoke(main, ["mcp", "--http", address])
    assert done.exit_code == 2
    assert "is not HOST:PORT" in done.output


def test_an_address_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = CliRunner().invoke(main, ["mcp", "--http", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert done.exit_code == 1
    assert "in use" in done.output


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["mcp"])
    assert (done.exit_code, done.output) == (1, f"Error: {INSTALL}\n")
