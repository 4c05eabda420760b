"""Restarts, conversations that come back, and providers that go on by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import (
    CODEX,
    THREAD,
    conversation,
    events,
    limited,
    ready,
    restart,
    switch,
)
from helpers.building import assistant, command, reasoning, started, usage, user
from msgspec.structs import replace

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.accounting import text_bytes
from moonfold_schemas import HandoffRequest, Target
from moonfold_schemas.events import (
    HandoffDelivered,
    ThreadEvent,
    ThreadForked,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
    TurnStatus,
)
from moonfold_schemas.requests import NativeAbilities, NewRequest
from moonfold_schemas.results import Delivery, HandoffFailed, HandoffReady, Origin

RESUMES = NativeAbilities(resume=True)


def in_(conversation_id: str, **changes: Any) -> Target:
    provider = "codex" if conversation_id == "c" else "claude-code"
    return Target(**{"provider": provider, "conversation_id": conversation_id, **changes})


def limited_in(conversation_id: str, **changes: Any) -> HandoffRequest:
    target = in_(conversation_id, **changes.pop("target_changes", {}))
    # A conversation of the provider that is used up would be no candidate.
    return limited(candidates=(target,), provider="gemini-cli", **changes)


def switched_to(conversation_id: str, **changes: Any) -> HandoffRequest:
    return switch(target=in_(conversation_id, **changes.pop("target_changes", {})), **changes)


def elsewhere(delivered: int | None = 8) -> list[ThreadEvent]:
    """Return how the thread goes on in conversation `d` after `conversation()`, from sequence 9."""
    begins = [started("d", provider="claude-code", model="opus")]
    history = (
        [] if delivered is None else [HandoffDelivered(conversation_id="d", through=delivered)]
    )
    return events(
        *begins, *history, user("over to d"), command("make d", "made"), assistant("by d")
    )


def empty(result: HandoffReady) -> bool:
    coverage = result.coverage
    return (result.items, result.text, coverage.selected_items, coverage.omitted_items) == (
        (),
        "",
        0,
        0,
    )


# Restarts


@pytest.mark.parametrize("conversation_id", [None, "c", "unknown"])
async def test_a_restart_clears_usage_and_keeps_capacity(
    conversation_id: str | None, client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(
        THREAD, 0, [started(capacity=50_000), *conversation()[2:], usage(40_000, "c")]
    )
    target = Target(provider="codex", model="large", conversation_id=conversation_id)
    result = await ready(client, restart(target=target))
    assert result.target == replace(target, conversation_id=None)
    existing, window = result.budget.existing, result.budget.window
    assert (existing.value, existing.origin) == (0, Origin.FRESH)
    assert (window.value, window.origin) == (50_000, Origin.KNOWN_CAPACITY)
    assert result.coverage.selected_items == 6
    assert result.coverage.omitted_items == 0
    assert "question 0" in result.text


async def test_what_a_provider_measured_bounds_the_restart(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = [started(capacity=50_000), *conversation()[2:], usage(40_000, max_tokens=45_000)]
    last = await client.append(THREAD, 0, history)
    result = await ready(
        client, restart(target=Target(provider="codex", model="large"), through=last)
    )
    assert (result.budget.window.value, result.budget.existing.value) == (45_000, 0)
    other = await ready(client, restart(target=Target(provider="codex", model="o"), through=last))
    assert other.budget.window.value not in {45_000, 50_000}


@pytest.mark.parametrize("status", [TurnStatus.FAILED, TurnStatus.LIMITED])
async def test_unanswered_requests_go_verbatim(
    status: TurnStatus, client: HandoffClient, running_worker: RunningWorker
) -> None:
    asked = [f"unanswered {n}: \t“ünïcode” {{braces}}\n\n[end]\n{'w' * 60}" for n in range(3)]
    history = events(ThreadStarted(), started(), user("original"))
    history += events(*(command(f"make {n}", "noise " * 300) for n in range(20)))
    history += events(assistant("the last answer " + "long " * 100))
    for text in asked:
        history += events(user(text), TurnEnded(turn_id="turn", status=status))
    last = await client.append(THREAD, 0, history)
    result = await ready(client, restart(through=last, token_cap=1_024, target=CODEX))
    said = [part.text for item in result.items for part in item.content if item.role == "user"]
    assert [text for text in said if text.startswith("unanswered")] == asked
    for text in asked:
        assert text in result.text
    assert result.coverage.omitted_items > 0
    assert result.budget.cost <= result.budget.allowance


async def test_a_restart_with_another_provider_is_a_fresh_conversation_too(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), *elsewhere()])
    result = await ready(client, restart(target=in_("d", native=RESUMES), through=last))
    assert result.delivery is not Delivery.NATIVE
    assert result.coverage.selected_items == 9
    assert result.budget.existing.origin is Origin.FRESH


# Coming back


@pytest.mark.parametrize("ask", [switched_to, limited_in])
async def test_a_conversation_that_comes_back_gets_only_what_is_new(
    ask: Callable[..., HandoffRequest], client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), *elsewhere()])
    result = await ready(client, ask("c", through=last))
    for text in ("over to d", "make d", "by d"):
        assert text in result.text
    for text in ("question 0", "answer 0", "question 1", "answer 1"):
        assert text not in result.text
        assert text not in str(result.items)
    coverage = result.coverage
    assert (coverage.selected_items, coverage.omitted_items) == (3, 0)
    assert (coverage.omitted, coverage.through) == ((), last)
    held = sum(map(text_bytes, ("question 0", "$ make step-0\ndone", "answer 0"))) * 2
    assert (result.budget.existing.value, result.budget.existing.origin) == (
        held,
        Origin.ESTIMATED,
    )


async def test_what_was_delivered_is_not_sent_again(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), *elsewhere()])
    back: list[Any] = [
        started("c", continues="c"),
        HandoffDelivered(conversation_id="c", through=last, tokens=700),
    ]
    last = await client.append(THREAD, last, events(*back, user("back in c"), assistant("by c")))
    result = await ready(client, switched_to("d", through=last))
    assert (result.coverage.selected_items, result.coverage.omitted_items) == (2, 0)
    assert "back in c" in result.text
    assert "over to d" not in result.text
    assert empty(await ready(client, switched_to("c", through=last)))


async def test_telemetry_of_the_conversation_that_comes_back_counts(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = [*conversation(), usage(12_345, max_tokens=60_000), *elsewhere()]
    last = await client.append(THREAD, 0, history)
    result = await ready(client, switched_to("c", through=last))
    assert (result.budget.existing.value, result.budget.window.value) == (12_345, 60_000)
    assert result.budget.existing.origin is Origin.TELEMETRY
    fresh = await ready(client, switch(target=Target(provider="codex"), through=last))
    assert fresh.budget.existing.value == 0


@pytest.mark.parametrize("conversation_id", [None, "fresh"])
async def test_a_conversation_that_has_seen_nothing_gets_everything(
    conversation_id: str | None, client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), *elsewhere()])
    target = Target(provider="codex", conversation_id=conversation_id, native=RESUMES)
    result = await ready(client, switch(target=target, through=last))
    assert result.coverage.selected_items == 9
    assert result.delivery is not Delivery.NATIVE
    for text in ("question 0", "by d"):
        assert text in result.text


async def test_a_conversation_without_a_delivery_has_not_seen_what_came_before_it(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), started("d", provider="claude-code")])
    result = await ready(client, switched_to("d", through=last))
    assert result.coverage.selected_items == 6
    assert "question 0" in result.text


async def test_a_partial_delivery_leaves_the_rest_to_be_sent(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    begun: list[ThreadEvent] = [
        started("d", provider="claude-code"),
        HandoffDelivered(conversation_id="d", through=5),
    ]
    last = await client.append(THREAD, 0, [*conversation(), *begun])
    result = await ready(client, switched_to("d", through=last))
    assert (result.coverage.selected_items, result.coverage.omitted_items) == (3, 0)
    assert "question 1" in result.text
    assert "question 0" not in result.text


async def test_nothing_new_is_an_empty_handoff(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation())
    result = await ready(client, switched_to("c", through=last))
    assert empty(result)
    assert result.delivery is Delivery.TEXT
    assert result.budget.cost == len('""')
    last = await client.append(THREAD, last, events(reasoning("to itself")))
    assert empty(await ready(client, switched_to("c", through=last)))


async def test_nothing_new_needs_no_room(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation())
    target = {"capacity": 16_000}  # its reserve leaves no room
    assert empty(await ready(client, switched_to("c", through=last, target_changes=target)))


async def test_what_was_rolled_back_is_neither_seen_nor_new(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = [*conversation(), *elsewhere(), TurnsRolledBack(to=5)]
    last = await client.append(THREAD, 0, history)
    assert empty(await ready(client, switched_to("c", through=last)))
    last = await client.append(THREAD, last, events(user("instead"), assistant("so")))
    result = await ready(client, switched_to("c", through=last))
    assert result.coverage.selected_items == 2
    assert "instead" in result.text
    assert "over to d" not in result.text


async def test_coming_back_to_a_long_thread_counts_only_what_is_new_as_omitted(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation(500))
    new = events(*(command(f"make long-{n}", "noise " * 400) for n in range(30)))
    last = await client.append(THREAD, last, [*elsewhere(last), *new])
    result = await ready(client, switched_to("c", through=last, token_cap=1_024))
    coverage = result.coverage
    assert coverage.selected_items + coverage.omitted_items == 33
    assert coverage.omitted_items > 0
    assert min(span.first for span in (*coverage.selected, *coverage.omitted)) > 1_502


async def test_coming_back_in_a_fork_gets_what_is_new_in_it(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    await client.append(THREAD, 0, conversation())
    forked: list[Any] = [
        ThreadForked(parent_thread_id=THREAD, through=8),
        started("in-fork"),
        HandoffDelivered(conversation_id="in-fork", through=9),
        user("asked in the fork"),
        started("d", provider="claude-code"),
        HandoffDelivered(conversation_id="d", through=12),
        assistant("answered by d"),
    ]
    last = await client.append("fork", 8, events(*forked))
    target = Target(provider="codex", conversation_id="in-fork")
    result = await ready(client, switch(thread_id="fork", through=last, target=target))
    assert (result.coverage.selected_items, result.coverage.omitted_items) == (1, 0)
    assert "answered by d" in result.text
    parents = Target(provider="codex", conversation_id="c")
    full = await ready(client, switch(thread_id="fork", through=last, target=parents))
    assert full.coverage.selected_items == 8


# Native


@pytest.mark.parametrize("ask", [switched_to, limited_in])
async def test_a_conversation_that_has_seen_all_is_resumed_natively(
    ask: Callable[..., HandoffRequest], client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation())
    text = NewRequest(text="four words to go")
    request = ask("c", through=last, target_changes={"native": RESUMES}, request=text)
    result = await ready(client, request)
    assert result.delivery is Delivery.NATIVE
    assert empty(result)
    assert result.budget.cost == 0
    assert result.budget.request.value == len('"four words to go"')
    assert result.coverage.through == last


async def test_what_is_new_since_is_delivered_to_a_conversation_that_could_resume(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, [*conversation(), *elsewhere()])
    request = switched_to("c", through=last, target_changes={"native": RESUMES})
    result = await ready(client, request)
    assert result.delivery is Delivery.TEXT
    assert result.coverage.selected_items == 3
    back = [HandoffDelivered(conversation_id="c", through=last)]
    last = await client.append(THREAD, last, events(*back))
    request = switched_to("c", through=last, target_changes={"native": RESUMES})
    assert (await ready(client, request)).delivery is Delivery.NATIVE


async def test_a_provider_does_not_resume_the_conversation_of_another(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation())
    changes = {"native": RESUMES, "provider": "opencode"}
    result = await ready(client, switched_to("c", through=last, target_changes=changes))
    assert result.delivery is not Delivery.NATIVE


@pytest.mark.parametrize("ask", [switched_to, limited_in])
async def test_a_native_attempt_that_failed_becomes_a_portable_handoff(
    ask: Callable[..., HandoffRequest], client: HandoffClient, running_worker: RunningWorker
) -> None:
    history = [*conversation(), *events(user("what hit the limit"))]
    last = await client.append(THREAD, 0, history)
    changes: dict[str, Any] = {
        "through": last,
        "target_changes": {"native": RESUMES},
        "request": NewRequest(text="the request"),
    }
    before = await ready(client, ask("c", **changes))
    assert before.delivery is Delivery.NATIVE
    after = await ready(client, ask("c", native_failed=True, **changes))
    assert after.delivery is not Delivery.NATIVE
    assert after.coverage.selected_items == 7
    for text in ("question 0", "answer 1", "what hit the limit"):
        assert text in after.text
    assert after.budget.request == before.budget.request


async def test_the_first_candidate_that_goes_on_natively_needs_no_room(
    client: HandoffClient, running_worker: RunningWorker
) -> None:
    last = await client.append(THREAD, 0, conversation())
    full = Target(provider="opencode", capacity=16_000)
    target = in_("c", native=RESUMES, capacity=16_000)
    result = await ready(
        client, limited(candidates=(full, target), provider="gemini-cli", through=last)
    )
    assert (result.target, result.delivery) == (target, Delivery.NATIVE)
    request = limited(
        candidates=(full, target), provider="gemini-cli", through=last, native_failed=True
    )
    await client.request(request)
    assert isinstance(await client.wait(request.request_id, 10), HandoffFailed)
