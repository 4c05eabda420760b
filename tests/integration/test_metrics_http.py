"""The small HTTP server, and those who would keep it from its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from conftest import Logged
from helpers.scraping import connected, exchange, get, parsed
from helpers.waiting import DEADLINE_SECONDS, until

from moonfold_handoff.ops import http
from moonfold_handoff.ops.http import HttpServer, Page


async def hello() -> Page:
    return Page(b"hello\n")


async def broken() -> Page:
    raise ValueError("private words")


async def endless() -> Page:
    await asyncio.Event().wait()
    raise AssertionError


async def large() -> Page:
    return Page(b"x" * 64_000_000)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    pages = {"/hello": hello, "/broken": broken, "/endless": endless, "/large": large}
    async with HttpServer("127.0.0.1", 0, pages) as server:
        yield server.address


async def test_a_page_is_served_with_its_length(address: str) -> None:
    answer = await get(address, "/hello?a=b")
    assert (answer.status, answer.body) == (200, "hello\n")
    assert answer.headers["content-length"] == "6"
    assert answer.headers["connection"] == "close"


async def test_head_has_the_headers_only(address: str) -> None:
    answer = await get(address, "/hello", "HEAD")
    assert (answer.status, answer.body) == (200, "")
    assert answer.headers["content-length"] == "6"


async def test_what_is_not_served_is_refused(address: str) -> None:
    assert (await get(address, "/")).status == 404
    answer = await get(address, "/hello", "POST")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "request_line",
    [b"", b"GET", b"GET /hello", b"GET /hello FTP/1.0", b"\xff\x00 \x01 \x02", b"   "],
)
async def test_what_is_no_request_is_refused(address: str, request_line: bytes) -> None:
    assert parsed(await exchange(address, request_line + b"\r\n\r\n")).status == 400


async def test_headers_without_end_are_refused(address: str) -> None:
    head = b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * http.HEAD_BYTES
    async with connected(address) as (reader, writer):
        writer.write(head[: http.HEAD_BYTES + 4])
        assert b" 431 " in await reader.readline()


async def test_who_sends_nothing_is_not_waited_for(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READ_SECONDS", 0.02)
    assert parsed(await exchange(address, b"GET /hel")).status == 408


async def test_who_leaves_before_asking_gets_nothing(address: str) -> None:
    assert await exchange(address, b"GET /hel", ends=True) == b""
    assert (await get(address, "/hello")).status == 200


async def test_who_does_not_read_is_not_waited_for(
    address: str, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.05)
    async with connected(address) as (_, writer):
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")

        async def is_given_up() -> bool:
            return bool(logged.events("metrics_client_gone"))

        await until(is_given_up)


async def test_a_page_that_fails_is_said_without_its_words(address: str, logged: Logged) -> None:
    answer = await get(address, "/broken")
    assert (answer.status, answer.body) == (500, "Internal Server Error\n")
    [line] = logged.events("metrics_page_failed")
    assert line["error"] == "ValueError"
    assert "private" not in logged.text


async def test_there_are_only_so_many_connections(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 3)

    async def is_served() -> bool:
        try:
            return bool(await exchange(address, b"GET /hello HTTP/1.1\r\n\r\n"))
        except ConnectionError:
            return False

    async def is_full() -> bool:
        return not await is_served()

    async with AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(connected(address))
        await until(is_full)
    await until(is_served)


async def test_the_end_does_not_wait_for_anybody() -> None:
    server = HttpServer("127.0.0.1", 0, {"/endless": endless})

    async def are_served() -> bool:
        return len(server._connections) == 2

    async with AsyncExitStack() as held:
        async with asyncio.timeout(DEADLINE_SECONDS), server:
            _, writer = await held.enter_async_context(connected(server.address))
            writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
            await held.enter_async_context(connected(server.address))
            await until(are_served)
        assert not server._connections


async def test_an_address_of_the_newer_protocol_has_brackets() -> None:
    try:
        async with HttpServer("::1", 0, {"/hello": hello}) as server:
            assert server.address.startswith("[::1]:")
            assert (await get(server.address, "/hello")).status == 200
    except OSError:
        pytest.skip("there is no IPv6 here")


def test_a_server_that_is_not_open_has_no_address() -> None:
    with pytest.raises(RuntimeError):
        _ = HttpServer("127.0.0.1", 0, {}).address
