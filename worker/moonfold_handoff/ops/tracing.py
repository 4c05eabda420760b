"""Tracing: one trace from a session's request through the queue and the worker to its result.

Nothing here imports OpenTelemetry. Spans are made where it is set up when the connections are opened: by
the session's own program, or in a program of ours, where the operator's `OTEL_*` variables ask for traces,
by `set_up`. Everywhere else `spans` makes none, and costs an attribute and a call.

The trace context travels inside requests and results (W3C Trace Context). A worker that does not trace
passes it on, and its lines carry the `trace_id`; a line has a `span_id` only where it is written in a span.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, nullcontext

import structlog
from redis.asyncio import Redis

from moonfold_schemas import HandoffRequest, HandoffResult

API = "opentelemetry.trace"
TRACE_ID = slice(3, 35)  # of a `traceparent`
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_NO_SPAN = nullcontext()

logger = structlog.get_logger()


class NoSpans:
    """The places where spans begin and end, with none made there."""

    def sending(
        self,
        redis: Redis,
        queue: str,
        request: HandoffRequest,
    ) -> AbstractContextManager[HandoffRequest]:
        """Give the request to be put on `queue`, with the trace context that travels with it."""
        return nullcontext(request)

    def processing(
        self,
        redis: Redis,
        queue: str,
        *,
        function: str,
        job_id: str,
        attempt: int,
        argument: bytes,
    ) -> AbstractContextManager[None]:
        """Surround one attempt at a job; an error that leaves it is told by its type alone."""
        return _NO_SPAN

    def about(self, message: HandoffRequest | HandoffResult) -> None:
        """Tell the running job's span and lines what the job is about."""
        if message.traceparent is not None:
            structlog.contextvars.bind_contextvars(trace_id=message.traceparent[TRACE_ID])

    def step(self, name: str) -> AbstractContextManager[None]:
        """Surround a part of a job."""
        return _NO_SPAN

    def publishing(
        self,
        redis: Redis,
        result: HandoffResult,
    ) -> AbstractContextManager[HandoffResult]:
        """Give the result to be published; it comes with its request's trace context."""
        return nullcontext(result)

    def receiving(
        self,
        redis: Redis,
        session_id: str,
        request_id: str,
        result: Awaitable[HandoffResult],
    ) -> Awaitable[HandoffResult]:
        """Give the result that a session waits for."""
        return result


spans: NoSpans = NoSpans()
"""Makes this process's spans: with `Spans` of `ops.spans`, real ones."""


def set_up(environment: Mapping[str, str] = os.environ) -> None:
    """Set OpenTelemetry up for this program, if the operator asks for traces; it stays so to its end.

    Asked for is what `OTEL_TRACES_EXPORTER` names, or else the OTLP exporter where an endpoint is given.
    A program that was started with OpenTelemetry set up keeps it as it is.
    """
    names = exporters(environment)
    if not names:
        return
    try:
        from moonfold_handoff.ops import exporting  # noqa: PLC0415 - needs the extra
    except ImportError:
        logger.warning("tracing_off", reason="install moonfold-handoff[otel]")
        return
    try:
        exporting.set_up(names)
    except exporting.NoExporterError as error:
        logger.warning("tracing_off", reason=str(error))


def exporters(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the exporters that the standard `OTEL_*` variables ask for."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    names = environment.get("OTEL_TRACES_EXPORTER", "")
    if not names.strip():
        asked = any(environment.get(name, "").strip() for name in ENDPOINTS)
        return ("otlp",) if asked else ()
    given = (name.strip().lower() for name in names.split(","))
    return tuple(name for name in given if name not in {"", "none"})


def pick_up() -> None:
    """Make spans from now on if OpenTelemetry is set up in this process."""
    global spans  # noqa: PLW0603 - as global as the tracer provider it stands for
    if API not in sys.modules or type(spans) is not NoSpans:
        return
    from moonfold_handoff.ops.spans import provided  # noqa: PLC0415 - needs the extra

    spans = provided() or spans
