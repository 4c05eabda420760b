"""`moonfold watch` and `moonfold continue`, as a person has them beside their agents."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e.test_command_line import MOONFOLD, RECORDING, Place, place, redis_url, said
from helpers.settling import settled
from helpers.waiting import DEADLINE_SECONDS, until_sync

from moonfold_handoff.store import keys
from moonfold_schemas import decode_event
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import AssistantMessage, UserMessage
from redis import Redis

__all__ = ["place", "redis_url"]  # fixtures

SESSION = "3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"
THREAD = f"claude-code:{SESSION}"

# Stands in for an agent: keeps what it was started with, then ends.
AGENT = """
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("1.2.3")
else:
    with open(os.path.join(os.path.dirname(__file__), os.path.basename(__file__) + ".started"), "a") as file:
        print(json.dumps({"arguments": sys.argv[1:], "cwd": os.getcwd()}), file=file)
"""


class Watch:
    """The running command and what it tells."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str:
        line = self._lines.get(timeout=DEADLINE_SECONDS)
        assert line is not None, "the command ended"
        return line

    def next(self, event: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.line())
        assert told["event"] == event, told
        return told

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def watching(place: Place, *arguments: str, **environment: str) -> Iterator[Watch]:
    with subprocess.Popen(
        [MOONFOLD, "watch", *arguments],
        env=place.environment({"HOME": str(place.root), **environment}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            watch = Watch(process)
            if "--json" in arguments:
                watch.next("following")
            else:
                assert watch.line().startswith("Following Claude Code")
            yield watch
        finally:
            process.kill()


@pytest.fixture
def projects(place: Place) -> Path:
    folder = place.root / ".claude" / "projects" / "-home-dev-project"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def path(projects: Path) -> Path:
    return projects / f"{SESSION}.jsonl"


@pytest.fixture
def work(place: Place) -> Path:
    folder = place.root / "work"
    folder.mkdir()
    return folder


def install(place: Place, name: str) -> Path:
    """Install an agent; return the file that tells how it was started."""
    program = place.programs / name
    program.write_text(f"#!{sys.executable}\n{AGENT}")
    program.chmod(0o755)
    return place.programs / f"{name}.started"


def lines(cwd: Path | None = None) -> list[bytes]:
    """Return the recorded session as if it reached its limit now, until in two hours."""
    found = [json.loads(line) for line in RECORDING.read_bytes().splitlines()]
    resets = datetime.now(UTC) + timedelta(hours=2)
    for record in found:
        if record.get("isApiErrorMessage"):
            record["timestamp"] = datetime.now(UTC).isoformat()
            text = f"You've hit your session limit · resets {resets:%I:%M%p} (UTC)"
            record["message"]["content"] = [{"type": "text", "text": text}]
        if cwd is not None and "cwd" in record:
            record["cwd"] = str(cwd)
    return [json.dumps(record).encode() + b"\n" for record in found]


def write(path: Path, some: list[bytes]) -> None:
    """Write lines as an agent does: one after the other, half a line first."""
    with path.open("ab", buffering=0) as file:
        for line in some:
            file.write(line[: len(line) // 2])
            file.write(line[len(line) // 2 :])


def recorded(client: Any) -> list[tuple[str, str]]:
    """Return role and text of every message in the thread."""
    entries = client.xrange(keys.log(THREAD))
    events = settled(decode_event(fields[b"e"]) for _, fields in entries)
    items = [event.item for event in events if isinstance(event, ItemRecorded)]
    return [
        ("user" if isinstance(item, UserMessage) else "assistant", item.text)
        for item in items
        if isinstance(item, UserMessage | AssistantMessage)
    ]


def log_length(client: Any) -> int:
    return int(client.xlen(keys.log(THREAD)))


def has_grown(client: Any, before: int) -> bool:
    return log_length(client) > before


def test_a_session_that_reaches_its_limit_is_handed_over_at_once(
    place: Place, path: Path, projects: Path
) -> None:
    with watching(place, "--json", "--to", "opencode", "--to", "codex") as watch:
        write(path, lines())
        reached = watch.next("limit_reached")
        assert (reached["provider"], reached["thread_id"]) == ("claude-code", THREAD)
        assert reached["kind"] == "quota"
        ready = watch.next("handoff.ready")
        assert (ready["target"], ready["delivery"], ready["passed_over"]) == (
            "opencode",
            "text",
            [],
        )
        assert ready["selected_items"] > 20
        shown = place.run("continue", "--show", ready["request_id"])
        assert shown.stdout.startswith("opencode in /home/dev/project, ")
        assert watch.end() == 0
    assert not any(text in json.dumps(ready) for _, text in said(RECORDING))


def test_a_watcher_that_is_killed_and_started_again_misses_and_doubles_nothing(
    place: Place, path: Path, redis_url: str
) -> None:
    server = {"MOONFOLD_REDIS_URL": redis_url}
    written = lines()
    with place.worker(**server), Redis.from_url(redis_url) as client:
        for first in range(0, 60, 15):
            with watching(place, "--json", "--to", "opencode", **server) as watch:
                before = log_length(client)
                write(path, written[first : first + 15])
                half = written[first + 15][:50]
                write(path, [half])
                # Killed while it reads, with half a line at the end.
                until_sync(partial(has_grown, client, before))
                watch.process.kill()
                watch.process.wait(DEADLINE_SECONDS)
                path.write_bytes(path.read_bytes().removesuffix(half))
        with watching(place, "--json", "--to", "opencode", **server) as watch:
            write(path, written[60:])
            watch.next("limit_reached")
            watch.next("handoff.ready")
        assert recorded(client) == said(RECORDING)
        entries: Any = client.xrange(keys.log(THREAD))
        assert len(entries) == len({fields[b"e"] for _, fields in entries})
        # Started once more it finds nothing to do, and the answer that there is.
        with watching(place, "--json", "--to", "opencode", **server) as watch:
            watch.next("limit_reached")
            watch.next("handoff.ready")
        assert log_length(client) == len(entries)
        assert client.xlen(keys.REJECTED) == 0


def test_the_account_that_reached_its_limit_is_no_place_to_go_on(place: Place, path: Path) -> None:
    started = install(place, "claude")
    with watching(place, "--to", "claude-code", "--run", "--from", "claude-code") as watch:
        write(path, lines())
        assert watch.line().startswith("claude-code reached its limit (quota until ")
        failed = watch.line()
    assert failed.startswith("No handoff of claude-code: ")
    assert not started.exists()


def test_what_is_started_gets_the_history_and_the_request(
    place: Place, path: Path, work: Path
) -> None:
    started = install(place, "opencode")
    with watching(place, "--to", "opencode", "--run", "--request", "Now the tag.") as watch:
        write(path, lines(work))
        assert watch.line().startswith("claude-code reached its limit (quota until ")
        assert watch.line().startswith("Ready for opencode in ")
        assert watch.line().startswith("  Go on with:  moonfold continue limit:")
        until_sync(started.exists)
        assert watch.end(signal.SIGTERM) == 0
    (run,) = [json.loads(line) for line in started.read_text().splitlines()]
    assert run["cwd"] == str(work)
    (prompt,) = run["arguments"]
    assert prompt.startswith("--prompt=")
    assert prompt.endswith("\n\nNow the tag.")
    for _, text in said(RECORDING):
        assert text in prompt


def test_a_handoff_is_gone_on_with_later(place: Place, path: Path, work: Path) -> None:
    started = install(place, "gemini")
    with watching(place, "--json", "--to", "gemini-cli") as watch:
        write(path, lines(work))
        watch.next("limit_reached")
        request_id = watch.next("handoff.ready")["request_id"]
        done = place.run("continue", request_id, HOME=str(place.root))
        assert done.returncode == 0, done.stderr
        (run,) = [json.loads(line) for line in started.read_text().splitlines()]
        option, conversation, prompt = run["arguments"]
        assert (option, run["cwd"]) == ("--session-id", str(work))
        assert prompt.endswith("\n\nGo on where the conversation stopped.")
        # Its thread is a fork of the one it comes from.
        shown = place.run("thread", f"gemini-cli:{conversation}")
        assert f"forked from {THREAD} after #" in shown.stdout


def test_an_agent_that_is_not_installed_is_named(place: Place, path: Path) -> None:
    with watching(place, "--json", "--to", "gemini-cli", "--run") as watch:
        write(path, lines())
        watch.next("limit_reached")
        request_id = watch.next("handoff.ready")["request_id"]
        told = watch.next("not_started")
        assert told["message"] == "gemini is not installed, or not on your PATH."
        done = place.run("continue", request_id)
    assert done.returncode == 1
    assert done.stderr == "Error: gemini is not installed, or not on your PATH.\n"


def test_an_agent_that_cannot_run_is_told_and_the_next_handoff_is_started(
    place: Place, path: Path, work: Path
) -> None:
    started = install(place, "opencode")
    with watching(place, "--json", "--to", "opencode", "--run") as watch:
        (place.programs / "opencode").write_text("#!/no/such/interpreter\n")
        write(path, lines(work))
        watch.next("limit_reached")
        request_id = watch.next("handoff.ready")["request_id"]
        told = watch.next("not_started")
        assert told["request_id"] == request_id
        assert "No such file or directory" in told["message"]
        install(place, "opencode")
        write(path.with_name("0b54d9e4-97e7-4b5e-8e0e-2f4f5b0a6b11.jsonl"), lines(work))
        watch.next("limit_reached")
        watch.next("handoff.ready")
        until_sync(started.exists)


def test_a_limit_that_is_over_is_an_old_story(place: Place, path: Path) -> None:
    old = RECORDING.read_bytes().replace(b"2026-11-30T", b"2025-11-30T")
    with watching(place, "--json", "--to", "opencode") as watch:
        path.write_bytes(old)
        other = path.with_name("0b54d9e4-97e7-4b5e-8e0e-2f4f5b0a6b11.jsonl")
        write(other, lines())
        assert watch.next("limit_reached")["session_id"] == other.stem


def test_a_broken_file_is_told_and_the_others_are_followed(
    place: Place, path: Path, projects: Path
) -> None:
    (projects / "broken.jsonl").write_bytes(b"\x00\xff no session\n" * 10)
    with watching(place, "--json", "--to", "opencode") as watch:
        write(path, [b"{broken\n", *lines(), b'{"half": '])
        watch.next("limit_reached")
        watch.next("handoff.ready")


def test_without_a_target_and_a_policy_it_says_what_is_missing(place: Place, path: Path) -> None:
    with watching(place) as watch:
        write(path, lines())
        assert "reached its limit" in watch.line()
        assert watch.line().startswith("No handoff of claude-code: ")


@pytest.mark.parametrize(
    ("request_id", "message"),
    [("unknown", "There is no result for request unknown."), ("no id", "not an identifier")],
)
def test_going_on_with_what_is_not_there_is_one_error(
    place: Place, request_id: str, message: str
) -> None:
    done = place.run("continue", request_id)
    assert done.returncode in {1, 2}
    assert message in done.stderr


def test_going_on_with_what_is_no_handoff_is_one_error(place: Place, redis_url: str) -> None:
    result = b'{"type":"handoff.failed","request_id":"r","session_id":"s","code":"internal","message":"No."}'
    with Redis.from_url(redis_url) as client:
        client.set(keys.result("r"), result, ex=60)
        done = place.run("continue", "r", MOONFOLD_REDIS_URL=redis_url)
    assert done.stderr == "Error: Request r gave no handoff: No.\n"


def test_a_duration_that_is_none_is_refused(place: Place) -> None:
    done = place.run("watch", "--since", "soon")
    assert done.returncode == 2
    assert "'soon' is not a duration such as 3600, 12h or 30d" in done.stderr
