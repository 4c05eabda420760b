"""Connections: any Redis or Valkey by URL, over TCP, TLS or a Unix socket, with password or ACL user."""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterError,
    ConnectionError,  # noqa: A004
    ReadOnlyError,
    RedisError,
    TimeoutError,  # noqa: A004
    TryAgainError,
)

from moonfold_handoff.store.addresses import (
    InvalidRedisUrlError,
    Nodes,
    Sentinels,
    several,
    without_password,
)
from moonfold_handoff.store.cluster import ClusterClient
from moonfold_handoff.store.sentinel import primary

CONNECT_TIMEOUT = 5  # seconds
REPLY_TIMEOUT = 30  # seconds; longer than any blocking read of ours
RETRIES = 3  # of one command, within a second in all
RETRY_BASE = 0.05  # seconds
RETRY_CAP = 0.5  # seconds

TRANSIENT = (
    *(ConnectionError, TimeoutError, BusyLoadingError, OSError),
    *(ReadOnlyError, ClusterError, TryAgainError),
)
"""Errors that a later attempt may not meet: the server is away, slow, loading, or failing over."""


def connect(url: str, *, name: str) -> Redis:
    """Return a client for `url`; nothing is sent before its first command.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, with `user:password@` where needed; or
            `redis+sentinel://` or `rediss+sentinel://`, see `addresses.several`.
        name: what `CLIENT LIST` shows.

    Raises:
        InvalidRedisUrlError: the URL is none of these. A cluster is refused: a queue needs one primary.
    """
    found = _found(url)
    if isinstance(found, Nodes):
        raise InvalidRedisUrlError(
            f"{without_password(url)} is a cluster, which can keep threads (MOONFOLD_THREADS_URL); queues "
            "and results need one primary."
        )
    return _client(url, found, name)


def connect_threads(url: str, *, name: str) -> Redis:
    """Return a client for the server of thread logs and states, which may be a cluster.

    Args:
        url: as `connect` takes it, or `redis+cluster://` or `rediss+cluster://`.
        name: what `CLIENT LIST` shows.

    Raises:
        InvalidRedisUrlError: the URL is none of these.
    """
    return _client(url, _found(url), name)


def _found(url: str) -> Nodes | Sentinels | None:
    try:
        return several(url)
    except ValueError:
        raise _invalid(url) from None


def _client(url: str, found: Nodes | Sentinels | None, name: str) -> Redis:
    options: dict[str, Any] = {
        "client_name": name,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": REPLY_TIMEOUT,
        "retry": Retry(ExponentialBackoff(cap=RETRY_CAP, base=RETRY_BASE), RETRIES),
        "retry_on_error": [ConnectionError, TimeoutError, BusyLoadingError],
    }
    try:
        if isinstance(found, Nodes):
            return ClusterClient(found, **options)
        if isinstance(found, Sentinels):
            return primary(found, **options)
        return Redis.from_pool(ConnectionPool.from_url(url, **options))
    except ValueError:
        raise _invalid(url) from None


def _invalid(url: str) -> InvalidRedisUrlError:
    return InvalidRedisUrlError(
        f"{without_password(url)} is not a Redis URL: it must begin with redis://, rediss://, unix://, "
        "redis+sentinel:// or redis+cluster:// and have a numeric port."
    )


__all__ = [
    "TRANSIENT",
    "InvalidRedisUrlError",
    "RedisError",
    "connect",
    "connect_threads",
    "without_password",
]
