from __future__ import annotations

import pytest

from moonfold_handoff.context.identifiers import mark_of
from moonfold_handoff.context.state import (
    SKETCH_BYTES,
    WINDOW_BYTES,
    WINDOW_ITEMS,
    ItemRef,
    Kind,
    Progress,
)
from moonfold_handoff.context.window import SPOKEN_ITEMS, Window


def ref(position: int, body: int = 9, sketch: str = "", pieces: tuple[int, ...] = ()) -> ItemRef:
    return ItemRef(
        position, position, Kind.USER, Progress.COMPLETED, body, 4, sketch=sketch, pieces=pieces
    )


def held(window: Window) -> list[int]:
    return [one.position for one in window]


def filled(*refs: ItemRef) -> Window:
    window = Window(())
    for one in refs:
        window.add(one)
    return window


def same(window: Window) -> None:
    """Check that a window goes on from what is saved of it as it would have itself."""
    again = Window(tuple(window), window.evicted, window.bare)
    for one in (window, again):
        for position in (1_000_001, 1_000_002):
            one.add(ref(position, sketch="wxyz" * 900))
    assert (list(window), window.evicted, window.bare) == (list(again), again.evicted, again.bare)


def test_it_begins_empty_and_complete() -> None:
    window = Window(())
    assert (held(window), window.evicted, window.bare) == ([], 0, 0)
    assert window.is_complete
    assert window.spoken_of() == frozenset()


def test_it_holds_so_many_items() -> None:
    window = filled(*(ref(n) for n in range(1, WINDOW_ITEMS + 1)))
    assert window.is_complete
    window.add(ref(WINDOW_ITEMS + 1))
    assert held(window) == list(range(2, WINDOW_ITEMS + 2))
    assert window.evicted == 1
    assert not window.is_complete


def test_it_lets_go_of_what_could_not_be_carried_beside_the_newer() -> None:
    cost = ref(2, 0).cost
    assert held(filled(ref(1), ref(2, WINDOW_BYTES - cost - 1))) == [1, 2]
    assert held(filled(ref(1), ref(2, WINDOW_BYTES - cost))) == [2]
    assert held(filled(ref(1), ref(2, 9 * WINDOW_BYTES))) == [2]


def test_the_oldest_lose_their_sketches_first() -> None:
    each = SKETCH_BYTES // 4
    window = filled(*(ref(n, sketch="abcd" * (each // 4)) for n in range(1, 5)))
    assert (window.bare, window.is_complete) == (0, True)
    window.add(ref(5, sketch="wxyz"))
    assert [bool(one.sketch) for one in window] == [False, True, True, True, True]
    assert (window.bare, window.evicted, window.is_complete) == (1, 0, False)
    window.add(ref(6, sketch="wxyz" * (2 * each // 4)))
    assert [bool(one.sketch) for one in window] == [False, False, False, True, True, True]
    assert window.bare == 3
    same(window)


def test_pieces_count_as_sketches_and_go_with_them() -> None:
    figures = (100, 100, 0) * (SKETCH_BYTES // 12)
    window = filled(ref(1, pieces=figures))
    assert window.is_complete
    window.add(ref(2, pieces=(1, 1, 0)))
    assert [one.pieces for one in window] == [(), (1, 1, 0)]
    assert window.bare == 1


def test_an_item_that_outgrows_all_the_room_for_sketches_has_none() -> None:
    window = filled(ref(1), ref(2, sketch="abcd" * SKETCH_BYTES))
    assert [one.sketch for one in window] == ["", ""]
    assert window.bare == 2
    window.add(ref(3, sketch="abcd"))
    assert [one.sketch for one in window] == ["", "", "abcd"]
    same(window)


def test_what_is_let_go_counts_no_more() -> None:
    large = "abcd" * (SKETCH_BYTES // 4)
    window = filled(ref(1, sketch="abcd"), ref(2, sketch=large))
    assert window.bare == 1
    window.add(ref(3, WINDOW_BYTES))
    assert (held(window), window.evicted) == ([3], 2)
    window.add(ref(4, sketch=large))
    assert [one.sketch for one in window] == ["", large]
    same(window)


def test_an_item_may_take_its_place_late() -> None:
    window = filled(ref(1), ref(4), ref(9))
    window.add(ref(6))
    window.add(ref(2))
    assert held(window) == [1, 2, 4, 6, 9]


def test_an_item_that_comes_late_among_those_without_sketch_has_none() -> None:
    window = filled(ref(1, sketch="abcd"), ref(5, sketch="abcd" * (SKETCH_BYTES // 4)))
    assert window.bare == 1
    window = Window(tuple(window), 0, 4)
    window.add(ref(3, sketch="wxyz", pieces=(1, 1, 1)))
    assert [(one.position, len(one.sketch)) for one in window] == [
        (1, 0),
        (3, 0),
        (5, SKETCH_BYTES),
    ]
    window.add(ref(6, sketch="wxyz"))
    assert [len(one.sketch) for one in window] == [0, 0, 0, 4]
    assert window.bare == 5
    same(window)


def test_a_new_record_takes_the_place_of_the_old() -> None:
    window = filled(ref(1), ref(2), ref(3))
    assert window.replace(ref(2, 77, sketch="abcd"))
    assert [(one.position, one.body, one.sketch) for one in window] == [
        (1, 9, ""),
        (2, 77, "abcd"),
        (3, 9, ""),
    ]
    assert not window.replace(ref(4))
    assert not Window(()).replace(ref(1))


def test_a_new_record_keeps_the_bounds_too() -> None:
    window = filled(ref(1), ref(2), ref(3))
    assert window.replace(ref(2, WINDOW_BYTES))
    assert (held(window), window.evicted) == ([2, 3], 1)
    large = "abcd" * (SKETCH_BYTES // 4)
    window = filled(ref(1, sketch="wxyz"), ref(2))
    assert window.replace(ref(2, sketch=large))
    assert [one.sketch for one in window] == ["", large]
    assert window.bare == 1
    assert window.replace(ref(1, 3, sketch="wxyz"))  # what is without a sketch stays so
    assert [one.sketch for one in window] == ["", large]
    assert window.replace(ref(2, sketch="abcd"))
    window.add(ref(3, sketch="abcd" * (SKETCH_BYTES // 4 - 1)))
    assert window.bare == 1
    same(window)


@pytest.mark.parametrize("count", [1, SPOKEN_ITEMS, SPOKEN_ITEMS + 5])
def test_what_is_spoken_of_is_what_the_latest_items_mention(count: int) -> None:
    names = [mark_of(f"n_{number}") for number in range(count)]
    window = filled(*(ref(n + 1, sketch=name) for n, name in enumerate(names)))
    assert window.spoken_of() == frozenset(names[-SPOKEN_ITEMS:])
    assert window.spoken_of() is window.spoken_of()
    window.add(ref(count + 1, sketch=mark_of("later") + mark_of("still later")))
    assert {mark_of("later"), mark_of("still later")} <= window.spoken_of()
    window.replace(ref(count + 1, sketch=mark_of("other")))
    assert mark_of("later") not in window.spoken_of()
