"""Connections: any Redis or Valkey by URL, over TCP, TLS or a Unix socket, with password or ACL user."""

from __future__ import annotations

import re

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, TimeoutError  # noqa: A004

CONNECT_TIMEOUT = 5  # seconds
REPLY_TIMEOUT = 30  # seconds; longer than any blocking read of ours
RETRIES = 3  # of one command, within a second in all
RETRY_BASE = 0.05  # seconds
RETRY_CAP = 0.5  # seconds

TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError, OSError)
"""Errors that a later attempt may not meet: the server is away, slow or loading."""


class InvalidRedisUrlError(ValueError):
    """The URL is not one of `redis://`, `rediss://` or `unix://`."""


def connect(url: str, *, name: str) -> Redis:
    """Return a client for `url`; nothing is sent before its first command.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, with `user:password@` where needed.
        name: what `CLIENT LIST` shows.

    Raises:
        InvalidRedisUrlError: the URL is none of these.
    """
    return Redis.from_pool(pool(url, name=name))


def pool(url: str, *, name: str) -> ConnectionPool:
    """Return a connection pool for `url`; see `connect`."""
    try:
        return ConnectionPool.from_url(
            url,
            client_name=name,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            retry=Retry(ExponentialBackoff(cap=RETRY_CAP, base=RETRY_BASE), RETRIES),
            retry_on_error=[ConnectionError, TimeoutError, BusyLoadingError],
        )
    except ValueError:
        raise InvalidRedisUrlError(
            f"{without_password(url)} is not a Redis URL: it must begin with redis://, rediss:// or "
            "unix:// and have a numeric port."
        ) from None


def without_password(url: str) -> str:
    """Return `url` fit for a person's eyes, even if the password in it is not escaped as it should be."""
    start = url.find("://") + 3 if "://" in url else 0
    identity, at, place = url[start:].rpartition("@")
    user, colon, _ = identity.partition(":")
    if colon:
        url = f"{url[:start]}{user}:***{at}{place}"
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)


__all__ = [
    "TRANSIENT",
    "InvalidRedisUrlError",
    "RedisError",
    "connect",
    "pool",
    "without_password",
]
