from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import CLAUDE, THREAD, append, conversation, ready, switch
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.continuing import link
from moonfold_handoff.following import Follower
from moonfold_handoff.store import keys, log, threads
from moonfold_handoff.store.log import AppendError
from moonfold_handoff.transcripts import claude_code
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.requests import Target
from moonfold_schemas.results import HandoffReady

SESSION = "3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"
FORK = f"claude-code:{SESSION}"


@pytest.fixture
async def handed_over(client: HandoffClient, running_worker: RunningWorker) -> HandoffReady:
    await client.append(THREAD, 0, conversation(3))
    return await ready(client, switch(through=11))


class Session:
    """The next agent's session file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0

    def says(self, type_: str, text: str, **fields: Any) -> None:
        self._lines += 1
        document = {
            "type": type_,
            "uuid": f"n{self._lines}",
            "parentUuid": f"n{self._lines - 1}" if self._lines > 1 else None,
            "message": {"role": type_, "content": [{"type": "text", "text": text}], **fields},
        }
        with self.path.open("ab") as file:
            file.write(json.dumps(document).encode() + b"\n")

    async def follow(self, client: HandoffClient) -> int:
        (session,) = claude_code.AGENT.sessions(self.path)
        return (await Follower(client, session).catch_up()).through


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / f"{SESSION}.jsonl")


async def texts(redis: Redis, thread_id: str = FORK) -> list[str]:
    """Return the texts of all messages that the thread has, its parent's included."""
    state = await threads.load(redis, thread_id)
    records = [(state.holder(thread_id, ref.record), ref.record) for ref in state.kept]
    events = await log.fetch(redis, records)
    found = [getattr(e.item, "text", None) for e in events if isinstance(e, ItemRecorded)]
    return [text for text in found if text is not None]


HISTORY = [f"{what} {turn}" for turn in range(3) for what in ("question", "answer")]


async def test_a_session_that_goes_on_with_text_adds_only_what_is_its_own(
    client: HandoffClient, handed_over: HandoffReady, session: Session, redis: Redis
) -> None:
    assert await link(client, handed_over, SESSION) == FORK
    session.says("user", f"{handed_over.text}\n\ngo on")
    session.says("assistant", "went on", model="claude-large")
    await session.follow(client)
    assert await texts(redis) == [*HISTORY, "go on", "went on"]
    # What is said later is kept, even if it repeats what was given.
    session.says("user", f"{handed_over.text}\n\ngo on")
    session.says("user", "question 0")
    await session.follow(client)
    said = await texts(redis)
    assert said[-1] == "question 0"
    assert len(said) == 10


async def test_a_session_that_goes_on_with_messages_adds_only_what_is_its_own(
    client: HandoffClient, handed_over: HandoffReady, session: Session, redis: Redis
) -> None:
    await link(client, handed_over, SESSION)
    for message in handed_over.items:
        if message.role != "developer":
            session.says(message.role, message.content[0].text)
    session.says("user", "question 0")
    await session.follow(client)
    assert await texts(redis) == [*HISTORY, "question 0"]


async def test_the_next_handoff_carries_the_whole_story_once(
    client: HandoffClient, handed_over: HandoffReady, session: Session
) -> None:
    await link(client, handed_over, SESSION)
    session.says("user", f"{handed_over.text}\n\ngo on")
    session.says("assistant", "went on")
    through = await session.follow(client)
    next_one = await ready(client, switch(thread_id=FORK, through=through))
    for text in (*HISTORY, "go on", "went on"):
        assert next_one.text.count(text) == 1, text
    # The session itself has seen all of it.
    target = Target(provider="claude-code", conversation_id=SESSION)
    back = await ready(client, switch(thread_id=FORK, through=through, target=target))
    assert back.coverage.selected_items == back.coverage.omitted_items == 0
    assert back.budget.existing.value >= handed_over.budget.cost


async def test_a_session_that_is_read_anew_still_leaves_out_what_it_was_given(
    client: HandoffClient, handed_over: HandoffReady, session: Session, redis: Redis
) -> None:
    await link(client, handed_over, SESSION)
    session.says("user", f"{handed_over.text}\n\ngo on")
    session.says("assistant", "went on")
    await session.follow(client)
    session.path.write_bytes(b"")
    session._lines = 0
    session.says("user", f"{handed_over.text}\n\ngo on")
    session.says("assistant", "went elsewhere")
    await session.follow(client)
    assert await texts(redis) == [*HISTORY, "go on", "went elsewhere"]


async def test_an_empty_handoff_is_followed_too(
    client: HandoffClient, running_worker: RunningWorker, session: Session, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation(0))
    empty = await ready(client, switch(through=2))
    assert empty.text == ""
    await link(client, empty, SESSION)
    session.says("user", "go on")
    await session.follow(client)
    assert await texts(redis) == ["go on"]


async def test_a_session_is_linked_once(
    client: HandoffClient, handed_over: HandoffReady, redis: Redis
) -> None:
    await link(client, handed_over, SESSION)
    await link(client, handed_over, SESSION)
    await append(redis, conversation(1), thread_id="claude-code:other")
    with pytest.raises(AppendError):
        await link(client, handed_over, "other")


async def test_the_parent_lives_as_long_as_the_session_that_goes_on(
    client: HandoffClient, handed_over: HandoffReady, redis: Redis
) -> None:
    await redis.expire(keys.log(THREAD), 60)
    await link(client, handed_over, SESSION)
    assert await redis.ttl(keys.log(THREAD)) > 60


async def test_what_the_target_is_known_for_begins_the_conversation(
    client: HandoffClient, running_worker: RunningWorker, redis: Redis
) -> None:
    await client.append(THREAD, 0, conversation(1))
    target = Target(provider="claude-code", instance="work", model="m", capacity=50_000)
    handed_over = await ready(client, switch(through=5, target=target))
    await link(client, handed_over, SESSION)
    known = (await threads.load(redis, FORK)).conversation(SESSION)
    assert known is not None
    assert (known.provider, known.model, known.capacity) == ("claude-code", "m", 50_000)
    assert known.seen == 5
    assert CLAUDE.provider == known.provider
