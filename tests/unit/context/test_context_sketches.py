from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from moonfold_handoff.context import sketches
from moonfold_handoff.context.accounting import text_bytes
from moonfold_handoff.context.identifiers import mark_of, marks
from moonfold_handoff.context.sketches import (
    FIRST_MARKS,
    HEAD_SCANNED,
    ITEM_MARKS,
    PIECE_MARKS,
    TAIL_SCANNED,
    TROUBLE,
    WHOLE,
    Sketch,
    cut_into_pieces,
    sketch,
    split_marks,
)


def speaking_of(*names: str) -> Callable[[], frozenset[str]]:
    return lambda: frozenset(map(mark_of, names))


def of(text: str, *spoken: str, whole: bool = False) -> Sketch:
    return sketch(text, speaking_of(*spoken), whole=whole)


def piece_marks(made: Sketch) -> list[list[str]]:
    found = split_marks(made.marks)
    divided = []
    for count in made.pieces[2::3]:
        divided.append(found[:count])
        found = found[count:]
    assert found == []
    return divided


def names(count: int, prefix: str = "n") -> list[str]:
    return [f"{prefix}_{number}" for number in range(count)]


# What goes whole.


def test_a_short_text_is_one_piece_with_the_marks_of_what_it_mentions() -> None:
    assert of("run a_1 and b_2") == Sketch(mark_of("a_1") + mark_of("b_2"))


def test_a_text_that_mentions_nothing_has_an_empty_sketch() -> None:
    assert of("nothing at all") == Sketch("")


def test_activity_is_cut_where_it_is_longer_than_goes_whole_and_a_message_never() -> None:
    assert of("x" * WHOLE).pieces == ()
    assert of("x" * (WHOLE + 1)).pieces
    assert of("x" * 99_999, whole=True).pieces == ()


@pytest.mark.parametrize("length", [30, 120, 400, 5_000])
def test_a_sketch_grows_with_its_text_up_to_a_bound(length: int) -> None:
    text = " ".join(names(2_000))[:length]
    found = split_marks(of(text, whole=True).marks)
    assert len(found) == min(len(marks(text)), ITEM_MARKS, FIRST_MARKS + length // 30)
    assert set(found) <= set(marks(text))


def test_what_was_named_last_is_kept() -> None:
    text = " ".join(names(400))
    last = [mark_of(name) for name in names(400)[-ITEM_MARKS:]]
    assert split_marks(of(text, whole=True).marks) == last[::-1]


def test_what_is_spoken_of_is_kept_before_anything_else() -> None:
    text = " ".join(names(400))
    kept = split_marks(of(text, "n_3", "n_7", whole=True).marks)
    assert kept[:2] == [mark_of("n_7"), mark_of("n_3")]
    assert len(kept) == ITEM_MARKS
    assert kept[2] == mark_of("n_399")


def test_what_is_spoken_of_is_asked_only_where_a_choice_has_to_be_made() -> None:
    def never() -> frozenset[str]:
        raise AssertionError

    assert sketch("a_1 b_2", never, whole=True).marks
    with pytest.raises(AssertionError):
        sketch(" ".join(names(400)), never, whole=True)


def test_nothing_is_looked_for_in_the_middle_of_a_very_long_message() -> None:
    text = f"early_1{' x' * HEAD_SCANNED} middle_2{' x' * TAIL_SCANNED} late_3"
    assert split_marks(of(text, whole=True).marks) == [mark_of("early_1"), mark_of("late_3")]


# What goes by pieces.


def test_the_first_piece_is_the_command_or_the_path() -> None:
    text = "$ make test_one\n" + "line\n" * 300
    assert next(cut_into_pieces(text)) == (0, len("$ make test_one\n"))
    assert piece_marks(of(text))[0] == [mark_of("test_one")]


def test_a_text_without_a_short_first_line_is_cut_all_the_same() -> None:
    first, *rest = cut_into_pieces("x" * 1_000)
    assert first == (0, 200)
    assert len(rest) == 4


def test_pieces_end_at_line_breaks() -> None:
    text = "$ make\n" + "a line of an output\n" * 500
    assert all(text[end - 1] == "\n" for _, end in cut_into_pieces(text))


@pytest.mark.parametrize("length", [401, 1_000, 3_200, 9_600, 24_000, 24_001, 999_999])
def test_pieces_are_of_moderate_number_and_size(length: int) -> None:
    text = ("a line\n" * length)[:length]
    middle = length - TAIL_SCANNED
    sizes = [end - start for start, end in cut_into_pieces(text) if end != middle]
    assert sum(sizes) <= HEAD_SCANNED + TAIL_SCANNED + 1_200
    assert len(sizes) <= 82
    assert max(sizes) <= 1_200
    assert min(sizes[1:-1], default=100) >= 100


def test_a_piece_has_its_characters_its_bytes_and_its_marks() -> None:
    text = "$ make\n" + 'é "a_1" x\n' * 40 + "b_2 yyyy\n" * 40
    made = of(text)
    cut = list(cut_into_pieces(text))
    assert made.pieces[0::3] == tuple(end - start for start, end in cut)
    assert made.pieces[1::3] == tuple(text_bytes(text[start:end]) for start, end in cut)
    assert piece_marks(made) == [marks(text[start:end]) for start, end in cut]


def test_a_piece_keeps_so_many_marks_and_those_spoken_of_first() -> None:
    text = f"$ make\n{' '.join(names(300))}\n"
    for kept in piece_marks(of(text))[1:-1]:
        assert len(kept) == PIECE_MARKS
    second = next(kept for kept in piece_marks(of(text, "n_4")) if mark_of("n_4") in kept)
    assert second[0] == mark_of("n_4")
    assert mark_of("n_4") not in split_marks(of(text).marks)


@pytest.mark.parametrize(
    "line",
    [
        "error: no such thing",
        "FAILED (1 of 9)",
        "ValueError exception",
        "Traceback (most recent call last):",
        "thread panicked",
        "AssertionError",
        "E   where it was",
        "permission denied",
        "make: not found",
        "warning: unused",
    ],
)
def test_a_piece_that_tells_of_trouble_is_marked(line: str) -> None:
    quiet = "all is well here\n" * 30
    cut = piece_marks(of(f"$ make\n{quiet}{line}\n{quiet}"))
    assert sum(TROUBLE in kept for kept in cut) == 1
    assert not any(TROUBLE in kept for kept in piece_marks(of(f"$ make\n{quiet}{quiet}")))


@pytest.mark.parametrize("line", ["terrors", "unfailing", "in the E column", "an E  there"])
def test_words_that_only_look_like_trouble_are_not(line: str) -> None:
    quiet = "fine\n" * 60
    cut = piece_marks(of(f"$ make\n{quiet}{line}\n{quiet}"))
    assert not any(TROUBLE in kept for kept in cut)


def test_the_command_itself_is_no_trouble() -> None:
    assert TROUBLE not in piece_marks(of("$ grep error\n" + "fine\n" * 200))[0]


def test_a_very_long_output_has_a_middle_that_is_not_looked_at() -> None:
    head, tail = "head_1 x\n" * 2_000, "tail_2 x\n" * 2_000
    text = "$ make\n" + head + "error middle_3\n" * 50_000 + tail
    cut = list(cut_into_pieces(text))
    [middle] = [n for n, (start, end) in enumerate(cut) if end - start > 1_200]
    assert cut[middle][1] == len(text) - TAIL_SCANNED
    assert HEAD_SCANNED <= cut[middle][0] < HEAD_SCANNED + 1_200
    made = of(text)
    assert piece_marks(made)[middle] == []
    assert made.pieces[3 * middle + 1] == text_bytes(text[slice(*cut[middle])])
    found = split_marks(made.marks)
    assert mark_of("head_1") in found
    assert mark_of("tail_2") in found
    assert not {mark_of("middle_3"), TROUBLE} & set(found)


def test_of_a_very_long_output_only_the_ends_are_searched() -> None:
    searched = 0

    def counted(text: str) -> list[str]:
        nonlocal searched
        searched += len(text)
        return []

    with mock.patch.object(sketches, "marks", counted):
        of("x y\n" * 500_000)
    assert searched <= HEAD_SCANNED + TAIL_SCANNED + 1_200


def test_marks_are_split_as_they_were_joined() -> None:
    assert split_marks("") == []
    assert split_marks("aaaabbbbcccc") == ["aaaa", "bbbb", "cccc"]
