from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from helpers.opencode import BEGUN
from helpers.settling import read_settled

from moonfold_handoff.transcripts import Transcript, TranscriptError, read_transcript
from moonfold_handoff.transcripts.opencode import AGENT
from moonfold_schemas import codec
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    ItemRecorded,
    LimitKind,
    ModelSelected,
    ThreadStarted,
    TurnEnded,
    TurnStarted,
    TurnStatus,
    UsageReported,
)
from moonfold_schemas.items import (
    AssistantMessage,
    Attachment,
    AttachmentKind,
    Command,
    Error,
    FileChange,
    FileChangeKind,
    Interruption,
    Item,
    ItemStatus,
    Plan,
    Reasoning,
    ToolCall,
    UserMessage,
)

ROOT = Path(__file__).resolve().parents[3]
EXPORTED = ROOT / "tests/fixtures/opencode/exported-1.18.33.json"
PUBLIC = ROOT.parent / "shared/fixtures/transcripts/opencode"
T = TypeVar("T")

COMPLETED, FAILED, INTERRUPTED, LIMITED = (
    TurnStatus.COMPLETED,
    TurnStatus.FAILED,
    TurnStatus.INTERRUPTED,
    TurnStatus.LIMITED,
)
TODOS = [
    {"content": "a", "status": "completed", "priority": "high"},
    {"content": "b", "status": "in_progress", "priority": "low"},
]
PATCH = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+ONE\n"
    "*** Add File: b.txt\n+new\n*** End Patch"
)


class Export:
    """What `opencode export` writes, message by message."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {
            "id": "ses_1",
            "directory": "/home/dev/project",
            "title": "Slugs",
            "version": "1.18.33",
        }
        self.messages: list[dict[str, Any]] = []
        self._request = ""

    def user(self, *parts: Any, **fields: Any) -> str:
        info = {"role": "user", "model": {"providerID": "zen", "modelID": "big-pickle"}, **fields}
        self._request = self._add(info, parts)
        return self._request

    def assistant(
        self, *parts: Any, finish: str | None = "stop", done: bool = True, **fields: Any
    ) -> str:
        now = self._now()
        info = {
            "role": "assistant",
            "parentID": self._request,
            "providerID": "zen",
            "modelID": "big-pickle",
            "path": {"cwd": "/home/dev/project", "root": "/"},
            "time": {"created": now, **({"completed": now + 900} if done else {})},
            **({} if finish is None else {"finish": finish}),
            **fields,
        }
        return self._add(info, parts)

    def error(self, name: str, *parts: Any, **data: Any) -> str:
        return self.assistant(*parts, finish=None, error={"name": name, "data": data})

    def document(self) -> Any:
        return {"info": self.info, "messages": self.messages}

    def read(self) -> Transcript:
        return read(self.document())

    def _now(self) -> int:
        return BEGUN + 1000 * len(self.messages)

    def _add(self, info: dict[str, Any], parts: tuple[Any, ...]) -> str:
        number = len(self.messages) + 1
        info = {"id": f"msg_{number}", "time": {"created": self._now()}, **info}
        written = [
            {"id": f"prt_{number}_{index}", **(text(part) if isinstance(part, str) else part)}
            for index, part in enumerate(parts, start=1)
        ]
        self.messages.append({"info": info, "parts": written})
        return str(info["id"])


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def tool(name: str, input_: Any, output: str = "", **state: Any) -> dict[str, Any]:
    times = {"start": BEGUN + 5, "end": BEGUN + 9}
    state = {"status": "completed", "input": input_, "output": output, "time": times, **state}
    return {"type": "tool", "tool": name, "callID": "call", "state": state}


def read(document: Any) -> Transcript:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.json"
        path.write_text(json.dumps(document))
        return read_settled(path)


@pytest.fixture
def export() -> Export:
    return Export()


def items(transcript: Transcript) -> list[Item]:
    return [e.item for e in transcript.events if isinstance(e, ItemRecorded)]


def of(transcript: Transcript, kind: type[T]) -> list[T]:
    return [x for x in (*transcript.events, *items(transcript)) if isinstance(x, kind)]


def said(transcript: Transcript) -> list[str]:
    return [i.text for i in items(transcript) if isinstance(i, UserMessage | AssistantMessage)]


def ends(transcript: Transcript) -> list[TurnStatus]:
    return [e.status for e in of(transcript, TurnEnded)]


def only(transcript: Transcript) -> Item:
    """Return the one item beside the person's."""
    (item,) = (i for i in items(transcript) if not isinstance(i, UserMessage))
    return item


# Exports


def test_the_recorded_export_keeps_what_was_said_in_order() -> None:
    transcript = read_settled(EXPORTED)
    assert said(transcript) == [
        "one",
        "Plain answer.",
        "look at it",
        "Plain answer.",
        "SLEEPTOOL",
        "run it",
        "SLOW",
        "slow begin",
        "after compaction",
        "Plain answer.",
        "instead of it",
        "Plain answer.",
    ]
    assert ends(transcript) == [
        *(COMPLETED, COMPLETED, INTERRUPTED, COMPLETED, COMPLETED, COMPLETED),
    ]


def test_the_recorded_export_begins_with_what_is_known_about_it() -> None:
    transcript = read_settled(EXPORTED)
    thread, conversation = transcript.events[:2]
    assert isinstance(thread, ThreadStarted)
    assert (thread.title, thread.cwd) == ("A SUMMARY OF WORK", "/home/dev/project")
    assert isinstance(conversation, ConversationStarted)
    assert (conversation.provider, conversation.model) == ("opencode", "loop/m")
    assert conversation.conversation_id == transcript.session_id
    assert transcript.thread_id == f"opencode:{transcript.session_id}"
    assert transcript.facts.version == "1.18.33"
    assert transcript.facts.skipped == {}


def test_a_public_export_gives_valid_events() -> None:
    path = PUBLIC / "basic-1.17.20.json"
    if not path.exists():
        pytest.skip("the public export is not beside this repository")
    transcript = read_settled(path)
    assert said(transcript) == [
        "SYNTHETIC_USER_MARKER",
        "SYNTHETIC_ASSISTANT_MARKER",
        "SYNTHETIC_FINAL_MARKER",
    ]
    assert [e.used_tokens for e in of(transcript, UsageReported)] == [2]
    assert ends(transcript) == [COMPLETED]


@pytest.mark.parametrize("path", [EXPORTED], ids=lambda path: path.stem)
def test_the_same_bytes_give_the_same_bytes_and_every_event_is_valid(path: Path) -> None:
    first, second = ([codec.encode(e) for e in read_transcript(path).events] for _ in range(2))
    assert first == second
    assert [codec.encode(codec.decode_event(raw)) for raw in first] == first


def test_an_export_that_did_not_change_gives_no_step(tmp_path: Path, export: Export) -> None:
    export.user("one")
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export.document()))
    (session,) = AGENT.sessions(path)
    (step,) = session.steps()
    assert list(session.steps(step.cursor)) == []


def test_an_export_ends_where_the_person_went_back_to(export: Export) -> None:
    export.user("kept")
    export.assistant("first", "second")
    undone = export.user("undone")
    export.assistant("undone too")
    export.info["revert"] = {"messageID": undone}
    assert said(export.read()) == ["kept", "first", "second"]
    export.info["revert"] = {"messageID": "msg_2", "partID": "prt_2_2"}
    assert said(export.read()) == ["kept", "first"]
    export.info["revert"] = {"messageID": "msg_2", "partID": "another"}
    assert said(export.read()) == ["kept", "first", "second"]


# The person


def test_what_opencode_adds_to_a_request_is_not_the_persons(export: Export) -> None:
    export.user(
        "look",
        text("Called the Read tool", synthetic=True),
        text("out of sight", ignored=True),
        {"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "file:///a.txt"},
        {"type": "file", "mime": "image/png", "url": "data:image/png;base64,AA=="},
        {"type": "agent", "name": "plan"},
        "closer",
    )
    (message,) = of(export.read(), UserMessage)
    assert message.text == "look\n\ncloser"
    assert message.attachments == (
        Attachment(kind=AttachmentKind.FILE, name="a.txt"),
        Attachment(kind=AttachmentKind.IMAGE),
    )


def test_files_alone_are_a_request(export: Export) -> None:
    export.user({"type": "file", "mime": "image/png", "filename": "p.png"})
    (message,) = of(export.read(), UserMessage)
    assert (message.text, len(message.attachments)) == ("", 1)


def test_a_command_for_a_subagent_is_a_request(export: Export) -> None:
    export.user({"type": "subtask", "agent": "review", "prompt": "review it", "description": "r"})
    export.assistant("done")
    assert said(export.read()) == ["review it", "done"]


def test_a_command_that_the_person_runs_is_recorded_without_a_request(export: Export) -> None:
    export.user(text("The following tool was executed by the user", synthetic=True))
    export.assistant(tool("bash", {"command": "ls"}, "a.txt\n", metadata={}), finish=None)
    transcript = export.read()
    command = only(transcript)
    assert isinstance(command, Command)
    assert (command.command, command.output, command.exit_code) == ("ls", "a.txt\n", None)
    assert command.status is ItemStatus.COMPLETED
    assert ends(transcript) == [COMPLETED]


def test_a_request_that_comes_before_the_end_ends_the_turn(export: Export) -> None:
    export.user("one")
    export.assistant(tool("bash", {"command": "a"}), finish="tool-calls")
    export.user("rather this")
    export.assistant("done")
    transcript = export.read()
    assert ends(transcript) == [INTERRUPTED, COMPLETED]
    assert len(of(transcript, TurnStarted)) == 2


# Answers and tools


def test_an_answer_and_its_reasoning_are_recorded(export: Export) -> None:
    export.user("one")
    export.assistant(
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm", "time": {"start": BEGUN, "end": BEGUN + 1}},
        text("answer", time={"start": BEGUN + 2, "end": BEGUN + 3}),
        {"type": "step-finish", "reason": "stop"},
        tokens={"input": 1, "output": 2, "reasoning": 4, "cache": {"read": 8, "write": 16}},
    )
    transcript = export.read()
    assert [r.text for r in of(transcript, Reasoning)] == ["hm"]
    assert said(transcript) == ["one", "answer"]
    assert [e.used_tokens for e in of(transcript, UsageReported)] == [31]
    assert ends(transcript) == [COMPLETED]


def test_what_opencode_adds_to_an_answer_is_no_answer(export: Export) -> None:
    export.user("one")
    export.assistant("two", text("three", synthetic=True), text("four", ignored=True))
    assert said(export.read()) == ["one", "two"]


def test_a_text_that_was_begun_again_is_not_left_in_progress(export: Export) -> None:
    export.user("one")
    export.assistant(
        text("half", time={"start": BEGUN}),
        text("", time={"start": BEGUN}),
        text("", time={"start": BEGUN, "end": BEGUN}),
        text("whole", time={"start": BEGUN, "end": BEGUN + 1}),
    )
    answers = of(export.read(), AssistantMessage)
    assert [(a.text, a.status) for a in answers] == [
        ("half", ItemStatus.INTERRUPTED),
        ("whole", ItemStatus.COMPLETED),
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"output": "hi\n", "metadata": {"exit": 0}}, (ItemStatus.COMPLETED, 0, "hi\n")),
        ({"output": "no\n", "metadata": {"exit": 3}}, (ItemStatus.FAILED, 3, "no\n")),
        (
            {"output": "too slow", "metadata": {"exit": None}},
            (ItemStatus.FAILED, None, "too slow"),
        ),
        (
            {
                "output": "a\n<shell_metadata>\nUser aborted the command\n</shell_metadata>",
                "metadata": {"exit": None},
            },
            (
                ItemStatus.INTERRUPTED,
                None,
                "a\n<shell_metadata>\nUser aborted the command\n</shell_metadata>",
            ),
        ),
        (
            {"status": "running", "output": None, "metadata": {"output": "so far"}},
            (ItemStatus.IN_PROGRESS, None, "so far"),
        ),
        ({"status": "error", "error": "no shell"}, (ItemStatus.FAILED, None, "no shell")),
        (
            {"status": "error", "error": "Tool execution aborted"},
            (ItemStatus.INTERRUPTED, None, "Tool execution aborted"),
        ),
        (
            {"status": "error", "error": "aborted", "metadata": {"interrupted": True}},
            (ItemStatus.INTERRUPTED, None, "aborted"),
        ),
    ],
)
def test_a_command_has_its_exit_code_and_output(
    export: Export, state: Any, expected: tuple[ItemStatus, int | None, str]
) -> None:
    export.user("one")
    export.assistant(tool("bash", {"command": "x", "workdir": "/srv"}, **state), done=False)
    command = only(export.read())
    assert isinstance(command, Command)
    assert (command.status, command.exit_code, command.output) == expected
    assert (command.command, command.cwd) == ("x", "/srv")


def test_a_call_that_is_still_being_written_says_nothing(export: Export) -> None:
    export.user("one")
    export.assistant(tool("bash", {}, status="pending", raw=""), done=False)
    assert said(export.read()) == ["one"]
    assert len(items(export.read())) == 1


@pytest.mark.parametrize(
    ("name", "input_", "metadata", "change", "diff"),
    [
        (
            "write",
            {"filePath": "/p/a", "content": "one\ntwo\n"},
            {"exists": False},
            FileChangeKind.ADD,
            "--- /dev/null\n+++ /p/a\n@@ -0,0 +1,2 @@\n+one\n+two\n",
        ),
        (
            "write",
            {"filePath": "/p/a", "content": "one\n"},
            {"exists": True},
            FileChangeKind.UPDATE,
            "--- /p/a\n+++ /p/a\n@@ -0,0 +1,1 @@\n+one\n",
        ),
        (
            "edit",
            {"filePath": "/p/a", "oldString": "two", "newString": "three"},
            {"diff": f"Index: /p/a\n{'=' * 67}\n--- /p/a\n+++ /p/a\n@@ -1 +1 @@\n-two\n+three\n"},
            FileChangeKind.UPDATE,
            "--- /p/a\n+++ /p/a\n@@ -1 +1 @@\n-two\n+three\n",
        ),
        (
            "edit",
            {"filePath": "/p/a", "oldString": "", "newString": "new"},
            {},
            FileChangeKind.ADD,
            "--- /dev/null\n+++ /p/a\n@@ -0,0 +1,1 @@\n+new\n",
        ),
        (
            "multiedit",
            {
                "filePath": "/p/a",
                "edits": [
                    {"oldString": "a", "newString": "b"},
                    {"oldString": "c", "newString": "d"},
                ],
            },
            {"results": [{"diff": "--- a\n+++ a\n@@ 1 @@\n"}, {"diff": "--- a\n+++ a\n@@ 2 @@\n"}]},
            FileChangeKind.UPDATE,
            "--- a\n+++ a\n@@ 1 @@\n--- a\n+++ a\n@@ 2 @@\n",
        ),
        (
            "multiedit",
            {"filePath": "/p/a", "edits": [{"oldString": "a", "newString": "b"}, 3]},
            {},
            FileChangeKind.UPDATE,
            "--- /p/a\n+++ /p/a\n@@ -1 +1 @@\n-a\n+b\n",
        ),
        ("write", {"filePath": "/p/a"}, {}, FileChangeKind.UPDATE, None),
    ],
)
def test_an_edit_is_a_change_with_its_diff(
    export: Export,
    *,
    name: str,
    input_: Any,
    metadata: Any,
    change: FileChangeKind,
    diff: str | None,
) -> None:
    export.user("one")
    export.assistant(tool(name, input_, "ok", metadata=metadata))
    item = only(export.read())
    assert isinstance(item, FileChange)
    assert (item.path, item.change, item.diff) == ("/p/a", change, diff)


def test_a_patch_is_a_change_of_each_file(export: Export) -> None:
    export.user("one")
    heading = f"Index: /home/dev/project/a.txt\n{'=' * 67}\n"
    files = [
        {
            "filePath": "/home/dev/project/a.txt",
            "patch": heading + "--- a\n+++ a\n@@ 1 @@\n",
        },
        {"filePath": "/home/dev/project/b.txt", "movePath": "/home/dev/project/c.txt"},
    ]
    export.assistant(tool("apply_patch", {"patchText": PATCH}, metadata={"files": files}))
    export.assistant(tool("apply_patch", {"patchText": PATCH}, status="error", error="no"))
    changes = of(export.read(), FileChange)
    added = "--- /dev/null\n+++ /home/dev/project/b.txt\n@@ -0,0 +1,1 @@\n+new\n"
    assert [(c.item_id, c.path, c.diff) for c in changes[:2]] == [
        ("prt_2_1:0", "/home/dev/project/a.txt", "--- a\n+++ a\n@@ 1 @@\n"),
        ("prt_2_1:1", "/home/dev/project/c.txt", added),
    ]
    assert [(c.path, c.change, c.status) for c in changes[2:]] == [
        ("/home/dev/project/a.txt", FileChangeKind.UPDATE, ItemStatus.FAILED),
        ("/home/dev/project/b.txt", FileChangeKind.ADD, ItemStatus.FAILED),
    ]
    assert changes[3].diff == added


def test_a_to_do_list_is_a_plan(export: Export) -> None:
    export.user("one")
    export.assistant(tool("todowrite", {"todos": TODOS}, "[]"))
    plan = only(export.read())
    assert isinstance(plan, Plan)
    assert plan.text == "[x] a\n[~] b"


@pytest.mark.parametrize(
    "part",
    [
        tool("read", {"filePath": "a"}, "seen"),
        tool("edit", {"path": "a"}, "seen"),
        tool("apply_patch", {"patchText": "no patch"}, "seen"),
        tool("todowrite", {}, "seen"),
        tool("bash", {"cmd": "a"}, "seen"),
    ],
    ids=lambda part: str(part["tool"]),
)
def test_any_other_call_is_a_tool_call(export: Export, part: Any) -> None:
    export.user("one")
    export.assistant(part)
    call = only(export.read())
    assert isinstance(call, ToolCall)
    assert (call.name, call.output) == (part["tool"], "seen")
    assert json.loads(call.input) == part["state"]["input"]


@pytest.mark.parametrize(
    "error",
    [
        "The user rejected permission to use this specific tool call.",
        "Error: The user rejected permission to use this specific tool call.",
        "The user dismissed this question",
    ],
)
def test_a_refused_call_interrupts_the_turn(export: Export, error: str) -> None:
    export.user("one")
    refused = tool("bash", {"command": "rm"}, status="error", error=error)
    export.assistant(refused, finish="tool-calls")
    transcript = export.read()
    assert only(transcript).status is ItemStatus.INTERRUPTED
    assert ends(transcript) == [INTERRUPTED]


def test_a_refusal_with_words_lets_the_agent_go_on(export: Export) -> None:
    export.user("one")
    words = "The user rejected permission to use this specific tool call with the following"
    call = tool("bash", {"command": "rm"}, status="error", error=f"{words} feedback: no")
    export.assistant(call, finish="tool-calls")
    assert ends(export.read()) == []
    export.assistant("then not")
    assert ends(export.read()) == [COMPLETED]


@pytest.mark.parametrize("finish", ["tool-calls", "unknown"])
def test_a_turn_goes_on_after_tool_calls(export: Export, finish: str) -> None:
    export.user("one")
    export.assistant("first", finish=finish)
    assert ends(export.read()) == []
    export.assistant("second", finish="length")
    assert ends(export.read()) == [COMPLETED]


def test_a_turn_that_goes_on_after_its_end_ends_once_more(export: Export) -> None:
    export.user("one")
    export.assistant("first")
    export.assistant("second", finish=None, done=False)
    export.user("two")
    assert ends(export.read()) == [INTERRUPTED]


def test_a_change_of_the_model_is_told(export: Export) -> None:
    export.user("one")
    export.assistant("a")
    export.user("two", model={"providerID": "zen", "modelID": "kimi"})
    export.assistant("b", modelID="kimi")
    export.assistant("c", modelID="kimi", providerID=None)
    transcript = export.read()
    (conversation,) = of(transcript, ConversationStarted)
    assert conversation.model == "zen/big-pickle"
    assert [e.model for e in of(transcript, ModelSelected)] == ["zen/kimi", "kimi"]
    assert transcript.facts.model == "kimi"


# Compaction


def test_a_summary_is_no_answer(export: Export) -> None:
    export.user("one")
    export.assistant("answer")
    export.user({"type": "compaction", "auto": False})
    export.assistant("a summary", summary=True, modelID="small", tokens={"input": 9})
    transcript = export.read()
    assert said(transcript) == ["one", "answer"]
    assert len(of(transcript, ConversationCompacted)) == 1
    assert ends(transcript) == [COMPLETED]
    assert not of(transcript, UsageReported)
    assert transcript.facts.model == "zen/big-pickle"


def test_a_turn_goes_on_after_a_compaction(export: Export) -> None:
    export.user("one")
    export.assistant(tool("bash", {"command": "a"}), finish="tool-calls")
    export.user({"type": "compaction", "auto": True})
    export.assistant("a summary", summary=True)
    export.user(text("Continue if you have next steps", synthetic=True))
    export.assistant("done")
    transcript = export.read()
    assert said(transcript) == ["one", "done"]
    assert len(of(transcript, TurnStarted)) == 1
    assert {i.turn_id for i in items(transcript)} == {"turn:msg_1"}
    assert ends(transcript) == [COMPLETED]


def test_a_request_that_is_asked_again_after_a_compaction_is_one_request(export: Export) -> None:
    image = {"type": "file", "mime": "image/png", "filename": "p.png"}
    export.user("zero")
    export.assistant("answer")
    export.user("too much", image)
    export.assistant(finish=None)
    export.user({"type": "compaction", "auto": True, "overflow": True})
    export.assistant("a summary", summary=True)
    export.user("too much", "[Attached image/png: p.png]")
    export.assistant("done")
    export.user("too much")
    transcript = export.read()
    assert said(transcript) == ["zero", "answer", "too much", "done", "too much"]
    assert ends(transcript) == [COMPLETED, COMPLETED]


def test_a_compaction_that_hits_the_limit_ends_a_turn_of_its_own(export: Export) -> None:
    export.user({"type": "compaction", "auto": False})
    limit = {"message": "Free usage exceeded", "statusCode": 429}
    body = json.dumps({"error": {"type": "FreeUsageLimitError"}})
    export.assistant(
        finish=None,
        summary=True,
        error={"name": "APIError", "data": {**limit, "responseBody": body}},
    )
    export.user("go on")
    transcript = export.read()
    assert ends(transcript) == [LIMITED]
    assert not of(transcript, ConversationCompacted)


# Errors and limits


def answer(type_: str, **fields: Any) -> str:
    return json.dumps({"type": "error", "error": {"type": type_, "message": "secret", **fields}})


@pytest.mark.parametrize(
    ("name", "data", "kind", "status", "reset"),
    [
        (
            "APIError",
            {
                "statusCode": 429,
                "responseBody": answer("FreeUsageLimitError"),
                "responseHeaders": {"retry-after": "19872"},
            },
            *(LimitKind.QUOTA, LIMITED, 19_872),
        ),
        (
            "APIError",
            {
                "statusCode": 429,
                "responseBody": answer("GoUsageLimitError"),
                "responseHeaders": {"Retry-After": "60"},
            },
            *(LimitKind.QUOTA, LIMITED, 60),
        ),
        (
            "APIError",
            {"statusCode": 429, "responseBody": answer("FreeUsageLimitError")},
            *(LimitKind.QUOTA, LIMITED, None),
        ),
        (
            "APIError",
            {
                "statusCode": 429,
                "responseBody": answer("usage_limit_reached", resets_at=BEGUN // 1000 + 7200),
            },
            *(LimitKind.QUOTA, LIMITED, 7200 - 0.9 - 1),
        ),
        (
            "APIError",
            {"statusCode": 429, "responseHeaders": {"retry-after-ms": "1806000"}},
            *(LimitKind.QUOTA, LIMITED, 1806),
        ),
        (
            "APIError",
            {"statusCode": 429, "responseHeaders": {"retry-after": "20"}},
            *(LimitKind.THROTTLE, FAILED, None),
        ),
        ("APIError", {"statusCode": 429}, LimitKind.THROTTLE, FAILED, None),
        (
            "APIError",
            {"statusCode": 529, "responseBody": answer("overloaded_error")},
            *(LimitKind.THROTTLE, FAILED, None),
        ),
        (
            "APIError",
            {"statusCode": 401, "responseBody": answer("CreditsError")},
            *(LimitKind.CREDITS, LIMITED, None),
        ),
        ("APIError", {"statusCode": 402}, LimitKind.CREDITS, LIMITED, None),
        (
            "APIError",
            {
                "statusCode": 429,
                "responseBody": json.dumps({"error": {"code": "insufficient_quota"}}),
            },
            *(LimitKind.CREDITS, LIMITED, None),
        ),
        (
            "APIError",
            {"statusCode": 429, "responseHeaders": {"retry-after": "9" * 19}},
            *(LimitKind.QUOTA, LIMITED, None),
        ),
        ("APIError", {"statusCode": 401}, LimitKind.AUTHENTICATION, FAILED, None),
        ("ProviderAuthError", {"providerID": "zen"}, LimitKind.AUTHENTICATION, FAILED, None),
        ("ContextOverflowError", {}, LimitKind.CONTEXT, FAILED, None),
    ],
)
def test_an_error_ends_the_turn_with_its_limit(
    export: Export,
    *,
    name: str,
    data: Any,
    kind: LimitKind,
    status: TurnStatus,
    reset: float | None,
) -> None:
    export.user("go")
    export.error(name, message="the provider's sentence", **data)
    transcript = export.read()
    (end,) = of(transcript, TurnEnded)
    assert end.limit is not None
    assert (end.status, end.limit.kind) == (status, kind)
    assert end.limit.message == "the provider's sentence"
    assert end.time == datetime.fromtimestamp(BEGUN / 1000 + 1.9, UTC)
    expected = None if reset is None else end.time + timedelta(seconds=reset)
    assert end.limit.resets_at == expected
    assert transcript.limit == (end.limit if status is LIMITED else None)
    assert transcript.facts.limited_at == (len(transcript.events) if status is LIMITED else 0)
    assert not of(transcript, Error)


def test_the_providers_own_delay_is_kept(export: Export) -> None:
    export.user("go")
    headers = {"retry-after-ms": "1500", "retry-after": "2"}
    export.error("APIError", message="slow", statusCode=429, responseHeaders=headers)
    (end,) = of(export.read(), TurnEnded)
    assert end.limit is not None
    assert end.limit.retry_after == 2.0  # of two statements the longer one


@pytest.mark.parametrize("delay", ["soon", "", "9" * 400, None])
def test_a_delay_that_is_none_is_passed_over(export: Export, delay: Any) -> None:
    export.user("go")
    headers = {"retry-after": delay}
    export.error("APIError", message="slow", statusCode=429, responseHeaders=headers)
    (end,) = of(export.read(), TurnEnded)
    assert end.limit is not None
    assert (end.limit.kind, end.limit.retry_after) == (LimitKind.THROTTLE, None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"name": "APIError", "data": {"message": "boom", "statusCode": 500}}, "boom"),
        ({"name": "UnknownError", "data": {"message": "boom"}}, "boom"),
        ({"name": "MessageOutputLengthError", "data": {}}, "MessageOutputLengthError"),
        ({"name": "APIError", "data": {"message": "429 rate limit", "responseBody": "{"}}, None),
        ({}, ""),
    ],
)
def test_any_other_error_is_an_error_item(export: Export, error: Any, message: str | None) -> None:
    export.user("go")
    export.assistant("partial", finish=None, error=error)
    transcript = export.read()
    assert [e.message for e in of(transcript, Error)] == [
        error["data"]["message"] if message is None else message
    ]
    assert ends(transcript) == [FAILED]
    assert said(transcript) == ["go", "partial"]


def test_an_abort_interrupts_what_was_being_said(export: Export) -> None:
    export.user("go")
    export.error(
        "MessageAbortedError",
        "whole",
        tool("bash", {"command": "a"}, "ok", metadata={"exit": 0}),
        message="Aborted",
    )
    export.user("again")
    export.error("MessageAbortedError", "whole", "cut sho", message="Aborted")
    transcript = export.read()
    assert [(a.text, a.status) for a in of(transcript, AssistantMessage)] == [
        ("whole", ItemStatus.COMPLETED),
        ("whole", ItemStatus.COMPLETED),
        ("cut sho", ItemStatus.INTERRUPTED),
    ]
    assert [i.message for i in of(transcript, Interruption)] == ["Aborted", "Aborted"]
    assert ends(transcript) == [INTERRUPTED, INTERRUPTED]


def test_an_error_that_is_written_after_the_end_ends_the_turn_once_more(export: Export) -> None:
    export.user("go")
    export.assistant("blocked", finish="content-filter")
    assert ends(export.read()) == [COMPLETED]
    error = {"name": "ContentFilterError", "data": {"message": "blocked by the provider"}}
    export.messages[1]["info"]["error"] = error
    assert ends(export.read()) == [FAILED]


def test_a_normal_answer_clears_the_limit_and_a_command_of_the_person_does_not(
    export: Export,
) -> None:
    export.user("go")
    export.error("APIError", message="m", statusCode=402)
    export.user(text("The following tool was executed by the user", synthetic=True))
    export.assistant(tool("bash", {"command": "ls"}, "a"), finish=None)
    assert export.read().limit is not None
    export.user("go on")
    assert export.read().limit is not None
    export.assistant({"type": "step-start"}, tool("bash", {"command": "ls"}, "a"))
    assert export.read().limit is None


def test_prose_output_and_retries_are_never_limits(export: Export) -> None:
    notice = "Free usage exceeded, subscribe to Go"
    export.user(notice)
    error = {"name": "APIError", "data": {"message": notice, "statusCode": 429}}
    export.assistant({"type": "retry", "attempt": 1, "error": error}, finish=None, done=False)
    export.assistant(tool("bash", {"command": "a"}, notice), notice)
    transcript = export.read()
    assert transcript.limit is None
    assert ends(transcript) == [COMPLETED]
    assert said(transcript) == [notice, notice]


# Damage


def test_what_is_not_known_is_counted_and_left_out(export: Export) -> None:
    export.user("one", {"type": "hologram"}, {"type": "text", "text": 3}, {"type": "tool"}, {})
    export.assistant("two")
    document = export.document()
    document["messages"] += [7, {"info": {}}, {"info": {"id": "m", "role": "oracle"}}]
    transcript = read(document)
    assert said(transcript) == ["one", "two"]
    assert transcript.facts.skipped == {
        "malformed record": 4,
        "not a record": 1,
        "unknown part: hologram": 1,
        "unknown record: oracle": 1,
    }


def _damaged(value: Any) -> Iterator[Any]:
    """Yield copies of a document, each with one value replaced by one of another type."""
    yield from (None, 1, -1e300, "x", True, [], {}, ["x"], {"a": [1]})
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in _damaged(inner))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in _damaged(inner))


def test_no_wrong_type_anywhere_is_fatal(export: Export) -> None:
    export.user("one", {"type": "file", "mime": "image/png", "filename": "p"})
    export.assistant(
        {"type": "reasoning", "text": "hm", "time": {"start": BEGUN, "end": BEGUN}},
        tool("bash", {"command": "a", "workdir": "/p"}, "b", metadata={"exit": 1}),
        tool("edit", {"filePath": "/p/a", "oldString": "a", "newString": "b"}),
        tool("multiedit", {"filePath": "/p/a", "edits": [{"oldString": "a"}]}),
        tool("apply_patch", {"patchText": PATCH}, metadata={"files": [{"patch": "p"}, {}]}),
        tool("todowrite", {"todos": TODOS}),
        tokens={"input": 1, "output": 2, "cache": {"read": 3}},
    )
    export.user({"type": "compaction", "overflow": True})
    export.assistant("a summary", summary=True)
    export.error(
        "APIError",
        message="m",
        statusCode=429,
        responseHeaders={"retry-after": "5"},
        responseBody=answer("GoUsageLimitError"),
    )
    export.info["revert"] = {"messageID": "another", "partID": "p"}
    document = export.document()
    for damaged in _damaged(document):
        try:
            transcript = read(damaged)
        except TranscriptError:
            continue
        for event in transcript.events:
            codec.decode_event(codec.encode(event))


def test_ids_that_the_wire_refuses_are_made_safe(export: Export) -> None:
    export.info["id"] = "my session"
    export.user("one", id="a b/ü")
    transcript = export.read()
    assert transcript.session_id == "my session"
    assert transcript.conversation_id.startswith("my-session-")
    assert only_user(transcript).item_id.startswith("a-b---")
    assert only_user(transcript).turn_id.startswith("turn:a-b---")


def only_user(transcript: Transcript) -> UserMessage:
    (message,) = of(transcript, UserMessage)
    return message


@pytest.mark.parametrize(
    "document",
    [
        '{"info": {"id": "ses_1"}}',
        '{"info": {"id": 3}, "messages": []}',
        '{"info": {}, "messages": []}',
        '{"info": {"id": "secret", ',
        '["info"]',
    ],
)
def test_another_document_is_refused_without_its_words(tmp_path: Path, document: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(document)
    assert list(AGENT.sessions(path)) == []
    with pytest.raises(TranscriptError, match="not a session of a known agent"):
        read_transcript(path)


def test_an_export_without_a_conversation_is_refused(export: Export) -> None:
    with pytest.raises(TranscriptError, match="no conversation"):
        export.read()


# Where sessions are


def test_sessions_are_looked_for_where_opencode_keeps_its_data() -> None:
    home = Path("/home/dev")
    assert AGENT.roots({}, home) == (Path("/home/dev/.local/share/opencode"),)
    assert AGENT.roots({"XDG_DATA_HOME": "/data"}, home) == (Path("/data/opencode"),)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("opencode.db", True),
        ("opencode.db-wal", True),
        ("opencode-preview.db", True),
        ("opencode-preview.db-wal", True),
        ("opencode.db-shm", False),
        ("opencode.jsonc", False),
        ("other.db", False),
    ],
)
def test_the_database_and_its_log_hold_sessions(name: str, *, holds: bool) -> None:
    assert AGENT.holds_sessions(Path("/data/opencode") / name) is holds
