from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from conftest import RunningWorker, Servers
from helpers.asking import TTL, append, conversation, fork, ready, switch
from helpers.clusters import Cluster, cluster
from helpers.servers import KINDS, RedisServer, binary_of
from redis.asyncio import Redis
from redis.exceptions import ClusterDownError, ConnectionError, ResponseError, TryAgainError  # noqa: A004

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import cluster as cluster_client
from moonfold_handoff.store import connection, keys, log, sources, threads
from moonfold_handoff.store.connection import connect_threads
from moonfold_schemas.results import HandoffReady

THREADS = [f"thread-{number}" for number in range(12)]


@pytest.fixture(scope="module", params=KINDS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three nodes, for all tests here; each leaves them as it found them, but for what it wrote."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip("redis-server is not installed")
    with cluster(binary) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(nodes: Cluster) -> Iterator[None]:
    """Fail a test that leaves a key without a TTL on a node."""
    yield
    lasting = []
    for node in nodes.nodes:
        kept = node.ask("KEYS", "*")
        lasting += [key for key in kept if node.ask("PTTL", key) == -1]
        node.ask("FLUSHALL")
    assert not lasting, f"keys without a lifetime: {lasting}"


@pytest.fixture
def server(servers: Servers) -> RedisServer:
    """Where the queues are, whatever the cluster's nodes are."""
    return servers.get("valkey")


@pytest.fixture
def settings(server: RedisServer, nodes: Cluster) -> Settings:
    return Settings(redis_url=server.url, threads_url=nodes.url)


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    async with open_services(settings, name="test") as services:
        yield services


@pytest.fixture
async def spread(nodes: Cluster) -> AsyncIterator[Redis]:
    """A client of the cluster alone."""
    async with connect_threads(nodes.url, name="test") as redis:
        yield redis


async def test_threads_of_all_nodes_are_handed_off(
    client: HandoffClient, running_worker: RunningWorker, nodes: Cluster
) -> None:
    assert {nodes.holder(keys.log(thread)) for thread in THREADS} == set(nodes.nodes)
    for thread in THREADS:
        assert await client.append(thread, 0, conversation()) == 8
        assert (await ready(client, switch(thread_id=thread))).coverage.selected_items == 6
    assert all(node.ask("KEYS", "*:state") for node in nodes.nodes)


async def test_a_fork_reads_a_parent_on_another_node(
    client: HandoffClient, running_worker: RunningWorker, nodes: Cluster
) -> None:
    parent = THREADS[0]
    elsewhere = next(
        thread
        for thread in THREADS
        if nodes.holder(keys.log(thread)) is not nodes.holder(keys.log(parent))
    )
    await client.append(parent, 0, conversation())
    result = await ready(client, fork(thread_id=parent, fork_thread_id=elsewhere))
    assert result.thread_id == elsewhere
    assert result.coverage.selected_items == 6


async def test_threads_are_listed_over_all_nodes(spread: Redis) -> None:
    for thread in THREADS:
        await append(spread, conversation(), thread_id=thread)
    found = {one.thread_id: one.last async for one in threads.listed(spread, 100)}
    assert found == dict.fromkeys(THREADS, 8)


async def test_how_far_a_session_was_read_is_kept_with_its_thread(spread: Redis) -> None:
    for thread in THREADS:
        await sources.save(spread, thread, sources.Place(count=3), ttl=TTL)
    for thread in THREADS:
        assert await sources.load(spread, thread) == sources.Place(count=3)


async def test_ancestors_on_several_nodes_live_on(spread: Redis) -> None:
    for thread in THREADS:
        await append(spread, conversation(), thread_id=thread, ttl=10)
    await log.renew(spread, THREADS, ttl=1_000)
    for thread in THREADS:
        for key in (keys.log(thread), keys.items(thread)):
            assert 900 < await spread.ttl(key) <= 1_000


async def test_a_node_that_went_away_and_came_back_is_used_again(
    client: HandoffClient, running_worker: RunningWorker, nodes: Cluster
) -> None:
    for thread in THREADS:
        await client.append(thread, 0, conversation())
    requests = [switch(thread_id=thread, session_id=f"of-{thread}") for thread in THREADS]
    nodes.nodes[1].kill()
    for request in requests:
        await client.request(request)
    await asyncio.to_thread(nodes.nodes[1].start)
    await asyncio.to_thread(nodes.is_whole)
    for request in requests:
        assert isinstance(await client.wait(request.request_id, timeout=20), HandoffReady)


async def test_a_cluster_is_found_again_after_all_its_nodes_were_away(
    spread: Redis, nodes: Cluster
) -> None:
    await asyncio.gather(*(append(spread, conversation(), thread_id=thread) for thread in THREADS))
    for node in nodes.nodes:
        node.kill()
    outcomes = await asyncio.gather(
        *(log.last(spread, thread) for thread in THREADS), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {ConnectionError}
    for node in nodes.nodes:
        await asyncio.to_thread(node.start)
    with pytest.raises(ClusterDownError):  # they do not know of each other yet
        await log.last(spread, THREADS[0])
    await asyncio.to_thread(nodes.is_whole)
    assert [await log.last(spread, thread) for thread in THREADS] == [8] * len(THREADS)


async def test_a_node_may_be_named_otherwise_than_the_cluster_does(nodes: Cluster) -> None:
    url = f"redis+cluster://localhost:{nodes.nodes[1].port}/0"
    async with connect_threads(url, name="test") as redis:
        for thread in THREADS:
            assert await append(redis, conversation(), thread_id=thread) == 8


async def test_a_slot_that_moved_is_followed(spread: Redis, nodes: Cluster) -> None:
    key = keys.log(THREADS[0])
    origin = nodes.holder(key)
    other = next(node for node in nodes.nodes if node is not origin)
    await append(spread, conversation(), thread_id=THREADS[0])
    nodes.move_slot(key, origin, other)
    try:
        assert await log.last(spread, THREADS[0]) == 8
        assert await append(spread, conversation(), thread_id=THREADS[0], after=8) == 16
    finally:
        nodes.move_slot(key, other, origin)
    assert (await threads.load(spread, THREADS[0])).through == 16


async def test_a_key_that_moved_ahead_of_its_slot_is_found(spread: Redis, nodes: Cluster) -> None:
    key = keys.log(THREADS[0])
    origin = nodes.holder(key)
    other = next(node for node in nodes.nodes if node is not origin)
    await append(spread, conversation(), thread_id=THREADS[0])
    nodes.begin_move(key, origin, other)
    nodes.move_key(key, origin, other)
    try:
        assert await log.last(spread, THREADS[0]) == 8
        with pytest.raises(ResponseError, match=r"^WRONGTYPE"):
            await spread.get(key)
    finally:
        nodes.end_move(key, origin, other)
        nodes.move_slot(key, other, origin)


async def test_a_thread_that_is_half_moved_is_waited_for(
    spread: Redis, nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keys.log(THREADS[0])
    origin = nodes.holder(key)
    other = next(node for node in nodes.nodes if node is not origin)
    await append(spread, conversation(), thread_id=THREADS[0])
    nodes.begin_move(key, origin, other)
    nodes.move_key(keys.items(THREADS[0]), origin, other)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(cluster_client, "PAUSES", (0.0, 0.001))
            with pytest.raises(TryAgainError):
                await append(spread, conversation(), thread_id=THREADS[0], after=8)
        later = asyncio.create_task(append(spread, conversation(), thread_id=THREADS[0], after=8))
        await log.last(spread, THREADS[0])
        nodes.end_move(key, origin, other)
        assert await later == 16
    finally:
        nodes.move_slot(key, other, origin)


async def test_a_slot_that_nobody_holds_is_trouble_that_may_pass(
    spread: Redis, nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "PAUSES", (0.0, 0.001))
    key = keys.log(THREADS[0])
    holder = nodes.holder(key)
    slot = holder.ask("CLUSTER KEYSLOT", key)
    for node in nodes.nodes:
        node.ask("CLUSTER DELSLOTS", slot)
    try:
        with pytest.raises(connection.TRANSIENT, match="No node of the cluster holds the slot"):
            await log.last(spread, THREADS[0])
    finally:
        holder.ask("CLUSTER ADDSLOTS", slot)
        await asyncio.to_thread(nodes.is_whole)
    assert await log.last(spread, THREADS[0]) == 0


async def test_every_node_is_asked_what_has_no_key(spread: Redis, nodes: Cluster) -> None:
    assert await spread.ping()
    nodes.nodes[2].kill()
    try:
        with pytest.raises(ConnectionError):
            await spread.ping()
    finally:
        await asyncio.to_thread(nodes.nodes[2].start)
        await asyncio.to_thread(nodes.is_whole)
    assert await spread.ping()


async def test_why_no_node_answers_is_told(nodes: Cluster) -> None:
    url = nodes.url.replace("://", "://somebody:wrong@")
    async with connect_threads(url, name="test") as redis:
        with pytest.raises(ConnectionError, match=r"No node of the cluster answers: .*password"):
            await log.last(redis, THREADS[0])


async def test_every_node_is_told_of_a_script(spread: Redis, nodes: Cluster) -> None:
    source = "return 'a script of this test'"
    sha = await spread.script_load(source)
    assert [node.ask("SCRIPT EXISTS", sha) for node in nodes.nodes] == [[True]] * 3
    assert await spread.script_exists(sha) == [True]


async def test_a_pipeline_is_refused(spread: Redis) -> None:
    with pytest.raises(TypeError, match="use a script"):
        spread.pipeline()
