"""Giving a new Codex thread its history as messages: `thread/inject_items` of Codex's app-server (R5).

The protocol is JSON-RPC in lines over standard input and output; checked with Codex 0.171.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

import msgspec

from moonfold_schemas.results import ResponseMessage

REPLY_SECONDS = 30.0  # for one reply; Codex looks at its models and its store at the start
END_SECONDS = 5.0  # for the server to end once its input is closed
LINE_BYTES = 16 * 1024 * 1024  # of one message from it

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class InjectionError(Exception):
    """Codex did not take the history; no thread of its holds a part of it that a person would meet."""


async def inject(program: str, items: Sequence[ResponseMessage], *, cwd: str | None) -> str:
    """Start a Codex thread that holds `items`, and return its id, which `codex resume` takes.

    Args:
        program: the `codex` program.
        items: the history.
        cwd: where the thread works; None: here.

    Raises:
        InjectionError: the server does not start, does not answer, or refuses.
    """
    async with _server(program, cwd) as server:
        client = {"name": "moonfold", "title": "Moonfold", "version": version("moonfold-handoff")}
        capabilities = {"experimentalApi": True}
        await server.call("initialize", {"clientInfo": client, "capabilities": capabilities})
        await server.notify("initialized")
        started = await server.call("thread/start", {} if cwd is None else {"cwd": cwd})
        try:
            thread_id = started["thread"]["id"]
        except (KeyError, TypeError):
            raise InjectionError("Codex started a thread and did not say which.") from None
        if not isinstance(thread_id, str):
            raise InjectionError("Codex started a thread and did not say which.")
        if items:  # an empty list is refused
            injected = {"threadId": thread_id, "items": msgspec.to_builtins(tuple(items))}
            await server.call("thread/inject_items", injected)
        return thread_id


class _Server:
    def __init__(self, written: asyncio.StreamWriter, read: asyncio.StreamReader) -> None:
        self._in = written
        self._out = read
        self._calls = 0

    async def call(self, method: str, parameters: dict[str, Any]) -> Any:
        """Return the result of a call; what the server says meanwhile is not for us."""
        self._calls += 1
        await self._send({"id": self._calls, "method": method, "params": parameters})
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                while True:
                    reply = await self._receive()
                    if reply.get("id") == self._calls and "method" not in reply:
                        break
        except TimeoutError:
            raise InjectionError(
                f"Codex did not answer {method} within {REPLY_SECONDS:.0f} s."
            ) from None
        if "error" in reply:
            error = reply["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise InjectionError(f"Codex refused {method} (error {code}).")
        return reply.get("result")

    async def notify(self, method: str) -> None:
        await self._send({"method": method})

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            self._in.write(_encode(message) + b"\n")
            await self._in.drain()
        except ConnectionError:
            raise InjectionError("Codex's app-server ended.") from None

    async def _receive(self) -> dict[str, Any]:
        try:
            line = await self._out.readline()
        except ValueError:
            raise InjectionError("Codex's app-server wrote a line that is too long.") from None
        if not line:
            raise InjectionError("Codex's app-server ended.")
        try:
            message = _decode(line)
        except msgspec.DecodeError:
            message = None
        return message if isinstance(message, dict) else {}


@asynccontextmanager
async def _server(program: str, cwd: str | None) -> AsyncIterator[_Server]:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "app-server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=cwd,
            limit=LINE_BYTES,
        )
    except OSError as error:
        raise InjectionError(f"Codex cannot be started: {error.strerror}.") from None
    if process.stdin is None or process.stdout is None:
        raise AssertionError  # both are pipes
    try:
        yield _Server(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
