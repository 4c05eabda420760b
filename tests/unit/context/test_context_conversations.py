from __future__ import annotations

from typing import Any

import pytest
from helpers.building import (
    assistant,
    command,
    log,
    opaque_item,
    reasoning,
    started,
    state_of,
    tool_call,
    usage,
    user,
)

from moonfold_handoff.context.budget import compute_budget
from moonfold_handoff.context.capacity import (
    MAX_TOKENS,
    NOTHING_KNOWN,
    Catalogue,
    CatalogueEntry,
    selection_key,
)
from moonfold_handoff.context.conversations import (
    ASSUMED_DELIVERY,
    MAX_CONVERSATIONS,
    MAX_WINDOWS,
    RECENT_ITEMS,
)
from moonfold_handoff.context.state import Conversation, KnownWindow, ThreadState
from moonfold_schemas.events import (
    ConversationCompacted,
    HandoffDelivered,
    ModelSelected,
    OpaqueEvent,
    ThreadEvent,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import Item
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import Budget, Figure, Origin

WIDE = {"model_context_window": 400_000}
CAP = Figure(value=16_000, origin=Origin.DEFAULT)
CONTINUE = NewRequest(text="Continue")


def selected(
    conversation_id: str = "c", model: str | None = "large", **changes: Any
) -> ModelSelected:
    return ModelSelected(conversation_id=conversation_id, model=model, **changes)


def compacted(used: int | None = None, conversation_id: str = "c") -> ConversationCompacted:
    return ConversationCompacted(conversation_id=conversation_id, used_tokens=used)


def delivered(tokens: int | None = None, conversation_id: str = "c") -> HandoffDelivered:
    return HandoffDelivered(conversation_id=conversation_id, through=1, tokens=tokens)


def turn_ended(status: TurnStatus = TurnStatus.COMPLETED) -> TurnEnded:
    return TurnEnded(turn_id="turn", status=status)


def known(*what: ThreadEvent | Item, conversation_id: str = "c") -> Conversation:
    found = state_of(*what).conversation(conversation_id)
    assert found is not None
    return found


def figures(conversation: Conversation) -> tuple[int | None, int | None, int | None]:
    return conversation.used_tokens, conversation.max_tokens, conversation.compact_threshold


def estimate(*what: ThreadEvent | Item, conversation_id: str = "c") -> int:
    return known(*what, conversation_id=conversation_id).estimated_tokens


def budget(
    state: ThreadState,
    request: NewRequest | None = None,
    catalogue: Catalogue = NOTHING_KNOWN,
    **target: Any,
) -> Budget:
    chosen = Target(**{"provider": "codex", "model": "large", "conversation_id": "c", **target})
    return compute_budget(state, chosen, request, CAP, catalogue)


# Telemetry that counts.


def test_a_report_of_the_selection_in_force_counts() -> None:
    report = usage(5, max_tokens=100, compact_threshold=90, model="large", options=WIDE)
    conversation = known(started(options=WIDE), report)
    assert figures(conversation) == (5, 100, 90)
    assert (conversation.reported_at, conversation.selected_at) == (2, 1)


def test_a_report_that_names_no_selection_is_of_the_one_in_force() -> None:
    assert figures(known(started(options=WIDE), usage(5, max_tokens=100))) == (5, 100, None)


@pytest.mark.parametrize(
    "report",
    [
        usage(5, "other", max_tokens=100),
        usage(5, max_tokens=100, model="small"),
        usage(5, max_tokens=100, options={}),
        usage(5, max_tokens=100, options={"model_context_window": 300_000}),
        usage(5, max_tokens=100, options={**WIDE, "model_auto_compact_token_limit": 9}),
    ],
    ids=["another conversation", "another model", "no option", "another value", "one more option"],
)
def test_a_report_of_anything_else_is_not_used(report: ThreadEvent) -> None:
    before = state_of(started(options=WIDE))
    after = state_of(started(options=WIDE), report)
    assert after.conversations == before.conversations
    assert after.windows == before.windows


def test_options_that_do_not_touch_the_window_may_differ() -> None:
    report = usage(5, options={**WIDE, "reasoning_effort": "low"})
    options = {**WIDE, "reasoning_effort": "high", "seed": 1}
    assert known(started(options=options), report).used_tokens == 5


def test_a_report_of_what_was_selected_before_is_not_used() -> None:
    events = (started(), selected(model="small"), usage(5, max_tokens=100, model="large"))
    assert figures(known(*events)) == (None, None, None)


@pytest.mark.parametrize("unknown", [0, -1, None])
def test_a_maximum_or_threshold_of_zero_or_less_is_unknown(unknown: int | None) -> None:
    report = usage(0, max_tokens=unknown, compact_threshold=unknown)
    state = state_of(started(capacity=unknown), report)
    assert figures(state.conversations[0]) == (0, None, None)
    assert state.conversations[0].capacity is None
    assert state.windows == {}


@pytest.mark.parametrize("unknown", [0, -1, None])
def test_a_later_report_without_a_maximum_keeps_the_known_one(unknown: int | None) -> None:
    first = usage(5, max_tokens=100, compact_threshold=90)
    later = usage(7, max_tokens=unknown, compact_threshold=unknown)
    assert figures(known(started(), first, later)) == (7, 100, 90)


# Reports that come late.


def test_a_late_report_does_not_overwrite_a_newer_one() -> None:
    newer = usage(5, max_tokens=100, compact_threshold=90)
    late = usage(3, max_tokens=80, compact_threshold=70, described_at=2)
    state = state_of(started(), user("u"), newer, late)
    assert figures(state.conversations[0]) == (5, 100, 90)
    assert state.windows == {'["codex","large",{}]': KnownWindow(measured=100)}


def test_it_is_late_by_what_it_describes_and_not_by_when_it_came() -> None:
    events = (started(), user("u"), user("v"), usage(5, described_at=3))
    assert known(*events, usage(3, described_at=2)).used_tokens == 5
    assert known(*events, usage(7, described_at=4)).used_tokens == 7
    assert known(*events, usage(7)).used_tokens == 7


def test_of_two_reports_of_the_same_moment_the_second_corrects_the_first() -> None:
    events = (started(), user("u"), usage(5, described_at=2), usage(6, described_at=2))
    assert known(*events).used_tokens == 6


def test_a_report_from_before_the_selection_is_not_used() -> None:
    events = (started(), user("u"), selected(model="small"), usage(5, described_at=2))
    assert figures(known(*events)) == (None, None, None)
    assert known(*events, usage(7, described_at=3)).used_tokens == 7


def test_nor_where_the_model_is_the_same_again() -> None:
    events = (started(), user("u"), selected(model="small"), selected(model="large"))
    assert known(*events, usage(5, described_at=2, model="large")).used_tokens is None


def test_a_report_from_before_the_conversation_started_is_not_used() -> None:
    assert known(user("u"), started(), usage(5, described_at=1)).used_tokens is None


@pytest.mark.parametrize("size", [None, 30])
def test_a_report_from_before_the_compaction_is_not_used(size: int | None) -> None:
    events = (started(), user("x" * 50), compacted(size), usage(900, described_at=2))
    conversation = known(*events)
    assert (conversation.used_tokens, conversation.held) == (None, size or 0)
    assert known(*events, usage(40, described_at=3)).held == 40


def test_a_report_of_what_is_still_to_come_does_not_shut_out_those_that_follow() -> None:
    assert known(started(), usage(5, described_at=MAX_TOKENS), usage(7)).used_tokens == 7


# A conversation starts.


def test_a_start_clears_usage_and_keeps_what_is_known_of_the_selection() -> None:
    state = state_of(
        started("old", capacity=258_400),
        usage(581_117, "old", max_tokens=250_000, compact_threshold=200_000),
        started("new"),
    )
    new = state.conversations[-1]
    assert figures(new) == (None, None, None)
    assert new.estimated_tokens == 0
    assert state.windows[new.selection] == KnownWindow(told=258_400, measured=250_000)
    assert budget(state, conversation_id="new").window == Figure(
        value=250_000, origin=Origin.TELEMETRY
    )


def test_also_under_the_same_id() -> None:
    before = (started(capacity=200_000), user("x" * 50), usage(90_000, compact_threshold=100_000))
    state = state_of(*before, started())
    [conversation] = state.conversations
    assert figures(conversation) == (None, None, None)
    assert (conversation.estimated_tokens, conversation.selected_at) == (0, 4)
    shown = budget(state)
    assert shown.window == Figure(value=200_000, origin=Origin.KNOWN_CAPACITY)
    assert shown.existing == Figure(value=0, origin=Origin.ESTIMATED)


@pytest.mark.parametrize(
    ("before", "held"),
    [
        ((user("x" * 50),), 50),
        ((user("x" * 50), usage(900)), 900),
        ((user("x" * 50), usage(0)), 0),
        ((user("x" * 50), usage(900), compacted(30), assistant("ok")), 32),
        ((delivered(700), user("x" * 50)), 750),
    ],
    ids=["estimate", "telemetry", "telemetry of nothing", "compacted", "handoff"],
)
def test_what_continues_a_conversation_holds_what_that_one_held(
    before: tuple[ThreadEvent | Item, ...], held: int
) -> None:
    new = known(started(), *before, started("n", continues="c"), conversation_id="n")
    assert (new.used_tokens, new.estimated_tokens, new.held) == (None, held, held)


def test_a_conversation_may_continue_itself() -> None:
    assert estimate(started(), user("x" * 50), usage(900), started(continues="c")) == 900


def test_of_a_continued_conversation_that_nobody_knows_nothing_is_inherited() -> None:
    assert estimate(started(continues="unknown")) == 0


# Another model, other options.


@pytest.mark.parametrize(
    "change",
    [
        selected(model="small"),
        selected(model=None),
        selected(options=WIDE),
        selected(options={"model_auto_compact_token_limit": 9}),
    ],
    ids=["model", "no model", "window", "compaction"],
)
def test_another_selection_discards_usage_and_threshold_but_not_the_estimate(
    change: ModelSelected,
) -> None:
    report = usage(900, max_tokens=1_000, compact_threshold=950)
    conversation = known(started(), user("x" * 50), report, change)
    assert figures(conversation) == (None, None, None)
    assert (conversation.estimated_tokens, conversation.held) == (50, 50)


def test_an_option_that_does_not_touch_the_window_discards_nothing() -> None:
    before = (
        started(options=WIDE, capacity=400_000),
        usage(900, max_tokens=1_000, compact_threshold=950),
    )
    change = selected(options={**WIDE, "reasoning_effort": "high", "verbosity": 2})
    assert known(*before, change) == known(*before)


def test_the_option_that_is_gone_is_another_selection() -> None:
    assert known(started(options=WIDE), usage(900), selected()).used_tokens is None


def test_what_was_known_of_a_selection_is_known_again_when_it_comes_back() -> None:
    state = state_of(
        started(capacity=200_000),
        usage(900, max_tokens=190_000, compact_threshold=50_000),
        selected(model="small", capacity=8_000),
        selected(),
    )
    assert budget(state).window == Figure(value=190_000, origin=Origin.TELEMETRY)
    assert budget(state, model="small").window == Figure(value=8_000, origin=Origin.KNOWN_CAPACITY)


def test_a_capacity_told_later_is_remembered() -> None:
    state = state_of(started(capacity=200_000), selected(capacity=100_000), selected())
    assert state.conversations[0].capacity == 100_000
    assert state.windows[state.conversations[0].selection].told == 100_000


def test_what_is_told_later_does_not_hide_what_was_measured() -> None:
    state = state_of(started(), usage(5, max_tokens=90_000), started("n", capacity=200_000))
    assert state.windows[state.conversations[0].selection] == KnownWindow(200_000, 90_000)


# Compaction.


def test_compaction_to_a_known_size_counts_on_from_it() -> None:
    conversation = known(started(), user("x" * 500), usage(900), compacted(30), assistant("okay"))
    assert (conversation.used_tokens, conversation.estimated_tokens) == (None, 34)


def test_compaction_to_an_unknown_size_counts_from_nothing() -> None:
    conversation = known(started(), user("x" * 500), usage(900), compacted(), assistant("okay"))
    assert (conversation.used_tokens, conversation.estimated_tokens) == (None, 4)


def test_compaction_keeps_maximum_and_threshold() -> None:
    report = usage(900, max_tokens=1_000, compact_threshold=950)
    assert figures(known(started(), report, compacted(30))) == (None, 1_000, 950)


def test_an_item_recorded_again_after_a_compaction_counts_whole() -> None:
    events = (started(), command("make", "x" * 500, item_id="x"), compacted(30))
    assert estimate(*events, command("make", "", item_id="x")) == 30 + len("$ make")


def test_compaction_of_another_conversation_is_of_that_one_alone() -> None:
    again = user("x" * 60, item_id="x")
    events = (started("a"), user("y" * 9), started(), user("x" * 50, item_id="x"))
    state = state_of(*events, compacted(5, "a"), again)
    assert [c.estimated_tokens for c in state.conversations] == [5, 60]
    assert state.pending_request == 60


# The estimate.


def test_the_estimate_counts_everything_the_conversation_holds() -> None:
    parts: list[tuple[ThreadEvent | Item, int]] = [
        (user("é"), 2),
        (assistant('"'), 2),
        (reasoning("hmm"), 3),
        (tool_call("f", "x", "y"), len(r"f x\ny")),
        (command("ls", "a\n"), len(r"$ ls\na\n")),
        (opaque_item(70), 70),
        (OpaqueEvent(size=90), 90),
    ]
    assert estimate(started(), *(part for part, _ in parts)) == sum(size for _, size in parts)


def test_it_counts_from_the_conversations_start() -> None:
    assert estimate(user("x" * 50), started(), user("abc")) == 3


def test_what_happens_around_items_holds_nothing() -> None:
    assert estimate(started(), ThreadStarted(), TurnStarted(turn_id="t"), turn_ended()) == 0


@pytest.mark.parametrize(("tokens", "held"), [(12_000, 12_000), (0, 0), (None, ASSUMED_DELIVERY)])
def test_a_delivered_handoff_counts_by_its_tokens(tokens: int | None, held: int) -> None:
    assert estimate(started(), delivered(tokens), user("abc")) == held + 3


def test_what_was_omitted_from_it_never_counts() -> None:
    long = (started("old"), user("x" * 90_000), assistant("y" * 90_000))
    assert estimate(*long, started(), delivered(12_000)) == 12_000


def test_two_handoffs_count_each_with_what_they_carried() -> None:
    assert estimate(started(), delivered(12_000), delivered(700)) == 12_700


def test_a_handoff_counts_into_the_conversation_that_was_given_it() -> None:
    state = state_of(started("a"), started("b"), delivered(700, "a"), delivered(9, "unknown"))
    assert [c.estimated_tokens for c in state.conversations] == [700, 0]


def test_an_item_recorded_again_counts_once() -> None:
    parts = [command("make", "x" * size, exit_code=None, item_id="x") for size in (10, 500, 200)]
    assert estimate(started(), *parts) == 200 + len(r"$ make\n")


def test_whatever_kind_it_was_before() -> None:
    assert estimate(started(), opaque_item(90, item_id="x"), user("abc", item_id="x")) == 3


@pytest.mark.parametrize(("between", "counted"), [(RECENT_ITEMS - 1, 60), (RECENT_ITEMS, 110)])
def test_while_it_is_among_the_last_so_many(between: int, counted: int) -> None:
    others = [user("o") for _ in range(between)]
    first, again = (assistant("x" * size, item_id="x") for size in (50, 60))
    assert estimate(started(), first, *others, again) == counted + between


def test_being_recorded_again_makes_it_one_of_the_last() -> None:
    others = [user("o") for _ in range(2 * (RECENT_ITEMS - 1))]
    state = state_of(
        started(),
        assistant("a", item_id="a"),
        *others[: RECENT_ITEMS - 1],
        assistant("aa", item_id="a"),
        *others[RECENT_ITEMS - 1 :],
        assistant("aaa", item_id="a"),
    )
    assert state.conversations[0].estimated_tokens == 2 * (RECENT_ITEMS - 1) + 3
    assert len(state.recent) == RECENT_ITEMS


def test_a_conversation_counts_whole_what_is_recorded_again_in_it() -> None:
    events = (started("a"), user("x" * 50, item_id="x"), started("b"), user("x" * 60, item_id="x"))
    assert [c.estimated_tokens for c in state_of(*events).conversations] == [50, 60]


def test_also_where_the_thread_goes_back_to_an_earlier_conversation() -> None:
    events = (started("a"), started("b"), user("x" * 50, item_id="x"), selected("a"))
    state = state_of(*events, user("x" * 60, item_id="x"))
    counted = {c.conversation_id: c.estimated_tokens for c in state.conversations}
    assert counted == {"b": 50, "a": 60}


def test_no_estimate_outgrows_what_the_wire_carries() -> None:
    assert estimate(started(), *(opaque_item(MAX_TOKENS) for _ in range(3))) == MAX_TOKENS


def test_what_is_taken_back_the_conversation_may_hold_still() -> None:
    assert estimate(started(), user("x" * 50), TurnsRolledBack(to=1)) == 50


# The current turn's request.


def asked(*what: ThreadEvent | Item) -> ThreadState:
    """Return the state where 600 bytes are held and a request of 400 was recorded, and then `what`."""
    return state_of(started(), assistant("a" * 600), user("x" * 400, item_id="request"), *what)


def test_a_request_that_is_recorded_already_is_not_counted_twice() -> None:
    state = asked()
    assert state.pending_request == 400
    assert state.conversations[0].estimated_tokens == 1_000
    assert budget(state, CONTINUE).existing == Figure(value=600, origin=Origin.ESTIMATED)


def test_nor_are_two_that_the_agent_has_not_begun_to_answer() -> None:
    assert budget(asked(user("y" * 100)), CONTINUE).existing.value == 600


def test_nor_is_one_recorded_again() -> None:
    state = asked(user("x" * 450, item_id="request"))
    assert (state.pending_request, budget(state, CONTINUE).existing.value) == (450, 600)


def test_without_a_request_everything_recorded_counts() -> None:
    assert budget(asked()).existing.value == 1_000


def test_a_conversation_that_does_not_carry_the_thread_does_not_hold_it() -> None:
    state = state_of(started(), assistant("a" * 600), started("new"), user("x" * 400))
    assert state.pending_request == 400
    assert budget(state, CONTINUE).existing.value == 600
    assert budget(state, CONTINUE, conversation_id="new").existing.value == 0


def test_telemetry_counts_as_it_is() -> None:
    assert budget(asked(usage(950)), CONTINUE).existing == Figure(
        value=950, origin=Origin.TELEMETRY
    )


@pytest.mark.parametrize(
    ("event", "size"),
    [
        (assistant("ok"), 2),
        (reasoning("hm"), 2),
        (tool_call("f"), len(r"f \n")),
        (command("ls"), len("$ ls")),
        (opaque_item(7), 7),
        (OpaqueEvent(size=7), 7),
        (turn_ended(), 0),
        (turn_ended(TurnStatus.LIMITED), 0),
        (TurnsRolledBack(to=2), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_part_of_the_conversation_from(event: ThreadEvent | Item, size: int) -> None:
    state = asked(event)
    assert state.pending_request == 0
    assert budget(state, CONTINUE).existing.value == 1_000 + size


@pytest.mark.parametrize(
    "event",
    [
        TurnStarted(turn_id="t"),
        ThreadStarted(),
        usage(5, "other"),
        delivered(0),
        selected(),
        selected(model="small"),
        compacted(5, "other"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_other_events_leave_it_pending(event: ThreadEvent) -> None:
    assert asked(event).pending_request == 400


@pytest.mark.parametrize("conversation_id", ["c", "new"])
def test_a_conversation_that_starts_has_been_asked_nothing(conversation_id: str) -> None:
    state = asked(started(conversation_id, continues="c"))
    assert state.pending_request == 0
    existing = budget(state, CONTINUE, conversation_id=conversation_id).existing
    assert existing == Figure(value=1_000, origin=Origin.ESTIMATED)


def test_nor_has_one_that_the_thread_goes_back_to() -> None:
    state = state_of(started(), assistant("a" * 600), started("b"), user("x" * 400), selected())
    assert state.pending_request == 0
    assert budget(state, CONTINUE).existing.value == 600


@pytest.mark.parametrize(("size", "existing"), [(None, 700), (30, 730)])
def test_what_a_compaction_took_in_is_not_taken_off_again(size: int | None, existing: int) -> None:
    state = asked(compacted(size), delivered(700))
    assert budget(state, CONTINUE).existing.value == existing


def test_an_answered_request_that_shrinks_owes_nothing_to_the_next_one() -> None:
    state = asked(assistant("ok"), user("x" * 100, item_id="request"), user("y" * 50))
    assert state.pending_request == 50
    assert budget(state, CONTINUE).existing.value == 600 + 2 + 100


def test_a_request_of_a_thread_without_conversations_is_nobodys() -> None:
    state = state_of(user("x" * 400))
    assert budget(state, CONTINUE).existing == Figure(value=0, origin=Origin.ASSUMED)


# Which capacity counts.

LISTED = CatalogueEntry("codex", ("large",), 90_000)
OWN = CatalogueEntry("codex", ("*",), 80_000)
BUILTIN = Catalogue([LISTED])
OPERATORS = Catalogue([LISTED], operator=[OWN])


@pytest.mark.parametrize("chosen", [{}, {"conversation_id": None}], ids=["continued", "fresh"])
@pytest.mark.parametrize(
    ("requested", "told", "catalogue", "window"),
    [
        (300_000, 200_000, OPERATORS, Figure(value=300_000, origin=Origin.REQUEST)),
        (50_000, 200_000, OPERATORS, Figure(value=50_000, origin=Origin.REQUEST)),
        (None, 200_000, OPERATORS, Figure(value=200_000, origin=Origin.KNOWN_CAPACITY)),
        (0, 200_000, OPERATORS, Figure(value=200_000, origin=Origin.KNOWN_CAPACITY)),
        (-1, 0, OPERATORS, Figure(value=80_000, origin=Origin.OPERATOR)),
        (None, None, OPERATORS, Figure(value=80_000, origin=Origin.OPERATOR)),
        (None, None, BUILTIN, Figure(value=90_000, origin=Origin.CATALOGUE)),
        (None, None, NOTHING_KNOWN, Figure(value=128_000, origin=Origin.ASSUMED)),
    ],
)
def test_the_requests_capacity_then_the_sessions_then_the_catalogues(
    requested: int | None,
    told: int | None,
    catalogue: Catalogue,
    window: Figure,
    chosen: dict[str, Any],
) -> None:
    state = state_of(started(capacity=told))
    assert budget(state, catalogue=catalogue, capacity=requested, **chosen).window == window


@pytest.mark.parametrize("chosen", [{}, {"conversation_id": None}], ids=["continued", "fresh"])
@pytest.mark.parametrize(("requested", "told"), [(300_000, 200_000), (None, 200_000), (None, None)])
def test_telemetrys_smaller_maximum_comes_before_all(
    requested: int | None, told: int | None, chosen: dict[str, Any]
) -> None:
    state = state_of(started(capacity=told), usage(0, max_tokens=70_000))
    assert budget(state, catalogue=OPERATORS, capacity=requested, **chosen).window == Figure(
        value=70_000, origin=Origin.TELEMETRY
    )


def test_a_larger_one_does_not() -> None:
    state = state_of(started(), usage(0, max_tokens=100_000))
    assert budget(state, catalogue=BUILTIN).window == Figure(value=90_000, origin=Origin.CATALOGUE)


def test_it_is_remembered_from_an_earlier_conversation_of_the_selection() -> None:
    state = state_of(
        started("old", options={**WIDE, "effort": "low"}),
        usage(9, "old", max_tokens=70_000),
        *(started(f"between-{n}", model="small") for n in range(MAX_CONVERSATIONS)),
        started(options={**WIDE, "effort": "high"}),
    )
    assert state.conversation("old") is None
    measured = Figure(value=70_000, origin=Origin.TELEMETRY)
    assert budget(state, catalogue=OPERATORS).window == measured
    assert budget(state, conversation_id=None, options=WIDE).window == measured
    assert budget(state, conversation_id=None).window.origin is Origin.ASSUMED


def test_so_is_what_a_session_told() -> None:
    state = state_of(started("old", capacity=70_000), started())
    known_ = Figure(value=70_000, origin=Origin.KNOWN_CAPACITY)
    assert budget(state, catalogue=OPERATORS).window == known_


def test_a_maximum_without_anything_told_does_not_hide_the_catalogue() -> None:
    state = state_of(started(), usage(9, max_tokens=100_000))
    assert budget(state, catalogue=OPERATORS).window.origin is Origin.OPERATOR


@pytest.mark.parametrize(
    ("provider", "options", "tokens"),
    [
        ("codex", {"model_context_window": 400_000}, 400_000),
        ("claude-code", {"betas": "context-1m-2025-08-07"}, 1_000_000),
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_an_option_that_asks_for_a_window_comes_before_the_catalogue(
    provider: str, options: dict[str, Any], tokens: int, fresh: bool
) -> None:
    catalogue = Catalogue(operator=[CatalogueEntry(provider, ("*",), 80_000)])
    state = state_of(started(provider=provider, options={} if fresh else options))
    target: dict[str, Any] = (
        {"conversation_id": None, "options": options} if fresh else {"conversation_id": "c"}
    )
    shown = budget(state, catalogue=catalogue, provider=provider, **target)
    assert shown.window == Figure(value=tokens, origin=Origin.OPTION)


def test_what_a_session_told_comes_before_the_option() -> None:
    state = state_of(started(options=WIDE, capacity=380_000))
    assert budget(state).window == Figure(value=380_000, origin=Origin.KNOWN_CAPACITY)


# A conversation that goes on under another selection.


@pytest.mark.parametrize(
    "change",
    [{"model": "small"}, {"options": WIDE}, {"provider": "claude-code"}],
    ids=str,
)
def test_its_usage_and_threshold_do_not_count_then(change: dict[str, Any]) -> None:
    report = usage(90_000, max_tokens=100_000, compact_threshold=95_000)
    state = state_of(started(capacity=99_000), user("x" * 700), report)
    shown = budget(state, capacity=200_000, **change)
    assert shown.existing == Figure(value=700, origin=Origin.ESTIMATED)
    assert shown.window == Figure(value=200_000, origin=Origin.REQUEST)
    assert budget(state, **{"model": "small", **change}).window.origin in {
        Origin.ASSUMED,
        Origin.OPTION,
    }


@pytest.mark.parametrize(
    "same", [{}, {"model": None}, {"options": {**WIDE, "reasoning_effort": "low"}}], ids=str
)
def test_they_count_where_the_request_names_the_same_or_leaves_it_out(same: dict[str, Any]) -> None:
    report = usage(40_000, max_tokens=100_000, compact_threshold=95_000)
    shown = budget(state_of(started(options=WIDE), user("x" * 700), report), **same)
    assert shown.existing == Figure(value=40_000, origin=Origin.TELEMETRY)
    assert shown.window == Figure(value=95_000, origin=Origin.COMPACT_THRESHOLD)


# What is kept.


def test_so_many_windows_are_kept_the_most_recently_told() -> None:
    models = [f"m{n}" for n in range(MAX_WINDOWS + 1)]
    events = [started(model=model, capacity=9) for model in models]
    state = state_of(*events[:-1], usage(1, model=models[-2], max_tokens=8), events[0], events[-1])
    keys = [selection_key("codex", model, {}) for model in models]
    assert list(state.windows) == [*keys[2:-1], keys[0], keys[-1]]
    assert state.windows[keys[-2]] == KnownWindow(told=9, measured=8)


def test_a_selection_that_nothing_is_told_of_takes_no_place() -> None:
    assert state_of(started(), usage(1), selected(model="small")).windows == {}


def test_events_of_a_conversation_long_forgotten_change_nothing() -> None:
    newer = [started(f"c{n}") for n in range(MAX_CONVERSATIONS)]
    before = log(started(), *newer).state
    after = log(started(), *newer, usage(5), compacted(5), delivered(5), selected()).state
    assert after.conversations == before.conversations
