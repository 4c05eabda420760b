"""From a thread's state to its handoff: what travels, read from the log, in both deliveries."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from moonfold_handoff.context.delivery import delivery_for, goes_on_natively
from moonfold_handoff.context.planning import Plan, plan
from moonfold_handoff.context.rendering import render
from moonfold_handoff.context.selection import Selection
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import HistoryCorruptError
from moonfold_handoff.services import Services
from moonfold_handoff.store import log
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import Item
from moonfold_schemas.requests import HandoffRequest, RestartRequested, Target
from moonfold_schemas.results import Delivery, HandoffPrepared, HandoffReady

MARK_SEED_BYTES = 16


def as_asked(request: HandoffRequest, target: Target) -> Target:
    """Return a target as a request means it.

    A restart is a fresh conversation. One that could not go on is taken as gone.
    """
    if isinstance(request, RestartRequested) or request.native_failed:
        return replace(target, conversation_id=None)
    return target


def planned(
    services: Services,
    request: HandoffRequest,
    thread_id: str,
    state: ThreadState,
    target: Target,
    *,
    resumed: ThreadState | None = None,
) -> Plan:
    """Return what the handoff to `target` would be, without reading any item.

    Args:
        services: settings and catalogue.
        request: what is asked.
        thread_id: the thread that goes on.
        state: of that thread.
        target: where it goes on.
        resumed: the state whose conversations a provider could go on with by itself, if it is another.

    Raises:
        ReferencesDoNotFitError: not even the one-line pointer to the history fits (R12).
    """
    return plan(
        state,
        thread_id,
        target,
        request=request.request,
        cap=services.settings.cap(request.token_cap),
        catalogue=services.catalogue,
        native=goes_on_natively(request, resumed or state, target),
    )


async def built(
    services: Services, request: HandoffRequest, thread_id: str, state: ThreadState, plan: Plan
) -> HandoffReady:
    """Return the handoff of a plan, its items read in one round trip.

    Raises:
        HistoryCorruptError: the log does not hold what the state names.
    """
    contents = await _contents(services, thread_id, state, plan.selection)
    rendering = render(plan.selection, contents, secrets.token_bytes(MARK_SEED_BYTES))
    delivery = Delivery.NATIVE if plan.native else delivery_for(plan.target)
    ready = HandoffReady(
        request_id=request.request_id,
        session_id=request.session_id,
        thread_id=thread_id,
        target=plan.target,
        coverage=replace(plan.selection.coverage, through=state.through),
        budget=replace(
            plan.budget,
            cost=rendering.cost(delivery),
            text_bytes=rendering.text_bytes,
            items_bytes=rendering.items_bytes,
            own_text_bytes=rendering.own_text_bytes,
        ),
        delivery=delivery,
        items=rendering.items,
        text=rendering.text,
    )
    services.metrics.built(ready, plan.omitted_bytes)
    return ready


def prepared(ready: HandoffReady) -> HandoffPrepared:
    """Return what is told of a handoff that nobody takes yet."""
    return HandoffPrepared(
        request_id=ready.request_id,
        session_id=ready.session_id,
        thread_id=ready.thread_id,
        target=ready.target,
        coverage=ready.coverage,
        budget=ready.budget,
        passed_over=ready.passed_over,
    )


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
