"""Sessions that record turns and ask for handoffs, whatever becomes of the server meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.exceptions import RedisError

from moonfold_handoff.client import HandoffClient
from moonfold_schemas import HandoffRequest, NewRequest, Target, ThreadEvent
from moonfold_schemas.events import ItemRecorded, ThreadStarted, TurnEnded, TurnStarted, TurnStatus
from moonfold_schemas.items import AssistantMessage, Command, ItemStatus, UserMessage
from moonfold_schemas.requests import ForkRequested, ProviderLimitReached, ProviderSwitchRequested

TURNS = 12  # of a thread at most, before the next one
LONGEST = 3_000  # characters of an item
PAUSE = 0.15  # seconds between two turns, on average
AGAIN = 0.05  # seconds before a call is repeated that the server did not acknowledge
SESSIONS = 5  # of a producer at once, which take turns, so that few requests supersede each other
REQUESTS = 1_000  # of these, before others come; their streams keep all their results

CODEX = Target(provider="codex", version="0.171.0")
CLAUDE = Target(provider="claude-code")

R = TypeVar("R")


@dataclass(slots=True)
class Ledger:
    """What the server acknowledged.

    Attributes:
        accepted: requests, and when they were acknowledged, in seconds since the epoch.
        sessions: who asked.
        threads: the last sequence that was acknowledged, by thread.
        repeated: calls that were not acknowledged, and so repeated.
    """

    accepted: dict[str, float] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    threads: dict[str, int] = field(default_factory=dict)
    repeated: int = 0


class Producer:
    """One of several that work at once; nobody waits for a result.

    A session that waits would ask again for what was lost, and hide it.
    """

    def __init__(self, name: str, client: HandoffClient, ledger: Ledger, seed: int) -> None:
        self._name = name
        self._client = client
        self._ledger = ledger
        self._random = random.Random(f"{seed}-{name}")
        self._asked = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Go on until `stop` is set; what is begun is finished."""
        number = 0
        while not stop.is_set():
            thread_id = f"{self._name}-thread-{number}"
            last = 0
            for turn in range(self._random.randint(1, TURNS)):
                last = await self._record(thread_id, last, turn)
                await self._ask(thread_id, last)
                await asyncio.sleep(self._random.expovariate(1 / PAUSE))
                if stop.is_set():
                    break
            number += 1

    async def _record(self, thread_id: str, last: int, turn: int) -> int:
        events = self._turn(turn)
        last = await self._again(lambda: self._client.append(thread_id, last, events))
        self._ledger.threads[thread_id] = last
        return last

    async def _ask(self, thread_id: str, through: int) -> None:
        request = self._request(thread_id, through)
        await self._again(lambda: self._client.request(request))
        self._ledger.accepted[request.request_id] = time.time()
        self._ledger.sessions.add(request.session_id)

    async def _again(self, call: Callable[[], Awaitable[R]]) -> R:
        while True:
            try:
                return await call()
            except (RedisError, OSError):
                self._ledger.repeated += 1
                await asyncio.sleep(AGAIN)

    def _turn(self, turn: int) -> list[ThreadEvent]:
        name = f"turn-{turn}"
        items = (
            UserMessage(item_id=f"u{turn}", turn_id=name, text=self._text()),
            Command(
                item_id=f"c{turn}",
                turn_id=name,
                command=f"make step-{turn}",
                exit_code=self._random.choice((0, 0, 1)),
                output=self._text(),
                status=ItemStatus.COMPLETED,
            ),
            AssistantMessage(item_id=f"a{turn}", turn_id=name, text=self._text()),
        )
        events: list[ThreadEvent] = [] if turn else [ThreadStarted()]
        events.append(TurnStarted(turn_id=name))
        events.extend(ItemRecorded(item=item) for item in items)
        events.append(TurnEnded(turn_id=name, status=TurnStatus.COMPLETED))
        return events

    def _text(self) -> str:
        length = self._random.randint(1, LONGEST)
        return "".join(self._random.choices("abcdefgh ./_\n", k=length))

    def _request(self, thread_id: str, through: int) -> HandoffRequest:
        self._asked += 1
        ids: dict[str, Any] = {
            "request_id": f"{self._name}-request-{self._asked}",
            "session_id": f"{self._name}-session-{self._asked % SESSIONS}-{self._asked // REQUESTS}",
            "thread_id": thread_id,
            "through": through,
        }
        new = NewRequest(text="Go on.")
        match self._random.randrange(10):
            case 0:
                fork_id = f"{self._name}-fork-{self._asked}"
                return ForkRequested(**ids, target=CLAUDE, fork_thread_id=fork_id)
            case 1 | 2 | 3:
                return ProviderLimitReached(**ids, candidates=(CODEX, CLAUDE), request=new)
        return ProviderSwitchRequested(**ids, target=CLAUDE, request=new)
