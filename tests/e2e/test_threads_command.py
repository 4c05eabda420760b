"""`moonfold fork`, `moonfold threads` and `moonfold thread`."""

from __future__ import annotations

import asyncio
import importlib
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from e2e.test_command_line import RECORDING, Place, said
from helpers.asking import THREAD, append, conversation, events
from helpers.building import assistant, command, reasoning, started, usage, user
from helpers.servers import RedisServer
from helpers.waiting import DEADLINE_SECONDS, until_sync

import redis as sync_redis
from moonfold_handoff import worker
from moonfold_handoff.cli import main
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys
from moonfold_schemas import HandoffResult, ThreadEvent, decode_result
from moonfold_schemas.events import (
    HandoffDelivered,
    ThreadForked,
    ThreadStarted,
    TurnEnded,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.results import FailureCode, HandoffFailed, HandoffPrepared, HandoffReady

pytestmark = pytest.mark.usefixtures("at_the_server")

HISTORY = events(
    ThreadStarted(),
    started("first-conversation", capacity=200_000),
    user("ask one"),
    assistant("say one"),
    TurnEnded(turn_id="one", status=TurnStatus.COMPLETED),
    TurnStarted(turn_id="two"),
    user("ask two"),
    command("make two", "half done"),
)
TO_CLAUDE = ("--to", "claude-code")


@pytest.fixture
def served(server: RedisServer) -> Iterator[None]:
    """Run a worker in a thread of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stop, begun = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        running = asyncio.create_task(worker.run(Settings(redis_url=server.url), stop, begun))
        await begun.wait()
        ready.set()
        await running

    serving = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    serving.start()
    try:
        assert ready.wait(DEADLINE_SECONDS)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        serving.join(DEADLINE_SECONDS)
        loop.close()


def record(
    server: RedisServer, what: Sequence[ThreadEvent], thread_id: str = THREAD, after: int = 0
) -> None:
    async def run() -> None:
        async with open_services(Settings(redis_url=server.url), name="test") as services:
            await append(services.redis, what, thread_id=thread_id, after=after)

    asyncio.run(run())


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def output(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def sentence(*arguments: str, status: int = 1) -> str:
    """Return the one sentence with which a command fails."""
    done = run(*arguments)
    assert done.exit_code == status
    assert done.stdout == ""
    if status == 1:
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("Error: ")
    return done.stderr.strip()


def result_of(*arguments: str) -> HandoffResult:
    printed = output("fork", *arguments, "--json")
    assert printed.count("\n") == 1
    return decode_result(printed.encode())


def row(shown: str, name: str) -> list[str]:
    [line] = [line for line in shown.splitlines() if re.match(rf"\s*{re.escape(name)}\s", line)]
    return re.split(r"\s{2,}", line.strip())


@pytest.mark.parametrize("name", ["fork", "thread", "threads"])
def test_each_command_tells_how_it_is_used(name: str) -> None:
    shown = output(name, "--help")
    assert shown.startswith(f"Usage: main {name} ")
    assert name in output("--help")


# Forking


@pytest.mark.usefixtures("served")
def test_a_fork_is_shown_to_a_person(server: RedisServer) -> None:
    record(server, HISTORY)
    shown = output("fork", THREAD, *TO_CLAUDE, "--id", "my:smile:fork")
    assert "Thread my:smile:fork begins after #8" in shown
    assert "its handoff to claude-code carries 4 of 4 items" in shown
    assert row(shown, "window")[1:] == ["128,000", "assumed"]
    assert "ask one" not in shown
    assert "forked from thread after #8" in output("thread", "my:smile:fork")


@pytest.mark.usefixtures("served")
def test_a_fork_without_a_request_is_prepared_and_with_one_ready(server: RedisServer) -> None:
    record(server, HISTORY)
    prepared = result_of(THREAD, *TO_CLAUDE)
    assert isinstance(prepared, HandoffPrepared)
    ready = result_of(THREAD, *TO_CLAUDE, "--request", "go on", "--cap", "2000")
    assert isinstance(ready, HandoffReady)
    assert prepared.thread_id != ready.thread_id  # made up
    assert ready.budget.cap.value == 2_000
    assert ready.budget.request.value == len('"go on"')
    assert "ask one" in ready.text


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("where", "through", "absent"),
    [
        ((), 8, None),
        (("--settled",), 5, "ask two"),
        (("--turn", "one"), 5, "ask two"),
        (("--at", "3"), 3, "say one"),
        (("--at", "6", "--settled"), 5, "ask two"),
    ],
)
def test_a_fork_begins_at_the_point_asked_for(
    where: tuple[str, ...], through: int, absent: str | None, server: RedisServer
) -> None:
    record(server, HISTORY)
    result = result_of(THREAD, *TO_CLAUDE, "--request", "go on", "--id", "f", *where)
    assert isinstance(result, HandoffReady)
    assert (result.thread_id, result.coverage.through) == ("f", through + 1)
    assert "ask one" in result.text
    assert absent is None or absent not in result.text


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nobody",), "There is no log of thread nobody. (thread_not_found)"),
        ((THREAD, "--at", "9"), "ends at 8. (history_incomplete)"),
        ((THREAD, "--turn", "nine"), "No such turn has ended"),
        ((THREAD, "--turn", "two"), "No such turn has ended"),
        ((THREAD, "--at", "4", "--settled"), "No such turn has ended"),
        ((THREAD, "--id", "other"), "Thread other is there already"),
        ((THREAD, "--id", THREAD), "Thread thread is there already"),
        ((THREAD, "--id", "no id"), "fork_thread_id"),
        ((THREAD, "--turn", "no id"), "turn_id"),
        (("no id",), "thread_id"),
    ],
)
def test_what_cannot_be_forked_is_told_in_one_sentence(
    arguments: tuple[str, ...], says: str, server: RedisServer
) -> None:
    record(server, HISTORY)
    record(server, conversation(), "other")
    assert says in sentence("fork", *arguments, *TO_CLAUDE)


@pytest.mark.usefixtures("served")
def test_a_fork_that_fails_is_printed_as_json_too(server: RedisServer) -> None:
    done = run("fork", "nobody", *TO_CLAUDE, "--json")
    assert done.exit_code == 1
    result = decode_result(done.stdout.encode())
    assert isinstance(result, HandoffFailed)
    assert result.code is FailureCode.THREAD_NOT_FOUND
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [(), (THREAD,), (THREAD, "--to", "nothing"), (THREAD, *TO_CLAUDE, "--at", "0")],
)
def test_a_fork_of_wrong_usage_is_told(arguments: tuple[str, ...]) -> None:
    assert "Usage:" in sentence("fork", *arguments, status=2)


def test_without_a_worker_a_fork_says_so(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(server, HISTORY)
    module = importlib.import_module("moonfold_handoff.cli.fork")  # not the command of that name
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    assert "No worker answered" in sentence("fork", THREAD, *TO_CLAUDE)


# Threads


def test_no_threads_are_an_empty_list() -> None:
    assert output("threads").split() == ["thread", "events", "days", "left"]


def test_threads_are_listed_with_their_length_and_how_long_they_stay(server: RedisServer) -> None:
    record(server, conversation(500), "long")
    record(server, HISTORY, "a:smile:thread")
    record(server, [ThreadForked(parent_thread_id="long", through=1_502)], "of-long", 1_502)
    with sync_redis.Redis.from_url(server.url) as client:
        client.expire(keys.log("long"), 60 * 3600)
    shown = output("threads")
    assert row(shown, "long") == ["long", "1,502", "2.5"]
    assert row(shown, "a:smile:thread") == ["a:smile:thread", "8", "0.0"]
    assert row(shown, "of-long")[1] == "1,503"
    assert len(shown.splitlines()) == 4
    assert len(output("threads", "--limit", "2").splitlines()) == 3


def test_keys_that_are_no_threads_are_not_listed(server: RedisServer) -> None:
    record(server, HISTORY)
    with sync_redis.Redis.from_url(server.url) as client:
        for name in (b"\xff\xfe", b"\x1b[31mred", b"a b", b""):
            client.set(b"moonfold:{" + name + b"}:log", b"x", ex=60)
    shown = output("threads")
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown


# One thread


def test_a_thread_is_shown_with_its_conversations_and_items(server: RedisServer) -> None:
    other: list[Any] = [
        started("second-conversation", provider="claude-code", model="opus"),
        HandoffDelivered(conversation_id="second-conversation", through=8, tokens=1_500),
        usage(1_600, "second-conversation", max_tokens=180_000),
        reasoning("never shown"),
        assistant("by the second"),
    ]
    record(server, [*HISTORY, *events(*other)])
    shown = output("thread", THREAD)
    assert shown.splitlines()[0] == "thread, 5 items, up to #13"
    assert "forked from" not in shown
    assert row(shown, "first-conversation")[1:4] == ["codex", "large", "200,000"]
    assert row(shown, "first-conversation")[4].endswith("(estimated)")
    assert row(shown, "second-conversation")[1:] == [
        "claude-code",
        "opus",
        "180,000",
        "1,600",
        "#13",
    ]
    assert row(shown, "3") == ["3", "user", "ask one"]
    assert row(shown, "8") == ["8", "command, exit 0", "$ make two half done"]
    assert row(shown, "13") == ["13", "assistant", "by the second"]
    assert "never shown" not in shown


@pytest.mark.parametrize(("count", "first"), [(0, None), (1, 8), (2, 7), (40, 3)])
def test_as_many_items_are_shown_as_asked_for(
    count: int, first: int | None, server: RedisServer
) -> None:
    record(server, HISTORY)
    shown = output("thread", THREAD, "--items", str(count))
    numbers = re.findall(r"^ *(\d+)  ", shown, re.MULTILINE)
    assert (numbers[0] if numbers else None) == (None if first is None else str(first))
    assert len(numbers) == min(count, 4)


def test_the_lineage_of_a_fork_is_shown_from_its_parent_up(server: RedisServer) -> None:
    record(server, HISTORY, "a")
    record(server, events(ThreadForked(parent_thread_id="a", through=5), user("in b")), "b", 5)
    record(server, events(ThreadForked(parent_thread_id="b", through=7), user("in c")), "c", 7)
    shown = output("thread", "c")
    assert shown.splitlines()[:3] == [
        "c, 4 items, up to #9",
        "forked from b after #7",
        "forked from a after #5",
    ]
    assert row(shown, "3") == ["3", "user", "ask one"]
    assert row(shown, "7") == ["7", "user", "in b"]
    assert row(shown, "9") == ["9", "user", "in c"]
    assert "ask two" not in shown


def test_what_a_terminal_would_obey_is_not_printed(server: RedisServer) -> None:
    bad = "\x1b[31mred\x07 \x9b31m \u202eover [bold]markup[/bold] :smile: [/nothing]"
    model = "opus[1m] [/red] \x1b[0m :smile:"
    history: list[Any] = [ThreadStarted(), started("c", model=model), user(bad)]
    record(server, events(*history, command(bad, bad), assistant(bad)))
    shown = output("thread", THREAD)
    for character in "\x1b\x07\x9b\u202e":
        assert character not in shown
    for literal in ("[bold]markup[/bold]", ":smile:", "[/nothing]", "opus[1m] [/red]"):
        assert literal in shown


@pytest.mark.parametrize(
    ("thread_id", "says", "status"),
    [
        ("nobody", "There is no log of thread nobody.", 1),
        ("no id", "not an identifier", 2),
        ("\x1b[31m", "not an identifier", 2),
    ],
)
def test_a_thread_that_is_not_there_is_told(thread_id: str, says: str, status: int) -> None:
    told = sentence("thread", thread_id, status=status)
    assert says in told
    assert "\x1b" not in told


def test_a_damaged_thread_is_told_in_one_sentence(server: RedisServer) -> None:
    record(server, HISTORY)
    with sync_redis.Redis.from_url(server.url) as client:
        client.xdel(keys.log(THREAD), "4-0")
    assert "no entry 4" in sentence("thread", THREAD)


def test_a_server_that_is_away_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONFOLD_REDIS_URL", "unix:///nowhere/at/all")
    for arguments in (("threads",), ("thread", THREAD)):
        assert "\n" not in sentence(*arguments)


# With the server that is started where none is given


@pytest.fixture
def place() -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(dir="/tmp", prefix="mf-"))  # the path of a socket has to be short
    try:
        place = Place(root)
        yield place
        until_sync(place.is_free)
    finally:
        shutil.rmtree(root)


def completed(place: Place, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = place.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_a_recorded_session_is_forked_twice_without_a_worker_of_its_own(place: Place) -> None:
    ready = place.handoff(RECORDING, *TO_CLAUDE)
    assert ready.thread_id is not None
    completed(place, "fork", ready.thread_id, "--to", "codex", "--id", "child", "--settled")
    done = completed(
        place, "fork", "child", "--to", "codex", "--id", "grandchild", "--request", "go", "--json"
    )
    result = decode_result(done.stdout.encode())
    assert isinstance(result, HandoffReady)
    assert said(RECORDING)[0][1] in result.text
    listed = completed(place, "threads").stdout
    assert [row(listed, name)[0] for name in ("child", "grandchild")] == ["child", "grandchild"]
    shown = completed(place, "thread", "grandchild").stdout.splitlines()
    assert shown[1].startswith("forked from child after #")
    assert shown[2].startswith(f"forked from {ready.thread_id} after #")
