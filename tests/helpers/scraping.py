"""Asking a worker over HTTP as a monitor does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from helpers.waiting import DEADLINE_SECONDS
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Answer(NamedTuple):
    """What an HTTP server answered."""

    status: int
    headers: dict[str, str]
    body: str


@asynccontextmanager
async def connected(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Give a connection, and close it whatever the other side did."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def exchange(address: str, request: bytes, *, ends: bool = False) -> bytes:
    """Send bytes and return all that comes back; with `ends`, nothing more is to be expected of us."""
    async with connected(address) as (reader, writer):
        writer.write(request)
        await writer.drain()
        if ends:
            writer.write_eof()
        return await reader.read()


def parsed(reply: bytes) -> Answer:
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(status.split(" ")[1]), headers, body.decode())


async def get(address: str, path: str, method: str = "GET") -> Answer:
    return parsed(await exchange(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))


async def scrape(address: str) -> dict[str, Metric]:
    """Return what `/metrics` says, by name."""
    answer = await get(address, "/metrics")
    assert answer.status == 200, answer
    return families(answer.body)


def families(text: str) -> dict[str, Metric]:
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    """Return one sample by its full name and, of its labels, those given."""
    found = [
        sample.value
        for metric in metrics.values()
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])
