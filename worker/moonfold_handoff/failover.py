"""Failover: a provider is used up, the thread goes on elsewhere, at once because it was prepared.

What is decided is in `context`; here it is brought together with what is known: the thread, who else is
used up, and how often the thread went on already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from moonfold_handoff import owners
from moonfold_handoff.context.availability import (
    Instance,
    Notice,
    notice_of,
    throttle_delay,
)
from moonfold_handoff.context.candidates import clock, decide
from moonfold_handoff.context.planning import plan
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import (
    NoTargetError,
    NoTargetYetError,
    ReferencesDoNotFitError,
)
from moonfold_handoff.handoffs import as_asked, built, planned, prepared
from moonfold_handoff.services import Services
from moonfold_handoff.store import failovers, providers
from moonfold_handoff.store.failovers import COUNTED, Situation
from moonfold_schemas import utc_now
from moonfold_schemas.events import LimitKind, TurnStatus
from moonfold_schemas.requests import ProviderLimitNear, ProviderLimitReached, Target
from moonfold_schemas.results import (
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
    HandoffWaiting,
)

logger = structlog.get_logger()


async def fail_over(
    services: Services, request: ProviderLimitReached, later: AsyncExitStack
) -> HandoffResult:
    """Answer a limit: the handoff to the first candidate that can go on, or how long to wait.

    Args:
        services: what it is done with.
        request: what is asked.
        later: takes what can wait until the session has its answer: telling all threads of the limit.

    Raises:
        NoTargetError: nobody is named, nobody is available, or the thread went on too often.
        ReferencesDoNotFitError: nobody has the room.
        HandoffError: the thread cannot be read.
    """
    now = utc_now()
    delay = throttle_delay(request.limit, now)
    if delay is not None:
        return HandoffWaiting(
            request_id=request.request_id,
            session_id=request.session_id,
            thread_id=request.thread_id,
            retry_after=delay,
            message="The provider asks to wait; it has not reached a limit.",
        )
    case = await _case(services, request, now)
    notice = None if request.limit is None else notice_of(request.limit, now, now)
    later.push_async_callback(_mark, services, case.left, notice, now)
    _allow(services, case)
    return await _built(services, request, case, notice)


async def prepare(services: Services, request: ProviderLimitNear) -> HandoffPrepared:
    """Answer a limit that is near: the handoff that its end will ask for, with nothing left to do.

    Raises:
        NoTargetError: nobody is named, or nobody is available.
        ReferencesDoNotFitError: nobody has the room.
        HandoffError: the thread cannot be read.
    """
    case = await _case(services, request, utc_now())
    return prepared(await _built(services, request, case, None))


async def count(services: Services, ready: HandoffReady) -> None:
    """Count a failover that is published against the cap of its thread."""
    thread_id = ready.thread_id or ""
    await failovers.count(services.redis, thread_id, ready.coverage.through, now=utc_now())


async def report(services: Services, state: ThreadState) -> None:
    """Tell of the instance whose turn a thread ended last whether it goes on, as far as that turn tells.

    A success without a time tells nothing: it may be older than any notice.
    """
    outcome, now = state.outcome, utc_now()
    conversation = None if outcome is None else state.conversation(outcome.conversation_id)
    if outcome is None or conversation is None:
        return
    instance = Instance.of(conversation)
    if outcome.limit is not None and outcome.status is TurnStatus.LIMITED:
        await _mark(services, instance, notice_of(outcome.limit, outcome.time, now), now)
        return
    at = outcome.time if outcome.status is TurnStatus.COMPLETED else None
    if at is not None and await providers.succeeded(services.redis, instance, at, now=now):
        logger.info("provider_available", provider=instance.name)


async def look_ahead(services: Services, thread_id: str, state: ThreadState) -> None:
    """Prepare the handoff of a folded thread whose provider is nearly used up.

    What there is to do is done with the fold and its ranking, which are kept. This tells where the thread
    would go on, and that nothing stands against it.
    """
    conversation, now = state.carrier, utc_now()
    quota = None if conversation is None else conversation.quota
    if conversation is None or quota is None:
        return
    over = quota.resets_at is not None and quota.resets_at <= now
    if over or quota.percent < services.settings.limit_near_percent:
        return
    candidates = services.policy.candidates_for(conversation.provider)
    if not candidates:
        return
    asked = map(Instance.of, candidates)
    known = await failovers.situation(services.redis, thread_id, state.through, asked, now=now)
    offer = partial(
        plan,
        state,
        thread_id,
        request=None,
        cap=services.settings.cap(None),
        catalogue=services.catalogue,
    )
    left = Instance.of(conversation)
    try:
        decision = decide(candidates, offer, left=left, notices=known.notices)
    except (NoTargetError, ReferencesDoNotFitError) as error:
        logger.warning("handoff_not_prepared", code=error.code.value)
        return
    logger.info(
        "handoff_prepared",
        provider=Instance.of(decision.plan.target).name,
        selected=decision.plan.selection.coverage.selected_items,
        omitted=decision.plan.selection.coverage.omitted_items,
        allowance=decision.plan.budget.allowance,
        passed_over=len(decision.passed_over),
    )


class _Case(NamedTuple):
    """What a failover is decided on: the thread, what else is known, and the instance that it leaves."""

    state: ThreadState
    known: Situation
    left: Instance | None


async def _case(
    services: Services, request: ProviderLimitReached | ProviderLimitNear, now: datetime
) -> _Case:
    """Return what is known, the thread and all else read at the same time."""
    state, known = await asyncio.gather(
        owners.history(services, request.thread_id, request.through),
        failovers.situation(
            services.redis,
            request.thread_id,
            request.through,
            map(Instance.of, request.candidates or services.policy.targets),
            now=now,
        ),
    )
    return _Case(state, known, _left(request, state))


def _left(request: ProviderLimitReached | ProviderLimitNear, state: ThreadState) -> Instance | None:
    """Return the instance that the thread leaves, or None where nobody knows it."""
    if request.provider is not None:
        return Instance(request.provider, request.instance)
    conversation = state.conversation(request.conversation_id) or state.carrier
    return None if conversation is None else Instance.of(conversation)


def _allow(services: Services, case: _Case) -> None:
    """Refuse a failover of a thread that has gone on elsewhere too often of late."""
    most = services.policy.failovers_per_hour or services.settings.failovers_per_hour
    earlier = case.known.earlier
    if len(earlier) < most:
        return
    resets_at = earlier[-most] + COUNTED
    raise NoTargetYetError(
        f"The thread went on elsewhere {len(earlier)} times within the hour, of {most} at most; "
        f"the next time is at {clock(resets_at)}.",
        resets_at=resets_at,
    )


async def _built(
    services: Services,
    request: ProviderLimitReached | ProviderLimitNear,
    case: _Case,
    notice: Notice | None,
) -> HandoffReady:
    """Return the handoff; `notice` is what the request itself says of the instance it leaves."""
    notices = dict(case.known.notices)
    if case.left is not None and notice is not None:
        earlier = notices.get(case.left, notice)
        notices[case.left] = max(earlier, notice, key=lambda one: one.until)
    decision = decide(
        _candidates(services, request, case.left),
        partial(planned, services, request, request.thread_id, case.state),
        left=None if _is_full(request) else case.left,
        notices=notices,
    )
    ready = await built(services, request, request.thread_id, case.state, decision.plan)
    return replace(ready, passed_over=decision.passed_over)


def _is_full(request: ProviderLimitReached | ProviderLimitNear) -> bool:
    """Return whether only the conversation is used up, so that its provider can go on in another."""
    limit = request.limit if isinstance(request, ProviderLimitReached) else None
    return limit is not None and limit.kind is LimitKind.CONTEXT


def _candidates(
    services: Services, request: ProviderLimitReached | ProviderLimitNear, left: Instance | None
) -> Iterable[Target]:
    """Return where the thread may go on: as the request says, else as the operator does."""
    provider = None if left is None else left.provider
    candidates = request.candidates or services.policy.candidates_for(provider)
    if not candidates and services.policy.candidates:
        raise NoTargetError(
            f"The request names no candidates, and the failover policy has none for {provider}."
        )
    if not candidates:
        raise NoTargetError(
            "The request names no candidates, and there is no failover policy "
            "(MOONFOLD_FAILOVER_POLICY)."
        )
    return [as_asked(request, target) for target in candidates]


async def _mark(
    services: Services, instance: Instance | None, notice: Notice | None, now: datetime
) -> None:
    """Keep for all threads that an instance is used up."""
    if instance is None or notice is None:
        return
    if await providers.limited(services.redis, instance, notice, now=now):
        logger.info(
            "provider_used_up",
            provider=instance.name,
            kind=notice.kind.value,
            until=notice.until.isoformat(),
        )
