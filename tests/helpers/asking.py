"""Threads to ask about, requests, their answers, and jobs as a producer writes them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

from helpers.building import assistant, command, started, user
from helpers.waiting import until
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.store import keys, log
from moonfold_handoff.store.scripts import producer_script
from moonfold_schemas import HandoffRequest, ThreadEvent
from moonfold_schemas.events import ItemRecorded, ThreadStarted
from moonfold_schemas.items import Item, ItemBase
from moonfold_schemas.requests import (
    ForkRequested,
    NewRequest,
    ProviderLimitNear,
    ProviderLimitReached,
    ProviderSwitchRequested,
    RestartRequested,
    Target,
)
from moonfold_schemas.results import (
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
)

SESSION = "session"
THREAD = "thread"
TTL = 3600  # seconds
MAX_EVENT_BYTES = 1024 * 1024
CODEX = Target(provider="codex", version="0.150.0")
CLAUDE = Target(provider="claude-code")
FULL = Target(provider="opencode", capacity=16_000)  # its reserve leaves no room

_numbers = itertools.count(1)
_enqueue = producer_script("enqueue")


def events(*what: ThreadEvent | Item) -> list[ThreadEvent]:
    return [ItemRecorded(item=one) if isinstance(one, ItemBase) else one for one in what]


def conversation(turns: int = 2) -> list[ThreadEvent]:
    items: list[ThreadEvent | Item] = [ThreadStarted(), started()]
    for turn in range(turns):
        items += [
            user(f"question {turn}"),
            command(f"make step-{turn}", "done"),
            assistant(f"answer {turn}"),
        ]
    return events(*items)


async def append(
    redis: Redis,
    what: Sequence[ThreadEvent],
    *,
    thread_id: str = THREAD,
    after: int = 0,
    ttl: int = TTL,
    max_event_bytes: int = MAX_EVENT_BYTES,
) -> int:
    return await log.append(redis, thread_id, after, what, ttl=ttl, max_event_bytes=max_event_bytes)


def _ids(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "request_id": f"request-{next(_numbers)}",
        "session_id": SESSION,
        "thread_id": THREAD,
        "through": 8,  # the end of `conversation()`
        "request": NewRequest(text="go on"),
        **changes,
    }


def switch(**changes: Any) -> ProviderSwitchRequested:
    return ProviderSwitchRequested(**_ids({"target": CLAUDE, **changes}))


def restart(**changes: Any) -> RestartRequested:
    return RestartRequested(**_ids({"target": CODEX, **changes}))


def limited(**changes: Any) -> ProviderLimitReached:
    return ProviderLimitReached(**_ids({"candidates": (CODEX, CLAUDE), **changes}))


def near(**changes: Any) -> ProviderLimitNear:
    return ProviderLimitNear(**_ids({"candidates": (CODEX, CLAUDE), "request": None, **changes}))


def fork(**changes: Any) -> ForkRequested:
    return ForkRequested(**_ids({"target": CLAUDE, "fork_thread_id": "fork", **changes}))


async def listening(redis: Redis) -> None:
    """Wait until one worker listens for hints, on both queues."""

    async def are_both() -> bool:
        counts = await redis.pubsub_numsub(keys.wake(keys.HANDOFFS), keys.wake(keys.BACKGROUND))
        return all(count == 1 for _, count in counts)

    await until(are_both)


async def answer(client: HandoffClient, request: HandoffRequest) -> HandoffResult:
    assert await client.request(request)
    return await client.wait(request.request_id, timeout=10)


async def ready(client: HandoffClient, request: HandoffRequest) -> HandoffReady:
    result = await answer(client, request)
    assert isinstance(result, HandoffReady), result
    return result


async def prepared(client: HandoffClient, request: HandoffRequest) -> HandoffPrepared:
    result = await answer(client, request)
    assert isinstance(result, HandoffPrepared), result
    return result


async def failed(client: HandoffClient, request: HandoffRequest) -> HandoffFailed:
    result = await answer(client, request)
    assert isinstance(result, HandoffFailed), result
    return result


def document(**changes: Any) -> dict[str, Any]:
    """Return a valid request as a producer in another language has it."""
    return {
        "type": "provider.switch_requested",
        "request_id": f"request-{next(_numbers)}",
        "session_id": SESSION,
        "thread_id": THREAD,
        "through": 8,
        "target": {"provider": "claude-code"},
        **changes,
    }


def job(argument: Any, **changes: Any) -> bytes:
    body = {"t": None, "f": "build_handoff", "a": [argument], "k": {}, "et": 0, **changes}
    return json.dumps(body).encode()


async def put(
    redis: Redis, job_id: str | bytes, body: bytes, *, queue: str = keys.HANDOFFS
) -> bool:
    """Call `enqueue` as a producer does, with any body."""
    name = job_id.encode() if isinstance(job_id, str) else job_id
    job_keys: Any = (b"arq:job:" + name, b"moonfold:result:" + name, queue)
    return bool(await _enqueue(redis, job_keys, (name, body, time.time_ns() // 10**6, 60_000)))
