"""A Redis Cluster behind the calls of one server: each command goes to the node that holds its key.

redis-py has a cluster client, too. Its asyncio one closes the connections of all commands that are under
way as soon as one node breaks off, some of which then end in an `AttributeError`, and it strikes nodes that
were away from those it asks, until none is left. This one has a client for each node instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, NoReturn

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterParser
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,  # noqa: A004
    MovedError,
    RedisError,
    TimeoutError,  # noqa: A004
    TryAgainError,
)

from moonfold_handoff.store.addresses import Host, Nodes

PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)  # seconds before each attempt at one command
AWAY = (ConnectionError, TimeoutError, ClusterDownError)
KEYLESS = frozenset({"DBSIZE", "INFO", "PING", "SCRIPT EXISTS", "SCRIPT LOAD", "TIME"})
SCRIPTS = frozenset({"EVAL", "EVALSHA"})

_Holders = list[Host | None]
"""Who holds each slot."""


class ClusterClient(Redis):
    """A client of a cluster; nothing is sent before its first command.

    The keys of one command or script are in one slot, as those of one thread are.

    Args:
        nodes: some of its nodes; one that answers tells of the others.
        options: of the connections.
    """

    def __init__(self, nodes: Nodes, **options: Any) -> None:
        self._seeds = nodes.hosts
        self._options = {**options, **nodes.options, "parser_class": ClusterParser}
        self._nodes: dict[Host, Redis] = {}
        self._holders: _Holders = []
        self._looking = asyncio.Lock()
        super().__init__(connection_pool=self._pool(nodes.hosts[0]))

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command where its key is. One of `KEYLESS` runs on all nodes; the first one's reply counts.

        Raises:
            ConnectionError: the node is away, or nobody holds the slot.
            TimeoutError: the node does not answer.
            ClusterDownError: the nodes do not serve.
            TryAgainError: the slot is on its way to another node, and takes its time.
        """
        slot = None
        if args[0] not in KEYLESS:
            slot = _slot(args[3] if args[0] in SCRIPTS else args[1])
        failure: RedisError = ConnectionError()
        holders, known = self._holders, bool(self._holders)
        for pause in PAUSES:
            if pause:
                await asyncio.sleep(pause)
            try:
                if not known:
                    holders, known = await self._look(instead_of=holders), True
                if slot is None:
                    return await self._everywhere(holders, args, options)
                return await self._run(holders[slot], args, options)
            except MovedError as error:
                holders[error.slot_id], failure = (error.host, error.port), error
            except TryAgainError as error:
                failure = error
            except AWAY as error:
                known, failure = False, error
        raise failure

    async def _everywhere(
        self, holders: _Holders, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        replies = [await self._on(host, args, options) for host in _hosts(holders)]
        return replies[0]

    async def _run(self, host: Host | None, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if host is None:
            raise ConnectionError("No node of the cluster holds the slot.")
        try:
            return await self._on(host, args, options)
        except MovedError:
            raise
        except AskError as error:
            # For this one command: the slot is on its way, and its key is there already.
            node = self._node((error.host, error.port))
        async with node.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command(*args, **options)
            _, reply = await pipe.execute(raise_on_error=False)
        if isinstance(reply, Exception):
            raise reply
        return reply

    # The base class is typed for blocking use.
    async def scan_iter(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        """Yield the keys of all nodes."""
        for host in _hosts(self._holders or await self._look(instead_of=self._holders)):
            async for key in self._node(host).scan_iter(*args, **options):
                yield key

    def pipeline(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a pipeline goes to one node, whatever its keys.

        Raises:
            TypeError: always.
        """
        raise TypeError("The threads' server may be a cluster: use a script, not a pipeline.")

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections."""
        await super().aclose(close_connection_pool)
        for node in self._nodes.values():
            await node.aclose()

    async def _look(self, *, instead_of: _Holders) -> _Holders:
        """Return who holds which slots, asking for it unless somebody else has asked meanwhile.

        Raises:
            ConnectionError: no node answers.
        """
        async with self._looking:
            if self._holders is not instead_of:
                return self._holders
            failure: Exception | None = None
            for host in dict.fromkeys((*_hosts(self._holders), *self._seeds)):
                try:
                    spans = await self._on(host, ("CLUSTER SLOTS",), {})
                except (*AWAY, OSError) as error:
                    failure = error
                    continue
                self._holders = _held(spans, host)
                return self._holders
        raise ConnectionError(f"No node of the cluster answers: {failure}") from failure

    async def _on(self, host: Host, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await self._node(host).execute_command(*args, **options)  # type: ignore[no-untyped-call]

    # A node that holds nothing any more keeps its client: closing it would break a command that uses it.
    def _node(self, host: Host) -> Redis:
        if host not in self._nodes:
            self._nodes[host] = Redis.from_pool(self._pool(host))
        return self._nodes[host]

    def _pool(self, host: Host) -> ConnectionPool:
        return ConnectionPool(host=host[0], port=host[1], **self._options)


def _slot(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _held(spans: Iterable[Any], told_by: Host) -> _Holders:
    """Return who holds each slot, from a reply to `CLUSTER SLOTS`: first, last, primary, replicas ..."""
    holders: _Holders = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (name, port, *_), *_ in spans:
        host = ((name or b"").decode() or told_by[0], port)  # a node may not know its own name
        holders[first : last + 1] = [host] * (last + 1 - first)
    return holders


def _hosts(holders: _Holders) -> list[Host]:
    return [host for host in dict.fromkeys(holders) if host is not None]
