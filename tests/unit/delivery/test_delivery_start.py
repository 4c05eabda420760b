from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moonfold_handoff.delivery import programs, start
from moonfold_handoff.delivery.codex_app_server import InjectionError
from moonfold_handoff.delivery.programs import PROGRAMS, NotStartedError
from moonfold_handoff.delivery.start import prepare_start
from moonfold_schemas import Target
from moonfold_schemas.results import (
    Budget,
    Coverage,
    Delivery,
    Figure,
    HandoffReady,
    InputText,
    LimitingInput,
    Origin,
    ResponseMessage,
)

FIGURE = Figure(value=0, origin=Origin.RULE)
FIGURES: dict[str, Any] = dict.fromkeys(
    ("cap", "ceiling", "window", "existing", "request", "attachments", "reserve"), FIGURE
)
BUDGET = Budget(**FIGURES, allowance=0, limited_by=LimitingInput.CAP)
ITEMS = (ResponseMessage(role="user", content=(InputText(text="before"),)),)


def handoff(provider: str, **changes: Any) -> HandoffReady:
    target = Target(provider=provider, conversation_id=changes.pop("conversation_id", None))
    fields = {"delivery": Delivery.TEXT, "items": ITEMS, "text": "the history", **changes}
    return HandoffReady(
        request_id="r",
        session_id="s",
        target=target,
        coverage=Coverage(through=1, selected_items=1, omitted_items=0),
        budget=BUDGET,
        **fields,
    )


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install every agent, each a program that tells a version."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in PROGRAMS.values():
        path = folder / program.name
        path.write_text(f"#!{sys.executable}\nprint('{program.name} 1.2.3')\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def injected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[Any], str | None]]:
    calls = []

    async def inject(program: str, items: Sequence[Any], *, cwd: str | None) -> str:
        calls.append((program, items, cwd))
        return "thread-1"

    monkeypatch.setattr(start, "inject", inject)
    return calls


@pytest.mark.parametrize(
    ("provider", "arguments"),
    [
        ("codex", ["codex", "--", "the history\n\nNow this"]),
        ("claude-code", ["claude", "--session-id", "ID", "--", "the history\n\nNow this"]),
        (
            "gemini-cli",
            ["gemini", "--session-id", "ID", "--prompt-interactive=the history\n\nNow this"],
        ),
        ("opencode", ["opencode", "--prompt=the history\n\nNow this"]),
    ],
)
async def test_the_history_goes_before_the_request_in_the_first_prompt(
    provider: str, arguments: list[str], installed: Path
) -> None:
    prepared = await prepare_start(handoff(provider), "Now this", cwd=str(installed))
    program, *rest = prepared.arguments
    assert Path(program) == installed / arguments[0]
    expected = [prepared.conversation_id if a == "ID" else a for a in arguments[1:]]
    assert rest == expected
    assert (prepared.conversation_id is not None) == ("ID" in arguments)
    if prepared.conversation_id is not None:
        uuid.UUID(prepared.conversation_id)
    assert (prepared.cwd, prepared.trouble) == (str(installed), None)


async def test_without_history_there_is_only_the_request() -> None:
    prepared = await prepare_start(handoff("opencode", text=""), "Now this", cwd=None)
    assert prepared.arguments[1:] == ("--prompt=Now this",)


async def test_codex_gets_the_history_as_messages(injected: list[Any], installed: Path) -> None:
    ready = handoff("codex", delivery=Delivery.ITEMS)
    prepared = await prepare_start(ready, "--now this", cwd=str(installed))
    program = str(installed / "codex")
    assert injected == [(program, ITEMS, str(installed))]
    assert prepared.arguments == (program, "resume", "thread-1", "--", "--now this")
    assert prepared.conversation_id == "thread-1"


async def test_codex_that_does_not_take_messages_gets_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> str:
        raise InjectionError("Codex refused.")

    monkeypatch.setattr(start, "inject", refuse)
    prepared = await prepare_start(handoff("codex", delivery=Delivery.ITEMS), "Now this", cwd=None)
    assert prepared.arguments[1:] == ("--", "the history\n\nNow this")
    assert (prepared.conversation_id, prepared.trouble) == (None, "Codex refused.")


@pytest.mark.parametrize(
    ("provider", "arguments"),
    [
        ("codex", ("resume", "c", "--", "the history\n\nNow this")),
        ("claude-code", ("--resume", "c", "--", "the history\n\nNow this")),
    ],
)
async def test_a_conversation_that_comes_back_is_resumed_with_what_is_new(
    provider: str, arguments: tuple[str, ...]
) -> None:
    prepared = await prepare_start(handoff(provider, conversation_id="c"), "Now this", cwd=None)
    assert (prepared.arguments[1:], prepared.conversation_id) == (arguments, "c")


async def test_a_folder_that_is_gone_is_left_out(tmp_path: Path) -> None:
    prepared = await prepare_start(handoff("opencode"), "x", cwd=str(tmp_path / "gone"))
    assert prepared.cwd is None


async def test_a_prompt_no_argument_can_hold_is_told() -> None:
    fits = programs.MOST_ARGUMENT_BYTES - len("the history\n\n--prompt=")
    await prepare_start(handoff("opencode"), "x" * fits, cwd=None)
    with pytest.raises(NotStartedError, match=r"longer than opencode can be given"):
        await prepare_start(handoff("opencode"), "x" * (fits + 1), cwd=None)


async def test_an_agent_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotStartedError, match=r"gemini is not installed, or not on your PATH\."):
        await prepare_start(handoff("gemini-cli"), "x", cwd=None)


def test_an_agent_tells_its_version() -> None:
    assert PROGRAMS["codex"].version() == "codex 1.2.3"


@pytest.mark.parametrize("body", ["", "import time; time.sleep(60)"])
def test_an_agent_that_does_not_tell_its_version_is_unknown(
    installed: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(programs, "VERSION_SECONDS", 0.2)
    (installed / "codex").write_text(f"#!{sys.executable}\n{body}\n")
    assert PROGRAMS["codex"].version() is None


def test_an_agent_that_cannot_be_run_or_is_not_there_is_unknown(installed: Path) -> None:
    (installed / "codex").write_text("#!/no/such/interpreter\n")
    assert PROGRAMS["codex"].version() is None
    (installed / "claude").unlink()
    assert PROGRAMS["claude-code"].version() is None
