"""The primary that Sentinels name: who is connected to an earlier one asks them again."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from moonfold_handoff.store.addresses import Host, Sentinels

ANSWER_TIMEOUT = 1  # seconds that one Sentinel gets; the next one may know
REPLY_TIMEOUT = (
    10  # seconds; a primary that hangs is replaced, which only a new connection finds out
)


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
    pool = _PrimaryPool(sentinels.service, asked, **given)  # type: ignore[no-untyped-call]
    return _PrimaryClient(asked, pool)


class _PrimaryPool(SentinelConnectionPool):
    """Connections to the primary. The address is looked up for each new one."""

    async def get_master_address(self) -> Host:
        before = self.master_address
        address: Host = await super().get_master_address()  # type: ignore[no-untyped-call]
        if before not in {None, address}:
            # Those in use, too: a listener would listen for ever to a server that says nothing any more.
            await self.disconnect()
        return address


class _PrimaryClient(Redis):
    """A client that closes its connections to the Sentinels, too."""

    def __init__(self, asked: Sentinel, pool: _PrimaryPool) -> None:
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True
        self._asked = asked

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self._asked.sentinels:
            await sentinel.aclose()
