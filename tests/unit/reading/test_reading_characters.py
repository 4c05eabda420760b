from __future__ import annotations

import pytest
from helpers.characters import CHARACTERS

from moonfold_handoff.reading.characters import CLUSTER, floor, is_boundary, page_end


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_a_character_is_whole_wherever_a_page_would_end(character: str) -> None:
    text = f"x{character}y"
    for offset in range(1, len(character) + 1):
        assert floor(text, offset) == 1
        assert page_end(text, 1, offset) == 1 + len(character)
    assert floor(text, len(text)) == len(text)


def test_flags_in_a_row_are_cut_between_two_of_them_only() -> None:
    flags = "🇻🇳🇩🇪🇫🇷" * 100
    assert [place for place in range(9) if is_boundary(flags, place)] == [0, 2, 4, 6, 8]
    assert floor(flags, 501) == 500
    assert floor("x" + flags, 501) == 501


def test_a_text_after_a_joiner_stays_with_it_but_for_a_space() -> None:
    assert floor("a\u200db", 2) == 0
    assert floor("a\u200d b", 2) == 2


def test_a_pile_of_marks_larger_than_any_character_is_cut() -> None:
    pile = "a" + "\u0301" * 1_000
    at = 0
    pieces = []
    while at < len(pile):
        end = page_end(pile, at, 1)
        assert floor(pile, end) == end
        pieces.append(pile[at:end])
        at = end
    assert "".join(pieces) == pile
    assert len(pieces[0]) == CLUSTER
    assert page_end(pile, 0, 700) == 700


@pytest.mark.parametrize("text", ["", "a", "👨‍👩‍👧‍👦"])
def test_the_ends_of_a_text_are_places_to_cut(text: str) -> None:
    assert floor(text, 0) == 0
    assert floor(text, len(text)) == len(text)
    assert page_end(text, 0, 100) == len(text)
