from __future__ import annotations

import itertools

import pytest
from helpers.building import command, state_of

from moonfold_handoff.context.accounting import text_bytes
from moonfold_handoff.context.framing import WIDEST_MARK, attribution, gap, gap_bytes
from moonfold_handoff.context.pieces import Pieces, least_cost
from moonfold_handoff.context.state import ItemRef

OUTPUT = "".join(f"line {n} of the output\n" for n in range(60))
WHOLE = f"$ make\n{OUTPUT}"


def made() -> Pieces:
    [ref] = state_of(command("make", OUTPUT)).window
    return Pieces(ref)


def taken(*pieces: int) -> Pieces:
    some = made()
    for piece in pieces:
        some.take(piece)
    return some


def bounds(ref: ItemRef) -> list[int]:
    return [0, *itertools.accumulate(ref.pieces[::3])]


def test_nothing_is_taken_at_first() -> None:
    pieces = made()
    assert (pieces.taken, pieces.spent, pieces.is_complete) == (set(), 0, False)
    assert pieces.last == len(pieces.ref.pieces) // 3 - 1 > 3


def test_the_command_comes_with_any_other_piece() -> None:
    pieces = taken(3)
    ends = bounds(pieces.ref)
    assert pieces.taken == {0, 3}
    assert pieces.spans() == ((0, ends[1]), (ends[3], ends[4]))


def test_neighbours_are_one_span() -> None:
    pieces = taken(1, 3, 2)
    assert pieces.spans() == ((0, bounds(pieces.ref)[4]),)


def test_the_last_piece_closes_the_last_gap() -> None:
    pieces = made()
    ends = bounds(pieces.ref)
    pieces.take(pieces.last)
    assert pieces.spans() == ((0, ends[1]), (ends[-2], len(WHOLE)))
    shown = f"{WHOLE[: ends[1]]}{gap(WIDEST_MARK, 1, 7, ends[-2])}{WHOLE[ends[-2] :]}"
    line = attribution(WIDEST_MARK, 1, "command, exit 0")
    shorter = len(str(len(WHOLE))) - len("7")
    assert pieces.spent == text_bytes(f"\n{line}\n{shown}") + shorter


def test_all_pieces_are_the_whole_item() -> None:
    pieces = made()
    for piece in range(pieces.last, 0, -1):
        assert not pieces.is_complete
        pieces.take(piece)
    assert pieces.is_complete
    assert pieces.spans() == ()
    assert pieces.spent == pieces.ref.cost


def test_what_is_spent_does_not_depend_on_the_order() -> None:
    chosen = (1, 3, 4, made().last)
    spent = {taken(*order).spent for order in itertools.permutations(chosen)}
    spans = {taken(*order).spans() for order in itertools.permutations(chosen)}
    assert len(spent) == len(spans) == 1


def test_the_smallest_form_is_the_cheapest_piece_with_the_command() -> None:
    ref = made().ref
    assert least_cost(ref) == min(taken(piece).spent for piece in range(1, made().last + 1))
    [short] = state_of(command("make", "ok")).window
    assert least_cost(short) == short.cost


@pytest.mark.parametrize("position", [1, 99, 2**53 - 1])
@pytest.mark.parametrize("characters", [401, 99_999, 8_000_000])
def test_a_gap_never_costs_more_than_was_reserved(position: int, characters: int) -> None:
    most = gap_bytes(position, characters)
    assert text_bytes(gap(WIDEST_MARK, position, 1, characters)) < most
    widest = gap(WIDEST_MARK, position, characters - 1, characters)
    assert text_bytes(widest) == most
