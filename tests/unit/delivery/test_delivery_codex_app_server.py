from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from moonfold_handoff.delivery import codex_app_server
from moonfold_handoff.delivery.codex_app_server import InjectionError, inject
from moonfold_schemas.results import InputText, OutputText, ResponseMessage

ITEMS = (
    ResponseMessage(role="developer", content=(InputText(text="what this is"),)),
    ResponseMessage(role="user", content=(InputText(text="do it é🎉"),)),
    ResponseMessage(role="assistant", content=(OutputText(text="done\nso"),)),
)

# Plays Codex's app-server by a script: for each method what it answers, and a log of what it was sent.
PLAYER = """
import json, os, sys, time
script = json.load(open(os.path.join(os.path.dirname(__file__), "script.json")))
log = open(os.path.join(os.path.dirname(__file__), "log"), "a")
print(json.dumps(sys.argv[1:]), os.getcwd(), file=log, flush=True)
for line in sys.stdin:
    print(line, end="", file=log, flush=True)
    message = json.loads(line)
    for answer in script.get(message["method"], []):
        if answer == "end":
            sys.exit(1)
        if answer == "hang":
            time.sleep(60)
        if isinstance(answer, dict) and answer.pop("reply", False):
            answer["id"] = message["id"]
        print(answer if isinstance(answer, str) else json.dumps(answer), flush=True)
"""
USUAL: dict[str, list[Any]] = {
    "initialize": [
        {"method": "configWarning", "params": {}},
        {"reply": True, "result": {"userAgent": "codex"}},
    ],
    "thread/start": [
        {"id": 2, "method": "a request of the server's own", "params": {}},
        {"reply": True, "result": {"thread": {"id": "thread-1"}}},
    ],
    "thread/inject_items": [{"reply": True, "result": {}}],
}


class Codex:
    """A program that stands in for Codex."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "codex"
        self.program.write_text(f"#!{sys.executable}\n{PLAYER}")
        self.program.chmod(0o755)
        self.plays()

    def plays(self, **changes: list[Any]) -> None:
        script = {**USUAL, **{name.replace("__", "/"): said for name, said in changes.items()}}
        (self._folder / "script.json").write_text(json.dumps(script))

    @property
    def log(self) -> list[str]:
        return (self._folder / "log").read_text().splitlines()

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log[1:]]


@pytest.fixture
def codex(tmp_path: Path) -> Codex:
    return Codex(tmp_path)


async def test_a_new_thread_is_given_the_history_as_it_is(codex: Codex, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert await inject(str(codex.program), ITEMS, cwd=str(work)) == "thread-1"
    assert codex.log[0] == f'["app-server"] {work}'
    initialize, initialized, start, injected = codex.sent
    assert initialize["params"]["capabilities"] == {"experimentalApi": True}
    assert initialized == {"method": "initialized"}
    assert start["params"] == {"cwd": str(work)}
    assert injected["params"] == {
        "threadId": "thread-1",
        "items": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "what this is"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "do it é🎉"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "done\nso"}],
            },
        ],
    }


async def test_no_history_is_not_injected(codex: Codex) -> None:
    assert await inject(str(codex.program), (), cwd=None) == "thread-1"
    assert [message["method"] for message in codex.sent] == [
        "initialize",
        "initialized",
        "thread/start",
    ]
    assert codex.sent[2]["params"] == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "thread__inject_items": [
                    {"reply": True, "error": {"code": -32601, "message": "secret"}}
                ]
            },
            "Codex refused thread/inject_items (error -32601).",
        ),
        (
            {"initialize": [{"reply": True, "error": "secret"}]},
            "Codex refused initialize (error None).",
        ),
        ({"thread__start": ["end"]}, "Codex's app-server ended."),
        (
            {"thread__start": [{"reply": True, "result": {}}]},
            "Codex started a thread and did not say which.",
        ),
        (
            {"thread__start": [{"reply": True, "result": {"thread": {"id": 7}}}]},
            "Codex started a thread and did not say which.",
        ),
        (
            {"thread__start": [{"reply": True, "result": None}]},
            "Codex started a thread and did not say which.",
        ),
    ],
)
async def test_what_codex_does_not_take_is_one_sentence(
    codex: Codex, changes: dict[str, list[Any]], message: str
) -> None:
    codex.plays(**changes)
    with pytest.raises(InjectionError) as raised:
        await inject(str(codex.program), ITEMS, cwd=None)
    assert str(raised.value) == message


async def test_lines_that_are_no_replies_are_passed_over(codex: Codex) -> None:
    codex.plays(initialize=["not json", "[]", {"reply": True, "result": {}}])
    assert await inject(str(codex.program), ITEMS, cwd=None) == "thread-1"


async def test_a_server_that_does_not_answer_is_ended(
    codex: Codex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_app_server, "REPLY_SECONDS", 0.3)
    monkeypatch.setattr(codex_app_server, "END_SECONDS", 0.1)
    codex.plays(thread__start=["hang"])
    with pytest.raises(InjectionError, match=r"did not answer thread/start within 0 s\."):
        await inject(str(codex.program), ITEMS, cwd=None)


async def test_a_line_that_is_too_long_ends_it(
    codex: Codex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_app_server, "LINE_BYTES", 100)
    codex.plays(initialize=["x" * 1_000])
    with pytest.raises(InjectionError, match="too long"):
        await inject(str(codex.program), ITEMS, cwd=None)


async def test_a_program_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(InjectionError, match=r"Codex cannot be started: No such file"):
        await inject(str(tmp_path / "none"), ITEMS, cwd=None)
