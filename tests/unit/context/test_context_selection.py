from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from helpers.building import (
    THREAD,
    Log,
    assistant,
    chosen,
    command,
    error,
    file_change,
    hand_off,
    json_bytes,
    log,
    meant,
    plan,
    reasoning,
    spans,
    started,
    state_of,
    usage,
    user,
)

from moonfold_handoff.context.budget import compute_budget
from moonfold_handoff.context.choices import Reason
from moonfold_handoff.context.pieces import Pieces, least_cost
from moonfold_handoff.context.preamble import plan_preamble
from moonfold_handoff.context.selection import Selection, omissions, select
from moonfold_handoff.context.state import WINDOW_BYTES, ThreadState
from moonfold_handoff.errors import ReferencesDoNotFitError
from moonfold_schemas.events import TurnStarted
from moonfold_schemas.items import AttachmentKind, Item
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import Delivery, FailureCode, Figure, Origin

IMAGE = AttachmentKind.IMAGE


def choose(state: ThreadState, allowance: int) -> Selection:
    return select(state, THREAD, allowance)


def pointer(state: ThreadState) -> int:
    return plan_preamble(THREAD, state.through, state.items, 0).reserve


def room_for(state: ThreadState, *positions: int) -> int:
    """Return the allowance that has room for the pointer and these items, to the byte."""
    return pointer(state) + sum(ref.cost for ref in state.kept if ref.position in positions)


def reasons(selection: Selection) -> dict[int, Reason]:
    return {choice.ref.position: choice.reason for choice in selection.choices}


def left_out(state: ThreadState, selection: Selection) -> list[tuple[int, Reason]]:
    return [(out.ref.position, out.reason) for out in omissions(state, selection)]


def turn_start() -> TurnStarted:
    return TurnStarted(turn_id="turn")


# Everything, or nothing.


@pytest.mark.parametrize("allowance", [0, 1_024, 64_000])
def test_an_empty_thread_needs_no_room_and_gives_nothing(allowance: int) -> None:
    for state in (ThreadState(), state_of(turn_start(), reasoning("hm"))):
        selection = choose(state, allowance)
        assert (selection.choices, selection.preamble) == ((), None)
        assert omissions(state, selection) == []
        assert selection.coverage.through == state.through
        assert (selection.coverage.selected_items, selection.coverage.omitted_items) == (0, 0)


def test_a_short_conversation_goes_whole() -> None:
    state = state_of(
        user("do"), command("make", "out" * 999), file_change("a", diff="+b"), assistant("done")
    )
    selection = choose(state, 16_000)
    assert chosen(selection) == [1, 2, 3, 4]
    assert set(reasons(selection).values()) == {Reason.EVERYTHING_FITS}
    assert omissions(state, selection) == []
    assert all(choice.spans == () for choice in selection.choices)
    assert spans(selection.coverage.selected) == [(1, 4)]
    assert selection.coverage.omitted == ()
    assert selection.coverage.abridged == ()


def test_everything_goes_if_it_fits_to_the_byte_and_not_otherwise() -> None:
    state = state_of(user("x" * 50), command("make", "y" * 200), assistant("z" * 50))
    exactly = room_for(state, 1, 2, 3)
    assert chosen(choose(state, exactly)) == [1, 2, 3]
    assert chosen(choose(state, exactly - 1)) == [1, 3]


def test_native_envelopes_count_against_the_ceiling() -> None:
    history = log(*(user("x" * 60) for _ in range(1_000)))
    selection, rendering = hand_off(history, 64_000)
    assert rendering.text_bytes < 64_000
    assert 59_000 < rendering.items_bytes <= 64_000
    assert selection.coverage.omitted_items > 0
    assert chosen(selection)[-1] == 1_000


def test_the_pointer_must_fit() -> None:
    state = state_of(user("x" * 500))
    needed = pointer(state)
    selection = choose(state, needed)
    assert selection.choices == ()
    assert selection.coverage.omitted_items == 1
    with pytest.raises(ReferencesDoNotFitError) as caught:
        choose(state, needed - 1)
    assert (caught.value.needed, caught.value.available) == (needed, needed - 1)
    assert caught.value.code is FailureCode.REFERENCES_DO_NOT_FIT
    assert not caught.value.retryable
    assert "Compact the target conversation" in str(caught.value)
    assert "larger context window" in str(caught.value)


@pytest.mark.parametrize("allowance", [0, 1])
def test_without_any_room_the_references_do_not_fit(allowance: int) -> None:
    with pytest.raises(ReferencesDoNotFitError):
        choose(state_of(user("u")), allowance)


@pytest.mark.parametrize("length", [1, 36, 200])
def test_a_nearly_full_conversation_has_room_for_the_pointer_or_says_what_it_lacks(
    length: int,
) -> None:
    thread_id = "t" * length
    window, reserve, request = 100_000, 25_000, NewRequest(text="Continue", attachments=(IMAGE,))
    target = Target(provider="codex", model="large", conversation_id="c", capacity=window)
    pointer_text = f"[mmmm] Earlier conversation: thread {thread_id} to #4."
    needed = json_bytes(f"{pointer_text}\n[mmmm end]")
    full = window - reserve - json_bytes("Continue") - 8_192  # what may be held if nothing is to go

    def selection(held: int) -> Selection:
        state = state_of(started(), user("u"), assistant("a"), usage(held))
        cap = Figure(value=16_000, origin=Origin.DEFAULT)
        return select(state, thread_id, compute_budget(state, target, request, cap).allowance)

    least = selection(full - needed)
    assert least.choices == ()
    assert least.preamble is not None
    assert not least.preamble.full
    assert (least.coverage.selected_items, least.coverage.omitted_items) == (0, 2)
    for available in {needed - 1, needed // 2, 1, 0}:
        with pytest.raises(ReferencesDoNotFitError) as caught:
            selection(full - available)
        assert (caught.value.needed, caught.value.available) == (needed, available)
        assert str(caught.value) == (
            f"Not even the reference to the earlier conversation fits: it needs {needed} bytes and "
            f"{available} are left. Compact the target conversation, or pick a model with a larger "
            "context window."
        )
    with pytest.raises(ReferencesDoNotFitError) as caught:
        selection(full + 50_000)
    assert caught.value.available == 0


def test_where_there_is_no_history_a_full_conversation_needs_no_room() -> None:
    state = state_of(started(), usage(581_117))
    target = Target(provider="codex", model="large", conversation_id="c")
    cap = Figure(value=16_000, origin=Origin.DEFAULT)
    budget = compute_budget(state, target, NewRequest(text="Continue"), cap)
    assert budget.allowance == 0
    assert select(state, THREAD, budget.allowance).preamble is None


# What comes first.


def test_newest_request_then_newest_answer_then_original_request() -> None:
    long = "x" * 400
    state = state_of(user(long), assistant(long), user(long), assistant(long), user(long))
    assert reasons(choose(state, room_for(state, 5))) == {5: Reason.NEWEST_REQUEST}
    assert reasons(choose(state, room_for(state, 4, 5))) == {
        4: Reason.NEWEST_ANSWER,
        5: Reason.NEWEST_REQUEST,
    }
    assert reasons(choose(state, room_for(state, 1, 4, 5))) == {
        1: Reason.ORIGINAL_REQUEST,
        4: Reason.NEWEST_ANSWER,
        5: Reason.NEWEST_REQUEST,
    }
    assert reasons(choose(state, room_for(state, 1, 3, 4, 5)))[3] is Reason.IN_PLAY


@pytest.mark.parametrize(
    "noise",
    [
        command("make", "[#9 assistant]\nThe newest answer is 42."),
        file_change("answer.md", diff="+The newest answer is 42."),
        plan("The newest answer is 42."),
        error("The newest answer is 42."),
    ],
    ids=lambda item: str(item.__struct_config__.tag),
)
def test_no_activity_is_taken_for_the_newest_answer(noise: Item) -> None:
    state = state_of(user("original"), assistant("the answer"), user("newest"), noise)
    selection = choose(state, room_for(state, 2, 3))
    assert reasons(selection) == {2: Reason.NEWEST_ANSWER, 3: Reason.NEWEST_REQUEST}


def test_what_comes_first_comes_from_any_distance() -> None:
    history = log(user("original"), assistant("old answer"), turn_start(), user("newest"))
    history.add(assistant("the answer"), *(command("make", "x" * 400) for _ in range(2_000)))
    state = history.state
    assert state.evicted > 5
    selection, rendering = hand_off(history, 4_096)
    assert chosen(selection)[:3] == [1, 4, 5]
    assert [reasons(selection)[n] for n in (1, 4, 5)] == [
        Reason.ORIGINAL_REQUEST,
        Reason.NEWEST_REQUEST,
        Reason.NEWEST_ANSWER,
    ]
    assert "the answer" in rendering.text
    assert "old answer" not in rendering.text
    assert spans(selection.coverage.omitted)[0] == (2, 3)
    assert spans(selection.coverage.omitted)[1][0] == 6


def test_a_thread_may_have_no_request_yet() -> None:
    state = state_of(command("make", "x" * 900), assistant("hello" * 50), error("boom" * 20))
    selection = choose(state, room_for(state, 2, 3))
    assert reasons(selection) == {2: Reason.NEWEST_ANSWER, 3: Reason.RECENT}


def test_a_thread_may_have_no_answer_yet() -> None:
    state = state_of(user("do"), command("make", "x" * 300))
    assert chosen(choose(state, room_for(state, 1))) == [1]


# What is recent.


def test_a_message_goes_whole_or_not_at_all() -> None:
    state = state_of(user("first"), assistant("x" * 5_000), user("last"))
    for allowance in range(pointer(state), 6_000, 37):
        try:
            selection = choose(state, allowance)
        except ReferencesDoNotFitError:
            continue
        assert all(choice.spans == () for choice in selection.choices)
        assert all(choice.cost == choice.ref.cost for choice in selection.choices)


def test_what_does_not_fit_does_not_stop_older_items_that_do() -> None:
    state = state_of(user("first"), assistant("small"), assistant("x" * 5_000), user("last"))
    selection = choose(state, 1_024)
    assert chosen(selection) == [1, 2, 4]
    assert left_out(state, selection) == [(3, Reason.TOO_LONG)]


def test_an_omission_says_whether_it_could_ever_have_fitted() -> None:
    state = state_of(user("a" * 300), assistant("b" * 300), user("c" * 300), assistant("d" * 300))
    selection = choose(state, room_for(state, 3, 4))
    assert left_out(state, selection) == [(1, Reason.NO_ROOM), (2, Reason.NO_ROOM)]


def test_activity_that_cannot_be_cut_is_too_long_if_the_whole_is() -> None:
    state = state_of(user("u"), command("make", "\x00" * 300))  # 1,800 bytes in one piece
    assert not state.window[1].pieces
    selection = choose(state, room_for(state, 1) + 900)
    assert left_out(state, selection) == [(2, Reason.TOO_LONG)]


def test_an_output_is_too_long_if_none_of_its_pieces_could_go() -> None:
    state = state_of(command("make", "y" * 900))
    least = least_cost(state.window[0])
    assert left_out(state, choose(state, pointer(state) + least - 1)) == [(1, Reason.TOO_LONG)]
    assert left_out(state, choose(state, pointer(state) + least)) == []


def test_an_omission_says_that_a_later_outcome_took_its_place() -> None:
    state = state_of(*(command("make", "x" * 300) for _ in range(3)), user("u"))
    selection = choose(state, room_for(state, 3, 4))
    assert chosen(selection) == [3, 4]
    assert left_out(state, selection) == [(1, Reason.SUPERSEDED), (2, Reason.SUPERSEDED)]


def test_every_kept_item_is_chosen_or_left_out_with_a_reason() -> None:
    history = log(user("original"), *(command(f"c-{n}", "x" * 700) for n in range(700)))
    state = history.add(assistant("a"), user("u")).state
    assert state.evicted
    for allowance in (pointer(state), 1_024, 16_000, 64_000):
        selection = choose(state, allowance)
        told = [*chosen(selection), *(position for position, _ in left_out(state, selection))]
        assert sorted(told) == [ref.position for ref in state.kept]


def test_recent_items_go_before_older_ones() -> None:
    state = state_of(*(user("x" * 100) for _ in range(99)), assistant("x" * 100))
    selection = choose(state, 4_096)
    assert chosen(selection) == [1, *range(100 - len(selection.choices) + 2, 101)]
    assert spans(selection.coverage.selected) == [(1, 1), (chosen(selection)[1], 100)]
    assert spans(selection.coverage.omitted) == [(2, chosen(selection)[1] - 1)]


def test_a_long_output_is_abridged() -> None:
    state = state_of(user("first"), command("make", "x" * 50_000), user("last"))
    selection = choose(state, 4_096)
    [choice] = [choice for choice in selection.choices if choice.ref.position == 2]
    assert choice.spans[0][0] == 0
    assert all(0 <= first < end <= 50_007 for first, end in choice.spans)
    assert selection.coverage.abridged == (2,)
    assert sum(c.cost for c in selection.choices) <= 4_096 - pointer(state)


def test_outputs_share_the_room_before_one_takes_what_is_left() -> None:
    history = log(user("first"), *(command("make", "x" * 50_000) for _ in range(4)), user("last"))
    selection, rendering = hand_off(history, 8_192)
    assert chosen(selection) == [1, 2, 3, 4, 5, 6]
    assert selection.coverage.abridged == (2, 3, 4, 5)
    spent = {c.ref.position: c.cost for c in selection.choices if c.spans}
    assert max(spent, key=spent.__getitem__) == 5
    assert 8_192 - 700 < rendering.text_bytes <= 8_192  # no other piece of 600 has room


def test_an_output_is_not_abridged_if_the_room_left_holds_it_after_all() -> None:
    state = state_of(user("x" * 5_000), command("make", "y" * 2_000), user("z" * 4_000))
    selection = choose(state, 8_192)
    assert chosen(selection) == [2, 3]
    assert selection.coverage.abridged == ()


def test_an_output_that_fits_only_in_part_is_abridged_into_the_room_left() -> None:
    state = state_of(user("x" * 500), command("make", "y" * 900))
    selection = choose(state, room_for(state, 1) + 350)
    assert chosen(selection) == [1, 2]
    choice = selection.choices[1]
    pieces = Pieces(choice.ref)
    for piece, end in enumerate(itertools.accumulate(choice.ref.pieces[::3])):
        if piece and any(first < end <= last for first, last in choice.spans):
            pieces.take(piece)
    assert pieces.spans() == choice.spans
    assert pieces.spent == choice.cost <= 350
    others = set(range(pieces.last + 1)) - pieces.taken
    assert others
    assert all(choice.cost + pieces.cost_of(piece) > 350 for piece in others)


def test_in_too_little_room_no_output_is_abridged() -> None:
    state = state_of(user("x" * 500), command("make", "y" * 900), error("z" * 90))
    least = least_cost(state.window[1])
    assert state.window[2].cost <= least - 1
    assert chosen(choose(state, room_for(state, 1) + least)) == [1, 2]
    assert chosen(choose(state, room_for(state, 1) + least - 1)) == [1, 3]
    assert chosen(choose(state, room_for(state, 1) + 63)) == [1]


def test_a_short_activity_that_does_not_fit_is_not_cut() -> None:
    state = state_of(command("make", "y" * 200), user("x" * 500))
    assert chosen(choose(state, room_for(state, 1, 2) - 1)) == [2]


def test_the_order_is_the_conversations() -> None:
    state = state_of(*(make("x" * 90) for _ in range(60) for make in (user, assistant)))
    positions = chosen(choose(state, 2_048))
    assert positions == sorted(positions)


# Coverage.


def test_ranges_join_items_with_nothing_but_turns_between() -> None:
    state = state_of(
        user("a"), turn_start(), assistant("b"), reasoning("r"), turn_start(), user("c")
    )
    assert spans(choose(state, 16_000).coverage.selected) == [(1, 6)]


@pytest.mark.parametrize("allowance", [160, 700, 1_024, 4_096, 16_000, 64_000])
@pytest.mark.parametrize("length", [5, 60, 1_500])
def test_ranges_are_maximal_and_tell_every_item(length: int, allowance: int) -> None:
    makers: list[Callable[[str], Item]] = [user, assistant, error, plan]
    history = Log().add(turn_start())
    for i in range(length):
        history.add(makers[i % 4]("x" * (1 + i * 37 % 500)), *([turn_start()] * (i % 3 == 0)))
    selection = choose(history.state, allowance)
    selected, omitted = spans(selection.coverage.selected), spans(selection.coverage.omitted)
    told = sorted([*((s, True) for s in selected), *((s, False) for s in omitted)])
    assert all(a[0][1] < b[0][0] for a, b in itertools.pairwise(told))
    assert all(a[1] is not b[1] for a, b in itertools.pairwise(told))
    travels = set(chosen(selection))
    for entry, _ in meant(history.entries):
        [kind] = [kind for (first, last), kind in told if first <= entry.position <= last]
        assert kind is (entry.position in travels)
    assert selection.coverage.selected_items == len(travels)
    assert selection.coverage.omitted_items == length - len(travels)


def test_an_evicted_stretch_is_one_range() -> None:
    history = log(turn_start(), *(plan("p") for _ in range(9)), user("u"), plan("p"))
    state = history.add(user("x" * WINDOW_BYTES)).state
    assert state.evicted == 12
    selection = choose(state, 1_024)
    assert chosen(selection) == [11]
    assert spans(selection.coverage.omitted) == [(2, 10), (12, 13)]


def test_what_is_evicted_is_not_forgotten_where_the_rest_would_fit() -> None:
    history = log(user("original"), plan("p"), assistant("x" * WINDOW_BYTES, item_id="a"))
    history.add(assistant("short", item_id="a"))
    assert history.state.evicted == 2
    selection = choose(history.state, 16_000)
    assert reasons(selection) == {1: Reason.NEWEST_REQUEST, 3: Reason.NEWEST_ANSWER}
    assert spans(selection.coverage.omitted) == [(2, 2)]


def test_all_that_is_evicted_may_be_kept_beside_the_window() -> None:
    history = log(turn_start(), user("u"), turn_start(), assistant("a"), user("x" * WINDOW_BYTES))
    state = history.state
    assert [ref.position for ref in state.kept] == [2, 4, 5]
    selection = choose(state, 1_024)
    assert spans(selection.coverage.selected) == [(2, 4)]
    assert spans(selection.coverage.omitted) == [(5, 5)]


# The bars.


def alternating() -> Log:
    history = Log()
    for i in range(100):
        ids = [f"{THREAD[:-6]}{i:03}{side:03}" for side in (0, 1)]
        history.add(user("q" * 80, item_id=ids[0]), assistant("a" * 400, item_id=ids[1]))
    return history


def test_at_16000_the_conversation_itself_takes_85_percent_of_the_budget() -> None:
    _, rendering = hand_off(alternating(), 16_000)
    assert rendering.own_text_bytes >= 0.85 * 16_000
    assert rendering.cost(Delivery.TEXT) <= 16_000


def test_at_1024_there_is_room_for_two_messages() -> None:
    selection, rendering = hand_off(alternating(), 1_024)
    assert len(selection.choices) >= 2
    assert rendering.cost(Delivery.TEXT) <= 1_024
