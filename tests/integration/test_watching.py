from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from conftest import Logged
from helpers.opencode import OpenCodeDatabase
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from moonfold_handoff import watching
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Followed, Follower
from moonfold_handoff.store import log
from moonfold_handoff.transcripts import Agent, Session, claude_code, json_lines, opencode
from moonfold_handoff.watching import Watcher
from moonfold_schemas import decode_event
from moonfold_schemas.events import ItemRecorded

NAMES = ("3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35", "0b54d9e4-97e7-4b5e-8e0e-2f4f5b0a6b11")

THREAD = f"claude-code:{NAMES[0]}"


def line(number: int, text: str = "") -> bytes:
    document = {
        "type": "user" if number % 2 else "assistant",
        "uuid": f"r{number}",
        "parentUuid": f"r{number - 1}" if number > 1 else None,
        "message": {"role": "user", "content": text or f"text {number}"},
    }
    return json.dumps(document).encode() + b"\n"


@dataclass
class Watched:
    """A watcher that runs, and what it told."""

    client: HandoffClient
    root: Path
    found: list[tuple[Session, Followed, float]] = field(default_factory=list)
    troubles: list[tuple[Path, str]] = field(default_factory=list)
    since: float = 0.0
    agent: Agent = claude_code.AGENT

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watcher = Watcher(
            self.client,
            [(self.agent, [self.root])],
            found=lambda *told: self.found.append(told),
            troubled=lambda *told: self.troubles.append(told),
            since=self.since,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(watcher.run(stop))
        try:
            yield
        finally:
            stop.set()
            await task

    def path(self, number: int = 0, project: str = "-project") -> Path:
        return self.root / project / f"{NAMES[number]}.jsonl"

    def write(self, path: Path, *numbers: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for number in numbers:
                file.write(line(number))

    async def has(self, number: int, *texts: str) -> None:
        """Wait until the thread of a session has recorded exactly these texts."""

        async def is_recorded() -> bool:
            return await self.texts(f"claude-code:{NAMES[number]}") == list(texts)

        await until(is_recorded)

    async def texts(self, thread_id: str) -> list[str]:
        raws = await log.raw(self.client.services.threads, thread_id, after=0, count=10_000)
        events = [decode_event(raw) for raw in raws]
        return [getattr(e.item, "text", "") for e in events if isinstance(e, ItemRecorded)]


@pytest.fixture
def watched(client: HandoffClient, tmp_path: Path) -> Watched:
    (tmp_path / "projects").mkdir()
    return Watched(client, tmp_path / "projects")


def never(*_: Any) -> list[Any]:
    return []


@pytest.fixture
def only_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave only looking: the system tells nothing."""

    async def silence(*_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(watching, "awatch", silence)
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("only_looking")
async def test_a_session_is_followed_by_looking(watched: Watched) -> None:
    async with watched.running():
        watched.write(watched.path(), 1)
        await watched.has(0, "text 1")
        watched.write(watched.path(), 2)
        await watched.has(0, "text 1", "text 2")


async def test_a_session_is_followed_by_being_told(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)  # in which a folder is listened to
    listening = asyncio.Event()
    heard = Watcher._heard_of

    async def hear(self: Watcher, path: Path) -> None:
        listening.set()
        await heard(self, path)

    monkeypatch.setattr(Watcher, "_changed_files", never)
    monkeypatch.setattr(Watcher, "_heard_of", hear)
    async with watched.running():
        notes = itertools.count()

        async def is_listening() -> bool:
            (watched.root / f"note-{next(notes)}.txt").write_text("x")
            return listening.is_set()

        await until(is_listening)
        watched.write(watched.path(), 1)
        await watched.has(0, "text 1")
        watched.write(watched.path(), 2)
        await watched.has(0, "text 1", "text 2")


async def test_two_sessions_in_one_folder_are_two_threads(watched: Watched) -> None:
    async with watched.running():
        watched.write(watched.path(0), 1)
        watched.write(watched.path(1), 1, 2)
        watched.write(watched.path(0), 2, 3)
        await watched.has(0, "text 1", "text 2", "text 3")
        await watched.has(1, "text 1", "text 2")


async def test_sessions_that_share_a_database_are_followed_apart(
    watched: Watched, redis: Redis
) -> None:
    database = OpenCodeDatabase(watched.root / "opencode.db")
    database.now = int(time.time() * 1000)
    watched.agent = opencode.AGENT
    watched.since = time.time() - 60

    def ask(session: str, number: int, **fields: Any) -> None:
        if number == 1:
            database.session(session, **fields)
        else:
            database.change_session(session, **fields)
        id_ = f"msg_{session}_{number}"
        database.message(id_, {"role": "user", "time": {"created": database.now}}, session)
        database.part(
            f"prt_{session}_{number}", id_, {"type": "text", "text": f"{session} {number}"}, session
        )

    async def has(session: str, *texts: str) -> None:
        async def is_recorded() -> bool:
            return await watched.texts(f"opencode:{session}") == list(texts)

        await until(is_recorded)

    ask("old", 1)
    database.run("UPDATE session SET time_updated = ?", int((time.time() - 3600) * 1000))
    try:
        async with watched.running():
            for number in (1, 2):
                ask("one", number)
                ask("two", number)
            await has("one", "one 1", "one 2")
            await has("two", "two 1", "two 2")
            assert await watched.texts("opencode:old") == []
            ask("old", 2)
            await has("old", "old 1", "old 2")
    finally:
        database.close()
    assert watched.troubles == []


async def test_what_is_in_a_new_folder_is_found(watched: Watched) -> None:
    async with watched.running():
        watched.write(watched.path(0, "-new/deeper"), 1)
        await watched.has(0, "text 1")


async def test_an_agent_may_be_installed_later(watched: Watched, tmp_path: Path) -> None:
    watched.root = tmp_path / "later" / "projects"
    async with watched.running():
        watched.write(watched.path(0), 1)
        await watched.has(0, "text 1")


async def test_an_old_session_is_read_when_it_grows(watched: Watched) -> None:
    old, new = watched.path(0), watched.path(1)
    watched.write(old, 1)
    os.utime(old, (1_000_000, 1_000_000))
    watched.write(new, 1)
    watched.since = 2_000_000
    async with watched.running():
        await watched.has(1, "text 1")
        assert await watched.texts(THREAD) == []
        watched.write(old, 2)
        await watched.has(0, "text 1", "text 2")


async def test_other_files_are_left_alone(watched: Watched) -> None:
    for name in ("notes.txt", "agent-1.jsonl"):
        (watched.root / name).write_bytes(line(1))
    watched.write(watched.path(), 1)
    async with watched.running():
        await watched.has(0, "text 1")
    assert {session.path for session, _, _ in watched.found} == {watched.path()}
    assert watched.troubles == []


async def test_what_is_found_comes_with_the_time_the_file_was_written(watched: Watched) -> None:
    watched.write(watched.path(), 1)
    os.utime(watched.path(), (1_500, 1_500))
    async with watched.running():
        await watched.has(0, "text 1")

        async def is_told() -> bool:
            return bool(watched.found)

        await until(is_told)
    session, followed, written = watched.found[0]
    assert (session.session_id, written) == (NAMES[0], 1_500)
    assert followed.through == followed.added


async def test_a_file_replaced_by_another_session_is_that_one(watched: Watched) -> None:
    path = watched.root / "session.jsonl"
    async with watched.running():
        for number, name in enumerate(NAMES):
            document = {**json.loads(line(1, f"of {number}")), "sessionId": name}
            replacement = watched.root / "replacement"
            replacement.write_bytes(json.dumps(document).encode() + b"\n")
            replacement.rename(path)
            await watched.has(number, f"of {number}")
    assert await watched.texts(THREAD) == ["of 0"]


async def trouble(watched: Watched, message: str) -> None:
    async def is_told() -> bool:
        return any(message in told for _, told in watched.troubles)

    await until(is_told)


async def test_a_file_that_cannot_be_read_is_told_once_and_followed_later(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)
    catch_up, errors = Follower.catch_up, [OSError(5, "Input/output error")] * 3

    async def failing(self: Follower, **options: Any) -> Followed:
        if errors:
            raise errors.pop()
        return await catch_up(self, **options)

    monkeypatch.setattr(Follower, "catch_up", failing)
    watched.write(watched.path(), 1)
    async with watched.running():
        await trouble(watched, "Cannot read the file: Input/output error.")
        numbers = itertools.count(2)

        async def is_over() -> bool:
            watched.write(watched.path(), next(numbers))
            return not errors

        await until(is_over)
        last = next(numbers)
        watched.write(watched.path(), last)
        await watched.has(0, *(f"text {n}" for n in range(1, last + 1)))
    assert len(watched.troubles) == 1


async def test_a_server_that_is_away_is_told_and_nothing_is_missed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "AGAIN_SECONDS", 0.01)
    append, errors = watched.client.append, [RedisConnectionError("secret")] * 3

    async def failing(*arguments: Any) -> int:
        if errors:
            raise errors.pop()
        return await append(*arguments)

    monkeypatch.setattr(watched.client, "append", failing)
    watched.write(watched.path(), 1, 2)
    async with watched.running():
        await watched.has(0, "text 1", "text 2")
    assert watched.troubles == [(watched.path(), "The server cannot be used: ConnectionError.")]


async def test_an_error_of_our_own_is_logged_and_ends_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    broken = watched.path(0)
    sessions = type(claude_code.AGENT).sessions

    def failing(self: Any, path: Path) -> Any:
        if path == broken:
            raise ValueError("secret words")
        return sessions(self, path)

    monkeypatch.setattr(type(claude_code.AGENT), "sessions", failing)
    watched.write(broken, 1)
    watched.write(watched.path(1), 1)
    async with watched.running():
        await watched.has(1, "text 1")
        await trouble(watched, "An internal error (ValueError).")
    assert logged.events("file_not_followed")
    assert "secret words" not in logged.ours.getvalue()


async def test_files_that_were_read_long_ago_are_let_go_and_found_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FILES_KEPT", 1)
    async with watched.running():
        for numbers in ((1,), (2, 3), (4,)):
            for session in (0, 1):
                watched.write(watched.path(session), *numbers)
                await watched.has(session, *(f"text {n}" for n in range(1, numbers[-1] + 1)))


async def test_the_event_loop_is_not_kept_from_its_work(watched: Watched) -> None:
    with blockbuster_ctx():
        async with watched.running():
            await asyncio.to_thread(watched.write, watched.path(), 1, 2)
            await watched.has(0, "text 1", "text 2")
    assert watched.troubles == []


async def test_stopping_in_the_middle_of_a_file_loses_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    monkeypatch.setattr(json_lines, "STEP_BYTES", 200)
    numbers = range(1, 200)
    watched.write(watched.path(), *numbers)

    async def has_begun() -> bool:
        return len(await watched.texts(THREAD)) > 3

    for _ in range(3):
        async with watched.running():
            await until(has_begun)
    async with watched.running():
        await watched.has(0, *(f"text {n}" for n in numbers))
