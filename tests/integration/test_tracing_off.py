from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import document, failed, job, put, ready, switch
from helpers.servers import RedisServer
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_schemas.results import HandoffFailed

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"

WITHOUT_THE_EXTRA = """
import asyncio, sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.ops import tracing
from moonfold_handoff.settings import Settings
from moonfold_schemas.events import ThreadStarted
from moonfold_schemas.requests import RestartRequested, Target

async def main():
    tracing.set_up()
    stop, settings = asyncio.Event(), Settings(redis_url=sys.argv[1])
    running = asyncio.create_task(worker.run(settings, stop))
    async with HandoffClient("s", settings) as client:
        await client.append("t", 0, [ThreadStarted()])
        ids = dict(request_id="r", session_id="s", thread_id="t", through=1)
        await client.request(RestartRequested(**ids, target=Target(provider="codex")))
        print(type(await client.wait("r", 10)).__name__)
    stop.set()
    await running
    print([name for name in sys.modules if name.startswith("opentelemetry.")])

asyncio.run(main())
"""


def test_without_the_extra_everything_works_and_nothing_of_it_is_imported(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
    command = [sys.executable, "-W", "error", "-c", WITHOUT_THE_EXTRA, server.url]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "tracing_off" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    assert "HandoffReady" in done.stdout.splitlines()


async def test_a_worker_that_does_not_trace_passes_the_context_on_and_logs_its_trace_id(
    running_worker: RunningWorker, client: HandoffClient, recorded: None, logged: Logged
) -> None:
    result = await ready(client, switch(traceparent=TRACEPARENT, tracestate="vendor=x"))
    assert (result.traceparent, result.tracestate) == (TRACEPARENT, "vendor=x")
    [line] = logged.events("handoff_ready")
    assert line["trace_id"] == TRACE_ID
    assert "span_id" not in line


async def test_failures_pass_the_context_on_too(
    running_worker: RunningWorker, client: HandoffClient, redis: Redis, logged: Logged
) -> None:
    absent = await failed(client, switch(traceparent=TRACEPARENT))
    asked = document(traceparent=TRACEPARENT, through="x")
    await put(redis, asked["request_id"], job(asked))
    unreadable = await client.wait(asked["request_id"], 10)
    assert isinstance(unreadable, HandoffFailed)
    assert {absent.traceparent, unreadable.traceparent} == {TRACEPARENT}
    assert {line["trace_id"] for line in logged.events("handoff_failed")} == {TRACE_ID}


async def test_a_request_without_a_context_has_an_answer_without_one(
    running_worker: RunningWorker, client: HandoffClient, recorded: None, logged: Logged
) -> None:
    result = await ready(client, switch())
    assert (result.traceparent, result.tracestate) == (None, None)
    assert "trace_id" not in logged.events("handoff_ready")[0]


@pytest.mark.parametrize("traceparent", ["so-what", 7, TRACEPARENT + "0"])
async def test_a_malformed_context_is_none_to_the_worker(
    traceparent: object,
    running_worker: RunningWorker,
    client: HandoffClient,
    redis: Redis,
    recorded: None,
) -> None:
    asked = document(traceparent=traceparent, tracestate="vendor=x")
    await put(redis, asked["request_id"], job(asked))
    result = await client.wait(asked["request_id"], 10)
    assert not isinstance(result, HandoffFailed)
    assert (result.traceparent, result.tracestate) == (None, None)
