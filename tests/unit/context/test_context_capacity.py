from __future__ import annotations

from typing import Any

import pytest

from moonfold_handoff.context.capacity import (
    MAX_TOKENS,
    Catalogue,
    CatalogueEntry,
    Selection,
    Window,
    model_name,
    positive,
    selection_key,
    window_options,
)
from moonfold_schemas.results import Origin

LISTED = CatalogueEntry("codex", ("gpt-6", "gpt-6-*"), 258_400)
NARROWED = CatalogueEntry("codex", ("gpt-6-*",), 100_000)


def window(options: dict[str, Any], provider: str = "codex", model: str = "gpt-6") -> Window | None:
    return Catalogue([LISTED]).window(provider, model, options)


# Which options touch the window.


@pytest.mark.parametrize(
    ("provider", "touching"),
    [
        ("codex", {"model_context_window": 9, "model_auto_compact_token_limit": 8}),
        ("claude-code", {"betas": "context-1m", "autocompact_percentage": 80}),
        ("gemini-cli", {"compression_threshold": 0.7}),
        ("opencode", {"context_limit": 9, "input_limit": 8, "compaction_reserved": 7}),
        ("another", {"context_window": 9, "context_length": 8, "max_context_tokens": 7}),
    ],
)
def test_only_options_that_touch_the_window_are_kept(
    provider: str, touching: dict[str, Any]
) -> None:
    others: dict[str, Any] = {
        "reasoning_effort": "high",
        "temperature": 0.5,
        "verbose": True,
        "seed": None,
    }
    assert window_options(provider, {**others, **touching}) == touching
    assert window_options(provider, touching) == touching


def test_an_option_counts_for_the_provider_that_has_it() -> None:
    assert window_options("gemini-cli", {"model_context_window": 9}) == {}


@pytest.mark.parametrize(
    ("betas", "kept"),
    [
        ("context-1m-2025-08-07", {"betas": "context-1m"}),
        ("interleaved-thinking-2025-05-14,context-1m-2025-08-07", {"betas": "context-1m"}),
        ("interleaved-thinking-2025-05-14", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_of_betas_only_the_one_of_the_window_matters(
    betas: str | None, kept: dict[str, Any]
) -> None:
    assert window_options("claude-code", {"betas": betas}) == kept


def test_selections_are_the_same_whatever_else_is_set_and_in_whatever_order() -> None:
    one: dict[str, Any] = {"context_window": 9, "effort": "low", "context_length": 8}
    other: dict[str, Any] = {"context_length": 8, "context_window": 9, "effort": "high", "seed": 1}
    assert selection_key("codex", "m", one) == selection_key("codex", "m", other)
    assert Selection("codex", "m", one).key == selection_key("codex", "m", other)


@pytest.mark.parametrize(
    "other",
    [
        ("claude-code", "m", {"context_window": 9}),
        ("codex", "n", {"context_window": 9}),
        ("codex", None, {"context_window": 9}),
        ("codex", "m", {"context_window": 8}),
        ("codex", "m", {"context_window": "9"}),
        ("codex", "m", {}),
    ],
    ids=str,
)
def test_selections_differ_by_provider_model_and_window_options(
    other: tuple[str, str | None, dict[str, Any]],
) -> None:
    assert selection_key(*other) != selection_key("codex", "m", {"context_window": 9})


# What is kept of long names.


@pytest.mark.parametrize("model", [None, "", "gpt-6", "m" * 126, "\N{SNOWMAN}" * 42])
def test_a_model_name_is_kept_as_it_is(model: str | None) -> None:
    assert model_name(model) == model


@pytest.mark.parametrize("character", ["m", '"', "\x01", "\N{SNOWMAN}", "\N{PARTY POPPER}"])
def test_of_a_long_one_a_digest_is_kept_that_tells_it_apart(character: str) -> None:
    long = character * 199
    kept = model_name(long + "a")
    assert kept is not None
    assert len(kept) == 32
    assert kept == model_name(long + "a") == model_name(kept)
    assert kept != model_name(long + "b")
    key = selection_key("codex", long + "a", {})
    assert key == selection_key("codex", kept, {}) != selection_key("codex", long + "b", {})


@pytest.mark.parametrize(
    "long", ["\x01" * 199, 10**4_000, -(10**4_000)], ids=["text", "large", "-"]
)
def test_of_a_long_value_a_digest_is_kept_that_tells_it_apart(long: Any) -> None:
    options = {"context_window": long}
    kept = window_options("codex", options)
    assert len(str(kept["context_window"])) == 32
    assert window_options("codex", kept) == kept
    assert selection_key("codex", "m", options) == selection_key("codex", "m", kept)
    other = {"context_window": long + (1 if isinstance(long, int) else "1")}
    assert selection_key("codex", "m", other) != selection_key("codex", "m", options)


def test_a_selections_key_is_never_long() -> None:
    options = dict.fromkeys(("context_limit", "input_limit", "context_window"), "\x01" * 200)
    assert len(selection_key("opencode", "\x01" * 200, options)) == 32
    assert selection_key("p" * 200, "m", {}) != selection_key("p" * 199, "m", {})


# Figures.


@pytest.mark.parametrize(
    ("tokens", "known"), [(None, None), (0, None), (-1, None), (1, 1), (200_000, 200_000)]
)
def test_zero_or_less_is_unknown(tokens: int | None, known: int | None) -> None:
    assert positive(tokens) == known


# Windows that options ask for.


@pytest.mark.parametrize(
    ("provider", "options", "tokens"),
    [
        ("codex", {"model_context_window": 400_000}, 400_000),
        ("opencode", {"context_limit": 64_000}, 64_000),
        ("another", {"context_window": 32_000}, 32_000),
        ("another", {"context_length": 32_000}, 32_000),
        ("another", {"max_context_tokens": 32_000}, 32_000),
        ("claude-code", {"betas": "context-1m-2025-08-07"}, 1_000_000),
        ("claude-code", {"betas": "one,context-1m-2025-08-07,two"}, 1_000_000),
        ("claude-code", {"betas": "context-1m", "context_window": 500_000}, 500_000),
    ],
)
def test_an_option_may_ask_for_a_window(
    provider: str, options: dict[str, Any], tokens: int
) -> None:
    assert window(options, provider) == Window(tokens, Origin.OPTION)


@pytest.mark.parametrize("value", [0, -1, True, None, "400000", 4e5, MAX_TOKENS + 1, 10**30])
def test_a_value_that_is_no_number_of_tokens_asks_for_nothing(value: Any) -> None:
    assert window({"model_context_window": value}) == Window(258_400, Origin.CATALOGUE)


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("codex", {"model_auto_compact_token_limit": 9}),
        ("codex", {"betas": "context-1m"}),
        ("codex", {"context_limit": 9}),
        ("codex", {"reasoning_effort": "high"}),
    ],
    ids=str,
)
def test_nor_do_other_options(provider: str, options: dict[str, Any]) -> None:
    assert window(options, provider) == Window(258_400, Origin.CATALOGUE)


# The catalogue.


@pytest.mark.parametrize(
    ("provider", "model", "known"),
    [
        ("codex", "gpt-6", True),
        ("codex", "gpt-6-sol", True),
        ("codex", "gpt-60", False),
        ("codex", "GPT-6", False),
        ("codex", None, False),
        ("opencode", "gpt-6", False),
    ],
)
def test_an_entry_is_for_models_of_its_provider(
    provider: str, model: str | None, known: bool
) -> None:
    expected = Window(258_400, Origin.CATALOGUE) if known else None
    assert Catalogue([LISTED]).window(provider, model, {}) == expected


def test_the_first_entry_that_matches_is_taken() -> None:
    assert Catalogue([NARROWED, LISTED]).window("codex", "gpt-6-sol", {}) == Window(
        100_000, Origin.CATALOGUE
    )
    assert Catalogue([LISTED, NARROWED]).window("codex", "gpt-6-sol", {}) == Window(
        258_400, Origin.CATALOGUE
    )


def test_the_operators_entries_come_first() -> None:
    catalogue = Catalogue([LISTED], operator=[NARROWED])
    assert catalogue.window("codex", "gpt-6-sol", {}) == Window(100_000, Origin.OPERATOR)
    assert catalogue.window("codex", "gpt-6", {}) == Window(258_400, Origin.CATALOGUE)


def test_what_an_option_asks_for_comes_before_any_entry() -> None:
    catalogue = Catalogue([LISTED], operator=[NARROWED])
    options = {"model_context_window": 500_000}
    assert catalogue.window("codex", "gpt-6-sol", options) == Window(500_000, Origin.OPTION)


def test_an_entry_for_every_model_is_for_a_model_without_a_name() -> None:
    catalogue = Catalogue([CatalogueEntry("gemini-cli", ("*",), 1_048_576)])
    assert catalogue.window("gemini-cli", None, {}) == Window(1_048_576, Origin.CATALOGUE)
