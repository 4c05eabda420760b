"""Servers and workers of a benchmark's own: a Valkey on a private socket, workers in processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from moonfold_handoff.embedded import binary_path, server_command
from moonfold_handoff.settings import Settings

START_SECONDS = 10.0
STOP_SECONDS = 15.0
RESULT_TTL = 30  # seconds; results are large and nobody comes back for them

WOKEN_WORKER = (sys.executable, "-c", "from moonfold_handoff.cli import main; main(['worker'])")
STOCK_WORKER = (sys.executable, "-m", "arq", "moonfold_handoff.worker.HandoffSettings")


@dataclass(slots=True)
class Server:
    """A running Valkey and the workers that serve it."""

    directory: Path
    pid: int
    version: str = ""

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    @property
    def settings(self) -> Settings:
        return Settings(redis_url=f"unix://{quote(str(self.socket))}", result_ttl=RESULT_TTL)

    @contextmanager
    def worker(self, command: Sequence[str] = WOKEN_WORKER) -> Iterator[int]:
        """Run a worker process, give its process id, and stop it at the end."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONFOLD_")}
        environment["MOONFOLD_REDIS_URL"] = str(self.settings.redis_url)
        environment["MOONFOLD_RESULT_TTL"] = str(RESULT_TTL)
        with (self.directory / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
            try:
                yield process.pid
                ended = process.poll()
            except BaseException as error:
                if process.poll() is not None:  # the reason for what went wrong, most likely
                    raise RuntimeError(self._last_words(process.returncode)) from error
                raise
            finally:
                _stop(process)
        if ended is not None:
            raise RuntimeError(self._last_words(ended))

    def _last_words(self, status: int) -> str:
        lines = (self.directory / "worker.log").read_text(errors="replace").strip().splitlines()
        return f"the worker ended by itself ({status}): {lines[-1] if lines else 'no log'}"


@contextmanager
def server() -> Iterator[Server]:
    """Run a Valkey with append-only file in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="mfb-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        command = server_command(binary_path(), directory, directory / "s")
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            running = Server(directory, process.pid)
            running.version = _version(running.socket)
            yield running
        finally:
            _stop(process)


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used; NaN where the system does not say."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _version(path: Path) -> str:
    """Return name and version of the server once it answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(path))
            connection.sendall(b"INFO server\r\n")
            reply = connection.recv(65_536).decode(errors="replace")
            known = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
            for server_name in ("valkey", "redis"):
                if version := known.get(f"{server_name}_version"):
                    return f"{server_name} {version}"
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start within {START_SECONDS:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
