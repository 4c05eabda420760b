"""What jobs and clients work with: the servers and the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from redis.asyncio import Redis

from moonfold_handoff.context.capacity import NOTHING_KNOWN, Catalogue
from moonfold_handoff.embedded import EmbeddedServer
from moonfold_handoff.ops import tracing
from moonfold_handoff.ops.metrics import Metrics
from moonfold_handoff.policy import NO_POLICY, Policy
from moonfold_handoff.settings import Settings
from moonfold_handoff.store.connection import connect, connect_threads


@dataclass(frozen=True, slots=True)
class Services:
    """Open connections and settings.

    Attributes:
        redis: the server of queues and results.
        threads: the server of thread logs and states, often the same; it may be a cluster, where a
            command or script can name the keys of one thread only.
        settings: what the environment says.
        catalogue: context windows of models.
        policy: where threads go on whose requests do not say.
        metrics: what is measured of the work that is done with them.
    """

    redis: Redis
    threads: Redis
    settings: Settings
    catalogue: Catalogue = NOTHING_KNOWN
    policy: Policy = NO_POLICY
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def servers(self) -> dict[str, Redis]:
        """Each server once, by what it is for first: `queues`, and `threads` where that is another one."""
        if self.threads is self.redis:
            return {"queues": self.redis}
        return {"queues": self.redis, "threads": self.threads}


@asynccontextmanager
async def server_url(settings: Settings) -> AsyncIterator[str]:
    """Give the URL of the server to use; without one in the settings, keep the embedded server up.

    Raises:
        EmbeddedServerError: the embedded server cannot be used here.
    """
    if settings.redis_url is not None:
        yield settings.redis_url
        return
    async with EmbeddedServer() as server:
        yield server.url


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    name: str,
    catalogue: Catalogue = NOTHING_KNOWN,
    policy: Policy = NO_POLICY,
) -> AsyncIterator[Services]:
    """Open the connections, and close them at the end.

    Args:
        settings: what the environment says.
        name: what the server's client list shows.
        catalogue: context windows of models, for those who build handoffs.
        policy: the operator's failover policy, likewise.
    """
    tracing.pick_up()
    async with server_url(settings) as url:
        redis = connect(url, name=name)
        threads = (
            connect_threads(settings.threads_url, name=name) if settings.threads_url else redis
        )
        try:
            yield Services(redis, threads, settings, catalogue, policy)
        finally:
            await redis.aclose()
            if threads is not redis:
                await threads.aclose()
