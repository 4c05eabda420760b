from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import moonfold_handoff.catalogue
from moonfold_handoff.catalogue import CatalogueError, load_catalogue
from moonfold_handoff.cli import main
from moonfold_handoff.context.capacity import WINDOW_OPTIONS, Window
from moonfold_schemas.results import Origin

BUILTIN = Path(moonfold_handoff.catalogue.__file__).with_name("windows.toml")
ENTRIES: list[dict[str, Any]] = tomllib.loads(BUILTIN.read_text(encoding="utf-8"))["window"]
PATTERNS = [
    pytest.param(entry["provider"], pattern, entry["tokens"], id=f"{entry['provider']} {pattern}")
    for entry in ENTRIES
    for pattern in entry["models"]
]


def named(pattern: str) -> str:
    """Return a model's name that a pattern of the file is for."""
    literal = pattern.replace("[[]", "\0").replace("*", "x").replace("?", "x")
    return re.sub(r"\[(.)[^\]]*\]", r"\1", literal).replace("\0", "[")


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "windows.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# The built-in entries.


@pytest.mark.parametrize(("provider", "pattern", "tokens"), PATTERNS)
def test_every_pattern_is_found(provider: str, pattern: str, tokens: int) -> None:
    found = load_catalogue().window(provider, named(pattern), {})
    assert found == Window(tokens, Origin.CATALOGUE)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry["models"][0]))
def test_every_entry_says_where_its_figure_is_from_and_of_when(entry: dict[str, Any]) -> None:
    assert set(entry) == {"provider", "models", "tokens", "source", "date"}
    assert re.search(r"\d", entry["source"])
    assert entry["date"].isoformat() >= "2026-10-01"
    assert 100_000 <= entry["tokens"] <= 2_000_000


def test_every_provider_is_one_whose_options_are_known() -> None:
    assert {entry["provider"] for entry in ENTRIES} == set(WINDOW_OPTIONS)


@pytest.mark.parametrize(
    ("provider", "model", "tokens"),
    [
        ("codex", "gpt-6-sol", 258_400),
        ("codex", "gpt-6.2-sol", 475_000),
        ("codex", "gpt-6.1-sol", 475_000),
        ("codex", "gpt-5-codex", 258_400),
        ("claude-code", "claude-sonnet-4-6", 200_000),
        ("claude-code", "claude-sonnet-4-6[1m]", 1_000_000),
        ("claude-code", "sonnet[1m]", 1_000_000),
        ("claude-code", "claude-opus-4-8", 1_000_000),
        ("claude-code", "claude-opus-4-8-20260801", 1_000_000),
        ("claude-code", "claude-haiku-4-5", 200_000),
        ("gemini-cli", "gemini-3-pro", 1_048_576),
        ("gemini-cli", "anything-else", 1_048_576),
        ("gemini-cli", "gemma-4-31b", 256_000),
        ("gemini-cli", None, 1_048_576),
        ("opencode", "anthropic/claude-haiku-4-5", 200_000),
        ("opencode", "anthropic/claude-opus-4-8", 1_000_000),
        ("opencode", "openai/gpt-5.4-mini", 272_000),
        ("opencode", "openai/gpt-5.4", 922_000),
        ("opencode", "openai/gpt-5", 272_000),
    ],
)
def test_known_models(provider: str, model: str | None, tokens: int) -> None:
    found = load_catalogue().window(provider, model, {})
    assert found == Window(tokens, Origin.CATALOGUE)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("codex", "llama"),
        ("codex", None),
        ("claude-code", "claude"),
        ("opencode", "gpt-5.4"),
        ("another", "gpt-6-sol"),
    ],
)
def test_of_other_models_nothing_is_known(provider: str, model: str | None) -> None:
    assert load_catalogue().window(provider, model, {}) is None


# The operator's file.


def test_the_operators_file_comes_before_the_built_in_entries(tmp_path: Path) -> None:
    own = write(
        tmp_path,
        """
        [[window]]
        provider = "codex"
        models = ["gpt-6-sol", "ours-*"]
        tokens = 100_000

        [[window]]
        provider = "ours"
        models = ["*"]
        tokens = 32_000
        source = "the load test"
        date = 2026-11-30
        """,
    )
    catalogue = load_catalogue(own)
    assert catalogue.window("codex", "gpt-6-sol", {}) == Window(100_000, Origin.OPERATOR)
    assert catalogue.window("codex", "ours-1", {}) == Window(100_000, Origin.OPERATOR)
    assert catalogue.window("ours", None, {}) == Window(32_000, Origin.OPERATOR)
    assert catalogue.window("codex", "gpt-6.2-sol", {}) == Window(475_000, Origin.CATALOGUE)


def test_the_operators_file_may_be_a_copy_of_the_built_in_one() -> None:
    found = load_catalogue(BUILTIN).window("codex", "gpt-6-sol", {})
    assert found == Window(258_400, Origin.OPERATOR)


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_it_may_be_empty(tmp_path: Path, text: str) -> None:
    found = load_catalogue(write(tmp_path, text)).window("codex", "gpt-6-sol", {})
    assert found == Window(258_400, Origin.CATALOGUE)


ENTRY = '[[window]]\nprovider = "codex"\nmodels = ["m"]\ntokens = 9\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("window", "end of document"),
        (ENTRY.replace("[[window]]", "[[window"), "line 1"),
        (ENTRY.replace("[[window]]", "[[windows]]"), "windows"),
        (ENTRY.replace("[[window]]", "[window]"), "$.window"),
        (ENTRY.replace("tokens = 9", ""), "tokens"),
        (ENTRY.replace("tokens = 9", "tokens = 0"), "tokens"),
        (ENTRY.replace("tokens = 9", "tokens = -9"), "tokens"),
        (ENTRY.replace("tokens = 9", 'tokens = "9"'), "tokens"),
        (ENTRY.replace("tokens = 9", "tokens = 9.5"), "tokens"),
        (ENTRY.replace('models = ["m"]', "models = []"), "models"),
        (ENTRY.replace('models = ["m"]', 'models = "m"'), "models"),
        (ENTRY.replace('models = ["m"]', "models = [9]"), "models"),
        (ENTRY.replace('provider = "codex"', ""), "provider"),
        (ENTRY.replace('provider = "codex"', "provider = 9"), "provider"),
        (ENTRY + "token = 9", "token"),
        (b"\xff\xfe", "utf-8"),
        (b"\x00", "line 1"),
    ],
    ids=repr,
)
def test_a_file_of_another_form_is_one_sentence(
    tmp_path: Path, text: str | bytes, what: str
) -> None:
    own = write(tmp_path, text)
    with pytest.raises(CatalogueError) as caught:
        load_catalogue(own)
    sentence = str(caught.value)
    opening = f"{own} is no list of context windows: "
    assert sentence.startswith(opening)
    assert what in sentence.removeprefix(opening)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError) as caught:
        load_catalogue(tmp_path / "none.toml")
    assert (
        str(caught.value) == f"{tmp_path / 'none.toml'} cannot be read: No such file or directory."
    )


def test_so_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"cannot be read: Is a directory\.$"):
        load_catalogue(tmp_path)


def test_a_worker_does_not_start_with_windows_other_than_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_logging: None
) -> None:
    own = write(tmp_path, ENTRY.replace("tokens = 9", "tokens = 0"))
    monkeypatch.setenv("MOONFOLD_MODEL_WINDOWS", str(own))
    monkeypatch.setenv("MOONFOLD_REDIS_URL", f"unix://{tmp_path}/nowhere")
    done = CliRunner().invoke(main, ["worker"])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {own} is no list of context windows: ")
    assert done.stderr.count("\n") == 1
