from __future__ import annotations

import asyncio
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import RunningWorker
from helpers.asking import SESSION, THREAD, conversation, switch
from helpers.servers import KINDS, RedisServer, binary_of, free_port
from helpers.waiting import until
from redis.asyncio import SSLConnection

from moonfold_handoff import embedded
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import open_services, server_url
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys
from moonfold_handoff.store.addresses import Nodes, Sentinels, several
from moonfold_handoff.store.connection import (
    InvalidRedisUrlError,
    connect,
    connect_threads,
    without_password,
)
from moonfold_handoff.tasks import end
from moonfold_schemas.redis import script_source
from moonfold_schemas.results import HandoffReady

PASSWORD = "open-sesame"
USER = (
    *("--user", "moonfold", "on", f">{PASSWORD}"),
    *("~moonfold:*", "~arq:*", "&moonfold:*", "+@all", "-@admin"),
)


@pytest.fixture(params=KINDS)
def binary(request: pytest.FixtureRequest) -> Path:
    found = binary_of(request.param)
    if found is None:
        pytest.skip("redis-server is not installed")
    return found


async def hands_off(url: str, threads_url: str | None = None, *, thread_id: str = THREAD) -> None:
    settings = Settings(redis_url=url, threads_url=threads_url)
    running = RunningWorker(settings)
    await running.start()
    async with HandoffClient(SESSION, settings) as client:
        await client.append(thread_id, 0, conversation())
        request = switch(thread_id=thread_id)
        await client.request(request)
        assert isinstance(await client.wait(request.request_id, timeout=10), HandoffReady)
    await running.stop()


async def test_over_tcp_with_a_password(binary: Path) -> None:
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD)
    with RedisServer(binary, *options):
        await hands_off(f"redis://:{PASSWORD}@127.0.0.1:{port}/0")


async def test_as_an_acl_user_with_the_rights_it_needs(binary: Path) -> None:
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--requirepass", "other", *USER)
    with RedisServer(binary, *options) as server:
        await hands_off(f"redis://moonfold:{PASSWORD}@127.0.0.1:{port}")
        await hands_off(
            f"{server.url}?username=moonfold&password={PASSWORD}", thread_id=str(uuid.uuid4())
        )


async def test_over_a_unix_socket_to_another_database(server: RedisServer) -> None:
    await hands_off(f"{server.url}?db=3")


async def test_threads_can_live_on_another_server(
    server: RedisServer, own_server: RedisServer
) -> None:
    await hands_off(server.url, own_server.url)
    async with open_services(
        Settings(redis_url=server.url, threads_url=own_server.url), name="test"
    ) as services:
        assert services.threads is not services.redis
        assert await services.threads.exists(keys.log(THREAD), keys.state(THREAD)) == 2
        assert not await services.redis.exists(keys.log(THREAD), keys.state(THREAD))
        assert not await services.threads.exists(keys.results(SESSION))


async def test_one_server_is_connected_to_once(settings: Settings) -> None:
    async with open_services(settings, name="test") as services:
        assert services.threads is services.redis
        assert services.settings is settings
        assert await services.redis.client_getname() == "test"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return tmp_path / "cert.pem"


@pytest.fixture
def tls_server(binary: Path, certificate: Path) -> Iterator[int]:
    port = free_port()
    options = (
        *("--tls-port", str(port), "--bind", "127.0.0.1", "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate), "--tls-ca-cert-file", str(certificate)),
        *("--tls-key-file", str(certificate.with_name("key.pem"))),
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(RedisServer(binary, *options))
        except AssertionError as error:
            if "TLS" not in str(error):
                raise
            pytest.skip(f"{binary.name} is built without TLS")
        yield port


async def test_over_tls(tls_server: int, certificate: Path) -> None:
    await hands_off(f"rediss://localhost:{tls_server}/0?ssl_ca_certs={certificate}")


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_server: int) -> None:
    async with connect(f"rediss://localhost:{tls_server}", name="test") as redis:
        with pytest.raises(Exception, match="certificate verify failed"):
            await redis.ping()


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{PASSWORD}@host",
        f"redis://user:{PASSWORD}@host:port",
        f"redis://:{PASSWORD}@host:99999999",
        f"redis://:{PASSWORD}/more@host:6379",
        f"redis://:{PASSWORD}#more@host:6379x",
        f"redis://:{PASSWORD}?more@host:6379x",
        f"redis://:a@{PASSWORD}@host:x",
        f"user:{PASSWORD}@host:6379",
        f"unix:///socket?db=x&password={PASSWORD}",
        f"redis://:{PASSWORD}@[::1",
        f"redis+cluster://:{PASSWORD}@host:7000,host:port",
        f"redis+cluster://:{PASSWORD}@host:7000,",
        f"redis+cluster://:{PASSWORD}@host/3",
        f"redis+cluster://:{PASSWORD}@host?db=3",
        f"redis+sentinel://:{PASSWORD}@host",
        f"redis+sentinel://:{PASSWORD}@host/service/name",
        f"redis+sentinel://host/service#sentinel_password={PASSWORD}",
        f"redis+other://:{PASSWORD}@host",
        f"unix+cluster://:{PASSWORD}@host",
        "no url",
        "",
    ],
)
def test_a_bad_url_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(InvalidRedisUrlError) as refusal:
        connect_threads(url, name="test")
    assert PASSWORD not in str(refusal.value)
    assert "is not a Redis URL" in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_queue_on_a_cluster_is_refused() -> None:
    with pytest.raises(InvalidRedisUrlError) as refusal:
        connect(f"redis+cluster://:{PASSWORD}@host", name="test")
    assert "queues and results need one primary" in str(refusal.value)
    assert PASSWORD not in str(refusal.value)


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    found = several("rediss+cluster://me:p%40ss@one:7000,[::1]:7001,three/0?ssl_ca_certs=/ca.pem")
    assert isinstance(found, Nodes)
    assert found.hosts == (("one", 7000), ("::1", 7001), ("three", 6379))
    assert found.options == {
        "username": "me",
        "password": "p@ss",
        "ssl_ca_certs": "/ca.pem",
        "connection_class": SSLConnection,
    }
    assert "p@ss" not in repr(found)


def test_a_primary_is_named_by_its_sentinels() -> None:
    found = several(
        "rediss+sentinel://me:p%40ss@one,two:7001/the-service/2"
        "?ssl_ca_certs=/ca.pem&sentinel_username=it&sentinel_password=s%40cret"
    )
    assert isinstance(found, Sentinels)
    assert found.hosts == (("one", 26379), ("two", 7001))
    assert (found.service, found.database) == ("the-service", 2)
    tls = {"ssl": True, "ssl_ca_certs": "/ca.pem"}
    assert found.options == {"username": "me", "password": "p@ss", "db": 2, **tls}
    assert found.sentinel_options == {"username": "it", "password": "s@cret", **tls}
    assert "p@ss" not in repr(found)
    assert "s@cret" not in repr(found)


def test_the_database_of_a_primary_is_the_first_or_in_the_query() -> None:
    [first, third] = [several(f"redis+sentinel://one/it{db}") for db in ("", "?db=3")]
    assert isinstance(first, Sentinels)
    assert isinstance(third, Sentinels)
    assert (first.database, third.database) == (0, 3)


@pytest.mark.parametrize("url", ["redis://one", "unix:///socket", "redis://one,two"])
def test_one_server_is_none_of_several(url: str) -> None:
    assert several(url) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:secret@host/0", "redis://user:***@host/0"),
        ("rediss://:secret@host", "rediss://:***@host"),
        ("redis://user@host", "redis://user@host"),
        ("unix:///a@b/s", "unix:///a@b/s"),
        ("unix:///s?password=secret&db=1", "unix:///s?password=***&db=1"),
        ("redis+cluster://me:secret@a:1,b:2", "redis+cluster://me:***@a:1,b:2"),
        (
            "redis+sentinel://a:1/s?sentinel_password=secret&x=y",
            "redis+sentinel://a:1/s?sentinel_password=***&x=y",
        ),
        ("unix:///s?db=1&PASSWORD=secret", "unix:///s?db=1&PASSWORD=***"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


async def test_without_a_url_the_embedded_server_is_used(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Path("/tmp") / f"mf-{tmp_path_factory.mktemp('s').stat().st_ino}"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    try:
        async with open_services(Settings(), name="test") as services:
            assert await services.redis.ping()
        async with server_url(Settings()) as url:
            assert url == f"unix://{state}/moonfold/server.sock"
        locks = [state / "moonfold" / name for name in ("supervisor.lock", "server.lock")]

        async def has_ended() -> bool:
            return not any(embedded._is_locked(lock) for lock in locks)

        await until(has_ended)
    finally:
        shutil.rmtree(state)


async def test_a_task_is_ended_however_it_takes_it() -> None:
    async def forgets_its_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def fails() -> None:
        raise ZeroDivisionError

    for coroutine in (forgets_its_cancellation(), fails(), asyncio.sleep(0)):
        task = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        await end(task)
        assert task.done()


@pytest.mark.parametrize("name", ["append", "enqueue", "publish"])
def test_the_scripts_of_the_producer_protocol_are_found(name: str) -> None:
    assert script_source(name).startswith(f"-- {name}: ")


def test_a_script_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        script_source("nothing")
