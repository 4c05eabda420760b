from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest
from helpers.asking import append, conversation, switch
from helpers.clusters import Node
from helpers.servers import KINDS, binary_of
from helpers.waiting import DEADLINE_SECONDS, until
from redis.asyncio import Redis

from moonfold_handoff.store import keys, queue

REQUESTS = 150


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A server that listens on a port, too."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip("redis-server is not installed")
    with Node(binary) as running:
        yield running


class Process:
    """A worker process that has a directory, an environment and a home of its own."""

    def __init__(self, url: str, place: Path) -> None:
        place.mkdir()
        self._log = place / "log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONFOLD_")}
        environment |= {"MOONFOLD_REDIS_URL": url, "MOONFOLD_LOG_FORMAT": "json"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moonfold_handoff", "worker"],
                cwd=place,
                env={**environment, "HOME": str(place), "TMPDIR": str(place)},
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)

    def answered(self) -> list[str]:
        lines = map(json.loads, self._log.read_text(encoding="utf-8").splitlines())
        return [line["request_id"] for line in lines if line["event"] == "handoff_ready"]

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(DEADLINE_SECONDS) == 0


async def test_workers_that_share_nothing_but_a_server_share_its_queue(
    node: Node, tmp_path: Path
) -> None:
    async with Redis.from_url(node.url) as redis, AsyncExitStack() as stack:
        await append(redis, conversation())
        workers = [
            stack.enter_context(Process(node.url, tmp_path / "one")),
            stack.enter_context(Process(f"redis://{node.place}", tmp_path / "other")),
        ]

        async def both_listen() -> bool:
            [(_, count)] = await redis.pubsub_numsub(keys.wake(keys.HANDOFFS))
            return bool(count == len(workers))

        await until(both_listen)
        requests = [switch(session_id=f"s-{number}") for number in range(REQUESTS)]
        for request in requests:
            await queue.enqueue_request(redis, request)

        async def all_are_answered() -> bool:
            results = [keys.result(request.request_id) for request in requests]
            return int(await redis.exists(*results)) == REQUESTS

        await until(all_are_answered)
        await asyncio.gather(*(asyncio.to_thread(worker.end) for worker in workers))
        shares = [worker.answered() for worker in workers]
        assert all(shares)
        answers = Counter(shares[0] + shares[1])
        assert answers == dict.fromkeys((request.request_id for request in requests), 1)
        for request in requests:
            assert await redis.xlen(keys.results(request.session_id)) == 1
