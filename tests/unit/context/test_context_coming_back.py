from __future__ import annotations

import itertools

import pytest
from helpers.building import (
    THREAD,
    Log,
    assistant,
    chosen,
    command,
    error,
    log,
    opaque_item,
    plan,
    reasoning,
    spans,
    started,
    state_of,
    usage,
    user,
)
from msgspec.structs import replace

from moonfold_handoff.context.choices import Reason
from moonfold_handoff.context.fold import adopt, fold
from moonfold_handoff.context.preamble import plan_preamble
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.selection import omissions, select
from moonfold_handoff.context.state import WINDOW_ITEMS, Conversation, ThreadState
from moonfold_schemas import ThreadEvent
from moonfold_schemas.events import (
    ConversationCompacted,
    HandoffDelivered,
    ModelSelected,
    OpaqueEvent,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import Item

HUGE = 10**6
ENDED = TurnEnded(turn_id="turn", status=TurnStatus.COMPLETED)


def delivered(conversation_id: str, through: int) -> HandoffDelivered:
    return HandoffDelivered(conversation_id=conversation_id, through=through, tokens=1)


def seen(state: ThreadState, conversation_id: str) -> tuple[int, int]:
    known = state.conversation(conversation_id)
    assert known is not None
    return known.seen, known.seen_items


def unseen(state: ThreadState, conversation_id: str) -> ThreadState:
    return state.since(state.conversation(conversation_id))


def having_seen(sequence: int, items: int) -> Conversation:
    return Conversation(conversation_id="c", provider="codex", seen=sequence, seen_items=items)


def away_and_back(*meanwhile: Item) -> ThreadState:
    """Return a thread that was in a, at 2 to 3, and goes on in b, from 6."""
    return state_of(
        started("a"),
        user("original"),
        assistant("answer"),
        started("b"),
        delivered("b", 3),
        *meanwhile,
    )


# What a conversation has seen.


def test_a_conversation_has_seen_what_was_recorded_while_it_carried_the_thread() -> None:
    state = away_and_back(user("more"), assistant("done"))
    assert seen(state, "a") == (3, 2)
    assert seen(state, "b") == (7, 4)


def test_a_fresh_conversation_has_seen_nothing() -> None:
    state = state_of(started("a"), user("u"), started("b"), usage(9, "b"), ENDED)
    assert seen(state, "b") == (0, 0)


@pytest.mark.parametrize("event", [reasoning("hm"), opaque_item(9), OpaqueEvent(size=9)])
def test_what_does_not_travel_is_seen_and_no_item(event: Item | ThreadEvent) -> None:
    state = state_of(started("a"), user("u"), event)
    assert seen(state, "a") == (3, 1)


def test_a_delivered_handoff_is_seen_up_to_where_it_was_made() -> None:
    history: list[ThreadEvent | Item] = [user("1"), assistant("2"), started("b"), delivered("b", 2)]
    assert seen(state_of(*history), "b") == (2, 2)
    # Another conversation took the thread on meanwhile.
    assert seen(state_of(*history[:3], started("c"), user("5"), delivered("b", 1)), "b") == (1, 1)


def test_a_handoff_of_less_than_was_seen_takes_nothing_back() -> None:
    state = state_of(started("a"), user("2"), assistant("3"), delivered("a", 2))
    assert seen(state, "a") == (3, 2)


def test_nothing_that_is_still_to_come_is_seen() -> None:
    state = state_of(user("1"), started("b"), delivered("b", 99), started("c"), user("5"))
    assert seen(state, "b") == (3, 1)
    assert chosen(select(unseen(state, "b"), THREAD, HUGE)) == [5]


def test_a_handoff_to_a_conversation_that_nobody_knows_is_nobodys() -> None:
    assert state_of(user("1"), delivered("x", 1)).conversations == ()


def test_what_continues_a_conversation_has_seen_what_that_one_had() -> None:
    history = log(started("a"), user("2"), started("b", continues="a"), started("c"))
    state = history.add(delivered("c", 2), user("6")).state
    assert seen(state, "b") == (2, 1)
    assert seen(state, "c") == (6, 2)


def test_a_gap_that_no_handoff_filled_is_never_taken_for_seen() -> None:
    history = log(started("a"), user("2"), assistant("3"), started("b"), user("5"), plan("6"))
    assert seen(history.state, "b") == (0, 0)
    assert chosen(select(unseen(history.state, "b"), THREAD, HUGE)) == [2, 3, 5, 6]
    filled = history.add(delivered("b", 6), assistant("8")).state
    assert seen(filled, "b") == (8, 5)
    # Back in a without what b did: what a writes then does not hide it.
    back = history.add(ModelSelected(conversation_id="a", model="m"), assistant("10")).state
    assert seen(back, "a") == (3, 2)


def test_the_same_conversation_started_anew_has_seen_nothing() -> None:
    assert seen(state_of(started("a"), user("2"), started("a")), "a") == (0, 0)
    assert seen(state_of(started("a"), user("2"), started("a", continues="a")), "a") == (2, 1)


def test_a_rollback_takes_back_what_was_seen() -> None:
    history = log(started("a"), user("2"), assistant("3"), started("b"), delivered("b", 3))
    history = history.add(user("6"), plan("7"))
    state = history.add(TurnsRolledBack(to=2)).state
    assert seen(state, "a") == seen(state, "b") == (2, 1)
    state = history.add(user("9")).state
    assert seen(state, "a") == (2, 1)
    assert seen(state, "b") == (9, 2)
    assert chosen(select(unseen(state, "a"), THREAD, HUGE)) == [9]


def test_a_rollback_leaves_what_was_seen_before_it() -> None:
    history = log(started("a"), user("2"), started("b"), delivered("b", 2), user("5"))
    state = history.add(TurnsRolledBack(to=3)).state
    assert seen(state, "a") == (2, 1)
    assert seen(state, "b") == (3, 1)


def test_a_fork_is_new_to_every_conversation() -> None:
    parent = state_of(started("a"), user("2"), assistant("3"))
    fork = adopt(parent, "parent")
    assert fork.conversation("a") is None
    assert unseen(fork, "a") == fork


# What is new since.


def test_to_a_fresh_or_unknown_conversation_everything_is_new() -> None:
    state = state_of(started("a"), user("u"), assistant("a"), started("b"))
    assert state.since(None) is state
    assert unseen(state, "b") is state
    assert unseen(state, "unknown") is state


def test_what_was_seen_is_neither_sent_again_nor_counted_as_omitted() -> None:
    state = unseen(away_and_back(user("more"), command("make"), assistant("done")), "a")
    selection = select(state, THREAD, HUGE)
    assert chosen(selection) == [6, 7, 8]
    assert selection.coverage.selected_items == 3
    assert selection.coverage.omitted_items == 0
    assert spans(selection.coverage.selected) == [(6, 8)]
    assert spans(selection.coverage.omitted) == []
    assert omissions(state, selection) == []


def test_nor_where_not_all_that_is_new_fits() -> None:
    many = [command(f"make {n}", "x" * 300) for n in range(30)]
    state = unseen(away_and_back(user("more"), *many, assistant("done")), "a")
    selection = select(state, THREAD, 3_000)
    coverage = selection.coverage
    left_out = [omission.ref.position for omission in omissions(state, selection)]
    assert 0 < coverage.selected_items < 32
    assert coverage.selected_items + coverage.omitted_items == 32
    assert sorted([*chosen(selection), *left_out]) == list(range(6, 38))
    told = sorted([*spans(coverage.selected), *spans(coverage.omitted)])
    assert told[0][0] == 6
    assert told[-1][1] == 37
    assert all(end + 1 == begin for (_, end), (begin, _) in itertools.pairwise(told))


def test_where_all_was_seen_there_is_nothing_to_carry() -> None:
    state = away_and_back(user("more"), assistant("done"))
    rest = unseen(state, "b")
    selection = select(rest, THREAD, 0)
    assert rest.kept == ()
    assert selection.choices == ()
    assert selection.preamble is None
    assert selection.coverage.selected_items == selection.coverage.omitted_items == 0
    assert selection.coverage.through == state.through


def test_only_new_requests_and_answers_are_first() -> None:
    state = unseen(away_and_back(error("6"), user("7"), error("8")), "a")
    assert state.first_request is None
    assert state.last_answer is None
    assert state.last_request is not None
    assert state.last_request.position == 7
    state = unseen(away_and_back(assistant("6")), "a")
    assert state.last_request is None
    assert state.last_answer is not None


def test_a_first_request_after_what_was_seen_is_the_original_one() -> None:
    state = state_of(started("a"), error("2"), started("b"), user("4"), plan("5"), user("6"))
    selection = select(unseen(state, "a"), THREAD, HUGE)
    assert chosen(selection) == [4, 5, 6]
    first = unseen(state, "a").first_request
    assert first is not None
    assert first.position == 4


def test_the_size_that_is_told_is_that_of_what_is_new() -> None:
    state = unseen(away_and_back(user("more"), assistant("done")), "a")
    preamble = select(state, THREAD, HUGE).preamble
    assert preamble == plan_preamble(THREAD, state.through, 2, HUGE)


# Of a long thread.


def long(before: int, after: int) -> Log:
    """Return a thread with so many items in a, from 2, and so many in b."""
    history = log(started("a"), *(command(f"make {n}") for n in range(before)), started("b"))
    return history.add(*(command(f"make {n}") for n in range(after)))


def test_what_is_no_longer_kept_and_was_seen_is_not_omitted() -> None:
    state = long(300, 400).state
    assert 0 < state.evicted < 301
    rest = unseen(state, "a")
    selection = select(rest, THREAD, HUGE)
    assert rest.evicted == 0
    assert rest.items == 400
    assert chosen(selection) == list(range(303, 703))
    assert selection.coverage.omitted_items == 0


def test_what_is_no_longer_kept_and_is_new_is_omitted() -> None:
    state = long(20, 600).state
    assert state.evicted > 22
    rest = unseen(state, "a")
    selection = select(rest, THREAD, HUGE)
    assert rest.items == 600
    assert selection.coverage.selected_items == WINDOW_ITEMS
    assert selection.coverage.omitted_items == 600 - WINDOW_ITEMS
    [omitted] = spans(selection.coverage.omitted)
    assert omitted == (22, state.evicted)
    assert spans(selection.coverage.selected) == [(state.evicted + 1, 622)]


def test_a_new_request_long_gone_from_the_window_still_goes() -> None:
    history = log(started("a"), user("2"), assistant("3"), started("b"), user("request"))
    state = history.add(*(command(f"make {n}") for n in range(600))).state
    selection = select(unseen(state, "a"), THREAD, HUGE)
    assert chosen(selection)[0] == 5
    assert selection.coverage.selected_items == WINDOW_ITEMS + 1
    assert selection.coverage.omitted_items == 600 - WINDOW_ITEMS
    # Which items came between is known no more, only from where on nothing was seen.
    assert spans(selection.coverage.omitted) == [(4, 4), (6, state.evicted)]


def test_all_that_was_seen_of_a_long_thread_is_nothing() -> None:
    history = long(300, 0).add(delivered("b", 301), *(command(f"make {n}") for n in range(400)))
    rest = unseen(history.state, "b")
    assert rest.items == 0
    assert rest.kept == ()
    assert rest.evicted == 0
    assert rest.first_position == 0


def test_no_more_was_seen_than_there_is() -> None:
    """An item whose kind was unknown while it was seen is not counted as new without being kept."""
    history = log(started("a"), opaque_item(9, item_id="x"), user("3"), started("b"), user("5"))
    state = history.add(command("make", item_id="x")).state
    assert state.items == 3
    rest = unseen(state, "a")
    assert rest.items == len(rest.kept) == 1
    assert select(rest, THREAD, HUGE).coverage.omitted_items == 0


# The ranking of what is new.


def outputs(count: int, first: int = 0) -> list[Item]:
    return [
        command(f"make part_{n}", f"in file_{n} x\n" * 60, exit_code=n % 2)
        for n in range(first, first + count)
    ]


def test_the_ranking_names_the_same_items_as_before() -> None:
    state = state_of(
        started("a"), *outputs(30), assistant("a"), started("b"), *outputs(30, 20), user("u")
    )
    state = replace(state, ranking=rank(state))
    rest = unseen(state, "a")
    assert len(rest.ranking) > 30
    before = [(state.window[i].position, piece) for i, piece in state.ranking]
    since = [(rest.window[i].position, piece) for i, piece in rest.ranking]
    assert since == [(position, piece) for position, piece in before if position > 32]


@pytest.mark.parametrize("asked", [None, "What of file_47 and part_52?"])
@pytest.mark.parametrize("allowance", [500, 1_024, 4_000, 16_000, 64_000])
def test_the_ranking_leads_where_one_of_what_is_new_does(allowance: int, asked: str | None) -> None:
    """Where both parts have identifiers of their own."""
    state = state_of(
        started("a"), *outputs(30), assistant("a"), started("b"), user("u"), *outputs(30, 40)
    )
    rest = unseen(replace(state, ranking=rank(state)), "a")
    anew = replace(rest, ranking=rank(rest))
    assert select(rest, THREAD, allowance, asked) == select(anew, THREAD, allowance, asked)


TO_COME: list[ThreadEvent] = [
    TurnStarted(turn_id="turn"),
    ENDED,
    usage(9),
    started("d"),
    ModelSelected(conversation_id="c", model="other"),
    ConversationCompacted(conversation_id="c"),
    delivered("c", 3),
    OpaqueEvent(size=9),
    TurnsRolledBack(to=7),
]


@pytest.mark.parametrize("event", TO_COME, ids=lambda event: type(event).__name__)
def test_the_ranking_is_kept_while_no_item_changes(event: ThreadEvent) -> None:
    history = log(started(), user("u", item_id="u"), *outputs(4), assistant("a"))
    state = replace(history.state, ranking=rank(history.state))
    history.add(event)
    assert fold(state, history.entries[7:]).ranking == state.ranking != ()


@pytest.mark.parametrize(
    "event",
    [
        user("more"),
        user("other", item_id="u"),
        error("e"),
        TurnsRolledBack(to=6),
    ],
    ids=["a new item", "an item again", "another kind", "a rollback"],
)
def test_the_ranking_is_dropped_where_one_does(event: ThreadEvent | Item) -> None:
    history = log(started(), user("u", item_id="u"), *outputs(4), assistant("a"))
    state = replace(history.state, ranking=rank(history.state))
    history.add(event, usage(9))
    assert fold(state, history.entries[7:]).ranking == ()


@pytest.mark.parametrize("item", [reasoning("hm"), opaque_item(9)])
def test_what_does_not_travel_changes_no_ranking(item: Item) -> None:
    history = log(user("u"), *outputs(4))
    state = replace(history.state, ranking=rank(history.state))
    history.add(item)
    assert fold(state, history.entries[5:]).ranking == state.ranking


# Requests that nobody has answered.


def room_for(state: ThreadState, *positions: int) -> int:
    """Return the allowance that has room for the pointer and these items, to the byte."""
    pointer = plan_preamble(THREAD, state.through, state.items, 0).reserve
    return pointer + sum(ref.cost for ref in state.kept if ref.position in positions)


def test_unanswered_requests_go_before_all_else_the_newest_first() -> None:
    state = state_of(
        user("original " * 20),
        assistant("answer " * 20),
        user("first " * 20),
        *outputs(20),
        user("second " * 20),
        error("limit reached"),
        user("third " * 20),
        *outputs(5),
    )
    takes = [26, 24, 3, 2, 1]  # in this order, with room for one more each time
    for count in range(1, 6):
        some = select(state, THREAD, room_for(state, *takes[:count]))
        assert chosen(some) == sorted(takes[:count])
    selection = select(state, THREAD, room_for(state, *takes))
    reasons = {choice.ref.position: choice.reason for choice in selection.choices}
    assert reasons == {
        1: Reason.ORIGINAL_REQUEST,
        2: Reason.NEWEST_ANSWER,
        3: Reason.UNANSWERED,
        24: Reason.UNANSWERED,
        26: Reason.NEWEST_REQUEST,
    }
    assert not any(choice.spans for choice in selection.choices)  # they go whole


def test_requests_before_the_newest_answer_are_answered() -> None:
    state = state_of(
        user("1"), user("2"), *outputs(20), assistant("23"), assistant(""), *outputs(9), user("34")
    )
    selection = select(state, THREAD, room_for(state, 34, 23, 1) + 70)
    reasons = {choice.ref.position: choice.reason for choice in selection.choices}
    assert reasons.pop(34) is Reason.NEWEST_REQUEST
    assert reasons.pop(23) is Reason.NEWEST_ANSWER
    assert reasons.pop(1) is Reason.ORIGINAL_REQUEST
    assert Reason.UNANSWERED not in reasons.values()


def test_an_answer_that_is_empty_answers_nothing() -> None:
    state = state_of(user("1"), user("2"), *outputs(20), assistant(""), user("24"))
    selection = select(state, THREAD, room_for(state, 24, 2, 1))
    reasons = {choice.ref.position: choice.reason for choice in selection.choices}
    assert reasons == {1: Reason.UNANSWERED, 2: Reason.UNANSWERED, 24: Reason.NEWEST_REQUEST}


def test_an_unanswered_request_that_does_not_fit_does_not_stop_the_next() -> None:
    state = state_of(assistant("a"), user("2"), user("x" * 9_000), *outputs(20), user("24"))
    selection = select(state, THREAD, room_for(state, 24, 2, 1))
    assert chosen(selection) == [1, 2, 24]


def test_an_answer_that_was_seen_already_still_answers() -> None:
    state = unseen(away_and_back(*outputs(9), user("15"), *outputs(9), user("25")), "a")
    selection = select(state, THREAD, room_for(state, 15, 25))
    assert chosen(selection) == [15, 25]
