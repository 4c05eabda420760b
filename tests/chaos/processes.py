"""A server and workers that are killed and started again, as often as it takes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from moonfold_handoff.embedded import binary_path, server_command

START_SECONDS = 15.0
POLL_SECONDS = 0.005
STOP_SECONDS = 20.0  # more than a worker takes at most

STARTED = b"worker_started"  # in its log
WORKER = (sys.executable, "-m", "moonfold_handoff", "worker")


class Server:
    """A Valkey on a private socket that keeps its data on disk.

    Args:
        fsync: when what was written reaches the disk. With `always` nothing that was acknowledged is
            lost. With `everysec` the last second may be lost with the machine's power; with the server
            alone only what it had not written yet because the disk was busy.
    """

    def __init__(self, fsync: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mfc-", dir="/tmp"))
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        self._command = [
            *server_command(binary_path(), self.directory, self.socket),
            *("--appendfsync", fsync),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has read its data."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the server does not start")
            time.sleep(POLL_SECONDS)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal that ends it, and wait until it has."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def remove(self) -> None:
        """End it and throw away its data."""
        self.end(signal.SIGKILL)
        shutil.rmtree(self.directory)

    def _serves(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(self.socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


class Worker:
    """A worker process, and the log of all that were started in its place."""

    def __init__(self, url: str, log: Path) -> None:
        self.log = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONFOLD_")}
        self._environment = {
            **environment,
            "MOONFOLD_REDIS_URL": url,
            "MOONFOLD_LOG_FORMAT": "json",
        }
        self._begins = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `serves` waits until it takes jobs."""
        with self.log.open("ab") as out:
            self._begins = out.tell()
            self._process = self._started(out)

    def serves(self) -> None:
        """Wait until it takes jobs, or has ended."""
        deadline = time.monotonic() + START_SECONDS
        while self._process is not None and self._process.poll() is None:
            with self.log.open("rb") as log:
                log.seek(self._begins)
                if STARTED in log.read():
                    return
            if time.monotonic() > deadline:
                raise RuntimeError("a worker does not start")
            time.sleep(POLL_SECONDS)

    def ensure(self) -> bool:
        """Start it again if it ended by itself, as it does without a server at its start; True if so."""
        ended = self._process is None or self._process.poll() is not None
        if ended:
            self.start()
        return ended

    def end(self, number: signal.Signals) -> None:
        """Send it a signal that ends it, and wait until it has."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _started(self, out: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            WORKER, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment
        )
