from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
import structlog
from helpers.asking import switch
from redis.asyncio import Redis

from moonfold_handoff import logs
from moonfold_handoff.ops import tracing
from moonfold_handoff.ops.tracing import NoSpans, exporters

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
URL = "http://collector.example:4318"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ()),
        ({ENDPOINT: " "}, ()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_METRICS_EXPORTER": "otlp"}, ()),
        ({ENDPOINT: URL}, ("otlp",)),
        ({TRACES_ENDPOINT: URL}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "OTLP, console,"}, ("otlp", "console")),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: URL}, ()),
        ({"OTEL_TRACES_EXPORTER": "console", ENDPOINT: URL}, ("console",)),
        ({"OTEL_SDK_DISABLED": "TRUE", ENDPOINT: URL}, ()),
        ({"OTEL_SDK_DISABLED": "false", ENDPOINT: URL}, ("otlp",)),
    ],
)
def test_traces_are_on_only_where_the_operator_asks_for_them(
    environment: dict[str, str], names: tuple[str, ...]
) -> None:
    assert exporters(environment) == names


@pytest.mark.usefixtures("restored_logging")
def test_traces_that_are_asked_for_without_the_extra_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    logs.configure(format_="json", stream=out)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "moonfold_handoff.ops.exporting", raising=False)
    tracing.set_up({ENDPOINT: URL})
    [line] = [json.loads(text) for text in out.getvalue().splitlines()]
    assert (line["event"], line["level"]) == ("tracing_off", "warning")
    assert "moonfold-handoff[otel]" in line["reason"]
    tracing.pick_up()
    assert type(tracing.spans) is NoSpans


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    program = """
import sys
import moonfold_handoff.cli
from moonfold_handoff.ops import tracing
tracing.set_up({})
tracing.pick_up()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


async def test_without_spans_everything_is_passed_on_as_it_is() -> None:
    off, redis, request = NoSpans(), Redis(), switch(traceparent=TRACEPARENT)
    with off.sending(redis, "queue", request) as sent:
        assert sent is request
    result: Any = object()

    async def wait() -> Any:
        return result

    with off.publishing(redis, result) as published:
        assert published is result
    assert await off.receiving(redis, "session", "request", wait()) is result


@pytest.mark.usefixtures("restored_logging")
def test_without_spans_lines_carry_the_trace_of_the_request_and_no_span() -> None:
    off = NoSpans()
    off.about(switch())
    assert structlog.contextvars.get_contextvars() == {}
    off.about(switch(traceparent=TRACEPARENT))
    assert structlog.contextvars.get_contextvars() == {"trace_id": TRACE_ID}
