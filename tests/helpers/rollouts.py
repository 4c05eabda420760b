"""Rollouts as Codex writes them, line by line, and what is read of them."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from helpers.settling import settle

from moonfold_handoff.transcripts import Transcript, read_transcript
from moonfold_handoff.transcripts.codex_messages import SUMMARY_PREFIX
from moonfold_schemas import codec
from moonfold_schemas.events import ItemRecorded, TurnEnded, TurnStatus
from moonfold_schemas.items import AssistantMessage, Item, UserMessage

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests/fixtures/codex"
PUBLIC = ROOT.parent / "shared/fixtures/transcripts/codex"

T = TypeVar("T")
SENTENCE = (
    "You\u2019ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
    "https://chatgpt.com/settings/usage to purchase more credits or try again at 5:11 PM."
)
USAGE_LIMIT = {"message": SENTENCE, "codex_error_info": "usage_limit_exceeded"}
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(hours=5)
LATEST = NOON + timedelta(days=3)

EXITED = (
    "Chunk ID: 1f\nWall time: 0.1 seconds\nProcess exited with code 3\n"
    "Original token count: 5\nOutput:\nno\nOutput:\nway\n"
)
RUNNING = (
    "Chunk ID: 1f\nWall time: 1 seconds\nProcess running with session ID 7\n"
    "Original token count: 1\nOutput:\nstill"
)
PATCH = """*** Begin Patch
*** Add File: new.py
+one
+two
*** Update File: old.py
@@ def f():
-a
+b
*** Update File: from.py
*** Move to: to.py
@@
-c
+d
*** Delete File: gone.py
*** End Patch"""


def public(name: str) -> Path:
    path = PUBLIC / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the public session {name} is not beside this repository")
    return path


class Rollout:
    """Writes a rollout line by line, a second apart."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, type_: str, **payload: Any) -> None:
        at = NOON + timedelta(seconds=len(self.records))
        self.records.append({"timestamp": at.isoformat(), "type": type_, "payload": payload})

    def meta(self, **fields: Any) -> None:
        known = {"id": "session-1", "cwd": "/home/dev/project", "cli_version": "0.171.0"}
        self.add("session_meta", **{**known, **fields})

    def context(self, model: str = "gpt-5-codex", **fields: Any) -> None:
        self.add("turn_context", cwd="/home/dev/project", model=model, **fields)

    def event(self, kind: str, **fields: Any) -> None:
        self.add("event_msg", type=kind, **fields)

    def item(self, kind: str, **fields: Any) -> None:
        self.add("response_item", type=kind, **fields)

    def completed(self, kind: str, **fields: Any) -> None:
        self.event("item_completed", item={"type": kind, **fields})

    def message(self, role: str, *texts: str, **fields: Any) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        self.item(
            "message", role=role, content=[{"type": kind, "text": t} for t in texts], **fields
        )

    def user(self, text: str, **fields: Any) -> None:
        self.message("user", text)
        self.event("user_message", message=text, **fields)

    def assistant(self, text: str, **fields: Any) -> None:
        self.event("agent_message", message=text, **fields)
        self.message("assistant", text, **fields)

    def call(self, name: str, arguments: Any, call: str = "call-1", **fields: Any) -> None:
        given = arguments if isinstance(arguments, str) else json.dumps(arguments)
        self.item("function_call", name=name, arguments=given, call_id=call, **fields)

    def output(self, output: Any, call: str = "call-1") -> None:
        self.item("function_call_output", call_id=call, output=output)

    def start(self, turn: str = "turn-1", **fields: Any) -> None:
        self.event("task_started", turn_id=turn, **fields)

    def end(self, turn: str = "turn-1", **fields: Any) -> None:
        self.event("task_complete", turn_id=turn, **{"last_agent_message": None, **fields})

    def rates(self, rate_limits: Any, info: Any = None) -> None:
        self.event("token_count", info=info, rate_limits=rate_limits)

    def usage(self, total: int, window: int | None = 258_400, **info: Any) -> None:
        counts = {"input_tokens": total - 20, "output_tokens": 20, "total_tokens": total}
        known = {
            "total_token_usage": counts,
            "last_token_usage": counts,
            "model_context_window": window,
        }
        self.event("token_count", info={**known, **info}, rate_limits=None)

    def lines(self) -> list[bytes]:
        return [json.dumps(r).encode() + b"\n" for r in self.records]

    def read(self, **options: Any) -> Transcript:
        return settle(self.read_raw(**options))

    def read_raw(self, **options: Any) -> Transcript:
        transcript = read(self.lines(), **{"zone": UTC, **options})
        for event in transcript.events:
            codec.decode_event(codec.encode(event))
        return transcript


def read(lines: list[bytes], **options: Any) -> Transcript:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.jsonl"
        path.write_bytes(b"".join(lines))
        return read_transcript(path, **options)


def items(transcript: Transcript) -> list[Item]:
    return [e.item for e in transcript.events if isinstance(e, ItemRecorded)]


def of(transcript: Transcript, kind: type[T]) -> list[T]:
    return [x for x in (*transcript.events, *items(transcript)) if isinstance(x, kind)]


def said(transcript: Transcript) -> list[str]:
    return [i.text for i in items(transcript) if isinstance(i, UserMessage | AssistantMessage)]


def ends(transcript: Transcript) -> list[TurnStatus]:
    return [e.status for e in of(transcript, TurnEnded)]


def window(used: float, **fields: Any) -> dict[str, Any]:
    return {"used_percent": used, "window_minutes": 300, **fields}


# Whole sessions


def write_everything(rollout: Rollout) -> None:
    rollout.meta()
    rollout.start(model_context_window=1000)
    rollout.context(effort="high", collaboration_mode={"settings": {"reasoning_effort": "low"}})
    rollout.user("one", images=["data:"], local_images=["a.png"])
    rollout.item("reasoning", id="r", summary=[{"type": "summary_text", "text": "hm"}])
    rollout.call("shell", {"command": ["bash", "-lc", "ls"], "workdir": "x"})
    rollout.event("exec_command_end", call_id="call-1", exit_code=0, stdout="a", cwd="/")
    rollout.output([{"type": "input_text", "text": "Exit code: 0\nOutput:\n"}])
    rollout.item("custom_tool_call", name="apply_patch", input=PATCH, call_id="call-2")
    rollout.completed("FileChange", id="call-3", changes={"a": {"type": "add", "content": "x"}})
    rollout.completed("CommandExecution", id="call-4", command=["ls"], status="failed", exit_code=1)
    rollout.completed("AgentMessage", id="m", content=[{"type": "Text", "text": "two"}])
    rollout.item("local_shell_call", call_id="call-5", action={"command": ["ls"]})
    rollout.item("web_search_call", action={"query": "q"})
    rollout.add("token_usage_record", usage={"total_tokens": 5})
    rollout.rates({"primary": window(100, resets_in_seconds=1), "credits": {"has_credits": False}})
    rollout.usage(100, window=100)
    rollout.add("compacted", message="sum", replacement_history=[])
    info = {"response_too_many_failed_attempts": {"http_status_code": 429}}
    rollout.event("error", message="no", codex_error_info=info)
    rollout.end(error=USAGE_LIMIT)
    rollout.event("thread_rolled_back", num_turns=1)
    rollout.user("last")


def write_older(rollout: Rollout) -> None:
    rollout.meta()
    rollout.event("agent_reasoning", text="**First**")
    rollout.event("agent_reasoning", text="**Second**")
    rollout.message("user", "# Context from the editor\n## My request:\none")
    rollout.event("user_message", message="one")
    rollout.context("gpt-5-codex", effort="high")
    rollout.call("shell", {"command": ["bash", "-lc", "ls"]})
    rollout.output("Exit code: 0\nOutput:\n")
    rollout.event("agent_reasoning", text="**Third**")
    rollout.event("agent_message", message="done")
    rollout.usage(5_000)
    rollout.item("reasoning", summary=[{"type": "summary_text", "text": "**Third**"}])
    rollout.message("assistant", "done")
    rollout.user("two")
    rollout.call("shell", {"command": "make"})
    rollout.user("three")
    rollout.rates({"primary": {"used_percent": 100, "resets_in_seconds": 60}})


def write_rolled_back(rollout: Rollout) -> None:
    rollout.meta()
    for number, model in enumerate(("small", "large", "small")):
        rollout.start(f"turn-{number}", model_context_window=100_000)
        rollout.context(model)
        rollout.user(f"request {number}")
        rollout.call("exec_command", {"cmd": "serve"}, f"call-{number}")
        rollout.output(RUNNING, f"call-{number}")
        rollout.assistant("It runs.")
        rollout.end(f"turn-{number}", last_agent_message="It runs.")
    rollout.event("thread_rolled_back", num_turns=2)
    rollout.completed("CommandExecution", id="call-0", exit_code=0, aggregated_output="all")
    rollout.completed("CommandExecution", id="call-2", exit_code=0, aggregated_output="all")
    rollout.start("turn-4")
    rollout.context("large")
    rollout.user("request 4")


def write_compacted(rollout: Rollout) -> None:
    rollout.meta()
    rollout.start()
    rollout.user("one")
    rollout.message("assistant", "two")
    rollout.message("assistant", "In short.")
    rollout.usage(5_000)
    rollout.completed("ContextCompaction", id="c")
    rollout.add("compacted", message=f"{SUMMARY_PREFIX}\nIn short.")
    rollout.event("context_compacted")
    rollout.message("user", f"{SUMMARY_PREFIX}\nIn short.")
    rollout.assistant("three")
    rollout.event("error", **USAGE_LIMIT)
    rollout.end(error=USAGE_LIMIT)
    rollout.message("assistant", "added by a client")


WRITTEN = (write_everything, write_older, write_rolled_back, write_compacted)
