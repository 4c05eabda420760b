from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

import pytest
from helpers.asking import THREAD, conversation, ready, switch
from helpers.servers import RedisServer
from helpers.waiting import DEADLINE_SECONDS

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed"
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Collector:
    """An OTLP collector that keeps what it is sent."""

    url: str
    paths: set[str] = field(default_factory=set)
    resources: list[dict[str, str]] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            known = {one.key: one.value.string_value for one in part.resource.attributes}
            self.resources.append(known)
            self.spans += [span for scope in part.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        found = Collector(f"http://127.0.0.1:{listening.server_address[1]}")
        serving = threading.Thread(target=listening.serve_forever)
        serving.start()
        yield found
        listening.shutdown()
        serving.join()


@dataclass
class Program:
    """`moonfold worker` as an operator starts it."""

    server: RedisServer
    output: str = ""

    async def hand_off(self, **variables: str) -> None:
        """Start a worker, have it answer one request of a trace, and stop it."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MOON", "OTEL_"))}
        environment |= {"MOONFOLD_REDIS_URL": self.server.url, **variables}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moonfold_handoff", "worker"),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with HandoffClient("session", Settings(redis_url=self.server.url)) as client:
                await client.append(THREAD, 0, conversation())
                await ready(client, switch(traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01"))
        finally:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_SECONDS):
                output, _ = await process.communicate()
            self.output = output.decode()
        assert process.returncode == 0


@pytest.fixture
def program(server: RedisServer) -> Program:
    return Program(server)


async def test_a_worker_exports_its_spans_where_the_operator_says(
    program: Program, collector: Collector
) -> None:
    await program.hand_off(
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_RESOURCE_ATTRIBUTES="site=here"
    )
    assert collector.paths == {"/v1/traces"}
    assert {resource["service.name"] for resource in collector.resources} == {"moonfold-handoff"}
    assert {resource["site"] for resource in collector.resources} == {"here"}
    [known, *_] = collector.resources
    assert known["service.version"] == version("moonfold-handoff")
    [processed] = [span for span in collector.spans if span.name == "process moonfold:handoffs"]
    assert processed.parent_span_id.hex() == SPAN_ID
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert {"load thread", "select items", "fetch items", "render handoff"} < {
        span.name for span in collector.spans
    }


async def test_the_operator_names_the_service(program: Program, collector: Collector) -> None:
    await program.hand_off(
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_SERVICE_NAME="handoffs-of-ours",
    )
    assert {resource["service.name"] for resource in collector.resources} == {"handoffs-of-ours"}


async def test_a_worker_does_not_wait_for_a_collector_that_is_away(program: Program) -> None:
    await program.hand_off(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="1"
    )
    assert "handoff_ready" in program.output


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, "carrier-pigeon"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/json"),
    ],
)
async def test_an_exporter_that_is_not_installed_is_a_warning(
    variables: dict[str, str], missing: str, program: Program
) -> None:
    await program.hand_off(**variables)
    [line] = [line for line in program.output.splitlines() if "tracing_off" in line]
    assert missing in line
