from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import (
    FULL,
    SESSION,
    THREAD,
    answer,
    append,
    conversation,
    document,
    events,
    fork,
    job,
    put,
    ready,
    switch,
)
from helpers.building import command, user
from helpers.slow import gate
from helpers.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ConnectionError  # noqa: A004

from moonfold_handoff import worker
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.ops import tracing
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, results
from moonfold_schemas.events import TurnEnded, TurnStatus
from moonfold_schemas.requests import NewRequest
from moonfold_schemas.results import FailureCode, HandoffFailed, HandoffReady

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.trace import SpanKind, StatusCode

from moonfold_handoff.ops.spans import Spans

SECRET = "a-very-private-wish"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
RESULTS = "moonfold:results:{session_id}"
STEPS = {"load thread", "select items", "fetch items", "render handoff"}


class Traced:
    """The spans of this process, sessions and workers alike."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.session = self.provider.get_tracer("session")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    @property
    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.spans)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    traced = Traced()
    monkeypatch.setattr(tracing, "spans", Spans(traced.provider))
    yield traced
    traced.provider.shutdown()


@pytest.fixture
async def tracing_worker(traced: Traced, running_worker: RunningWorker) -> RunningWorker:
    return running_worker


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def span_id(span: ReadableSpan) -> str:
    return trace.format_span_id(context(span).span_id)


def parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else trace.format_span_id(span.parent.span_id)


def links(span: ReadableSpan) -> list[str]:
    return [trace.format_span_id(link.context.span_id) for link in span.links]


def traces(traced: Traced) -> set[str]:
    return {trace.format_trace_id(context(span).trace_id) for span in traced.spans}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def finished(traced: Traced, name: str, count: int = 1) -> None:
    """Wait for spans that end after the session has its answer."""

    async def there() -> bool:
        return len(traced.named(name)) >= count

    await until(there)


async def test_one_trace_goes_from_the_session_through_the_worker_to_the_result(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    request = switch()
    with traced.session.start_as_current_span("the limit is reached"):
        result = await ready(client, request)
    await finished(traced, "process moonfold:handoffs")
    session = traced.one("the limit is reached")
    sent = traced.one("enqueue moonfold:handoffs")
    processed = traced.one("process moonfold:handoffs")
    published = traced.one(f"publish {RESULTS}")
    received = traced.one(f"wait {RESULTS}")
    steps = {span.name: span for span in traced.spans if span.name in STEPS}
    assert len(traced.spans) == 5 + len(STEPS)
    assert len(traces(traced)) == 1
    assert (sent.kind, parent(sent), links(sent)) == (SpanKind.PRODUCER, span_id(session), [])
    assert processed.kind is SpanKind.CONSUMER
    assert (parent(processed), links(processed)) == (span_id(sent), [span_id(sent)])
    assert steps.keys() == STEPS
    assert {parent(step) for step in steps.values()} == {span_id(processed)}
    assert (published.kind, parent(published)) == (SpanKind.PRODUCER, span_id(processed))
    assert (received.kind, parent(received)) == (SpanKind.CLIENT, span_id(session))
    assert links(received) == [span_id(published)]
    assert {span.status.status_code for span in traced.spans} == {StatusCode.UNSET}
    starts = [span.start_time or 0 for span in (session, sent, processed, published)]
    assert starts == sorted(starts)
    assert sum((span.end_time or 0) - (span.start_time or 0) for span in steps.values()) <= (
        (processed.end_time or 0) - (processed.start_time or 0)
    )
    assert result.traceparent is not None
    assert result.traceparent.split("-")[2] == span_id(published)


async def test_attributes_are_those_of_the_messaging_conventions_and_ids_and_sizes(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    request = switch()
    result = await ready(client, request)
    await finished(traced, "process moonfold:handoffs")
    asked = {
        "messaging.system": "redis",
        "messaging.destination.name": "moonfold:handoffs",
        "messaging.message.id": request.request_id,
        "moonfold.request.type": "provider.switch_requested",
        "moonfold.session.id": SESSION,
        "moonfold.thread.id": THREAD,
    }
    sent = attributes(traced.one("enqueue moonfold:handoffs"))
    size = sent.pop("messaging.message.body.size")
    assert sent == asked | {
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    assert attributes(traced.one("process moonfold:handoffs")) == asked | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.body.size": size,
        "moonfold.job.function": "build_handoff",
        "moonfold.job.attempt": 1,
    }
    answered = {
        "messaging.system": "redis",
        "messaging.destination.name": keys.results(SESSION),
        "messaging.destination.template": RESULTS,
        "messaging.message.id": request.request_id,
        "moonfold.result.type": "handoff.ready",
        "moonfold.handoff.provider": "claude-code",
        "moonfold.handoff.selected_items": result.coverage.selected_items,
        "moonfold.handoff.omitted_items": result.coverage.omitted_items,
        "moonfold.handoff.allowance": result.budget.allowance,
        "moonfold.handoff.cost": result.budget.cost,
    }
    published = attributes(traced.one(f"publish {RESULTS}"))
    assert published.pop("messaging.message.body.size") > result.budget.cost
    assert published == answered | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    assert attributes(traced.one(f"wait {RESULTS}")) == answered | {
        "messaging.operation.name": "wait",
        "messaging.operation.type": "receive",
    }


async def test_the_server_is_named_by_host_and_port_and_never_by_a_path(traced: Traced) -> None:
    for server in (Redis(host="redis.example", port=6380), Redis(unix_socket_path="/home/me/s")):
        with tracing.spans.sending(server, keys.HANDOFFS, switch()):
            pass
    network, local = map(attributes, traced.spans)
    assert (network["server.address"], network["server.port"]) == ("redis.example", 6380)
    assert not {"server.address", "server.port"} & local.keys()


async def test_a_session_that_traces_nothing_around_its_calls_still_has_one_trace(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    await ready(client, switch())
    await finished(traced, "process moonfold:handoffs")
    assert len(traces(traced)) == 1
    assert parent(traced.one("enqueue moonfold:handoffs")) is None
    published = span_id(traced.one(f"publish {RESULTS}"))
    received = traced.one(f"wait {RESULTS}")
    assert (parent(received), links(received)) == (published, [published])


async def test_a_trace_context_that_the_session_gives_stays(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    await ready(client, switch(traceparent=TRACEPARENT, tracestate="vendor=x"))
    await finished(traced, "process moonfold:handoffs")
    sent = traced.one("enqueue moonfold:handoffs")
    assert (sent.kind, parent(sent), links(sent)) == (SpanKind.CLIENT, SPAN_ID, [SPAN_ID])
    processed = traced.one("process moonfold:handoffs")
    assert (parent(processed), links(processed)) == (SPAN_ID, [SPAN_ID])
    assert context(processed).trace_state == {"vendor": "x"}
    assert traces(traced) == {TRACE_ID}


async def test_a_request_that_is_asked_again_is_processed_in_its_first_trace(
    traced: Traced, client: HandoffClient, redis: Redis
) -> None:
    request = switch()
    assert await client.request(request)
    assert not await client.request(request)
    body = json.loads(await redis.get(keys.job(request.request_id)) or b"")
    first, _again = traced.named("enqueue moonfold:handoffs")
    assert span_id(first) in body["a"][0]["traceparent"]


async def test_every_attempt_is_a_span_and_an_error_is_told_by_its_type_alone(
    traced: Traced,
    tracing_worker: RunningWorker,
    client: HandoffClient,
    recorded: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "RETRY_BASE", 0.001)
    monkeypatch.setattr(worker, "IDLE_POLL", 0.01)
    original, calls = results.publish, itertools.count()

    async def publish(*arguments: Any, **more: Any) -> bool:
        if next(calls) < 2:
            raise ConnectionError(SECRET)
        return await original(*arguments, **more)

    monkeypatch.setattr(results, "publish", publish)
    await ready(client, switch())
    await finished(traced, "process moonfold:handoffs", 3)
    attempts = traced.named("process moonfold:handoffs")
    [sent] = traced.named("enqueue moonfold:handoffs")
    assert [attributes(span)["moonfold.job.attempt"] for span in attempts] == [1, 2, 3]
    assert {parent(span) for span in attempts} == {span_id(sent)}
    failed = [*attempts[:2], *traced.named(f"publish {RESULTS}")[:2]]
    assert {attributes(span).get("error.type") for span in failed} == {"ConnectionError"}
    assert {span.status.status_code for span in failed} == {StatusCode.ERROR}
    assert {(span.status.description, len(span.events)) for span in failed} == {(None, 0)}
    assert "error.type" not in attributes(attempts[2])
    assert attempts[2].status.status_code is StatusCode.UNSET
    assert SECRET not in traced.text


async def test_a_step_that_fails_is_told_and_its_answer_has_the_code(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient
) -> None:
    result = await answer(client, switch())
    assert isinstance(result, HandoffFailed)
    await finished(traced, "process moonfold:handoffs")
    loaded = traced.one("load thread")
    assert attributes(loaded) == {"error.type": "ThreadNotFoundError"}
    assert loaded.status.status_code is StatusCode.ERROR
    published = traced.one(f"publish {RESULTS}")
    assert attributes(published)["moonfold.failure.code"] == "thread_not_found"
    processed = traced.one("process moonfold:handoffs")
    assert parent(published) == span_id(processed)
    assert processed.status.status_code is StatusCode.UNSET


async def test_no_word_of_a_conversation_or_request_is_in_a_span(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, redis: Redis
) -> None:
    said = events(*conversation(), user(SECRET), command(f"echo {SECRET}", SECRET))
    through = await append(redis, said)
    wish = NewRequest(text=SECRET)
    await ready(client, switch(through=through, request=wish))
    full = await answer(client, switch(through=through, request=wish, target=FULL))
    assert isinstance(full, HandoffFailed)
    await put(redis, "unreadable", job({"text": SECRET, "traceparent": SECRET}, k={SECRET: 1}))
    await finished(traced, "process moonfold:handoffs", 3)
    assert SECRET not in traced.text


@pytest.mark.parametrize(
    "traceparent", [SECRET, 7, {"deep": SECRET}, TRACEPARENT.replace("0", "g")]
)
async def test_a_malformed_traceparent_begins_a_trace_of_its_own(  # noqa: PLR0917
    traceparent: Any,
    traced: Traced,
    tracing_worker: RunningWorker,
    client: HandoffClient,
    redis: Redis,
    recorded: None,
) -> None:
    asked = document(traceparent=traceparent, tracestate=SECRET)
    await put(redis, asked["request_id"], job(asked))
    assert isinstance(await client.wait(asked["request_id"], 10), HandoffReady)
    await finished(traced, "process moonfold:handoffs")
    processed = traced.one("process moonfold:handoffs")
    assert (parent(processed), links(processed)) == (None, [])
    assert len(traces(traced)) == 1
    assert SECRET not in traced.text


async def test_the_answer_to_what_is_no_request_belongs_to_its_trace(
    traced: Traced,
    tracing_worker: RunningWorker,
    client: HandoffClient,
    redis: Redis,
    logged: Logged,
) -> None:
    asked = document(traceparent=TRACEPARENT)
    await put(redis, asked["request_id"], job(asked, f="unknown_function"))
    result = await client.wait(asked["request_id"], 10)
    assert isinstance(result, HandoffFailed)
    assert result.code is FailureCode.INVALID_REQUEST
    published = traced.one(f"publish {RESULTS}")
    assert parent(published) == SPAN_ID
    [line] = logged.events("handoff_failed")
    assert line["trace_id"] == TRACE_ID


async def test_a_fold_is_a_trace_of_its_own(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient
) -> None:
    ended = TurnEnded(turn_id="turn", status=TurnStatus.COMPLETED)
    with traced.session.start_as_current_span("a turn ends"):
        await client.append(THREAD, 0, [*conversation(), ended])
    await finished(traced, "process moonfold:background")
    folded = traced.one("process moonfold:background")
    assert (parent(folded), links(folded)) == (None, [])
    assert attributes(folded)["messaging.message.id"] == f"fold:{THREAD}"
    assert attributes(folded)["moonfold.job.function"] == "fold_thread"
    assert parent(traced.one("load thread")) == span_id(folded)


async def test_waiting_in_vain_is_told(traced: Traced, client: HandoffClient) -> None:
    with pytest.raises(TimeoutError):
        await client.wait("nobody-asked", timeout=0.01)
    waited = traced.one(f"wait {RESULTS}")
    assert attributes(waited)["error.type"] == "TimeoutError"
    assert waited.status.status_code is StatusCode.ERROR
    assert (parent(waited), links(waited)) == (None, [])
    assert (waited.end_time or 0) - (waited.start_time or 0) >= 10_000_000  # nanoseconds


async def test_a_job_that_is_given_back_is_told(
    traced: Traced,
    tracing_worker: RunningWorker,
    redis: Redis,
    recorded: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.WakeWorker.stop, "__defaults__", (0.01,))
    held = gate(monkeypatch)
    await queue.enqueue_request(redis, switch())
    await held.arrived.wait()
    await tracing_worker.stop()
    given_back = traced.one("process moonfold:handoffs")
    assert attributes(given_back)["error.type"] == "CancelledError"


async def test_lines_inside_a_job_carry_trace_and_span(
    traced: Traced,
    tracing_worker: RunningWorker,
    client: HandoffClient,
    recorded: None,
    logged: Logged,
) -> None:
    await ready(client, switch())
    await finished(traced, "process moonfold:handoffs")
    processed = traced.one("process moonfold:handoffs")
    [line] = logged.events("handoff_ready")
    assert line["span_id"] == span_id(processed)
    assert {line["trace_id"]} == traces(traced)


async def test_what_is_not_sampled_is_neither_recorded_nor_measured(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    result = await ready(client, switch(traceparent=TRACEPARENT.removesuffix("01") + "00"))
    assert traced.spans == ()
    assert result.traceparent is not None
    assert result.traceparent.startswith(f"00-{TRACE_ID}-")
    assert result.traceparent.endswith("-00")


async def test_a_session_that_has_set_up_opentelemetry_is_used_as_it_is(
    settings: Settings, recorded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Traced()
    monkeypatch.setattr(tracing, "spans", tracing.NoSpans())
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: own.provider)
    async with HandoffClient(SESSION, settings) as client:
        picked_up = tracing.spans
        await client.request(switch())
        async with open_services(settings, name="another"):
            assert tracing.spans is picked_up
    assert own.one("enqueue moonfold:handoffs").kind is SpanKind.PRODUCER


async def test_without_a_tracer_provider_there_are_no_spans_whatever_is_imported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "spans", tracing.NoSpans())
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    async with open_services(settings, name="test"):
        assert type(tracing.spans) is tracing.NoSpans


async def test_every_thread_that_a_fork_needs_is_a_step(
    traced: Traced, tracing_worker: RunningWorker, client: HandoffClient, recorded: None
) -> None:
    await ready(client, fork())
    await finished(traced, "process moonfold:handoffs")
    processed = traced.one("process moonfold:handoffs")
    assert parent(traced.one("load thread")) == span_id(processed)
    assert attributes(processed)["moonfold.request.type"] == "fork.requested"
