"""The jobs: build a handoff and publish it; fold a thread ahead of need.

They know nothing of arq. What a job cannot do it answers (`handoff.failed`) and keeps as a dead letter;
errors of a server that is away pass through, for the worker to try again.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import structlog
from msgspec.structs import replace

from moonfold_handoff import forks
from moonfold_handoff.context.budget import compute_budget
from moonfold_handoff.context.delivery import delivery_for, goes_on_natively
from moonfold_handoff.context.rendering import render
from moonfold_handoff.context.selection import NOTHING, Selection, select
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import (
    HandoffError,
    HistoryCorruptError,
    InvalidRequestError,
    ReferencesDoNotFitError,
)
from moonfold_handoff.services import Services
from moonfold_handoff.store import log, rejected, results, threads
from moonfold_handoff.store.queue import BUILD_HANDOFF, FOLD_THREAD
from moonfold_schemas import WireError, decode_request, is_id, utc_now
from moonfold_schemas.codec import parse
from moonfold_schemas.events import ItemRecorded, LimitKind
from moonfold_schemas.items import Item
from moonfold_schemas.requests import (
    ForkRequested,
    HandoffRequest,
    ProviderLimitNear,
    ProviderLimitReached,
    RestartRequested,
    Target,
)
from moonfold_schemas.results import (
    Delivery,
    FailureCode,
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
    HandoffWaiting,
)

MARK_SEED_BYTES = 16

ORDINARY_FAILURES = {FailureCode.REFERENCES_DO_NOT_FIT, FailureCode.NO_TARGET_AVAILABLE}
"""Answers that nobody has to look into, so they are not kept as dead letters."""

logger = structlog.get_logger()


async def build_handoff(services: Services, job_id: str, argument: bytes) -> None:
    """Answer one request: publish its handoff, or why there is none.

    Args:
        services: connections and settings.
        job_id: the job, which bears the request's id.
        argument: the request as JSON.
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
        )
        return
    structlog.contextvars.bind_contextvars(
        request_id=request.request_id, thread_id=request.thread_id
    )
    try:
        result = await _answer(services, request)
    except HandoffError as error:
        await abandon(
            services, job_id=job_id, function=BUILD_HANDOFF, argument=argument, error=error
        )
        return
    elapsed = (time.perf_counter() - started) * 1000
    result = replace(result, created_at=utc_now(), duration_ms=round(elapsed, 3))
    published = await results.publish(services.redis, result, ttl=services.settings.result_ttl)
    _report(result, published=published)


async def fold_thread(services: Services, job_id: str, argument: bytes) -> None:
    """Bring a thread's state up to the end of its log, so that a handoff finds little left to do."""
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
        state = await threads.load(services.threads, thread_id)
    except HandoffError as failure:
        await abandon(
            services, job_id=job_id, function=FOLD_THREAD, argument=argument, error=failure
        )
        return
    ancestors = [ancestor.thread_id for ancestor in state.lineage]
    await log.renew(services.threads, ancestors, ttl=services.settings.thread_ttl)
    logger.info("thread_folded", through=state.through, items=state.items)


async def abandon(
    services: Services, *, job_id: str, function: str, argument: bytes, error: HandoffError
) -> None:
    """Answer a job that cannot be done and keep it with the reason.

    The answer reaches a session only if the argument tells which one.
    """
    if error.code not in ORDINARY_FAILURES:
        await rejected.reject(
            services.redis, job_id=job_id, function=function, reason=str(error), argument=argument
        )
    result = _failure(argument, error) if function == BUILD_HANDOFF else None
    if result is None:
        logger.warning("job_rejected", function=function, code=error.code.value)
        return
    structlog.contextvars.bind_contextvars(request_id=result.request_id, thread_id=result.thread_id)
    published = await results.publish(services.redis, result, ttl=services.settings.result_ttl)
    _report(result, published=published)


async def _answer(services: Services, request: HandoffRequest) -> HandoffResult:
    if isinstance(request, ProviderLimitReached):
        limit = request.limit
        if limit is not None and limit.kind is LimitKind.THROTTLE and limit.retry_after is not None:
            return HandoffWaiting(
                request_id=request.request_id,
                session_id=request.session_id,
                thread_id=request.thread_id,
                retry_after=limit.retry_after,
                message="The provider asks to wait; it has not reached a limit.",
            )
    thread_id, through = request.thread_id, request.through
    if isinstance(request, ForkRequested):
        thread_id, through = request.fork_thread_id, await forks.link(services, request)
    state = await threads.load(services.threads, thread_id, through)
    result = await _first_that_fits(services, request, thread_id, state)
    if isinstance(request, ForkRequested) and request.request is None:
        return HandoffPrepared(
            request_id=result.request_id,
            session_id=result.session_id,
            thread_id=thread_id,
            target=result.target,
            coverage=result.coverage,
            budget=result.budget,
        )
    return result


async def _first_that_fits(
    services: Services, request: HandoffRequest, thread_id: str, state: ThreadState
) -> HandoffReady:
    """Return the handoff for the first target that has room for at least the references."""
    candidates = _candidates(request)
    for target in candidates[:-1]:
        try:
            return await _handoff(services, request, thread_id, state, target)
        except ReferencesDoNotFitError:
            logger.info("candidate_has_no_room", provider=target.provider)
    return await _handoff(services, request, thread_id, state, candidates[-1])


def _candidates(request: HandoffRequest) -> tuple[Target, ...]:
    candidates = (
        request.candidates
        if isinstance(request, ProviderLimitReached | ProviderLimitNear)
        else (request.target,)
    )
    if isinstance(request, RestartRequested) or request.native_failed:
        # A restart is a fresh conversation. One that could not go on is taken as gone.
        return tuple(replace(target, conversation_id=None) for target in candidates)
    return candidates


async def _handoff(
    services: Services,
    request: HandoffRequest,
    thread_id: str,
    state: ThreadState,
    target: Target,
) -> HandoffReady:
    cap = services.settings.cap(request.token_cap)
    budget = compute_budget(state, target, request.request, cap, services.catalogue)
    asked = request.request.text if request.request is not None else None
    unseen = state.since(state.conversation(target.conversation_id))
    native = goes_on_natively(request, await _resumed(services, request, state), target)
    selection = NOTHING if native else select(unseen, thread_id, budget.allowance, asked)
    contents = await _contents(services, thread_id, state, selection)
    rendering = render(selection, contents, secrets.token_bytes(MARK_SEED_BYTES))
    delivery = Delivery.NATIVE if native else delivery_for(target)
    return HandoffReady(
        request_id=request.request_id,
        session_id=request.session_id,
        thread_id=thread_id,
        target=target,
        coverage=replace(selection.coverage, through=state.through),
        budget=replace(
            budget,
            cost=rendering.cost(delivery),
            text_bytes=rendering.text_bytes,
            items_bytes=rendering.items_bytes,
            own_text_bytes=rendering.own_text_bytes,
        ),
        delivery=delivery,
        items=rendering.items,
        text=rendering.text,
    )


async def _resumed(services: Services, request: HandoffRequest, state: ThreadState) -> ThreadState:
    """Return the state whose conversations a provider could go on with by itself."""
    if not isinstance(request, ForkRequested) or not request.target.native.fork:
        return state  # nearly always; no second state is read
    return await threads.load(services.threads, request.thread_id, state.through - 1)


async def _contents(
    services: Services, thread_id: str, state: ThreadState, selection: Selection
) -> dict[int, Item]:
    """Return the chosen items by position, read in one round trip."""
    refs = [choice.ref for choice in selection.choices]
    records = [(state.holder(thread_id, ref.record), ref.record) for ref in refs]
    contents = {}
    for ref, event in zip(refs, await log.fetch(services.threads, records), strict=True):
        if not isinstance(event, ItemRecorded):
            raise HistoryCorruptError(f"Entry {ref.record} of the log is no item.")
        contents[ref.position] = event.item
    return contents


def _failure(argument: bytes, error: HandoffError) -> HandoffFailed | None:
    """Return the answer to a request, readable or not, or None if nobody can be answered."""
    try:
        document: Any = parse(argument)
    except WireError:
        return None
    ids = document if isinstance(document, dict) else {}
    known = {
        name: ids[name]
        for name in ("request_id", "session_id", "thread_id")
        if is_id(ids.get(name))
    }
    if not {"request_id", "session_id"} <= known.keys():
        return None
    return HandoffFailed(
        **known,
        created_at=utc_now(),
        code=error.code,
        message=str(error),
        retryable=error.retryable,
        needed=error.needed,
        available=error.available,
    )


def _report(result: HandoffResult, *, published: bool) -> None:
    """Log what was answered: sizes and ids, no text."""
    if not published:
        logger.info("already_answered")
    elif isinstance(result, HandoffReady):
        logger.info(
            "handoff_ready",
            provider=result.target.provider,
            selected=result.coverage.selected_items,
            omitted=result.coverage.omitted_items,
            cost=result.budget.cost,
            allowance=result.budget.allowance,
            duration_ms=result.duration_ms,
        )
    elif isinstance(result, HandoffFailed):
        logger.warning("handoff_failed", code=result.code.value, retryable=result.retryable)
    else:
        logger.info(str(result.__struct_config__.tag).replace(".", "_"))
