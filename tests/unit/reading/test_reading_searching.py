from __future__ import annotations

import pytest

from moonfold_handoff.reading.answers import Snippet
from moonfold_handoff.reading.searching import AROUND, SNIPPETS, search


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The Parser fails", "PARSER"),
        ("Straße 5", "strasse 5"),
        ("STRASSE 5", "Straße"),
        ("ΟΔΟΣ", "οδος"),
        ("İstanbul", "i̇stanbul"),
        ("a\nb", "A\nB"),
    ],
)
def test_a_text_is_found_whatever_the_case_of_its_letters(text: str, query: str) -> None:
    assert search(text, query.casefold()) == (1, (Snippet(offset=0, text=text),))


def test_what_is_not_there_is_not_found() -> None:
    assert search("The parser fails", "lexer") == (0, ())
    assert search("", "x") == (0, ())


def test_a_query_is_taken_literally() -> None:
    assert search("aXb a.b", "a.b")[0] == 1


def test_a_snippet_shows_what_stands_around() -> None:
    text = "x" * 500 + "here" + "y" * 500
    _, [snippet] = search(text, "here")
    assert snippet == Snippet(offset=500 - AROUND, text="x" * AROUND + "here" + "y" * AROUND)


def test_the_place_is_right_after_letters_that_grow_when_their_case_is_folded() -> None:
    text = "ß" * 300 + "here" + "ß" * 300
    _, [snippet] = search(text, "here")
    assert snippet.offset == 300 - AROUND
    assert snippet.text == "ß" * AROUND + "here" + "ß" * AROUND


def test_the_first_places_are_shown_and_all_are_counted() -> None:
    text = ("here" + "." * 1_000) * 10
    count, snippets = search(text, "here")
    assert count == 10
    assert [snippet.offset for snippet in snippets] == [0, 1004 - AROUND, 2008 - AROUND]
    assert len(snippets) == SNIPPETS


def test_places_near_each_other_are_shown_once() -> None:
    text = "here and here and here" + "." * 1_000 + "here"
    count, snippets = search(text, "here")
    assert count == 4
    assert [snippet.text.count("here") for snippet in snippets] == [3, 1]


def test_snippets_do_not_overlap() -> None:
    text = "here" + "." * (AROUND + 2) + "here" + "." * 300
    _, [first, second] = search(text, "here")
    assert first.offset + len(first.text) == second.offset


def test_a_snippet_splits_no_character() -> None:
    family = "👨‍👩‍👧‍👦"
    _, [snippet] = search(family * 30 + "here" + family * 30, "here")
    before, after = snippet.text.split("here")
    assert before == family * (len(before) // len(family))
    assert after == family * (len(after) // len(family))
    assert before
    assert after


def test_what_is_longer_than_a_snippet_is_whole_in_it() -> None:
    text = "z" * 300 + "y" * 900 + "z" * 300
    _, [snippet] = search(text, "y" * 900)
    assert "y" * 900 in snippet.text
