"""What each user of the server may do and what not, on real servers and through our own code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from click.testing import CliRunner
from conftest import RunningWorker
from helpers.asking import (
    conversation,
    document,
    failed,
    fork,
    job,
    limited,
    near,
    prepared,
    put,
    ready,
    switch,
)
from helpers.servers import KINDS, binary_of
from helpers.users import GuardedServer, guarded_server
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotConnectedError
from redis.exceptions import NoPermissionError, ResponseError

from moonfold_handoff.cli import main
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.ops import acl, queues, workers
from moonfold_handoff.store import keys, log, providers, rejected, results, threads
from moonfold_schemas import utc_now
from moonfold_schemas.events import ThreadForked, TurnEnded, TurnStatus
from moonfold_schemas.results import FailureCode, HandoffFailed

# Within a script, the refusal is in the error's words only: those of Valkey, and of Redis 7.0.
REFUSED_IN_SCRIPT = re.compile("ACL failure in script|The user executing the script can't")

Command = tuple[str | bytes, ...]

SECRET = "answer 1"  # of `conversation()`


@pytest.fixture(params=KINDS)
def guarded(request: pytest.FixtureRequest) -> Iterator[GuardedServer]:
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip("redis-server is not installed")
    with guarded_server(binary) as server:
        yield server


@asynccontextmanager
async def user(server: GuardedServer, name: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url_of(name), client_name=name) as redis:
        yield redis


@asynccontextmanager
async def producer(server: GuardedServer, name: str) -> AsyncIterator[HandoffClient]:
    async with HandoffClient(f"{name}.session", server.settings(name)) as client:
        yield client


@pytest.fixture
async def worker(guarded: GuardedServer) -> AsyncIterator[RunningWorker]:
    running = RunningWorker(guarded.settings(acl.WORKER))
    await running.start()
    yield running
    await running.stop()


async def allowed(redis: Redis, commands: Iterable[Command]) -> list[Command]:
    """Return which of `commands` the user of `redis` may use."""
    able = []
    for command in commands:
        try:
            await redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and not REFUSED_IN_SCRIPT.search(
                str(error)
            ):
                raise
            continue
        able.append(command)
    return able


async def refusals(server: GuardedServer) -> list[str]:
    """Return what users were refused, as the server logged it."""
    async with user(server, acl.ADMIN) as redis:
        entries = await redis.acl_log()
    return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in entries]


def ids(name: str, number: int = 1) -> dict[str, str]:
    return {
        "request_id": f"{name}.request-{number}",
        "session_id": f"{name}.session",
        "thread_id": f"{name}.thread",
    }


async def test_producers_and_workers_do_all_their_work_and_are_refused_nothing(
    guarded: GuardedServer, worker: RunningWorker
) -> None:
    async with producer(guarded, "alice") as alice:
        talk = conversation()
        last = await alice.append("alice.thread", 0, talk)
        assert await alice.append("alice.thread", 0, talk) == last
        last = await alice.append(
            "alice.thread", last, [TurnEnded(turn_id="t1", status=TurnStatus.COMPLETED)]
        )
        assert await alice.last("alice.thread") == last
        made = await ready(alice, switch(**ids("alice")))
        assert SECRET in made.text
        await ready(alice, limited(**ids("alice", 2)))
        await prepared(alice, near(**ids("alice", 3)))
        await prepared(alice, fork(**ids("alice", 4), fork_thread_id="alice.fork", request=None))
    assert await refusals(guarded) == []


async def test_a_newer_request_of_a_producer_takes_the_place_of_one_that_waits(
    guarded: GuardedServer,
) -> None:
    async with producer(guarded, "alice") as alice:
        last = await alice.append("alice.thread", 0, conversation())
        assert await alice.request(switch(**ids("alice", 1), through=last - 1))
        assert await alice.request(switch(**ids("alice", 2), through=last))
        running = RunningWorker(guarded.settings(acl.WORKER))
        await running.start()
        older = await alice.wait("alice.request-1", timeout=10)
        assert isinstance(older, HandoffFailed)
        assert older.code is FailureCode.SUPERSEDED
        await running.stop()
    assert await refusals(guarded) == []


async def answered(guarded: GuardedServer, name: str) -> None:
    """Have a handoff of a producer's made, and its result stored."""
    async with producer(guarded, name) as client:
        await client.append(f"{name}.thread", 0, conversation())
        await ready(client, switch(**ids(name)))


REACHING_OUT: list[Command] = [
    ("GET", keys.result("bob.request-1")),
    ("EXISTS", keys.result("bob.request-1")),
    ("XRANGE", keys.results("bob.session"), "-", "+"),
    ("XREAD", "STREAMS", keys.results("bob.session"), "0"),
    ("XRANGE", keys.log("bob.thread"), "-", "+"),
    ("HGET", keys.items("bob.thread"), "i1"),
    ("HGETALL", keys.state("bob.thread")),
    ("GET", keys.job("bob.request-1")),
    ("SUBSCRIBE", keys.results("bob.session")),
    ("PSUBSCRIBE", "moonfold:results:*"),
    ("PSUBSCRIBE", keys.results("alice.*")),
    ("PUBLISH", keys.results("bob.session"), "{}"),
    ("EVAL", "return redis.call('GET', KEYS[1])", "1", keys.result("bob.request-1")),
    ("EVAL", "return redis.call('GET', ARGV[1])", "0", keys.result("bob.request-1")),
    ("EVAL", "return redis.call('PUBLISH', ARGV[1], '{}')", "0", keys.results("bob.session")),
    ("HGETALL", keys.state("alice.thread")),
    ("HSET", keys.state("alice.thread"), "s", "{}"),
    ("GET", keys.job("alice.request-1")),
    ("SET", keys.result("alice.request-1"), "{}"),
    ("XADD", keys.results("alice.session"), "*", "request_id", "alice.request-1"),
    ("ZRANGE", keys.HANDOFFS, "0", "-1"),
    ("ZREM", keys.HANDOFFS, "bob.request-1"),
    ("ZCARD", keys.HANDOFFS),
    ("XRANGE", keys.REJECTED, "-", "+"),
    ("HGETALL", keys.PROVIDERS),
    ("SCAN", "0"),
    ("KEYS", "*"),
    ("MONITOR",),
    ("SLOWLOG", "GET"),
    ("CLIENT", "LIST"),
    ("CLIENT", "TRACKING", "ON"),
    ("ACL", "LIST"),
    ("CONFIG", "GET", "*"),
    ("INFO",),
    ("FLUSHALL",),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LIST"),
]


async def test_a_producer_reads_its_own_results_and_reaches_nothing_else(
    guarded: GuardedServer, worker: RunningWorker
) -> None:
    await answered(guarded, "alice")
    await answered(guarded, "bob")
    async with user(guarded, "alice") as alice:
        assert await results.get(alice, "alice.request-1") is not None
        assert await alice.xlen(keys.results("alice.session")) == 1
        assert await allowed(alice, REACHING_OUT) == []


async def test_a_worker_hands_no_producer_what_is_anothers(
    guarded: GuardedServer, worker: RunningWorker
) -> None:
    await answered(guarded, "bob")
    stolen = document(
        request_id="alice.request-9", session_id="alice.session", thread_id="bob.thread"
    )
    async with producer(guarded, "alice") as alice:
        await put(alice.services.redis, "alice.request-9", job(stolen))
        refused = await alice.wait("alice.request-9", timeout=10)
        assert isinstance(refused, HandoffFailed)
        assert refused.code is FailureCode.INVALID_REQUEST
        await alice.append(
            "alice.thief", 8, [ThreadForked(parent_thread_id="bob.thread", through=8)]
        )
        thief = {"thread_id": "alice.thief", "through": 9}
        bobs = {"thread_id": "bob.thread", "fork_thread_id": "alice.fork"}
        for request in (
            switch(**{**ids("alice", 10), **thief}),
            limited(**{**ids("alice", 11), **thief}),
            near(**{**ids("alice", 12), **thief}),
            fork(**{**ids("alice", 13), **thief}, fork_thread_id="alice.fork"),
            fork(**{**ids("alice", 14), **bobs}),
        ):
            assert (await failed(alice, request)).code is FailureCode.INVALID_REQUEST


@pytest.mark.parametrize("body", ["a request of her own", "no request at all"])
async def test_a_worker_publishes_nothing_to_another_producers_session(
    guarded: GuardedServer, worker: RunningWorker, body: str
) -> None:
    forged = document(
        request_id="bob.request-1",
        session_id="bob.session",
        thread_id="alice.thread",
        **({"through": "nowhere"} if body == "no request at all" else {}),
    )
    async with producer(guarded, "alice") as alice, user(guarded, acl.ADMIN) as admin:
        await alice.append("alice.thread", 0, conversation())
        await put(alice.services.redis, "alice.request-1", job(forged))
        await until(lambda: admin.xlen(keys.REJECTED))
        await until_empty(admin)
        assert not await admin.exists(keys.result("bob.request-1"), keys.results("bob.session"))


async def until_empty(redis: Redis) -> None:
    async def is_empty() -> bool:
        return not await redis.zcard(keys.HANDOFFS)

    await until(is_empty)


WRITING: list[Command] = [
    ("XADD", keys.log("alice.thread"), "*", "e", "{}"),
    ("EVAL", "redis.call('XADD', KEYS[1], '*', 'e', '{}')", "1", keys.log("alice.thread")),
    ("HSET", keys.state("alice.thread"), "s", ""),
    ("SET", "moonfold:new", "1"),
    ("ZADD", keys.HANDOFFS, "1", "x"),
    ("PUBLISH", keys.wake(keys.HANDOFFS), "x"),
    ("GET", keys.result("alice.request-1")),
    ("FLUSHALL",),
]


async def test_a_reader_reads_threads_and_writes_nothing(
    guarded: GuardedServer, worker: RunningWorker
) -> None:
    await answered(guarded, "alice")
    async with user(guarded, acl.READER) as reader, user(guarded, acl.ADMIN) as admin:
        assert await log.last(reader, "alice.thread") == 8
        assert (await threads.load(reader, "alice.thread", 8)).through == 8
        assert len(await log.fetch(reader, [("alice.thread", 3), ("alice.thread", 4)])) == 2
        assert [page async for page in log.read(reader, "alice.thread", after=0, through=8)]
        before = await kept(admin)
        assert await allowed(reader, WRITING) == []
        touched: list[tuple[str, bytes]] = [
            (verb, key) for key in before for verb in ("DEL", "PERSIST")
        ]
        assert await allowed(reader, touched) == []
        scripts: list[Command] = [
            ("EVAL", f"redis.call('{verb}', KEYS[1])", "1", key) for verb, key in touched
        ]
        assert await allowed(reader, scripts) == []
        assert await kept(admin) == before


async def kept(redis: Redis) -> dict[bytes, bytes]:
    """Return all keys but workers' signs of life, with their contents."""
    found = [key async for key in redis.scan_iter() if not key.startswith(b"moonfold:worker")]
    return {key: await redis.dump(key) or b"" for key in sorted(found)}


CONTENTS: list[tuple[str, ...]] = [
    ("GET",),
    ("DUMP",),
    ("GETRANGE", "0", "-1"),
    ("HGET", "s"),
    ("HVALS",),
    ("XRANGE", "-", "+"),
    ("ZRANGE", "0", "-1"),
    ("SORT",),
    ("COPY", "moonfold:copy"),
]
WATCHING: list[Command] = [
    ("MONITOR",),
    ("SLOWLOG", "GET"),
    ("CLIENT", "LIST"),
    ("CONFIG", "GET", "*"),
    ("SUBSCRIBE", keys.results("alice.session")),
    ("EVAL", "return redis.call('GET', ARGV[1])", "0", keys.result("alice.request-1")),
]


async def test_a_monitor_sees_figures_and_no_content(
    guarded: GuardedServer, worker: RunningWorker
) -> None:
    await answered(guarded, "alice")
    async with user(guarded, acl.MONITOR) as monitor, user(guarded, acl.ADMIN) as admin:
        assert (await monitor.info("memory"))["used_memory"] > 0
        assert (await queues.read(monitor)).queues[0].queue == "handoffs"
        await until(partial(workers.alive, monitor))
        assert await workers.count(monitor) == 1
        assert isinstance(await providers.listed(monitor, now=utc_now()), list)
        await rejected.reject(
            admin, job_id="alice.x", function="build_handoff", reason="r", argument=b"{}"
        )
        # What is kept of a rejected job has no text, which its own tests see to.
        contents = (await kept(admin)).keys() - {keys.REJECTED.encode()}
        assert len(contents) >= 5
        reads: list[Command] = [(verb, key, *rest) for key in contents for verb, *rest in CONTENTS]
        assert await allowed(monitor, reads) == []
        assert await allowed(monitor, WATCHING) == []


@pytest.mark.parametrize("name", ["alice", acl.WORKER, acl.READER])
async def test_whoever_needs_threads_finds_the_nodes_of_a_cluster(
    guarded: GuardedServer, name: str
) -> None:
    async with user(guarded, name) as redis:
        with pytest.raises(ResponseError, match="cluster support disabled"):
            await redis.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "command",
    [("status",), ("top", "--once"), ("providers",), ("rejected", "list"), ("rejected", "show")],
    ids=" ".join,
)
async def test_a_monitor_can_use_the_commands_for_operators(
    guarded: GuardedServer, worker: RunningWorker, command: tuple[str, ...]
) -> None:
    async with user(guarded, acl.ADMIN) as admin:
        await rejected.reject(
            admin, job_id="alice.x", function="build_handoff", reason="r", argument=b"{}"
        )
        [(letter, _)] = await admin.xrange(keys.REJECTED)
    shown = (letter.decode(),) if command[-1] == "show" else ()
    environment = {"MOONFOLD_REDIS_URL": guarded.url_of(acl.MONITOR)}
    result = await asyncio.to_thread(CliRunner().invoke, main, [*command, *shown], env=environment)
    assert result.exit_code in {0, 1}, result.output
    assert "cannot be used" not in result.output
    assert await refusals(guarded) == []


async def test_nobody_gets_in_without_a_password(guarded: GuardedServer) -> None:
    async with Redis.from_url(guarded.url) as nobody:
        with pytest.raises(NotConnectedError, match="Authentication required"):
            await nobody.ping()
    async with Redis.from_url(f"unix://worker:wrong@{guarded.socket}") as nobody:
        with pytest.raises(NotConnectedError, match="invalid username-password"):
            await nobody.ping()


async def test_a_worker_cannot_touch_the_server_itself(guarded: GuardedServer) -> None:
    async with user(guarded, acl.WORKER) as redis:
        assert await allowed(redis, ADMINISTERING) == []


ADMINISTERING: list[Command] = [
    ("FLUSHALL",),
    ("CONFIG", "SET", "appendonly", "no"),
    ("ACL", "LIST"),
    ("SHUTDOWN",),
    ("KEYS", "*"),
    ("SET", "another:application", "1"),
]


@pytest.mark.parametrize(
    "name", ["", "a.b", "a b", "a*", "default", "worker", "x" * 65, "ü", "a\n"]
)
def test_a_name_that_would_reach_further_is_no_producers(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a producer"):
        acl.producer(name)
