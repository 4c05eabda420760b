"""One run: load, and trouble meanwhile; then everything is started again and has to be answered."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings

from .processes import Server, Worker
from .producers import Ledger, Producer
from .verdict import Verdict, judged, settled

BETWEEN = 0.7  # seconds to the next trouble, on average
RECOVERED = (
    0.7  # share of troubles that find all workers serving; the others may find them starting
)
AWAY = 0.3  # seconds that a server stays away at most
SETTLE_SECONDS = 60.0  # for all to be answered once nothing is killed any more
TROUBLES = {
    "worker, SIGKILL": 4,
    "worker, SIGTERM": 3,
    "server, SIGKILL": 3,
    "server, SIGTERM": 1,
    "server and workers, SIGKILL": 2,
}
"""What happens, and how often beside the others."""


class Chaos:
    """A server and workers, and what is done to them.

    Args:
        workers: how many there are.
        fsync: of the server's append-only file.
        seed: of what happens when.
    """

    def __init__(self, *, workers: int, fsync: str, seed: int) -> None:
        self.server = Server(fsync)
        self.kills: Counter[str] = Counter()
        self.logs = [self.server.directory / f"worker-{number}.log" for number in range(workers)]
        self._workers = [Worker(self.server.url, log) for log in self.logs]
        self._random = random.Random(seed)
        self._seed = seed

    @property
    def settings(self) -> Settings:
        """How to reach the server."""
        return Settings(redis_url=self.server.url)

    async def run(self, seconds: float, producers: int) -> Verdict:
        """Make trouble for so long, at least once of each kind, and return what came of it."""
        ledger = Ledger()
        try:
            await asyncio.to_thread(self.server.start)
            await self._each(Worker.start)
            await self._under_load(seconds, producers, ledger)
            await self._each(Worker.ensure)
            async with open_services(self.settings, name="chaos") as services:
                await settled(services.redis, ledger, SETTLE_SECONDS)
                await self._each(partial(Worker.end, number=signal.SIGTERM))
                return await judged(services.redis, ledger, self.kills, self.logs)
        finally:
            await self._each(partial(Worker.end, number=signal.SIGKILL))
            await asyncio.to_thread(self.server.remove)

    async def _under_load(self, seconds: float, producers: int, ledger: Ledger) -> None:
        stop = asyncio.Event()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for number in range(producers):
                client = HandoffClient(f"producer-{number}", self.settings)
                await stack.enter_async_context(client)
                producer = Producer(f"p{number}", client, ledger, self._seed)
                group.create_task(producer.run(stop))
            await self._trouble(seconds)
            stop.set()

    async def _trouble(self, seconds: float) -> None:
        """Strike again and again, in every way at least once; all is started again at once."""
        now = asyncio.get_running_loop().time
        end = now() + seconds
        kinds = self._random.sample(list(TROUBLES), len(TROUBLES))
        while kinds or now() < end:
            if self._random.random() < RECOVERED:
                await self._each(Worker.serves)
            await asyncio.sleep(self._random.expovariate(1 / BETWEEN))
            [likely] = self._random.choices(list(TROUBLES), list(TROUBLES.values()))
            kind = kinds.pop() if kinds else likely
            who, _, name = kind.partition(", ")
            number = signal.Signals[name]
            self.kills[kind] += 1
            if who == "worker":
                worker = self._random.choice(self._workers)
                await asyncio.to_thread(worker.end, number)
                await asyncio.to_thread(worker.start)
                continue
            if who == "server and workers":
                await self._each(partial(Worker.end, number=number))
            await asyncio.to_thread(self.server.end, number)
            await asyncio.sleep(self._random.uniform(0, AWAY))
            await asyncio.to_thread(self.server.start)
            await self._each(Worker.ensure)

    async def _each(self, do: Callable[[Worker], object]) -> None:
        for worker in self._workers:
            await asyncio.to_thread(do, worker)
