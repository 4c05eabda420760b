"""What a running worker exports, and that it is what happened."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest
from blockbuster import blockbuster_ctx
from conftest import Logged, RunningWorker
from helpers.asking import (
    THREAD,
    append,
    conversation,
    document,
    failed,
    fork,
    job,
    near,
    prepared,
    put,
    ready,
    restart,
    switch,
)
from helpers.scraping import families, get, scrape, value
from helpers.servers import RedisServer
from helpers.slow import gate
from helpers.waiting import until
from prometheus_client import Metric
from redis.asyncio import Redis

from moonfold_handoff import jobs, worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.ops import exposition, workers
from moonfold_handoff.ops.metrics import UNREADABLE, Metrics
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, providers, queue, threads
from moonfold_schemas import encode, utc_now
from moonfold_schemas.events import LimitKind
from moonfold_schemas.results import FailureCode

UNITS = ("bytes", "seconds", "tokens", "events")
COUNTED = {
    "moonfold_build_info",
    "moonfold_handoff_allowance_limited",
    "moonfold_handoff_carried_items",
    "moonfold_handoff_omitted_items",
    "moonfold_job_retries",
    "moonfold_jobs_rejected",
    "moonfold_provider_available",
    "moonfold_queue_depth",
    "moonfold_queue_jobs_deferred",
    "moonfold_queue_jobs_in_progress",
    "moonfold_redis_up",
    "moonfold_rejected_jobs",
    "moonfold_worker_jobs_in_progress",
    "moonfold_worker_ready",
    "moonfold_worker_slots",
    "moonfold_workers",
}
"""Metrics of things that are counted, or are true or not: they have no unit."""

MEASURED = {
    "moonfold_fold_delay_seconds": "histogram",
    "moonfold_fold_lag_events": "histogram",
    "moonfold_folded_events": "counter",
    "moonfold_handoff_allowance_tokens": "histogram",
    "moonfold_handoff_build_seconds": "histogram",
    "moonfold_handoff_carried_bytes": "counter",
    "moonfold_handoff_omitted_bytes": "counter",
    "moonfold_handoff_publication_seconds": "histogram",
    "moonfold_queue_oldest_job_age_seconds": "gauge",
    "moonfold_redis_memory_bytes": "gauge",
    "moonfold_redis_memory_limit_bytes": "gauge",
    "moonfold_redis_round_trip_seconds": "histogram",
}

LABELS: dict[str, set[str]] = {
    "code": set(FailureCode),
    "instance": {"work", ""},
    "outcome": {"ready", "prepared", "waiting", *FailureCode},
    "provider": {"codex", "claude-code"},
    "reason": {*jobs.REASONS, UNREADABLE},
    "function": {"build_handoff", "fold_thread"},
    "input": {"cap", "ceiling", "room"},
    "queue": {"handoffs", "background"},
    "server": {"queues", "threads"},
}


@pytest.fixture
async def address(redis: Redis, running_worker: RunningWorker) -> str:
    return await address_of(redis)


async def address_of(redis: Redis) -> str:
    async def has_said() -> bool:
        return bool(await workers.alive(redis))

    await until(has_said)
    [beat] = await workers.alive(redis)
    assert beat.metrics is not None
    return beat.metrics


@pytest.fixture
async def busy(client: HandoffClient, address: str, redis: Redis) -> str:
    """The address of a worker that has done something of every kind."""
    await client.append(THREAD, 0, conversation(50))
    await ready(client, switch(through=152))
    await ready(client, restart(through=152))
    await prepared(client, near(through=152))
    await prepared(client, fork(through=152, request=None))
    await failed(client, switch(thread_id="nobody"))
    await put(redis, "bad", job(document(request_id="bad", type="unheard of")))
    await client.wait("bad", timeout=10)
    await queue.enqueue_fold(redis, THREAD)
    until_then = Notice(LimitKind.QUOTA, utc_now(), utc_now() + timedelta(hours=1))
    await providers.limited(redis, Instance("codex", "work"), until_then, now=utc_now())

    async def is_folded() -> bool:
        return value(await scrape(address), "moonfold_fold_delay_seconds_count") > 0

    await until(is_folded)
    return address


# Names, types, units


async def test_every_metric_is_named_typed_and_explained(busy: str) -> None:
    exported = {n: m for n, m in (await scrape(busy)).items() if n.startswith("moonfold_")}
    assert set(exported) == COUNTED | set(MEASURED)
    for name, metric in exported.items():
        assert re.fullmatch(r"moonfold(_[a-z]+)+", name)
        assert re.fullmatch(r"[A-Z].*[a-z0-9)]\.", metric.documentation), name
        assert name.endswith(UNITS) is (name in MEASURED)
        assert metric.type == MEASURED.get(name, metric.type)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
        if metric.type == "counter":
            assert all(sample.name == f"{name}_total" for sample in metric.samples)
        assert metric.samples, name


async def test_nothing_else_is_exported_but_the_process(busy: str) -> None:
    others = {name for name in await scrape(busy) if not name.startswith("moonfold_")}
    assert others
    assert all(name.startswith("process_") for name in others)


async def test_the_text_is_what_prometheus_reads(busy: str) -> None:
    answer = await get(busy, "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.endswith("\n")
    lines = answer.body.splitlines()
    kinds = [line.split(" ")[2] for line in lines if line.startswith("# TYPE ")]
    assert len(kinds) == len(set(kinds))
    samples = [line for line in lines if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples)
    assert "_created" not in answer.body


async def test_labels_come_from_small_sets_and_name_nobody(busy: str) -> None:
    exported = await scrape(busy)
    samples = [sample for metric in exported.values() for sample in metric.samples]
    used = {(label, known) for sample in samples for label, known in sample.labels.items()}
    told = {"le", "version", "python"}
    assert all(known in LABELS[label] for label, known in used if label not in told)
    series = len(samples)
    assert series < 1_000


# What happened


async def test_answers_are_timed_by_reason_and_outcome(busy: str) -> None:
    exported = await scrape(busy)
    for reason, outcome in (
        ("provider.switch_requested", "ready"),
        ("restart.requested", "ready"),
        ("provider.limit_near", "prepared"),
        ("fork.requested", "prepared"),
        ("provider.switch_requested", "thread_not_found"),
        (UNREADABLE, "invalid_request"),
    ):
        name = "moonfold_handoff_build_seconds"
        assert value(exported, f"{name}_count", reason=reason, outcome=outcome) == 1
        assert 0 < value(exported, f"{name}_sum", reason=reason, outcome=outcome) < 10
    name = "moonfold_handoff_publication_seconds"
    assert value(exported, f"{name}_count", reason="provider.switch_requested") == 2
    built = value(
        exported,
        "moonfold_handoff_build_seconds_sum",
        reason="restart.requested",
        outcome="ready",
    )
    # The producer's clock has milliseconds.
    assert value(exported, f"{name}_sum", reason="restart.requested") > built - 0.001


async def test_what_was_not_begun_is_not_timed(
    redis: Redis, client: HandoffClient, address: str
) -> None:
    await put(redis, "bad", b"no job")
    await put(redis, "worse", job(document(request_id="worse"), f="unknown", et=1))
    await client.wait("worse", timeout=10)
    exported = await scrape(address)
    assert not exported["moonfold_handoff_build_seconds"].samples
    name = "moonfold_jobs_rejected_total"
    assert value(exported, name, function="build_handoff", code="invalid_request") == 2
    name = "moonfold_handoff_publication_seconds_count"
    assert value(exported, name, reason="provider.switch_requested") == 1
    assert value(exported, "moonfold_rejected_jobs") == 2


async def test_an_answer_counts_once_however_often_the_job_runs(services: Services) -> None:
    await append(services.redis, conversation())
    request = switch()
    for _ in range(3):
        await build_handoff(services, request.request_id, encode(request))
    assert services.metrics.answers == 1
    assert len(services.metrics.recent) == 1


async def test_a_producer_with_no_clock_or_a_fast_one_spoils_nothing(services: Services) -> None:
    await append(services.redis, conversation())
    for enqueued in (None, utc_now() + timedelta(hours=1)):
        request = switch()
        await build_handoff(services, request.request_id, encode(request), enqueued)
    waits = [one.whole_ms for one in services.metrics.recent]
    assert waits == [None, 0.0]


async def test_what_travels_and_what_stays_adds_up(services: Services) -> None:
    await append(services.redis, conversation(200))
    request = switch(through=602, token_cap=2_000)
    await build_handoff(services, request.request_id, encode(request))
    [recent] = services.metrics.recent
    exported = await exported_by(services)
    carried = value(exported, "moonfold_handoff_carried_bytes_total")
    omitted = value(exported, "moonfold_handoff_omitted_bytes_total")
    assert carried == recent.carried_bytes > 0
    items = [f"moonfold_handoff_{which}_items_total" for which in ("carried", "omitted")]
    assert sum(value(exported, name) for name in items) == 600
    assert value(exported, items[1]) == recent.omitted_items > 0
    state = await threads.load(services.threads, THREAD)
    assert carried + omitted <= sum(ref.body for ref in state.kept) + 2 * len(state.kept)
    assert omitted > carried
    assert value(exported, "moonfold_handoff_allowance_tokens_sum") == 2_000
    assert value(exported, "moonfold_handoff_allowance_limited_total", input="cap") == 1
    assert value(exported, "moonfold_handoff_allowance_limited_total", input="room") == 0


async def test_nothing_is_omitted_where_everything_travels(services: Services) -> None:
    await append(services.redis, conversation())
    request = switch()
    await build_handoff(services, request.request_id, encode(request))
    exported = await exported_by(services)
    assert value(exported, "moonfold_handoff_omitted_bytes_total") == 0
    assert value(exported, "moonfold_handoff_carried_bytes_total") > 0


async def test_a_fold_ahead_of_need_leaves_a_handoff_nothing_behind(
    client: HandoffClient, address: str, redis: Redis
) -> None:
    await append(redis, conversation(10))
    await queue.enqueue_fold(redis, THREAD)
    name = "moonfold_fold_lag_events"

    async def is_folded() -> bool:
        return bool(value(await scrape(address), f"{name}_count", function="fold_thread"))

    await until(is_folded)
    await ready(client, switch(through=32))
    exported = await scrape(address)
    assert value(exported, f"{name}_sum", function="fold_thread") == 32
    assert value(exported, f"{name}_sum", function="build_handoff") == 0
    assert value(exported, f"{name}_count", function="build_handoff") == 1
    assert value(exported, "moonfold_folded_events_total") == 32


async def test_attempts_that_are_made_again_are_counted(
    client: HandoffClient, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RETRY_BASE", 0.001)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.01)
    original, failures = threads.load, [1, 2]

    async def load(*arguments: object, **more: object) -> object:
        if failures:
            failures.pop()
            raise ConnectionError
        return await original(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(threads, "load", load)
    await client.append(THREAD, 0, conversation())
    await ready(client, switch())
    exported = await scrape(address)
    assert value(exported, "moonfold_job_retries_total", function="build_handoff") == 2
    assert value(exported, "moonfold_job_retries_total", function="fold_thread") == 0


async def test_the_slots_of_a_worker_and_the_jobs_of_all(
    redis: Redis, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gate(monkeypatch)
    await append(redis, conversation())
    for _ in range(3):
        await queue.enqueue_request(redis, fork(fork_thread_id="f", request=None))
        await queue.enqueue_request(redis, switch(session_id="other"))

    async def all_run() -> bool:
        return len(held.waiting) >= 3

    await until(all_run)
    exported = await scrape(address)
    assert value(exported, "moonfold_worker_jobs_in_progress", queue="handoffs") == 3
    assert value(exported, "moonfold_queue_jobs_in_progress", queue="handoffs") == 3
    assert value(exported, "moonfold_worker_slots", queue="handoffs") == worker.HANDOFF_JOBS
    assert value(exported, "moonfold_queue_depth", queue="handoffs") == 0
    held.opened.set()


async def test_providers_are_available_or_not(busy: str) -> None:
    exported = await scrape(busy)
    name = "moonfold_provider_available"
    assert value(exported, name, provider="codex", instance="work") == 0


async def test_only_so_many_providers_are_told_of(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "PROVIDERS", 2)
    now = utc_now()
    for name in ("a", "b", "d"):
        await providers.succeeded(services.redis, Instance(name), now, now=now)
    spent = Notice(LimitKind.CREDITS, now, now + timedelta(hours=1))
    await providers.limited(services.redis, Instance("c"), spent, now=now)
    told = (await exported_by(services))["moonfold_provider_available"].samples
    assert {sample.labels["provider"]: sample.value for sample in told} == {"c": 0, "a": 1}


async def test_workers_do_not_share_what_they_measure(settings: Settings) -> None:
    async with (
        open_services(settings, name="one") as one,
        open_services(settings, name="other") as other,
    ):
        one.metrics.retried("build_handoff")
        name = "moonfold_job_retries_total"
        assert value(await exported_by(one), name, function="build_handoff") == 1
        assert value(await exported_by(other), name, function="build_handoff") == 0


async def test_the_latest_latencies_make_the_median() -> None:
    metrics = Metrics()
    assert metrics.latency_ms(0.5) is None
    metrics._latencies.extend([0.004, 0.001, 0.002, 0.1])
    assert metrics.latency_ms(0.5) == 4.0
    assert metrics.latency_ms(0.99) == 100.0


# Servers


async def test_a_server_that_is_away_is_down_and_the_rest_is_told(
    own_server: RedisServer, logged: Logged
) -> None:
    async with open_services(Settings(redis_url=own_server.url), name="test") as services:
        assert value(await exported_by(services), "moonfold_redis_up", server="queues") == 1
        own_server.kill()
        exported = await exported_by(services)
        assert value(exported, "moonfold_redis_up", server="queues") == 0
        assert "moonfold_queue_depth" not in exported
        assert "moonfold_build_info" in exported
        assert [line["server"] for line in logged.events("metrics_without_server")] == ["queues"]


async def test_the_server_of_threads_is_told_of_apart(
    server: RedisServer, own_server: RedisServer
) -> None:
    settings = Settings(redis_url=server.url, threads_url=own_server.url)
    running = RunningWorker(settings)
    await running.start()
    async with open_services(settings, name="test") as services:
        address = await address_of(services.redis)
        exported = await scrape(address)
        for name in ("queues", "threads"):
            assert value(exported, "moonfold_redis_up", server=name) == 1
            assert value(exported, "moonfold_redis_memory_bytes", server=name) > 100_000
            assert value(exported, "moonfold_redis_round_trip_seconds_count", server=name) >= 1
    await running.stop()


async def test_a_scrape_blocks_nothing_and_writes_nothing(settings: Settings, redis: Redis) -> None:
    running = RunningWorker(settings)
    with blockbuster_ctx("moonfold_handoff"):
        await running.start()
        address = await address_of(redis)
        before = {key async for key in redis.scan_iter()}
        async with asyncio.timeout(10):
            for path in ("/metrics", "/livez", "/readyz"):
                assert (await get(address, path)).status == 200
        after = {key async for key in redis.scan_iter()}
        await running.stop()
    assert after - before <= {keys.WORKERS.encode(), keys.PROBE.encode()}


async def exported_by(services: Services) -> dict[str, Metric]:
    return families((await exposition.page(services)).body.decode())
