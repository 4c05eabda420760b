from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.servers import RedisServer
from helpers.waiting import DEADLINE_SECONDS, until_sync

import moonfold_handoff.demo
from moonfold_handoff import transfer as transfers
from moonfold_handoff.embedded import binary_path
from moonfold_handoff.settings import SETTINGS, Settings
from moonfold_handoff.transcripts import sessions_in
from moonfold_schemas import NewRequest, Target, decode_result
from moonfold_schemas.results import (
    Delivery,
    FailureCode,
    HandoffFailed,
    HandoffReady,
    Origin,
)
from redis import Redis

SOURCES = Path(__file__).parents[2]
MOONFOLD = str(Path(sysconfig.get_path("scripts"), "moonfold"))
RECORDING = Path(moonfold_handoff.demo.__file__).with_name("recorded-2.1-slugger-limit.jsonl")
SYNTHETIC = SOURCES / "tests/fixtures/claude-code/synthetic-limit-hit.jsonl"
SESSIONS = pytest.mark.parametrize("session", [RECORDING, SYNTHETIC], ids=lambda path: path.stem)
NATIVE = ("--to", "codex", "--agent-version", "0.171.0")
ROOMY = ("--cap", "64000")  # enough for either session, but for the longest outputs
OTHERS = ("claude-code", "gemini-cli", "opencode")
REQUEST = "Zebra-request: rename the quokka module “now” 🦓"
TURN_ENDS_AT = 30  # lines of RECORDING after which no turn is open


class Place:
    """A state directory of its own for the commands of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.server = self.state / "moonfold"
        self.programs = root / "bin"
        self.programs.mkdir()

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("MOONFOLD_", "PYTHON"))
        }
        return inherited | {
            "XDG_STATE_HOME": str(self.state),
            "PATH": str(self.programs),
            "PYTHONWARNINGS": "error",
            "PYTHONUTF8": "1",
            "COLUMNS": "200",
            **given,
        }

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [MOONFOLD, *arguments],
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    def handoff(self, session: Path, *arguments: str, **environment: str) -> HandoffReady:
        done = self.run("handoff", session, "--json", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return ready(done.stdout)

    @contextmanager
    def worker(self, **environment: str) -> Iterator[Worker]:
        log = self.root / f"worker-{time.monotonic_ns()}.log"
        with (
            log.open("wb") as stderr,
            subprocess.Popen(
                [MOONFOLD, "worker"],
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            ) as process,
        ):
            try:
                worker = Worker(process, log)
                until_sync(
                    lambda: "worker_started" in worker.events() or process.poll() is not None
                )
                assert process.poll() is None, log.read_text()
                yield worker
            finally:
                process.kill()  # where the test has not ended it

    def is_free(self) -> bool:
        """Tell whether no process serves here: a lock is held by a process, however it is called."""
        for name in ("supervisor.lock", "server.lock"):
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                (self.server / name).open() as lock,
            ):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def server_run_id(self) -> str:
        with Redis(unix_socket_path=str(self.server / "server.sock")) as client:
            return str(client.info("server")["run_id"])


class Worker:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self) -> list[dict[str, Any]]:
        """Return what is logged, up to the last whole line."""
        whole, _, _ = self.log.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@pytest.fixture
def place() -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(dir="/tmp", prefix="mf-"))  # the path of a socket has to be short
    try:
        place = Place(root)
        yield place
        until_sync(place.is_free)
    finally:
        shutil.rmtree(root)


@pytest.fixture
def redis_url() -> Iterator[str]:
    with RedisServer(binary_path()) as server:
        yield server.url


def ready(output: str) -> HandoffReady:
    assert output.count("\n") == 1
    result = decode_result(output.encode())
    assert isinstance(result, HandoffReady)
    return result


# What the session says, read without any of the product's code.


def records(session: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in session.read_text(encoding="utf-8").split("\n") if line]


def blocks(record: dict[str, Any]) -> list[dict[str, Any]]:
    content = record.get("message", {}).get("content", [])
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def said(session: Path) -> list[tuple[str, str]]:
    """Return role and text of every message, in order."""
    return [
        (record["type"], block["text"])
        for record in records(session)
        if record["type"] in {"user", "assistant"} and not record.get("isApiErrorMessage")
        for block in blocks(record)
        if block["type"] == "text"
    ]


def notices(session: Path) -> list[str]:
    return [
        block["text"]
        for record in records(session)
        if record.get("isApiErrorMessage")
        for block in blocks(record)
    ]


def first_lines(session: Path, count: int, place: Place) -> Path:
    lines = session.read_bytes().splitlines(keepends=True)
    copy = place.root / session.name
    copy.write_bytes(b"".join(lines[:count]))
    return copy


# What the handoff says, likewise.


def texts(result: HandoffReady) -> list[str]:
    return [part.text for item in result.items for part in item.content]


def messages(result: HandoffReady) -> list[tuple[str, str]]:
    """Return role and text of the native items that are neither preamble nor activity."""
    activity = re.compile(r"\[\w+ #\d+ ")
    return [
        (item.role, text)
        for item in result.items
        for text in ["".join(part.text for part in item.content)]
        if item.role != "developer" and not (item.role == "assistant" and activity.match(text))
    ]


def literal(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())


def unmarked(text: str) -> str:
    """Return the text without the mark, which is another one in every handoff."""
    mark = re.match(r"\[(\w+)", text)
    assert mark is not None
    return text.replace(f"[{mark[1]}", "[mark")


# The demonstration


def test_demo_shows_the_handoff_and_leaves_nothing_running(place: Place) -> None:
    started = time.monotonic()
    done = place.run("demo")
    assert time.monotonic() - started < 10
    assert done.returncode == 0
    assert done.stderr == ""
    for role, text in said(RECORDING):
        if role == "user":
            assert " ".join(text.split())[:40] in done.stdout
    for word in ("claude-code", "codex", "Budget", "window", "reserve", "allowance", "cost"):
        assert word in done.stdout
    for step in ("moonfold handoff", "moonfold worker", "moonfold settings"):
        assert step in done.stdout
    assert (place.server / "server.log").exists()
    until_sync(place.is_free)
    until_sync(lambda: not processes_of(place))


def processes_of(place: Place) -> list[str]:
    """Return the command lines that name the place; none where the system does not tell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(place.server) in line:
                found.append(line)
    return found


def test_demo_can_be_repeated_with_less_room(place: Place) -> None:
    assert place.run("demo").returncode == 0
    done = place.run("demo", "--cap", "2000")
    assert done.returncode == 0
    assert "2,000" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_is_not_utf_8_gets_the_demo_all_the_same(
    place: Place, encoding: str
) -> None:
    done = place.run("demo", PYTHONIOENCODING=f"{encoding}:strict", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "allowance" in done.stdout


# What a handoff carries


@SESSIONS
def test_a_session_that_fits_travels_byte_for_byte(place: Place, session: Path) -> None:
    result = place.handoff(session, *NATIVE, *ROOMY)
    assert result.delivery is Delivery.ITEMS
    assert messages(result) == said(session)
    assert [item.role for item in result.items].count("developer") == 1
    assert result.items[0].role == "developer"
    assert result.coverage.omitted_items == 0


@SESSIONS
def test_the_text_holds_the_same_messages_each_under_its_role(place: Place, session: Path) -> None:
    result = place.handoff(session, "--to", "gemini-cli", *ROOMY)
    assert result.delivery is Delivery.TEXT
    at = 0
    for role, text in said(session):
        entry = re.compile(rf"\[\w+ #\d+ {role}[^\]\n]*\]\n" + re.escape(text) + r"\n(?=\[)")
        found = entry.search(result.text, at)
        assert found is not None, text
        at = found.end()


def test_codex_gets_items_since_the_version_that_takes_them(place: Place) -> None:
    for version, delivery in (
        ("0.120.0", Delivery.TEXT),
        ("0.121.0", Delivery.ITEMS),
        ("codex-cli 0.171.0", Delivery.ITEMS),
        ("no idea", Delivery.TEXT),
    ):
        result = place.handoff(SYNTHETIC, "--to", "codex", "--agent-version", version)
        assert result.delivery is delivery
        assert result.target.version == version


def test_every_other_provider_gets_the_same_selection_as_text(place: Place) -> None:
    native = place.handoff(RECORDING, *NATIVE, "--cap", "3000")
    for provider in OTHERS:
        result = place.handoff(
            RECORDING, "--to", provider, "--agent-version", "0.171.0", "--cap", "3000"
        )
        assert result.delivery is Delivery.TEXT
        assert result.target.provider == provider
        assert result.coverage.selected == native.coverage.selected


@pytest.mark.parametrize(
    ("script", "delivery"),
    [
        ("echo codex-cli 0.171.0", Delivery.ITEMS),
        ("echo codex-cli 0.120.0", Delivery.TEXT),
        ("echo broken >&2; exit 1", Delivery.TEXT),
    ],
)
def test_the_installed_agent_is_asked_for_its_version(
    place: Place, script: str, delivery: Delivery
) -> None:
    program = place.programs / "codex"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit 3\n{script}\n')
    program.chmod(0o700)
    assert place.handoff(SYNTHETIC, "--to", "codex").delivery is delivery


@SESSIONS
@pytest.mark.parametrize("cap", [1_024, 16_000, 64_000])
def test_the_budget_charges_what_is_delivered(place: Place, session: Path, cap: int) -> None:
    result = place.handoff(session, *NATIVE, "--cap", str(cap), "--request", REQUEST)
    items = json.dumps(
        [
            {
                "type": "message",
                "role": item.role,
                "content": [
                    {
                        "type": "output_text" if item.role == "assistant" else "input_text",
                        "text": part.text,
                    }
                    for part in item.content
                ],
            }
            for item in result.items
        ],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    budget = result.budget
    assert budget.cost == sum(map(literal, texts(result)))
    assert budget.items_bytes == len(items.encode())
    assert budget.text_bytes == literal(result.text)
    assert budget.request.value == literal(REQUEST)
    assert budget.cost <= budget.allowance <= cap
    assert max(budget.items_bytes, budget.text_bytes) <= 64_000


@SESSIONS
def test_for_text_the_cost_is_that_of_the_text(place: Place, session: Path) -> None:
    result = place.handoff(session, "--to", "opencode", "--cap", "2000")
    assert result.budget.cost == result.budget.text_bytes == literal(result.text) <= 2_000


@SESSIONS
def test_the_request_and_the_limit_notice_are_not_in_the_output(
    place: Place, session: Path
) -> None:
    done = place.run("handoff", session, "--json", *NATIVE, "--request", REQUEST)
    shown = place.run("handoff", session, *NATIVE, "--request", REQUEST)
    assert ready(done.stdout).budget.request.origin is Origin.REQUEST
    for output in (done.stdout, shown.stdout):
        assert "Zebra-request" not in output
        assert "quokka" not in output
    result = ready(done.stdout)
    assert notices(session)
    for notice in notices(session):
        assert notice not in result.text
        assert not any(notice in text for text in texts(result))


def test_reasoning_does_not_travel(place: Place) -> None:
    thoughts = [
        block["thinking"]
        for record in records(SYNTHETIC)
        for block in blocks(record)
        if block["type"] == "thinking"
    ]
    assert thoughts
    done = place.run("handoff", SYNTHETIC, "--json", *NATIVE, *ROOMY)
    for thought in thoughts:
        assert thought not in done.stdout


def test_a_small_cap_keeps_the_newest_request_and_says_what_is_missing(place: Place) -> None:
    result = place.handoff(RECORDING, *NATIVE, "--cap", "1024")
    carried, everything = messages(result), said(RECORDING)
    assert len(carried) >= 2
    assert [message for message in everything if message in carried] == carried
    assert [message for message in everything if message[0] == "user"][-1] in carried
    assert result.budget.cap.value == 1_024
    assert result.coverage.omitted_items > 0
    assert result.coverage.omitted


@pytest.mark.parametrize(("given", "used"), [("5", 1_024), ("1000000", 64_000)])
def test_a_cap_out_of_range_is_clamped(place: Place, given: str, used: int) -> None:
    assert place.handoff(SYNTHETIC, *NATIVE, "--cap", given).budget.cap.value == used
    from_setting = place.handoff(SYNTHETIC, *NATIVE, MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP=given)
    assert from_setting.budget.cap.value == used
    assert from_setting.budget.cap.origin is Origin.SETTING


def test_text_prints_the_text_and_nothing_else(place: Place) -> None:
    for arguments in (("--to", "gemini-cli"), NATIVE):
        done = place.run("handoff", SYNTHETIC, "--text", *arguments)
        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.endswith("\n")
        expected = place.handoff(SYNTHETIC, *arguments).text
        assert unmarked(done.stdout[:-1]) == unmarked(expected)


def test_text_is_utf_8_whatever_the_terminal_is(place: Place) -> None:
    done = place.run("handoff", RECORDING, "--text", *NATIVE, PYTHONIOENCODING="latin-1")
    assert "🎉🎉" in done.stdout


def test_for_a_person_it_shows_what_travels_and_why(place: Place) -> None:
    done = place.run("handoff", RECORDING, *NATIVE, "--cap", "1024")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("What travels", "Left out", "Budget", "1,024", "limited by cap"):
        assert word in done.stdout


# The same session again


def test_a_repeat_is_harmless(place: Place) -> None:
    first, second = (place.handoff(SYNTHETIC, *NATIVE) for _ in range(2))
    assert first.thread_id == second.thread_id
    assert first.request_id != second.request_id
    assert first.coverage == second.coverage
    assert messages(first) == messages(second)


def test_a_session_that_grew_stays_the_same_thread(place: Place) -> None:
    shorter = first_lines(RECORDING, TURN_ENDS_AT, place)
    before = place.handoff(shorter, *NATIVE)
    after = place.handoff(RECORDING, *NATIVE)
    assert before.thread_id == after.thread_id
    assert before.coverage.through < after.coverage.through
    assert messages(before) == said(shorter)
    assert messages(after) == said(RECORDING)


def test_an_earlier_copy_of_a_session_gives_only_what_it_holds(place: Place) -> None:
    place.handoff(RECORDING, *NATIVE)
    shorter = first_lines(RECORDING, TURN_ENDS_AT, place)
    assert messages(place.handoff(shorter, *NATIVE)) == said(shorter)


@pytest.mark.parametrize("lines", [7, 40, 60])
def test_a_session_copied_in_the_middle_of_a_turn_travels_before_and_after_it_grew(
    place: Place, lines: int
) -> None:
    cut = first_lines(RECORDING, lines, place)
    assert messages(place.handoff(cut, *NATIVE)) == said(cut)
    assert messages(place.handoff(RECORDING, *NATIVE)) == said(RECORDING)


def test_a_session_that_was_changed_stays_one_thread_that_says_what_it_says_now(
    place: Place,
) -> None:
    original = place.handoff(RECORDING, *NATIVE)
    rewound = place.root / RECORDING.name
    rewound.write_bytes(
        RECORDING.read_bytes().replace(
            b"Now the cut at a word boundary.", b"No cut at all, please."
        )
    )
    result = place.handoff(rewound, *NATIVE)
    assert messages(result) == said(rewound) != said(RECORDING)
    again = place.handoff(RECORDING, *NATIVE)
    assert messages(again) == said(RECORDING)
    assert {original.thread_id, result.thread_id} == {again.thread_id}


# What can go wrong


def only_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence; a wrong argument has the usage above it."""
    *before, last = done.stderr.splitlines()
    assert done.returncode in {1, 2}
    assert done.stdout == ""
    assert last.startswith("Error: ")
    assert last.endswith(".")
    if done.returncode == 1:
        assert before == []
    else:
        assert before[0].startswith("Usage: moonfold")
    return last


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"a": 1}\n', "not a session of a known agent"),
        (b"Dear diary,\n", "not a session of a known agent"),
        (RECORDING.read_text("utf-8").encode("utf-16"), "not a session of a known agent"),
        (bytes(range(256)) * 20, "not a session of a known agent"),
        (b'{"type": "user", "parentUuid": null}\n', "has no conversation"),
    ],
    ids=["empty", "blank", "other JSON", "prose", "UTF-16", "binary", "no conversation"],
)
def test_a_file_that_is_no_session_is_named_so(place: Place, content: bytes, reason: str) -> None:
    file = place.root / "session.jsonl"
    file.write_bytes(content)
    done = place.run("handoff", file, *NATIVE)
    assert reason in only_error(done)
    # A file that is a session's is read when the server is there.
    assert place.server.exists() == (reason == "has no conversation")


def test_a_line_that_is_not_utf_8_is_skipped_and_counted(place: Place) -> None:
    lines = RECORDING.read_bytes().splitlines(keepends=True)
    broken = place.root / RECORDING.name
    broken.write_bytes(b"".join([*lines[:13], b'{"type": "user", "x": "\xff"}\n', *lines[13:]]))
    done = place.run("handoff", broken, *NATIVE)
    assert done.returncode == 0
    assert "Skipped 1: broken line" in done.stdout
    assert messages(place.handoff(broken, *NATIVE)) == said(RECORDING)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("/nonexistent.jsonl", *NATIVE), "does not exist"),
        (("/", *NATIVE), "is a directory"),
        ((str(RECORDING), "--to", "nobody"), "'nobody' is not one of 'codex'"),
        ((str(RECORDING), *NATIVE, "--cap", "0"), "'--cap'"),
        ((str(RECORDING), *NATIVE, "--cap", "many"), "'--cap'"),
        ((str(RECORDING), *NATIVE, "--json", "--text"), "--json and --text"),
    ],
)
def test_a_wrong_argument_is_named(place: Place, arguments: tuple[str, ...], reason: str) -> None:
    done = place.run("handoff", *arguments)
    assert reason in only_error(done)
    assert done.returncode == 2
    assert not place.server.exists()


@pytest.mark.parametrize(
    ("command", "url"),
    [("demo", "http://example.test"), ("worker", "redis://me:hunter2@host:port")],
)
def test_a_bad_server_url_is_refused_without_its_password(
    place: Place, command: str, url: str
) -> None:
    done = place.run(command, MOONFOLD_REDIS_URL=url)
    assert "is not a Redis URL" in only_error(done)
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", ["demo", "worker"])
def test_a_server_that_is_not_there_is_named(place: Place, command: str) -> None:
    socket = place.root / "nobody.sock"
    done = place.run(command, MOONFOLD_REDIS_URL=f"unix://{socket}")
    error = only_error(done)
    assert "The server cannot be used" in error
    assert str(socket) in error


@pytest.mark.parametrize("command", ["demo", "worker"])
def test_a_state_directory_that_cannot_be_used_is_named(place: Place, command: str) -> None:
    place.state.write_text("a file, where even root cannot make a directory")
    assert str(place.server) in only_error(place.run(command))


@pytest.mark.parametrize("command", ["demo", "worker"])
def test_a_state_directory_that_is_too_long_says_what_to_do(place: Place, command: str) -> None:
    done = place.run(command, XDG_STATE_HOME=str(place.root / ("long" * 30)))
    assert "set XDG_STATE_HOME to a shorter path" in only_error(done)


def test_a_setting_that_cannot_be_read_is_a_warning_and_the_default(place: Place) -> None:
    done = place.run(
        "handoff", SYNTHETIC, "--json", *NATIVE, MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP="lots"
    )
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Warning: MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP is not")
    assert ready(done.stdout).budget.cap.value == 16_000


def test_a_target_without_room_is_an_error_that_says_what_to_do(place: Place) -> None:
    arguments = ("handoff", RECORDING, *NATIVE, "--capacity", "16000")
    for form in ((), ("--text",)):
        assert "larger context window" in (done := place.run(*arguments, *form)).stderr
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("Error: ")
    done = place.run(*arguments, "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    result = decode_result(done.stdout.encode())
    assert isinstance(result, HandoffFailed)
    assert result.code is FailureCode.REFERENCES_DO_NOT_FIT


@pytest.mark.parametrize("form", ["--text", "--json"])
def test_a_reader_that_has_enough_is_no_error_of_the_server(place: Place, form: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [MOONFOLD, "handoff", RECORDING, *NATIVE, form],
            env=place.environment({}),
            stdin=subprocess.DEVNULL,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == 1


# The worker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_logs_json_lines_and_stops_cleanly(place: Place, number: signal.Signals) -> None:
    with place.worker(MOONFOLD_RESULT_TTL="never") as worker:
        assert not place.is_free()
        assert worker.stop(number) == 0
        assert worker.process.stdout is not None
        assert worker.process.stdout.read() == b""
    assert worker.log.read_text().endswith("\n")
    assert {"event", "level", "timestamp"} <= set.intersection(*map(set, worker.lines()))
    assert worker.events()[0] == "setting_ignored"
    assert worker.events()[-1] == "worker_stopped"
    until_sync(place.is_free)


def test_a_handoff_beside_a_worker_uses_its_server(place: Place) -> None:
    with place.worker() as worker:
        server = place.server_run_id()
        result = place.handoff(SYNTHETIC, *NATIVE)
        assert place.server_run_id() == server
        with Redis(unix_socket_path=str(place.server / "server.sock")) as client:
            assert client.exists(f"moonfold:{{{result.thread_id}}}:log")
        assert worker.stop(signal.SIGTERM) == 0


def test_workers_share_a_server_which_ends_with_the_last(place: Place) -> None:
    with place.worker() as first, place.worker() as second:
        server = place.server_run_id()
        assert first.stop(signal.SIGTERM) == 0
        assert messages(place.handoff(SYNTHETIC, *NATIVE, *ROOMY)) == said(SYNTHETIC)
        assert place.server_run_id() == server
        assert second.stop(signal.SIGTERM) == 0
    until_sync(place.is_free)


def test_with_a_server_of_ones_own_the_worker_there_builds_it(place: Place, redis_url: str) -> None:
    with place.worker(MOONFOLD_REDIS_URL=redis_url) as worker:
        result = place.handoff(
            RECORDING, *NATIVE, "--request", REQUEST, MOONFOLD_REDIS_URL=redis_url
        )
        assert messages(result) == said(RECORDING)
        until_sync(
            lambda: any(line.get("request_id") == result.request_id for line in worker.lines())
        )
        assert worker.stop(signal.SIGTERM) == 0
    log = worker.log.read_text()
    assert "Zebra-request" not in log
    assert not any(text in log for _, text in said(RECORDING))
    assert not place.server.exists()


def test_a_request_waits_for_a_worker_that_starts_later(place: Place, redis_url: str) -> None:
    environment = {"MOONFOLD_REDIS_URL": redis_url}
    with (
        Redis.from_url(redis_url) as client,
        subprocess.Popen(
            [MOONFOLD, "handoff", SYNTHETIC, "--json", *NATIVE, *ROOMY],
            env=place.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        ) as asking,
    ):
        try:
            until_sync(lambda: client.zcard("moonfold:handoffs") == 1)
            with place.worker(**environment):
                output, _ = asking.communicate(timeout=DEADLINE_SECONDS)
        finally:
            asking.kill()
    assert asking.returncode == 0
    assert messages(ready(output)) == said(SYNTHETIC)


async def test_without_a_worker_the_error_says_how_to_start_one(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "WAIT_SECONDS", 0.2)
    with pytest.raises(transfers.NoWorkerError) as raised:
        await transfers.transfer(
            Settings(redis_url=redis_url),
            sessions_in(RECORDING)[0],
            Target(provider="codex"),
            request=NewRequest(text=REQUEST),
        )
    sentence = str(raised.value)
    assert sentence.startswith("No worker answered")
    assert sentence.endswith("start one with `moonfold worker`.")
    assert "\n" not in sentence


# Help


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        (("--help",), ("Move a coding-agent conversation", "never a summary", "moonfold demo")),
        (("-h",), ("demo", "handoff", "settings", "worker")),
        (("demo", "--help"), ("recorded", "--cap")),
        (
            ("handoff", "--help"),
            ("SESSION", "--to", "codex|claude-code|gemini-cli|opencode", "--request", "--json"),
        ),
        (("worker", "--help"), ("SIGTERM", "both queues")),
        (("settings", "--help"), ("default",)),
        (("--version",), ("moonfold 0.",)),
        (("settings",), tuple(setting.variable for setting in SETTINGS.values())),
    ],
)
def test_help_explains_each_command(
    place: Place, arguments: tuple[str, ...], phrases: tuple[str, ...]
) -> None:
    done = place.run(*arguments)
    assert done.returncode == 0
    assert done.stderr == ""
    for phrase in phrases:
        assert phrase in done.stdout
    assert not place.server.exists()


def test_settings_show_values_origins_and_no_password(place: Place) -> None:
    done = place.run(
        "settings",
        MOONFOLD_REDIS_URL="redis://me:hunter2@host:6379/1",
        MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP="9000000",
        MOONFOLD_THREAD_TTL="soon",
    )
    assert done.returncode == 0
    assert "hunter2" not in done.stdout
    assert "redis://me:***@host:6379/1" in done.stdout
    assert re.search(r"TOKEN_CAP\s+64000\s+16000\s+environment", done.stdout)
    assert re.search(r"THREAD_TTL\s+2592000\s+2592000\s+default", done.stdout)
    assert done.stderr.startswith("Warning: MOONFOLD_THREAD_TTL is not a duration")
    assert done.stderr.count("\n") == 1


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an unpacked wheel that was built from the source tree."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory],
        cwd=SOURCES,
        capture_output=True,
        check=True,
        timeout=DEADLINE_SECONDS,
    )
    (built,) = directory.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def test_the_wheel_has_everything_that_is_no_module(wheel: Path) -> None:
    for name in ("append", "enqueue", "publish"):
        source = SOURCES / "schemas/redis" / f"{name}.lua"
        assert (wheel / f"moonfold_schemas/redis/{name}.lua").read_bytes() == source.read_bytes()
    for package, root in (("moonfold_schemas", "schemas"), ("moonfold_handoff", "worker")):
        sources = SOURCES / root / package
        for file in sources.rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                assert (wheel / package / file.relative_to(sources)).is_file()
        assert (wheel / package / "py.typed").is_file()
    assert (wheel / "moonfold_handoff/demo" / RECORDING.name).is_file()
    assert list((wheel / "moonfold_handoff/store/lua").glob("*.lua"))
    assert list(wheel.glob("*.dist-info/licenses/LICENSE"))
    assert {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")} == {
        "moonfold_handoff",
        "moonfold_schemas",
    }


def test_the_wheel_runs_without_the_source_tree(wheel: Path, place: Place) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import moonfold_handoff, moonfold_schemas
from moonfold_handoff.cli import main
from moonfold_schemas.redis import script_source
for module in (moonfold_handoff, moonfold_schemas):
    assert module.__file__.startswith({str(wheel)!r}), module.__file__
for name in ("append", "enqueue", "publish"):
    assert "redis.call" in script_source(name)
main(["demo"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=place.environment({}),
        cwd=place.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert "allowance" in done.stdout
