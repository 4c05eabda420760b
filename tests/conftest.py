from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from helpers.asking import append, conversation
from helpers.limits import POLICY
from helpers.servers import KINDS, RedisServer, binary_of
from helpers.waiting import DEADLINE_SECONDS
from redis.asyncio import Redis

import redis as sync_redis
from moonfold_handoff import logs, worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.policy import load_policy
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import SETTINGS, Settings
from moonfold_handoff.store import keys

QUEUES = {keys.HANDOFFS.encode(), keys.BACKGROUND.encode()}


class Servers:
    """The servers of a test run, each started when the first test asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, RedisServer] = {}

    def get(self, kind: str) -> RedisServer:
        if kind not in self._running:
            binary = binary_of(kind)
            if binary is None:
                pytest.skip("redis-server is not installed")
            self._running[kind] = self._stack.enter_context(RedisServer(binary))
        return self._running[kind]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: Servers) -> RedisServer:
    """A server that other tests use, too, and that is empty."""
    return servers.get(request.param)


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server for one test, durable, to be killed or spoilt."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip("redis-server is not installed")
    with RedisServer(binary, append_only=True) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_key_without_lifetime(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a key without a TTL on its server."""
    if "server" not in request.fixturenames:
        yield
        return
    with sync_redis.Redis.from_url(request.getfixturevalue("server").url) as client:
        client.flushall()
        yield
        kept = list(client.scan_iter(count=1000))
        lasting = [key for key in kept if client.pttl(key) == -1 and key not in QUEUES]
        client.flushall()
    assert not lasting, f"keys without a lifetime: {lasting}"


@pytest.fixture
def settings(server: RedisServer) -> Settings:
    return Settings(redis_url=server.url)


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    async with open_services(settings, name="test") as services:
        yield services


@pytest.fixture
async def redis(services: Services) -> Redis:
    return services.redis


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[HandoffClient]:
    async with HandoffClient("session", settings) as client:
        yield client


@pytest.fixture
async def ruled(settings: Settings, tmp_path: Path) -> AsyncIterator[Services]:
    """Services of a worker with a failover policy."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY, encoding="utf-8")
    async with open_services(settings, name="test", policy=load_policy(file)) as services:
        yield services


@pytest.fixture
async def recorded(redis: Redis) -> None:
    """Record the thread that requests mean by default."""
    await append(redis, conversation())


@dataclass
class RunningWorker:
    """`worker.run` as a task."""

    settings: Settings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready = asyncio.Event()
        self.task = asyncio.create_task(worker.run(self.settings, self.stopping, ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((self.task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        assert self.task is not None
        self.stopping.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.task


@pytest.fixture
async def running_worker(settings: Settings) -> AsyncIterator[RunningWorker]:
    running = RunningWorker(settings)
    await running.start()
    yield running
    await running.stop()


@dataclass
class Logged:
    """Everything that was logged, whoever logged it."""

    ours: io.StringIO = field(default_factory=io.StringIO)
    everything: io.StringIO = field(default_factory=io.StringIO)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ours.getvalue().splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    @property
    def text(self) -> str:
        return self.ours.getvalue() + self.everything.getvalue()


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Put logging back as it was."""
    root, arq, redis = logging.getLogger(), logging.getLogger("arq"), logging.getLogger("redis")
    before = root.handlers[:], root.level, arq.level, redis.level
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        for logger, level in zip((root, arq, redis), before[1:], strict=True):
            logger.setLevel(level)
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


@pytest.fixture
def logged(restored_logging: None) -> Logged:
    """Capture what Moonfold logs as it is configured, and what the libraries would say at DEBUG."""
    logged = Logged()
    logs.configure(format_="json", level="debug", stream=logged.ours)
    handler = logging.StreamHandler(logged.everything)
    for name in ("arq", "redis"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(logging.DEBUG)
    return logged


@pytest.fixture
def at_the_server(
    monkeypatch: pytest.MonkeyPatch, server: RedisServer, restored_logging: None
) -> None:
    """Let a command run here with no settings but the server's address, on a wide terminal."""
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("MOONFOLD_REDIS_URL", server.url)
    monkeypatch.setenv("COLUMNS", "160")


def do(server: RedisServer, what: Callable[[Services], Awaitable[object]]) -> Any:
    """Do something with a server's services, from a test that is not asynchronous."""

    async def run() -> object:
        async with open_services(Settings(redis_url=server.url), name="test") as services:
            return await what(services)

    return asyncio.run(run())
