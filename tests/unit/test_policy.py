from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from moonfold_handoff.cli import main
from moonfold_handoff.policy import MAX_CANDIDATES, NO_POLICY, PolicyError, load_policy
from moonfold_schemas.requests import NativeAbilities, Target

FULL = """
failovers_per_hour = 3

[[candidate]]
provider = "codex"
instance = "work"
model = "gpt-6-sol"
options = {model_context_window = 400000}
capacity = 400000
version = "0.171.0"
native = {inject_items = true}
from = ["claude-code", "gemini-cli"]

[[candidate]]
provider = "opencode"
"""


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "policy.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_names_targets_in_order(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, FULL))
    assert policy.failovers_per_hour == 3
    assert policy.targets == (
        Target(
            provider="codex",
            instance="work",
            model="gpt-6-sol",
            options={"model_context_window": 400_000},
            capacity=400_000,
            version="0.171.0",
            native=NativeAbilities(inject_items=True),
        ),
        Target(provider="opencode"),
    )


@pytest.mark.parametrize(
    ("provider", "targets"),
    [
        ("claude-code", ["codex", "opencode"]),
        ("gemini-cli", ["codex", "opencode"]),
        ("codex", ["opencode"]),
        (None, ["opencode"]),
    ],
)
def test_a_candidate_serves_the_providers_that_it_names(
    provider: str | None, targets: list[str], tmp_path: Path
) -> None:
    policy = load_policy(write(tmp_path, FULL))
    assert [one.provider for one in policy.candidates_for(provider)] == targets


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_file_without_candidates_is_a_policy(text: str, tmp_path: Path) -> None:
    assert load_policy(write(tmp_path, text)) == NO_POLICY


def test_without_a_file_nobody_is_named() -> None:
    assert load_policy(None).candidates_for("codex") == ()


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "no TOML": ("[[candidate", "Expected"),
    "not UTF-8": (b"\xff", "decode"),
    "no provider": ("[[candidate]]\nmodel = 'x'", "provider"),
    "provider is no id": ("[[candidate]]\nprovider = 'a b'", "candidate[0].provider"),
    "a misspelt field": ("[[candidate]]\nprovider = 'a'\nmodle = 'x'", "modle"),
    "a misspelt ability": ("[[candidate]]\nprovider = 'a'\nnative = {fly = true}", "fly"),
    "a misspelt table": ("[[candidates]]\nprovider = 'a'", "candidates"),
    "a conversation": ("[[candidate]]\nprovider = 'a'\nconversation_id = 'c'", "conversation_id"),
    "it serves nobody": ("[[candidate]]\nprovider = 'a'\nfrom = []", "from"),
    "no failovers": ("failovers_per_hour = 0", "failovers_per_hour"),
    "too many": ("[[candidate]]\nprovider = 'a'\n" * (MAX_CANDIDATES + 1), "candidate"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    text, reason = BROKEN[name]
    path = write(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is no failover policy: ")
    assert reason in message
    assert "\n" not in message


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot be read: No such file or directory\.$"):
        load_policy(tmp_path / "policy.toml")


def test_a_worker_does_not_start_with_a_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_logging: None
) -> None:
    path = write(tmp_path, "[[candidate]]")
    monkeypatch.setenv("MOONFOLD_FAILOVER_POLICY", str(path))
    monkeypatch.setenv("MOONFOLD_REDIS_URL", f"unix://{tmp_path}/nobody")
    done = CliRunner().invoke(main, ["worker"])
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Error: {path} is no failover policy: ")
