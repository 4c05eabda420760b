"""The jobs: build a handoff and publish it; fold a thread ahead of need.

They know nothing of arq. What a job cannot do it answers (`handoff.failed`) and keeps as a dead letter;
errors of a server that is away pass through, for the worker to try again.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Any, get_args

import structlog
from msgspec.structs import replace

from moonfold_handoff import failover, forks, owners
from moonfold_handoff.context.availability import Instance
from moonfold_handoff.errors import HandoffError, InvalidRequestError
from moonfold_handoff.handoffs import as_asked, built, planned, prepared
from moonfold_handoff.ops import tracing
from moonfold_handoff.ops.metrics import UNREADABLE
from moonfold_handoff.reading.access import granted
from moonfold_handoff.services import Services
from moonfold_handoff.store import log, rejected, results, threads
from moonfold_handoff.store.queue import BUILD_HANDOFF, FOLD_THREAD
from moonfold_handoff.store.tokens import Access
from moonfold_schemas import WireError, decode_request, is_id, utc_now
from moonfold_schemas.codec import parse, trace_context
from moonfold_schemas.requests import (
    ForkRequested,
    HandoffRequest,
    ProviderLimitNear,
    ProviderLimitReached,
)
from moonfold_schemas.results import (
    FailureCode,
    HandoffFailed,
    HandoffReady,
    HandoffResult,
    HandoffWaiting,
)

ORDINARY_FAILURES = {
    FailureCode.REFERENCES_DO_NOT_FIT,
    FailureCode.NO_TARGET_AVAILABLE,
    FailureCode.SUPERSEDED,
}
"""Answers that nobody has to look into, so they are not kept as dead letters."""

REASONS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(HandoffRequest))
"""Types of requests."""

logger = structlog.get_logger()


async def build_handoff(
    services: Services, job_id: str, argument: bytes, enqueued: datetime | None = None
) -> None:
    """Answer one request: publish its handoff, or why there is none.

    Args:
        services: connections and settings.
        job_id: the job, which bears the request's id.
        argument: the request as JSON.
        enqueued: when it was asked for, by the producer's clock; None where nobody knows.
    """
    started = time.perf_counter()
    try:
        request = decode_request(argument)
    except WireError as error:
        await abandon(
            services,
            job_id=job_id,
            function=BUILD_HANDOFF,
            argument=argument,
            error=InvalidRequestError(f"The request cannot be read: {error}."),
            started=started,
            enqueued=enqueued,
        )
        return
    structlog.contextvars.bind_contextvars(
        request_id=request.request_id, thread_id=request.thread_id
    )
    tracing.spans.about(request)
    async with AsyncExitStack() as later:  # what can wait until the session has its answer
        try:
            owners.check(services, job_id, request)
            result = await _answer(services, request, later)
        except HandoffError as error:
            await abandon(
                services,
                job_id=job_id,
                function=BUILD_HANDOFF,
                argument=argument,
                error=error,
                started=started,
                enqueued=enqueued,
            )
            return
        elapsed = time.perf_counter() - started
        result = replace(
            result,
            created_at=utc_now(),
            duration_ms=round(elapsed * 1000, 3),
            traceparent=request.traceparent,
            tracestate=request.tracestate,
        )
        result, access = granted(services.settings, result)
        reason = str(request.__struct_config__.tag)
        await _publish(
            services, result, reason, build_seconds=elapsed, enqueued=enqueued, access=access
        )
        if isinstance(request, ProviderLimitReached) and isinstance(result, HandoffReady):
            await failover.count(services, result)


async def fold_thread(
    services: Services, job_id: str, argument: bytes, enqueued: datetime | None = None
) -> None:
    """Bring a thread's state up to the end of its log, so that a handoff finds little left to do.

    What its last turn tells of the provider is told to all threads.

    Args:
        services: connections and settings.
        job_id: the job.
        argument: the thread's id as JSON.
        enqueued: when it was asked for, by the producer's clock; None where nobody knows.
    """
    try:
        thread_id = parse(argument)
    except WireError:
        thread_id = None
    if not is_id(thread_id):
        error: HandoffError = InvalidRequestError("The argument is not a thread id.")
        await abandon(services, job_id=job_id, function=FOLD_THREAD, argument=argument, error=error)
        return
    structlog.contextvars.bind_contextvars(thread_id=thread_id)
    try:
        behind = partial(services.metrics.behind, FOLD_THREAD)
        state = await threads.load(services.threads, thread_id, behind=behind)
    except HandoffError as failure:
        await abandon(
            services, job_id=job_id, function=FOLD_THREAD, argument=argument, error=failure
        )
        return
    ancestors = [ancestor.thread_id for ancestor in state.lineage]
    await log.renew(services.threads, ancestors, ttl=services.settings.thread_ttl)
    services.metrics.folded(enqueued)
    logger.info("thread_folded", through=state.through, items=state.items)
    await failover.report(services, state)
    await failover.look_ahead(services, thread_id, state)


async def abandon(
    services: Services,
    *,
    job_id: str,
    function: str,
    argument: bytes,
    error: HandoffError,
    started: float | None = None,
    enqueued: datetime | None = None,
) -> None:
    """Answer a job that cannot be done and keep it with the reason.

    The answer reaches a session only if the argument tells which one, and where producers are kept apart
    only one of the job's producer.

    Args:
        services: connections and settings.
        job_id: the job.
        function: what it was to do.
        argument: what it was to be done with.
        error: why it cannot be done.
        started: when the attempt began, by `time.perf_counter`; None if none did.
        enqueued: when it was asked for; None where nobody knows.
    """
    if error.code not in ORDINARY_FAILURES:
        await rejected.reject(
            services.redis, job_id=job_id, function=function, reason=str(error), argument=argument
        )
        services.metrics.rejected(function, error)
    document = _document(argument)
    result = _failure(document, error) if function == BUILD_HANDOFF else None
    if result is None or not owners.may_answer(services, job_id, result):
        logger.warning("job_rejected", function=function, code=error.code.value)
        return
    structlog.contextvars.bind_contextvars(request_id=result.request_id, thread_id=result.thread_id)
    tracing.spans.about(result)
    told = document.get("type")
    reason = told if isinstance(told, str) and told in REASONS else UNREADABLE
    elapsed = None if started is None else time.perf_counter() - started
    await _publish(services, result, reason, build_seconds=elapsed, enqueued=enqueued)


async def _publish(
    services: Services,
    result: HandoffResult,
    reason: str,
    *,
    build_seconds: float | None,
    enqueued: datetime | None,
    access: Access | None = None,
) -> None:
    """Publish an answer, and tell of it unless the request had one."""
    with tracing.spans.publishing(services.redis, result) as traced:
        published = await results.publish(
            services.redis, traced, ttl=services.settings.result_ttl, access=access
        )
    if published:
        services.metrics.answered(reason, result, build_seconds=build_seconds, enqueued=enqueued)
    _report(result, published=published)


async def _answer(
    services: Services, request: HandoffRequest, later: AsyncExitStack
) -> HandoffResult:
    match request:
        case ProviderLimitReached():
            return await failover.fail_over(services, request, later)
        case ProviderLimitNear():
            return await failover.prepare(services, request)
        case ForkRequested():
            return await _forked(services, request)
    state = await owners.history(services, request.thread_id, request.through)
    target = as_asked(request, request.target)
    plan = planned(services, request, request.thread_id, state, target)
    return await built(services, request, request.thread_id, state, plan)


async def _forked(services: Services, request: ForkRequested) -> HandoffResult:
    thread_id, through = request.fork_thread_id, await forks.link(services, request)
    state = await owners.history(services, thread_id, through)
    resumed = None  # nearly always; no second state is read
    if request.target.native.fork:
        resumed = await owners.history(services, request.thread_id, through - 1)
    target = as_asked(request, request.target)
    plan = planned(services, request, thread_id, state, target, resumed=resumed)
    ready = await built(services, request, thread_id, state, plan)
    return prepared(ready) if request.request is None else ready


def _document(argument: bytes) -> dict[str, Any]:
    """Return a request's fields, whether or not they make a request; none where it is no JSON object."""
    try:
        document: Any = parse(argument)
    except WireError:
        return {}
    return document if isinstance(document, dict) else {}


def _failure(ids: dict[str, Any], error: HandoffError) -> HandoffFailed | None:
    """Return the answer to a request, readable or not, or None if nobody can be answered."""
    known = {
        name: ids[name]
        for name in ("request_id", "session_id", "thread_id")
        if is_id(ids.get(name))
    }
    if not {"request_id", "session_id"} <= known.keys():
        return None
    known |= trace_context(ids)
    return HandoffFailed(
        **known,
        created_at=utc_now(),
        code=error.code,
        message=str(error),
        retryable=error.retryable,
        needed=error.needed,
        available=error.available,
        resets_at=error.resets_at,
        passed_over=error.passed_over,
    )


def _report(result: HandoffResult, *, published: bool) -> None:
    """Log what was answered: sizes and ids, no text."""
    if not published:
        logger.info("already_answered")
        return
    if not isinstance(result, HandoffWaiting):
        for one in result.passed_over:
            name = Instance.of(one.target).name
            logger.info("candidate_passed_over", provider=name, reason=one.reason.value)
    if isinstance(result, HandoffReady):
        logger.info(
            "handoff_ready",
            provider=result.target.provider,
            selected=result.coverage.selected_items,
            omitted=result.coverage.omitted_items,
            cost=result.budget.cost,
            allowance=result.budget.allowance,
            passed_over=len(result.passed_over),
            duration_ms=result.duration_ms,
        )
    elif isinstance(result, HandoffFailed):
        logger.warning("handoff_failed", code=result.code.value, retryable=result.retryable)
    else:
        logger.info(str(result.__struct_config__.tag).replace(".", "_"))
