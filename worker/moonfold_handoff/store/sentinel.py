"""The primary that Sentinels name: who is connected to an earlier one asks them again."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.exceptions import RedisError

from moonfold_handoff.store.addresses import Host, Sentinels
from moonfold_handoff.tasks import end

ANSWER_TIMEOUT = 1  # seconds that one Sentinel gets; the next one may know
ASK_SECONDS = 1  # between two looks at who is the primary, while it is used
REPLY_TIMEOUT = 10  # seconds; as long as a primary may hang without being replaced

TROUBLE = (RedisError, OSError)

logger = structlog.get_logger()


def primary(sentinels: Sentinels, **options: Any) -> Redis:
    """Return a client of whichever server is the primary; nothing is sent before its first command.

    Args:
        sentinels: who knows.
        options: of its connections.
    """
    asked = Sentinel(  # type: ignore[no-untyped-call]
        list(sentinels.hosts),
        sentinel_kwargs={
            "socket_connect_timeout": ANSWER_TIMEOUT,
            "socket_timeout": ANSWER_TIMEOUT,
            **sentinels.sentinel_options,
        },
    )
    given = {**options, "socket_timeout": REPLY_TIMEOUT, **sentinels.options}
    pool = _PrimaryPool(sentinels.service, asked, **given)
    return _PrimaryClient(asked, pool)


class _PrimaryPool(SentinelConnectionPool):
    """Connections to the primary: its address is asked for with each new one, and now and then.

    A primary that another one replaces on purpose, or that hangs, keeps its connections for many seconds.
    What is written to it meanwhile is lost, and a listener hears nothing.
    """

    def __init__(self, service: str, sentinels: Sentinel, **options: Any) -> None:
        super().__init__(service, sentinels, **options)  # type: ignore[no-untyped-call]
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= ASK_SECONDS and (self._asking is None or self._asking.done()):
            self._asked_at = now
            self._asking = asyncio.create_task(self._look())
        return await super().get_connection(*args, **options)

    async def get_master_address(self) -> Host:
        try:
            address: Host = await self.sentinel_manager.discover_master(self.service_name)
        except TROUBLE as error:
            known: Host | None = self.master_address
            if known is None:
                raise
            # Without Sentinels nobody takes the primary's place: new connections may go there, too.
            logger.warning("sentinels_unavailable", error=type(error).__name__)
            return known
        self.master_address = address
        connections: list[Any] = [*self._available_connections, *self._in_use_connections]
        for connection in connections:
            writer = connection._writer  # noqa: SLF001
            if writer is not None and (connection.host, connection.port) != address:
                # Whoever uses it sees it break off. `disconnect` would take it away under its user.
                writer.transport.abort()
        return address

    async def stop_asking(self) -> None:
        if self._asking is not None:
            await end(self._asking)

    async def _look(self) -> None:
        try:
            await self.get_master_address()
        except TROUBLE as error:  # the primary may serve all the same
            logger.warning("sentinels_unavailable", error=type(error).__name__)


class _PrimaryClient(Redis):
    """A client that closes its connections to the Sentinels, too."""

    def __init__(self, asked: Sentinel, pool: _PrimaryPool) -> None:
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True
        self._asked, self._pool = asked, pool

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._pool.stop_asking()
        await super().aclose(close_connection_pool)
        for sentinel in self._asked.sentinels:
            await sentinel.aclose()
