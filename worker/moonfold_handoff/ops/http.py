"""A small HTTP server for those who watch: a few paths, read only, in the worker's own loop.

Whoever connects may be slow, malformed or many: a request has a time and a size, a connection one
request, and there are only so many connections. None of it can keep the worker from its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

import structlog

from moonfold_handoff.tasks import end

HEAD_BYTES = 8_192  # of a request line and its headers at most
READ_SECONDS = 5.0  # for a request to arrive
WRITE_SECONDS = 10.0  # for an answer to be made and taken
CONNECTIONS = 32  # at once; more are closed unanswered

TEXT = "text/plain; charset=utf-8"

logger = structlog.get_logger()


class Page(NamedTuple):
    """What a path answers."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Handler = Callable[[], Awaitable[Page]]


class HttpServer:
    """Serves `GET` and `HEAD` of fixed paths; an async context manager.

    Args:
        host: where it listens.
        port: on which; 0 for any free one.
        pages: what it serves, by path.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Handler]) -> None:
        self._host, self._port, self._pages = host, port, pages
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=HEAD_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
            await asyncio.gather(*map(end, self._connections))
            await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`.

        Raises:
            RuntimeError: it is not open.
        """
        if self._server is None:
            raise RuntimeError("HttpServer is used outside `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await _head(reader)
            async with asyncio.timeout(WRITE_SECONDS):
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            logger.debug("metrics_client_gone", error=type(error).__name__)
        finally:
            writer.transport.abort()  # whatever is not sent by now is not wanted

    async def _answer(self, head: bytes | HTTPStatus) -> bytes:
        if isinstance(head, HTTPStatus):
            return _response(_message(head))
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(_message(HTTPStatus.BAD_REQUEST))
        method, target, _ = words
        page = self._pages.get(target.partition(b"?")[0].decode("latin-1"))
        if page is None:
            return _response(_message(HTTPStatus.NOT_FOUND))
        if method not in {b"GET", b"HEAD"}:
            return _response(_message(HTTPStatus.METHOD_NOT_ALLOWED), "Allow: GET, HEAD")
        return _response(await self._made(page), bodiless=method == b"HEAD")

    @staticmethod
    async def _made(page: Handler) -> Page:
        try:
            return await page()
        except Exception:
            logger.exception("metrics_page_failed")
            return _message(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _head(reader: asyncio.StreamReader) -> bytes | HTTPStatus:
    """Return a request's line and headers, or why they are refused."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    except TimeoutError:
        return HTTPStatus.REQUEST_TIMEOUT


def _message(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status)


def _response(page: Page, *headers: str, bodiless: bool = False) -> bytes:
    lines = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    )
    head = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
    return head if bodiless else head + page.body
