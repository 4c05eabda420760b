from __future__ import annotations

import msgspec
import pytest
from helpers.building import (
    THREAD,
    Log,
    assistant,
    command,
    contents,
    error,
    file_change,
    log,
    plan,
    state_of,
    user,
)

from moonfold_handoff.context.choices import ENVELOPE_BYTES, Choice, Reason, Room, items_cost, whole
from moonfold_handoff.context.choosing import (
    ASKED_MARKS,
    ASKED_SHARE,
    LEAST_ROOM,
    TALK_SHARE,
    choose,
)
from moonfold_handoff.context.identifiers import mark_of
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.selection import omissions, select
from moonfold_handoff.context.state import ABRIDGED_BYTES, ThreadState
from moonfold_schemas.items import Command, Item

PLENTY = 10**9


def made(
    state: ThreadState, text: int, items: int = PLENTY, asked: str | None = None
) -> dict[int, Choice]:
    """Return the choices by position, having checked that they take what they say."""
    room = Room(text, items)
    choices = choose(state, room, text, asked)
    positions = [choice.ref.position for choice in choices]
    assert len(set(positions)) == len(positions)
    assert room.text == text - sum(choice.cost for choice in choices) >= 0
    assert room.items >= 0
    assert choices == choose(state, Room(text, items), text, asked)
    return {choice.ref.position: choice for choice in choices}


def reasons(choices: dict[int, Choice]) -> dict[int, Reason]:
    return {position: choices[position].reason for position in sorted(choices)}


def spent(choices: dict[int, Choice], reason: Reason) -> int:
    return sum(choice.cost for choice in choices.values() if choice.reason is reason)


def outputs(count: int, lines: int = 12) -> list[Item]:
    """Return failures, each of which tells something of its own."""
    return [
        command(f"make part_{n}", f"in file_{n} x\n" * lines, exit_code=1) for n in range(count)
    ]


# What comes first.


def test_first_the_newest_request_the_newest_answer_and_the_original_request() -> None:
    long = "x" * 400
    state = state_of(
        user(long), *outputs(40), assistant(long), *outputs(40), user(long), error("e")
    )
    costs = {ref.position: ref.cost for ref in state.kept}
    assert reasons(made(state, costs[83])) == {83: Reason.NEWEST_REQUEST}
    first = made(state, costs[83] + costs[42])
    assert reasons(first) == {42: Reason.NEWEST_ANSWER, 83: Reason.NEWEST_REQUEST}
    first = made(state, costs[83] + costs[42] + costs[1])
    assert reasons(first) == {
        1: Reason.ORIGINAL_REQUEST,
        42: Reason.NEWEST_ANSWER,
        83: Reason.NEWEST_REQUEST,
    }


def test_a_must_that_does_not_fit_does_not_stop_the_next() -> None:
    state = state_of(user("begin"), *outputs(9), assistant("a" * 300), user("x" * 9_000))
    choices = made(state, 400)
    assert choices[11].reason is Reason.NEWEST_ANSWER
    assert choices[1].reason is Reason.ORIGINAL_REQUEST
    assert 12 not in choices


def test_one_message_may_be_first_and_last_and_goes_once() -> None:
    state = state_of(user("only"), *outputs(40))
    assert made(state, 2_000)[1].reason is Reason.NEWEST_REQUEST


# The recent conversation.


def test_a_share_goes_to_recent_messages_before_any_activity() -> None:
    talk = [make("y" * 200) for _ in range(20) for make in (user, assistant)]
    state = state_of(user("begin"), *talk, *outputs(200), assistant("a"), user("u"))
    allowance = 20_000
    choices = made(state, allowance)
    recent = [position for position in choices if choices[position].reason is Reason.RECENT]
    share = allowance // TALK_SHARE
    one = state.window[-210].cost
    assert share - one - LEAST_ROOM <= spent(choices, Reason.RECENT) <= share
    assert sorted(recent) == list(range(41 - len(recent) + 1, 42))
    assert spent(choices, Reason.FAILED) > allowance / 2


def test_a_message_that_the_share_does_not_hold_does_not_stop_an_older_one() -> None:
    talk = (user("y" * 300), assistant("z" * 3_000))
    state = state_of(user("begin"), *talk, *outputs(80), assistant("a"), user("u"))
    choices = made(state, 6_000)
    assert choices[2].reason is Reason.RECENT


# What the new request mentions.


def asked_for(old: Item, asked: str | None, allowance: int = 6_000) -> dict[int, Choice]:
    state = state_of(user("begin"), old, *outputs(120), assistant("a"), user("u"))
    return made(state, allowance, asked=asked)


PADDING = " x" * 150  # what is longer is worth less


@pytest.mark.parametrize(
    "old",
    [
        plan(f"see needle_7{PADDING}"),
        command("run needle_7", PADDING),
        file_change("src/needle_7", diff=PADDING),
    ],
    ids=["plan", "command", "file change"],
)
def test_what_the_new_request_mentions_goes_even_if_it_is_old(old: Item) -> None:
    assert 2 not in asked_for(old, None)
    assert 2 not in asked_for(old, "go on, no name in it")
    assert asked_for(old, "What of needle_7?")[2].reason is Reason.ASKED


def test_of_a_long_output_the_piece_that_the_new_request_mentions_goes() -> None:
    quiet = "nothing to see here\n" * 60
    old = command("make", f"{quiet}see needle_7\n{quiet}")
    choice = asked_for(old, "What of needle_7?")[2]
    assert choice.reason is Reason.ASKED
    text = f"$ make\n{old.output}"
    shown = [text[first:end] for first, end in choice.spans]
    assert shown[0].startswith("$ make\n")
    assert any("needle_7" in part for part in shown)
    assert choice.cost < 900


@pytest.mark.parametrize("before", range(6))
def test_the_piece_is_found_however_many_marks_come_before_it(before: int) -> None:
    lines = "".join(f"{'x' * 150} other_{n}\n" for n in range(before))
    old = command("make", f"{lines}see needle_7\n{'x' * 600}")
    choice = asked_for(old, "needle_7")[2]
    text = f"$ make\n{old.output}"
    assert any("needle_7" in text[first:end] for first, end in choice.spans)


def test_where_the_command_itself_is_mentioned_a_piece_goes_with_it() -> None:
    old = command("run needle_7", "nothing to see here\n" * 60)
    choice = asked_for(old, "needle_7")[2]
    assert choice.spans[0][0] == 0
    assert choice.spans[0][1] > len("$ run needle_7\n")


def test_two_names_in_one_output_take_a_piece_each() -> None:
    quiet = "nothing to see here\n" * 60
    old = command("make", f"{quiet}see needle_7\n{quiet}see thread_8\n{quiet}")
    choice = asked_for(old, "needle_7, thread_8, needle_7")[2]
    text = f"$ make\n{old.output}"
    shown = "".join(text[first:end] for first, end in choice.spans)
    assert "needle_7" in shown
    assert "thread_8" in shown


def test_only_the_newest_mention_of_a_name_is_asked_for() -> None:
    state = state_of(
        user("begin"),
        *(plan(f"see needle_7 {'x' * 90}") for _ in range(3)),
        *outputs(120),
        user("u"),
    )
    asked = made(state, 6_000, asked="needle_7")
    assert [p for p in asked if asked[p].reason is Reason.ASKED] == [4]


def test_what_goes_anyway_is_not_asked_for_again() -> None:
    state = state_of(user("about needle_7"), *outputs(120), user("needle_7"))
    asked = made(state, 6_000, asked="needle_7")
    assert Reason.ASKED not in reasons(asked).values()


def test_what_is_asked_for_takes_no_more_than_its_share() -> None:
    old = [plan(f"see needle_{n} {'x' * 300}") for n in range(20)]
    state = state_of(user("begin"), *old, *outputs(120), assistant("a"), user("u"))
    allowance = 8_000
    asked = made(state, allowance, asked=" ".join(f"needle_{n}" for n in range(20)))
    share = allowance // ASKED_SHARE
    assert share - 400 < spent(asked, Reason.ASKED) <= share


def test_what_does_not_fit_the_share_does_not_stop_other_names() -> None:
    old = (plan("see thread_8"), user(f"needle_7 {'x' * 3_000}"))
    state = state_of(user("begin"), *old, *outputs(120), assistant("a"), user("u"))
    asked = made(state, 6_000, asked="needle_7 and thread_8")
    assert asked[2].reason is Reason.ASKED
    assert 3 not in asked


def test_so_many_names_are_looked_for() -> None:
    many = " ".join(f"other_{n}" for n in range(ASKED_MARKS - 1))
    old = plan(f"see needle_7{PADDING}")
    assert asked_for(old, f"{many} needle_7")[2].reason is Reason.ASKED
    assert 2 not in asked_for(old, f"{many} another_one needle_7")


def test_a_name_is_found_behind_parts_of_two_others_that_look_like_it() -> None:
    mark = mark_of("needle_7")
    deceiving = f"..{mark[:2]}{mark[2:]}.."
    assert deceiving.find(mark) == 2
    for sketch, found in ((deceiving, False), (deceiving + mark, True)):
        state = state_of(user("begin"), plan("old"), *outputs(120), assistant("a"), user("u"))
        window = list(state.window)
        window[1] = msgspec.structs.replace(window[1], sketch=sketch)
        state = msgspec.structs.replace(state, window=tuple(window), ranking=rank(state))
        asked = made(state, 6_000, asked="needle_7")
        assert (2 in asked and asked[2].reason is Reason.ASKED) is found


# Down the ranking.


def test_a_failure_and_what_is_in_play_say_why_they_go() -> None:
    state = state_of(
        user("begin"),
        command("run a_1", exit_code=1),
        command("run b_2"),
        *filler(80),
        assistant("a"),
        user("u"),
    )
    costs = sum(ref.cost for ref in state.kept if ref.position in {1, 2, 3, 84, 85})
    assert reasons(made(state, costs + LEAST_ROOM)) == {
        1: Reason.ORIGINAL_REQUEST,
        2: Reason.FAILED,
        3: Reason.IN_PLAY,
        84: Reason.NEWEST_ANSWER,
        85: Reason.NEWEST_REQUEST,
    }


def filler(count: int, size: int = 300) -> list[Item]:
    """Return activity that tells nothing."""
    return [command("make", "x" * size) for _ in range(count)]


def test_the_ranking_that_is_kept_is_followed() -> None:
    state = state_of(user("begin"), *filler(80), user("u"))
    costs = sum(ref.cost for ref in state.kept if ref.position in {1, 7, 82})
    state = msgspec.structs.replace(state, ranking=((6, 0),))
    assert set(made(state, costs + LEAST_ROOM - 1)) == {1, 7, 82}


@pytest.mark.parametrize("asked", [None, "file_3 and part_9 and what of src/a.py"])
def test_the_kept_ranking_leads_where_a_new_one_does(asked: str | None) -> None:
    state = state_of(user("begin"), *outputs(90, 40), assistant("a"), *filler(20), user("u"))
    ranked = msgspec.structs.replace(state, ranking=rank(state))
    for allowance in (200, 1_024, 4_000, 16_000, 64_000):
        assert made(ranked, allowance, asked=asked) == made(state, allowance, asked=asked)


# What is left.


def test_what_is_left_is_filled_with_what_is_recent() -> None:
    state = state_of(user("begin"), *filler(80), assistant("a"), user("u"))
    costs = sum(ref.cost for ref in state.kept if ref.position in {1, 79, 80, 81, 82, 83})
    choices = made(state, costs)
    assert reasons(choices) == {
        1: Reason.ORIGINAL_REQUEST,
        79: Reason.RECENT,
        80: Reason.RECENT,
        81: Reason.RECENT,
        82: Reason.NEWEST_ANSWER,
        83: Reason.NEWEST_REQUEST,
    }


def test_what_does_not_fit_does_not_stop_what_does() -> None:
    state = state_of(user("begin"), *filler(3, 90), *filler(4, 380), user("u"))
    costs = sum(ref.cost for ref in state.kept if ref.position in {1, 4, 9})
    assert set(made(state, costs + LEAST_ROOM)) == {1, 4, 9}


def test_a_long_output_is_filled_from_its_end() -> None:
    state = state_of(user("begin"), *filler(1, 9_000), user("u"))
    for allowance in range(900, 9_000, 500):
        choice = made(state, allowance)[2]
        assert choice.spans[0] == (0, len("$ make\n"))
        assert choice.spans[-1][1] == len("$ make\n") + 9_000
        assert len(choice.spans) == 2


def test_no_output_is_begun_in_less_room_than_is_worth_it() -> None:
    state = state_of(user("begin"), *filler(1, 9_000), error("e" * 80), user("u"))
    state = msgspec.structs.replace(state, ranking=((0, 0),))
    costs = sum(ref.cost for ref in state.kept if ref.position != 2)
    assert set(made(state, costs + ABRIDGED_BYTES - 1)) == {1, 3, 4}
    assert set(made(state, costs + ABRIDGED_BYTES)) == {1, 2, 3, 4}


def test_a_long_output_that_fits_goes_whole_in_the_end() -> None:
    state = state_of(user("begin"), *filler(1, 9_000), user("x" * 20_000), user("u"))
    choice = made(state, state.window[1].cost + 200)[2]
    assert choice.spans == ()
    assert choice.cost == state.window[1].cost


def test_nothing_is_looked_for_in_too_little_room() -> None:
    state = state_of(user("begin"), *(error("e") for _ in range(9)), user("u"))
    costs = sum(ref.cost for ref in state.kept if ref.position in {1, 11})
    assert set(made(state, costs + LEAST_ROOM - 1)) == {1, 11}
    assert set(made(state, costs + LEAST_ROOM)) > {1, 11}


# Native items.


def test_the_native_items_have_their_own_room() -> None:
    state = state_of(user("begin"), *outputs(50, 40), assistant("a"), *filler(20), user("u"))
    for items in (0, 300, 1_000, 9_000):
        choices = made(state, 16_000, items).values()
        messages = [choice for choice in choices if not choice.spans]
        assert (
            sum(items_cost(choice.ref) for choice in messages)
            + sum(choice.cost + ENVELOPE_BYTES for choice in choices if choice.spans)
            <= items
        )
        assert bool(choices) is (items > 0)


def test_room_is_taken_in_both_or_in_neither() -> None:
    room = Room(100, 100)
    assert not room.take(101, 1)
    assert not room.take(1, 101)
    assert (room.text, room.items) == (100, 100)
    assert room.take(100, 99)
    assert (room.text, room.items) == (0, 1)


def test_a_whole_item_costs_what_its_reference_says() -> None:
    for ref in state_of(user("u"), user(""), command("make")).window:
        choice = whole(ref, Reason.RECENT)
        assert (choice.cost, choice.spans) == (ref.cost, ())
        native = ref.body if ref.kind.is_message and ref.body else ref.cost
        assert items_cost(ref) == ENVELOPE_BYTES + native


# Messages are whole whatever else there is.


def test_messages_go_whole_at_any_allowance_and_every_item_has_a_reason() -> None:
    history = Log().add(user("begin"))
    for number in range(60):
        history.add(
            assistant(f"name_{number} " * 90), command("make", f"E{number}x\n" * 200, number % 2)
        )
    history.add(user("name_3?"))
    state = history.state
    items = contents(history.entries, select(state, THREAD, 64_000))
    assert any(isinstance(item, Command) for item in items.values())
    for allowance in range(500, 64_000, 1_700):
        selection = select(state, THREAD, allowance, "name_3 and E7x")
        for choice in selection.choices:
            assert not (choice.ref.kind.is_message and choice.spans)
        left_out = {
            omission.ref.position: omission.reason for omission in omissions(state, selection)
        }
        assert set(left_out.values()) <= {Reason.SUPERSEDED, Reason.NO_ROOM, Reason.TOO_LONG}
        assert len(left_out) + len(selection.choices) == len(state.kept) == 122


def test_items_held_beside_the_window_can_still_go() -> None:
    history = log(user("begin"), assistant("the answer"), user("newest"), *filler(900))
    state = history.state
    assert state.evicted > 3
    assert reasons(made(state, 200)) == {
        1: Reason.ORIGINAL_REQUEST,
        2: Reason.NEWEST_ANSWER,
        3: Reason.NEWEST_REQUEST,
    }
