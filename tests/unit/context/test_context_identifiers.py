from __future__ import annotations

import pytest

from moonfold_handoff.context.identifiers import (
    LONGEST,
    MARK_CHARACTERS,
    identifiers,
    mark_of,
    marks,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see src/parser/tokens.py.", ["src/parser/tokens.py", "tokens.py"]),
        ("in ./src/app/ and ../lib/core", ["src/app", "app", "lib/core", "core"]),
        (r"C:\work\main.rs", [r"work\main.rs", "main.rs"]),
        ("https://example.org/docs", ["example.org/docs", "docs"]),
        ("a path src/io", ["src/io"]),  # its last part is too short to tell anything
        ("os.path and self.read_all()", ["os.path", "self.read_all"]),
        ("snake_case, kebab-case", ["snake_case", "kebab-case"]),
        ("camelCase TypeName", ["camelCase", "TypeName"]),
        ("E1234 and TS2304", ["E1234", "TS2304"]),
        ("ENOENT, EACCES", ["ENOENT", "EACCES"]),
        ("commit a1b2c3d", ["a1b2c3d"]),
        ("step-2 of v1.4.0", ["step-2", "v1.4.0"]),
        ("Cargo.toml, .gitignore", ["Cargo.toml", "gitignore"]),
        ("_private", ["_private"]),
        ("~/notes", ["~/notes", "notes"]),
    ],
)
def test_names_are_found(text: str, expected: list[str]) -> None:
    assert identifiers(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words, nothing else.",
        "Sentences begin like This. And end.",
        "42 1234567 3.14 1.2.3 10-20 2026-11-30 12:30",
        "so... -- --- ___ //",
        "a b c, it is OK",
        "AND",
        "Grüße 世界",
        "-x",
    ],
)
def test_words_numbers_and_plain_versions_are_no_names(text: str) -> None:
    assert identifiers(text) == []


def test_each_name_is_found_once_in_order() -> None:
    assert identifiers("b_2 a_1 b_2 x/a_1") == ["b_2", "a_1", "x/a_1"]


def test_a_file_is_recognised_under_another_root() -> None:
    assert set(marks("/home/me/src/tokens.py")) & set(marks("./tokens.py"))


def test_what_is_longer_than_a_name_is_data_and_no_part_of_it_is_a_name() -> None:
    name = "a1" * (LONGEST // 2)
    assert identifiers(name) == [name]
    assert identifiers(f"{name}b") == []
    assert identifiers(f"before_it {name * 40} after_it") == ["before_it", "after_it"]


def test_a_mark_has_four_characters_and_stands_for_one_name() -> None:
    names = [f"name_{number}" for number in range(2_000)]
    made = [mark_of(name) for name in names]
    assert {len(mark) for mark in made} == {MARK_CHARACTERS} == {4}
    assert len(set(made)) == len(names)
    assert made == [mark_of(name) for name in names]
    assert all(mark.isascii() and "!" not in mark and '"' not in mark for mark in made)


@pytest.mark.parametrize("text", ["", "é", "\ud800", "x" * 9_999])
def test_any_text_has_a_mark(text: str) -> None:
    assert len(mark_of(text)) == MARK_CHARACTERS


def test_marks_are_those_of_the_names_in_order() -> None:
    assert marks("run a_1, then b_2; a_1 again") == [mark_of("a_1"), mark_of("b_2")]
