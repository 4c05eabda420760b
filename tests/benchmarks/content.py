"""Conversations to measure with: deterministic, of ordinary proportions, with UUIDs as ids."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from moonfold_handoff.client import HandoffClient
from moonfold_schemas import HandoffResult, NewRequest, Target
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import (
    AssistantMessage,
    Command,
    FileChange,
    FileChangeKind,
    Item,
    UserMessage,
)
from moonfold_schemas.requests import ProviderSwitchRequested
from moonfold_schemas.results import HandoffReady

PERIOD = 1_000  # items until a conversation repeats itself, so that threads of any length end alike
WAIT_SECONDS = 30.0
APPEND_AT_ONCE = 5_000  # events in one call of the client, which sends them in its own batches

_PROSE = (
    "the parser keeps each token until its line ends so we can report where a string began and "
    "which test in tests/test_parser.py fails after the change of src/parser/tokens.py because "
    "ValueError is raised for an empty line"
)
_WORDS = _PROSE.split()
_TURN = ("user", "assistant", "command", "assistant", "file", "command", "assistant", "command")


def new_id() -> str:
    return str(uuid.uuid4())


def conversation(items: int) -> list[ItemRecorded]:
    """Return the records of a conversation: requests, answers, commands, changes."""
    contents = _period()
    return [
        ItemRecorded(item=replace(contents[index % PERIOD], item_id=_id(index)))
        for index in range(items)
    ]


async def record(client: HandoffClient, events: Sequence[ItemRecorded]) -> str:
    """Append a whole thread and return its id."""
    thread_id, last = new_id(), 0
    for start in range(0, len(events), APPEND_AT_ONCE):
        last = await client.append(thread_id, last, events[start : start + APPEND_AT_ONCE])
    return thread_id


def switch(client: HandoffClient, thread_id: str, through: int) -> ProviderSwitchRequested:
    """Return a request for the whole thread, with a text as a person would write it."""
    return ProviderSwitchRequested(
        request_id=new_id(),
        session_id=client.session_id,
        thread_id=thread_id,
        through=through,
        request=NewRequest(text="Please make the failing test in tests/test_parser.py pass."),
        target=Target(provider="claude-code", model="large"),
    )


async def hand_off(client: HandoffClient, request: ProviderSwitchRequested) -> HandoffReady:
    await client.request(request)
    return ready(await client.wait(request.request_id, WAIT_SECONDS))


def ready(result: HandoffResult) -> HandoffReady:
    if not isinstance(result, HandoffReady):
        raise TypeError(f"no handoff but {result}")
    return result


@cache
def _period() -> tuple[Item, ...]:
    random_ = random.Random(1)
    return tuple(_item(random_, _TURN[index % len(_TURN)]) for index in range(PERIOD))


def _item(random_: random.Random, kind: str) -> Item:
    head: dict[str, Any] = {"item_id": "item", "turn_id": "turn"}
    match kind:
        case "user":
            return UserMessage(text=_prose(random_, 80, 240), **head)
        case "assistant":
            return AssistantMessage(text=_prose(random_, 80, 600), **head)
        case "file":
            diff = "\n".join(f"+    {_prose(random_, 20, 70)}" for _ in range(8))
            return FileChange(
                path="src/parser/tokens.py", change=FileChangeKind.UPDATE, diff=diff, **head
            )
        case _:
            lines = "\n".join(_prose(random_, 20, 90) for _ in range(random_.randrange(1, 30)))
            return Command(
                command="pytest -q tests/test_parser.py",
                exit_code=random_.choice((0, 0, 0, 1)),
                output=lines,
                **head,
            )


def _prose(random_: random.Random, least: int, most: int) -> str:
    length = random_.randint(least, most)
    words: list[str] = []
    while sum(map(len, words)) + len(words) <= length:
        words.append(random_.choice(_WORDS))
    return " ".join(words)[:length]


def _id(index: int) -> str:
    return str(uuid.UUID(int=(index + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128, version=4))
