from __future__ import annotations

import random

import msgspec
import pytest
from helpers.building import (
    assistant,
    command,
    error,
    file_change,
    interruption,
    log,
    plan,
    state_of,
    user,
)

from moonfold_handoff.context.pieces import Pieces
from moonfold_handoff.context.ranking import has_failed, rank, replaced
from moonfold_handoff.context.state import WINDOW_BYTES, ThreadState
from moonfold_schemas.items import Item, ItemStatus


def order(state: ThreadState) -> list[int]:
    """Return positions as ranked, each once."""
    return list(dict.fromkeys(state.window[index].position for index, _ in rank(state)))


def pieces_of(state: ThreadState, position: int) -> list[int]:
    """Return the pieces of an item as ranked."""
    return [piece for index, piece in rank(state) if state.window[index].position == position]


def between(*items: Item) -> ThreadState:
    """Return a state in which the items are neither the newest of their kind nor the first."""
    return state_of(user("begin"), *items, assistant("right"), user("go on"))


# What is worth more.


def test_an_empty_thread_has_no_ranking() -> None:
    assert rank(ThreadState()) == ()


def test_a_failure_goes_before_a_later_success_of_the_same_worth() -> None:
    def ranked(exit_code: int) -> list[int]:
        ran = (command("run a_1", exit_code=exit_code), command("run b_2"))
        return [position for position in order(between(*ran)) if position in {2, 3}]

    assert ranked(1) == [2, 3]
    assert ranked(0) == [3, 2]


def test_the_latest_outcome_goes_before_an_earlier_one_that_tells_more() -> None:
    def ranked(earlier: str, later: str) -> list[int]:
        ran = (command(earlier, "in a_1\nb_2"), command(later, "in c_3\nnone"))
        return [position for position in order(between(*ran)) if position in {2, 3}]

    assert ranked("make", "test") == [2, 3]
    assert ranked("make", "make") == [3, 2]


def test_the_latest_change_of_a_file_goes_before_an_earlier_one_that_tells_more() -> None:
    def ranked(earlier: str, later: str) -> list[int]:
        changed = (file_change(earlier, diff="+a_1\n+b_2"), file_change(later, diff="+c_3\n+one"))
        return [position for position in order(between(*changed)) if position in {2, 3}]

    assert ranked("left", "leaf") == [2, 3]
    assert ranked("leaf", "leaf") == [3, 2]


def test_what_mentions_things_in_play_goes_before_newer_activity_that_does_not() -> None:
    def ranked(talk: str) -> list[int]:
        # The message itself is too long to be worth as much for its cost.
        state = between(command("run a_1"), command("run b_2"), user(f"{talk} {'x ' * 4_000}"))
        return [position for position in order(state) if position in {2, 3}]

    assert ranked("nothing") == [3, 2]
    assert ranked("a_1 is odd") == [2, 3]


def test_the_more_recently_a_thing_was_mentioned_the_more_it_counts() -> None:
    long = "x " * 4_000
    state = between(
        command("run a_1"), command("run b_2"), user(f"b_2 {long}"), user(f"a_1 {long}")
    )
    assert [position for position in order(state) if position in {2, 3}] == [2, 3]


def test_what_was_mentioned_long_ago_counts_faintly() -> None:
    later = (user(f"n_{number}") for number in range(250))
    state = state_of(user("begin"), command("run a_1"), *later, assistant("right"), user("go on"))
    ranked = order(state)
    assert 2 in ranked
    assert ranked.index(2) > 100


def test_newer_messages_go_before_older_ones_that_tell_as_little() -> None:
    state = between(*(user("say nothing") for _ in range(20)))
    assert [position for position in order(state) if 2 <= position <= 21] == [*range(21, 1, -1)]


def test_what_others_tell_already_is_worth_nothing() -> None:
    state = between(command("run a_1", "ok"), command("also a_1", "x" * 300))
    assert order(state).count(2) == 1
    assert 3 not in order(state)


def test_what_goes_before_all_else_tells_already() -> None:
    state = state_of(user("a_1"), command("run a_1"), command("run b_2"), assistant("b_2"))
    assert {2, 3}.isdisjoint(order(state))


def test_what_tells_nothing_is_not_ranked() -> None:
    state = between(command("make", "fine"), plan("think"), error("oh"), interruption("stop"))
    assert {2, 3, 4, 5}.isdisjoint(order(state))


# Pieces.

QUIET = "all is well\n" * 120


def test_of_a_long_output_the_end_is_worth_something_in_itself() -> None:
    state = between(command("make", QUIET))
    assert pieces_of(state, 2) == [len(state.window[1].pieces) // 3 - 1]


def test_of_a_long_output_the_trouble_is_worth_something_in_itself() -> None:
    state = between(command("make", f"{QUIET}it failed\n{QUIET}"))
    ref = state.window[1]
    at = len("$ make\n" + QUIET)
    ends = [sum(ref.pieces[: 3 * n + 1 : 3]) for n in range(len(ref.pieces) // 3)]
    trouble = next(n for n, end in enumerate(ends) if at < end)
    assert sorted(pieces_of(state, 2)) == [trouble, len(ends) - 1]


def test_of_a_long_output_the_piece_that_mentions_what_is_in_play_goes_first() -> None:
    output = f"{QUIET}in a_1\n{QUIET}in b_2\n{QUIET}"
    long = "x " * 4_000
    for name, other in (("a_1", "b_2"), ("b_2", "a_1")):
        state = between(command("make", output), *(user(f"{name} {long}") for _ in range(3)))
        ref = state.window[1]
        first, second, *_ = pieces_of(state, 2)
        text = f"$ make\n{output}"
        ends = [sum(ref.pieces[: 3 * n + 1 : 3]) for n in range(len(ref.pieces) // 3)]
        assert name in text[ends[first - 1] : ends[first]]
        assert other in text[ends[second - 1] : ends[second]] or second == len(ends) - 1


# What it is.


def mixed(count: int, seed: int = 4) -> ThreadState:
    chance = random.Random(seed)

    def names() -> str:
        return " ".join(f"name_{int(chance.expovariate(0.05))}" for _ in range(6))

    def item() -> Item:
        match chance.randrange(5):
            case 0:
                return user(names())
            case 1:
                return assistant(f"{names()} {'x ' * chance.randrange(900)}")
            case 2:
                return file_change(f"src/{chance.randrange(9)}.py", diff=f"+{names()}\n" * 20)
            case 3:
                return plan(names())
            case _:
                lines = "".join(f"{names()} error\n" for _ in range(chance.randrange(60)))
                return command(f"make {chance.randrange(9)}", lines, chance.randrange(2))

    return log(*(item() for _ in range(count))).state


@pytest.mark.parametrize("count", [1, 10, 100, 700])
def test_it_names_only_what_there_is_and_each_once(count: int) -> None:
    state = mixed(count)
    ranking = rank(state)
    assert ranking
    assert len(set(ranking)) == len(ranking)
    for index, piece in ranking:
        assert 0 <= index < len(state.window)
        pieces = state.window[index].pieces
        assert 1 <= piece < len(pieces) // 3 if pieces else piece == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_same_state_has_the_same_ranking(seed: int) -> None:
    state = mixed(400, seed)
    assert rank(state) == rank(state) == rank(mixed(400, seed))
    saved = msgspec.json.decode(msgspec.json.encode(state), type=ThreadState)
    assert rank(saved) == rank(state)
    assert rank(msgspec.structs.replace(state, ranking=((0, 0),))) == rank(state)


def test_it_ends_where_no_handoff_could_carry_more() -> None:
    def output(number: int) -> str:
        return "".join(f"part_{number}_{line} {'x' * 580}\n" for line in range(16))

    state = between(*(command(f"make {number}", output(number)) for number in range(60)))
    everything = sum(sum(ref.pieces[1::3]) for ref in state.window)
    assert everything > 5 * WINDOW_BYTES
    *others, _ = rank(state)
    taken = {index: Pieces(state.window[index]) for index, piece in others if piece}
    spent = sum(state.window[index].cost for index, piece in others if not piece)
    for index, piece in others:
        if piece:
            taken[index].take(piece)
    spent += sum(pieces.spent for pieces in taken.values())
    assert WINDOW_BYTES - 1_300 < spent < WINDOW_BYTES


def test_pieces_that_are_ranked_could_be_taken_in_that_order() -> None:
    state = mixed(300)
    taken: dict[int, Pieces] = {}
    for index, piece in rank(state):
        ref = state.window[index]
        if ref.pieces:
            pieces = taken.setdefault(index, Pieces(ref))
            assert piece not in pieces.taken
            pieces.take(piece)
    assert taken


# What has failed, what was replaced.


@pytest.mark.parametrize(
    ("item", "failed"),
    [
        (command("make", exit_code=1), True),
        (command("make", exit_code=-9), True),
        (command("make", exit_code=0), False),
        (command("make", exit_code=None), False),
        (command("make", exit_code=None, status=ItemStatus.FAILED), True),
        (file_change("a", status=ItemStatus.FAILED), True),
        (error("boom"), False),
    ],
)
def test_what_tells_of_a_failure(item: Item, *, failed: bool) -> None:
    assert has_failed(state_of(item).window[0]) is failed


def test_outcomes_changes_and_plans_are_replaced_by_later_ones_of_the_same() -> None:
    state = state_of(
        command("make"),
        file_change("a"),
        plan("one"),
        user("u"),
        command("make"),
        command("test"),
        file_change("a"),
        file_change("b"),
        plan("two"),
        command("make"),
        user("u"),
    )
    assert replaced(state.window) == {1, 2, 3, 5}
