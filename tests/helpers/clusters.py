"""A real cluster, and a primary with a replica and a Sentinel, on free ports of the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from helpers.servers import RedisServer, free_port
from helpers.waiting import until_sync
from redis.exceptions import ConnectionError, ResponseError  # noqa: A004

import redis as sync_redis
from moonfold_handoff.embedded import LOG_NAME

SLOTS = 16_384
SERVICE = "moonfold"
TRIES = 3  # a port that was free may be taken by the time a server listens on it
DOWN_MILLISECONDS = 400  # without an answer, after which a primary counts as down


N = TypeVar("N", bound="Node")


class Node(RedisServer):
    """A server on a port of the loopback, beside its socket."""

    def __init__(self, binary: Path, *options: str) -> None:
        self.port = free_port()
        super().__init__(
            binary,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"),
            *options,
            append_only=True,
        )
        self.password = ""

    def __exit__(self, *_: object) -> None:
        # One that is asked to end waits for others, which end, too.
        self.kill()
        super().__exit__(None, None, None)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, *command: Any) -> Any:
        with sync_redis.Redis.from_url(
            self.url, decode_responses=True, password=self.password or None
        ) as client:
            return client.execute_command(*command)


class ClusterNode(Node):
    """A node of a cluster, which knows its place again after a restart."""

    def __init__(self, binary: Path) -> None:
        self.bus = free_port()
        super().__init__(
            binary,
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
            *("--cluster-port", str(self.bus)),
        )

    @property
    def name(self) -> str:
        return str(self.ask("CLUSTER MYID"))

    def sees_all(self, size: int) -> bool:
        info = self.ask("CLUSTER INFO")
        return (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(size))


class Cluster:
    """Nodes that share the slots between them, in order."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.nodes[0].place},{self.nodes[-1].place}"

    def join(self) -> None:
        size = len(self.nodes)
        for number, node in enumerate(self.nodes):
            first, end = (SLOTS * at // size for at in (number, number + 1))
            node.ask("CLUSTER ADDSLOTSRANGE", first, end - 1)
            node.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
            self.nodes[0].ask("CLUSTER MEET", "127.0.0.1", node.port, node.bus)
        self.is_whole()

    def is_whole(self) -> None:
        """Wait until every node serves."""
        until_sync(lambda: all(node.sees_all(len(self.nodes)) for node in self.nodes))

    def holder(self, key: str) -> ClusterNode:
        slot = int(self.nodes[0].ask("CLUSTER KEYSLOT", key))
        return self.nodes[slot * len(self.nodes) // SLOTS]

    def move_slot(self, key: str, origin: ClusterNode, to: ClusterNode) -> None:
        """Give the slot of a key, with all that is in it, to another node."""
        self.begin_move(key, origin, to)
        self.end_move(key, origin, to)

    def begin_move(self, key: str, origin: ClusterNode, to: ClusterNode) -> None:
        slot = to.ask("CLUSTER KEYSLOT", key)
        to.ask("CLUSTER SETSLOT", slot, "IMPORTING", origin.name)
        origin.ask("CLUSTER SETSLOT", slot, "MIGRATING", to.name)

    def move_key(self, key: str, origin: ClusterNode, to: ClusterNode) -> None:
        origin.ask("MIGRATE", "127.0.0.1", to.port, key, 0, 5_000)

    def end_move(self, key: str, origin: ClusterNode, to: ClusterNode) -> None:
        slot = to.ask("CLUSTER KEYSLOT", key)
        for held in origin.ask("CLUSTER GETKEYSINSLOT", slot, 1_000):
            self.move_key(held, origin, to)
        for node in (to, *self.nodes):
            node.ask("CLUSTER SETSLOT", slot, "NODE", to.name)


@contextmanager
def cluster(binary: Path, size: int = 3) -> Iterator[Cluster]:
    """Run a cluster without replicas."""
    with ExitStack() as stack:
        nodes = [_started(stack, lambda: ClusterNode(binary)) for _ in range(size)]
        running = Cluster(nodes)
        running.join()
        yield running


def _started(stack: ExitStack, make: Callable[[], N]) -> N:
    for attempt in range(TRIES):
        try:
            node = make()
            stack.enter_context(node)
        except AssertionError:
            if attempt == TRIES - 1:
                raise
        else:
            return node
    raise AssertionError


class SentinelNode(Node):
    """A Sentinel, which decides alone."""

    def __init__(self, binary: Path, primary: int, *lines: str) -> None:
        super().__init__(binary)
        configuration = self.directory / "sentinel.conf"
        configuration.write_text(
            "\n".join(
                (
                    *(f"port {self.port}", "bind 127.0.0.1", f"unixsocket {self.socket}"),
                    *(f"dir {self.directory}", f"logfile {self.directory / LOG_NAME}"),
                    f"sentinel monitor {SERVICE} 127.0.0.1 {primary} 1",
                    f"sentinel down-after-milliseconds {SERVICE} {DOWN_MILLISECONDS}",
                    *lines,
                )
            )
        )
        self._command = [str(binary), str(configuration), "--sentinel"]


class Watched:
    """A primary, its replica, and a Sentinel that fails over from one to the other."""

    def __init__(self, primary: Node, replica: Node, sentinel: SentinelNode) -> None:
        self.primary, self.replica, self.sentinel = primary, replica, sentinel

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.sentinel.place}/{SERVICE}"

    def switch_over(self) -> None:
        """Give the primary's place to the replica, both being there."""
        until_sync(self._begins_to_switch)

    def _begins_to_switch(self) -> bool:
        try:
            return bool(self.sentinel.ask("SENTINEL FAILOVER", SERVICE))
        except ResponseError:  # it has not heard from the replica yet
            return False

    def has_failed_over(self) -> None:
        """Wait until the replica has the primary's place."""
        until_sync(self._is_promoted)

    def _is_promoted(self) -> bool:
        try:
            return bool(self.replica.ask("ROLE")[0] == "master")
        except ConnectionError:  # it closes its connections as it is promoted
            return False

    def is_replicated(self) -> None:
        """Wait until the replica holds what the primary holds."""
        offset = self.primary.ask("ROLE")[1]
        until_sync(lambda: self.replica.ask("ROLE")[4] >= offset)

    def knows_both(self) -> bool:
        known = self.sentinel.ask("SENTINEL MASTER", SERVICE)
        return (known["num-slaves"], known["flags"]) == (1, "master")


@contextmanager
def watched(binary: Path, password: str = "") -> Iterator[Watched]:
    """Run a primary with a replica, and a Sentinel beside them.

    Args:
        binary: the server's program.
        password: of both servers; the Sentinel asks for its reverse.
    """
    secret = ("--requirepass", password, "--masterauth", password) if password else ()
    guarded = (f"sentinel auth-pass {SERVICE} {password}", f"requirepass {password[::-1]}")
    with ExitStack() as stack:
        primary = _started(stack, lambda: Node(binary, *secret))
        follows = ("--replicaof", "127.0.0.1", str(primary.port))
        replica = _started(stack, lambda: Node(binary, *secret, *follows))
        primary.password = replica.password = password
        until_sync(lambda: replica.ask("ROLE")[3] == "connected")
        sentinel = _started(
            stack, lambda: SentinelNode(binary, primary.port, *(guarded if password else ()))
        )
        sentinel.password = password[::-1]
        running = Watched(primary, replica, sentinel)
        until_sync(running.knows_both)
        yield running
