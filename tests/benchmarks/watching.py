"""A limit written into a session's file to the handoff ready, and what a large session takes.

The real command follows, beside a worker; sessions are written as Claude Code writes them, line by line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from .figures import Advance, Figure, percentile
from .servers import Server, server

WATCH = (sys.executable, "-c", "from moonfold_handoff.cli import main; main(['watch', *ARGUMENTS])")
ITEMS = 60  # of a session that reaches its limit
LINE_SECONDS = 0.005  # between two lines
OUTPUT = "FAILED tests/test_part.py::test_whole - AssertionError: assert 17 == 42\n"
MEBIBYTE = 1024 * 1024


def measure(advance: Advance, *, sessions: int, megabytes: int) -> list[Figure]:
    """Write sessions one after the other, then a large one."""
    delays: list[float] = []
    with server() as own, own.worker(), watching(own) as watch:
        folder = watch.home / ".claude" / "projects" / "-project"
        folder.mkdir(parents=True)
        for number in range(sessions):
            delays.append(_until_ready(watch, folder))
            advance(number / (sessions + 10))
        small = watch.most_memory()
        began = time.perf_counter()
        size = _write_large(folder, megabytes)
        watch.next("handoff.ready")
        seconds = time.perf_counter() - began
        large = watch.most_memory()
    return [
        Figure("limit written → handoff ready, p50", percentile(delays, 0.5), "ms"),
        Figure("limit written → handoff ready, p99", percentile(delays, 0.99), "ms", at_most=1_000),
        Figure(f"session of {size / MEBIBYTE:.0f} MB found → its handoff ready", seconds, "s"),
        Figure("most memory of the watcher before it", small, "MB"),
        Figure("added by it", large - small, "MB"),
    ]


class Watch:
    """The command, and what it tells."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.home = home
        self._process = process
        if process.stdout is None:
            raise AssertionError
        self._out: IO[str] = process.stdout

    def next(self, event: str) -> dict[str, Any]:
        """Return the next thing of that kind it tells."""
        for line in self._out:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        raise RuntimeError(f"The command ended with {self._process.wait()}.")

    def most_memory(self) -> float:
        """Return the most memory the process ever held, in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024


@contextmanager
def watching(own: Server) -> Iterator[Watch]:
    arguments = ("--json", "--from", "claude-code", "--to", "opencode")
    command = (*WATCH[:2], WATCH[2].replace("*ARGUMENTS", ", ".join(map(repr, arguments))))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONFOLD_")}
    environment["MOONFOLD_REDIS_URL"] = str(own.settings.redis_url)
    environment.pop("CLAUDE_CONFIG_DIR", None)
    with tempfile.TemporaryDirectory(prefix="mf-") as home:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**environment, "HOME": home},
            encoding="utf-8",
        )
        try:
            watch = Watch(process, Path(home))
            watch.next("following")
            yield watch
        finally:
            process.terminate()
            process.wait(15)


def _until_ready(watch: Watch, folder: Path) -> float:
    """Write a session up to its limit; return the milliseconds from there to its handoff."""
    session_id = str(uuid.uuid4())
    with (folder / f"{session_id}.jsonl").open("ab", buffering=0) as file:
        for line in _lines(ITEMS, len(OUTPUT)):
            file.write(line)
            time.sleep(LINE_SECONDS)
        began = time.perf_counter()
        file.write(_limit(ITEMS))
    told = watch.next("handoff.ready")
    if told["session_id"] != session_id:
        raise RuntimeError("another session's handoff came")
    return (time.perf_counter() - began) * 1_000


def _write_large(folder: Path, megabytes: int) -> int:
    """Put a large session in place at once, and return its size."""
    path = folder / f"{uuid.uuid4()}.jsonl"
    unfinished = path.with_suffix(".part")
    output = 8 * 1024
    count = megabytes * MEBIBYTE // (output + 1_000) * 2
    with unfinished.open("wb") as file:
        for line in _lines(count, output):
            file.write(line)
        file.write(_limit(count))
    unfinished.rename(path)
    return path.stat().st_size


def _lines(count: int, output: int) -> Iterator[bytes]:
    """Yield a session: a request, then commands with their outputs."""
    text = (OUTPUT * (output // len(OUTPUT) + 1))[:output]
    yield _record(0, "user", "Make the tests of part 17 pass.")
    for number in range(1, count - 1, 2):
        call = {
            "type": "tool_use",
            "id": f"c{number}",
            "name": "Bash",
            "input": {"command": f"make step-{number}"},
        }
        yield _record(number, "assistant", [call], stop_reason="tool_use")
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text}
        yield _record(number + 1, "user", [result])


def _limit(count: int) -> bytes:
    resets = datetime.now(UTC) + timedelta(hours=3)
    return _record(
        count - 1 + count % 2,
        "assistant",
        [{"type": "text", "text": "You've hit your session limit"}],
        record={
            "isApiErrorMessage": True,
            "error": "rate_limit",
            "apiErrorStatus": 429,
            "quotaLimits": {"status": "rejected", "resetsAt": int(resets.timestamp())},
        },
        model="<synthetic>",
    )


def _record(number: int, type_: str, content: Any, *, record: Any = None, **message: Any) -> bytes:
    document = {
        "type": type_,
        "uuid": f"r{number}",
        "parentUuid": f"r{number - 1}" if number else None,
        "timestamp": datetime.now(UTC).isoformat(),
        "cwd": "/home/dev/project",
        "message": {"id": f"m{number}", "role": type_, "content": content, **message},
        **(record or {}),
    }
    return json.dumps(document).encode() + b"\n"
