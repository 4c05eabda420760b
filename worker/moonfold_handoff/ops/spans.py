"""Spans as OpenTelemetry's API makes them, by its semantic conventions for messaging.

A request and its result are two messages. What happens to them is told by ids and sizes: no text, and of an
error only its type, because messages of errors may quote what could not be read.

    enqueue (producer)  the session puts the request on its queue
      process (consumer)  an attempt of a worker; a child of `enqueue` that links to it, too
        load thread, select items, fetch items, render handoff
        publish (producer)  the worker publishes the result
    wait (client)  the session has the result; it links to `publish`

Where the session does nothing else that is traced, `wait` is a child of `publish`. A request that comes
with a trace context keeps it: then `enqueue` links to that, and `process` is its child.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from redis.asyncio import Redis

from moonfold_handoff.ops.tracing import NoSpans
from moonfold_handoff.store import keys
from moonfold_schemas import HandoffRequest, HandoffResult, encode
from moonfold_schemas.codec import read_trace_context
from moonfold_schemas.results import HandoffFailed, HandoffPrepared, HandoffReady

SYSTEM = "redis"
RESULTS_TEMPLATE = keys.results("{session_id}")

Message = TypeVar("Message", bound=HandoffRequest | HandoffResult)

_NOTHING = Context()
# Not the program's global propagator: what else that adds, such as baggage, may hold anything.
_propagator = TraceContextTextMapPropagator()


def provided() -> Spans | None:
    """Return what makes spans with the global tracer provider; None if none has been set."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else Spans(provider)


class Spans(NoSpans):
    """Makes spans with a tracer provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("moonfold_handoff", version("moonfold-handoff"))

    @contextmanager
    def sending(
        self, redis: Redis, queue: str, request: HandoffRequest
    ) -> Iterator[HandoffRequest]:
        """Give the request with the context of its `enqueue` span; one that it has already stays."""
        given = _context(request)
        kind = SpanKind.CLIENT if request.traceparent else SpanKind.PRODUCER
        attributes = {
            **_messaging(redis, "enqueue", "send", queue),
            **_request(request),
            "messaging.message.id": request.request_id,
        }
        name = f"enqueue {queue}"
        with self._span(
            name, kind, attributes, context=_unless_inside(given), links=_links(given)
        ) as span:
            yield _measured(request if request.traceparent else _carrying(request, span), span)

    @contextmanager
    def processing(
        self,
        redis: Redis,
        queue: str,
        *,
        function: str,
        job_id: str,
        attempt: int,
        argument: bytes,
    ) -> Iterator[None]:
        """Surround one attempt at a job, as a child of the span that asked for it."""
        asked = _propagator.extract(read_trace_context(argument), _NOTHING)
        attributes = {
            **_messaging(redis, "process", "process", queue),
            "messaging.message.id": job_id,
            "messaging.message.body.size": len(argument),
            "moonfold.job.function": function,
            "moonfold.job.attempt": attempt,
        }
        name = f"process {queue}"
        with self._span(
            name, SpanKind.CONSUMER, attributes, context=asked, links=_links(asked)
        ) as span:
            _bind(span)
            yield

    def about(self, message: HandoffRequest | HandoffResult) -> None:
        """Name what the running job is about; what runs in no span is told by the message's trace."""
        span = trace.get_current_span()
        if not span.get_span_context().is_valid:
            super().about(message)
        elif isinstance(message, HandoffRequest):
            span.set_attributes(_request(message))

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Surround a part of a job."""
        return self._span(name, SpanKind.INTERNAL, {})

    @contextmanager
    def publishing(self, redis: Redis, result: HandoffResult) -> Iterator[HandoffResult]:
        """Give the result with the context of its `publish` span."""
        attributes = {
            **_messaging(redis, "publish", "send", keys.results(result.session_id)),
            **_result(result),
            "messaging.destination.template": RESULTS_TEMPLATE,
            "messaging.message.id": result.request_id,
        }
        name = f"publish {RESULTS_TEMPLATE}"
        context = _unless_inside(_context(result))
        with self._span(name, SpanKind.PRODUCER, attributes, context=context) as span:
            yield _measured(_carrying(result, span), span)

    async def receiving(
        self, redis: Redis, session_id: str, request_id: str, result: Awaitable[HandoffResult]
    ) -> HandoffResult:
        """Give the result; the span is made at its end, when it is known what it belongs to."""
        began = time.time_ns()
        attributes: dict[str, Any] = {
            **_messaging(redis, "wait", "receive", keys.results(session_id)),
            "messaging.destination.template": RESULTS_TEMPLATE,
            "messaging.message.id": request_id,
        }
        received: HandoffResult | None = None
        failure: BaseException | None = None
        try:
            received = await result
        except BaseException as error:
            failure = error
            raise
        else:
            attributes |= _result(received)
            return received
        finally:
            published = _NOTHING if received is None else _context(received)
            span = self._tracer.start_span(
                f"wait {RESULTS_TEMPLATE}",
                _unless_inside(published),
                SpanKind.CLIENT,
                attributes,
                _links(published),
                start_time=began,
            )
            if failure is not None:
                _fail(span, failure)
            span.end()

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        *,
        context: Context | None = None,
        links: list[Link] | None = None,
    ) -> Iterator[Span]:
        """Surround what is done in a span; the API itself would add the message of an error."""
        with self._tracer.start_as_current_span(
            name,
            context,
            kind,
            attributes,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, error)
                raise


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


def _bind(span: Span) -> None:
    """Have the lines of the running job tell its span."""
    context = span.get_span_context()
    if context.is_valid:
        structlog.contextvars.bind_contextvars(
            trace_id=trace.format_trace_id(context.trace_id),
            span_id=trace.format_span_id(context.span_id),
        )


def _context(message: HandoffRequest | HandoffResult) -> Context:
    """Return the context that a message carries, and nothing of what is going on here."""
    fields = {"traceparent": message.traceparent, "tracestate": message.tracestate}
    carrier = {name: value for name, value in fields.items() if value is not None}
    return _propagator.extract(carrier, _NOTHING)


def _unless_inside(context: Context) -> Context | None:
    """Return `context` for a span that has no other parent, or None where it is made inside another."""
    return None if trace.get_current_span().get_span_context().is_valid else context


def _carrying(message: Message, span: Span) -> Message:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, _NOTHING))
    return replace(message, **carrier) if carrier else message


def _measured(message: Message, span: Span) -> Message:
    if span.is_recording():
        span.set_attribute("messaging.message.body.size", len(encode(message)))
    return message


def _links(context: Context) -> list[Link]:
    linked = trace.get_current_span(context).get_span_context()
    return [Link(linked)] if linked.is_valid else []


def _messaging(redis: Redis, name: str, type_: str, destination: str) -> dict[str, Any]:
    """Return what the conventions ask of every operation.

    A server on a socket has no address here: its path may hold a person's name.
    """
    server = redis.connection_pool.connection_kwargs
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": type_,
        "messaging.destination.name": destination,
    }
    if "host" in server:
        attributes |= {"server.address": server["host"], "server.port": server.get("port", 6379)}
    return attributes


def _request(request: HandoffRequest) -> dict[str, Any]:
    return {
        "moonfold.request.type": str(request.__struct_config__.tag),
        "moonfold.session.id": request.session_id,
        "moonfold.thread.id": request.thread_id,
    }


def _result(result: HandoffResult) -> dict[str, Any]:
    found: dict[str, Any] = {"moonfold.result.type": str(result.__struct_config__.tag)}
    if isinstance(result, HandoffReady | HandoffPrepared):
        found |= {
            "moonfold.handoff.provider": result.target.provider,
            "moonfold.handoff.selected_items": result.coverage.selected_items,
            "moonfold.handoff.omitted_items": result.coverage.omitted_items,
            "moonfold.handoff.allowance": result.budget.allowance,
            "moonfold.handoff.cost": result.budget.cost,
        }
    elif isinstance(result, HandoffFailed):
        found["moonfold.failure.code"] = result.code.value
    return found
