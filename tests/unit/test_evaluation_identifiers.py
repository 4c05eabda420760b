from __future__ import annotations

import pytest
from evaluation.identifiers import identifiers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see src/parser/tokens.py.", {"src/parser/tokens.py", "tokens.py"}),
        ("in ./src/app/ and ../lib/core", {"src/app", "lib/core"}),
        ("cd /tmp && ls ~/notes", {"/tmp", "~/notes"}),
        ("import @types/node", {"@types/node"}),
        (r"open C:\work\main.rs now", {r"C:\work\main.rs", "main.rs"}),
        (r"tests\unit\test_one.py", {r"tests\unit\test_one.py", "test_one.py"}),
        ("https://example.org/docs/index.html", {"example.org/docs/index.html", "index.html"}),
        ("--- a/x.c", {"a/x.c", "x.c"}),
    ],
)
def test_paths(text: str, expected: set[str]) -> None:
    assert identifiers(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.path and self.read_all()", {"os.path", "self.read_all", "read_all"}),
        ("std::io::Error", {"std::io::Error"}),
        ("Cargo.toml, .gitignore", {"Cargo.toml", ".gitignore"}),
        ("rows\n    .iter()\n    .into_iter()", {"into_iter"}),
        ("snake_case camelCase TypeName JSONDecoder", {"snake_case", "camelCase", "TypeName", "JSONDecoder"}),
        ("__init__ _private MAX_ITEMS", {"__init__", "_private", "MAX_ITEMS"}),
        ("--dry-run and python-to-rust", {"dry-run", "python-to-rust"}),
        ("@lru_cache\n+old_name\n-new_name", {"lru_cache", "old_name", "new_name"}),
    ],
)  # fmt: skip
def test_names_and_symbols(text: str, expected: set[str]) -> None:
    assert identifiers(text) == expected


def test_codes_and_ids() -> None:
    text = "E1234 ENOENT TS2304 a1b2c3d 3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"
    assert identifiers(text) == set(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "The parser keeps each token until its line ends. ERROR, TODO and Error are words",
        "12 3.5 1,000 1/2 2024-01-02 2024/01/02 0.5s 12.7ms -3",
        "and/or, e.g. this, n/a, i.e. that",
        "--- ... ==== // /// -- a.b? x",
        "[a-z0-9] user?.name rows[0].length",
        "<div></div>\x1b[31mred\x1b[0m",
        r"one\ntwo \d+ \u2026 \x1b",
        "x" * 300 + "_" + "y" * 300,
        "",
    ],
)
def test_what_is_no_identifier(text: str) -> None:
    assert identifiers(text) - {"a.b"} == set()


def test_a_file_is_recognised_under_another_root() -> None:
    assert identifiers("/home/dev/repo/src/app.py") & identifiers("src/app.py") == {"app.py"}
