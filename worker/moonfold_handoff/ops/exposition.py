"""The page that Prometheus reads: what this process measured, and how things stand on the server now.

How things stand is read at each scrape, from the server, so every worker gives the same figures; ask for
the maximum over workers, not for the sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from redis.asyncio import Redis

from moonfold_handoff.ops import queues, workers
from moonfold_handoff.ops.http import Page
from moonfold_handoff.ops.queues import Figures
from moonfold_handoff.services import Services
from moonfold_handoff.store import providers
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.store.providers import Known
from moonfold_schemas import utc_now

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
READ_SECONDS = 3.0  # for all that is read of a server; Prometheus waits for 10
PROVIDERS = 100  # instances told of at most, those that are used up first

logger = structlog.get_logger()


async def page(services: Services) -> Page:
    """Return the page; a server that does not answer leaves out what it would tell, and is down."""
    found: list[Metric] = []
    up = GaugeMetricFamily(
        "moonfold_redis_up", "Whether the server answers: 1 or 0.", labels=("server",)
    )
    used = GaugeMetricFamily(
        "moonfold_redis_memory_bytes", "Memory that the server uses.", labels=("server",)
    )
    limit = GaugeMetricFamily(
        "moonfold_redis_memory_limit_bytes",
        "Memory that the server may use; 0 is no limit.",
        labels=("server",),
    )
    for server, redis in services.servers.items():
        memory = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                memory = await redis.info("memory")
                if redis is services.redis:
                    found += await _shared(redis)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("metrics_without_server", server=server, error=type(error).__name__)
        up.add_metric((server,), float(memory is not None))
        if memory is not None:
            used.add_metric((server,), memory["used_memory"])
            limit.add_metric((server,), memory["maxmemory"])
    families = [up, used, limit, *found]
    body = await asyncio.to_thread(_text, services.metrics.registry, families)
    return Page(body, content_type=CONTENT_TYPE)


async def _shared(redis: Redis) -> list[Metric]:
    """Return how the queues, the workers and the providers stand."""
    figures, known, alive = await asyncio.gather(
        queues.read(redis), providers.listed(redis, now=utc_now()), workers.count(redis)
    )
    living = GaugeMetricFamily("moonfold_workers", "Workers that live.", value=alive)
    return [*_queues(figures), _providers(known), living]


def _queues(figures: Figures) -> list[Metric]:
    depth, running, deferred, oldest = (
        GaugeMetricFamily(name, text, labels=("queue",))
        for name, text in (
            ("moonfold_queue_depth", "Jobs that are due and wait for a worker."),
            ("moonfold_queue_jobs_in_progress", "Jobs that any worker is running."),
            ("moonfold_queue_jobs_deferred", "Jobs that are to be tried again later."),
            (
                "moonfold_queue_oldest_job_age_seconds",
                "Time that the oldest job is due, 0 if none.",
            ),
        )
    )
    for queue in figures.queues:
        depth.add_metric((queue.queue,), queue.depth)
        running.add_metric((queue.queue,), queue.in_progress)
        deferred.add_metric((queue.queue,), queue.deferred)
        oldest.add_metric((queue.queue,), queue.oldest_seconds)
    kept = GaugeMetricFamily(
        "moonfold_rejected_jobs", "Dead letters that are kept.", value=figures.rejected
    )
    return [depth, running, deferred, oldest, kept]


def _providers(known: list[Known]) -> Metric:
    available = GaugeMetricFamily(
        "moonfold_provider_available",
        "Whether a provider instance can be used: 1, or 0 until its limit ends.",
        labels=("provider", "instance"),
    )
    for one in sorted(known, key=lambda one: one.notice is None)[:PROVIDERS]:
        provider, instance = one.instance
        available.add_metric((provider, instance or ""), float(one.notice is None))
    return available


class _Page:
    """All metrics of a page, as the library collects them."""

    def __init__(self, registry: CollectorRegistry, families: list[Metric]) -> None:
        self._registry, self._families = registry, families

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            # When each series was begun would double their number, and nobody asks for it.
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family
        yield from self._families


def _text(registry: CollectorRegistry, families: list[Metric]) -> bytes:
    return generate_latest(_Page(registry, families))
