from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from helpers.settling import read_settled, settled
from helpers.stepping import in_one_go, in_steps

from moonfold_handoff.transcripts import AGENTS, Transcript, TranscriptError, read_transcript
from moonfold_handoff.transcripts.base import OtherSessionError, safe_id
from moonfold_handoff.transcripts.documents import DocumentSession
from moonfold_handoff.transcripts.gemini_cli import AGENT
from moonfold_handoff.transcripts.gemini_reader import ITEMS_KEPT, MESSAGES_KEPT
from moonfold_schemas import codec
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    ItemRecorded,
    Limit,
    LimitKind,
    ModelSelected,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
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
RECORDED = ROOT / "tests/fixtures/gemini-cli/recorded-0.61-daily-quota.jsonl"
PUBLIC = ROOT.parent / "shared/fixtures/transcripts/gemini-cli"
SESSION = "5d1c6e0a-8f5e-4c58-9c39-0d2f5a7b1e42"
T = TypeVar("T")
DAILY = (
    "[API Error: You have exhausted your daily quota on this model.]\n"
    "Please wait and try again later. To increase your limits, request a quota increase through "
    "AI Studio, or switch to another /auth method"
)
CONTEXT = (
    "<session_context>\nThis is the Gemini CLI. We are setting up the context for our chat.\n"
    "- **Workspace Directories:**\n  - /srv/slugger\n- **Directory Structure:**\n</session_context>"
)


class Session:
    """Writes a session as the CLI does: records, each followed by a patch of the metadata."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self.add({**self.metadata(), "kind": "main"})

    @staticmethod
    def metadata() -> dict[str, Any]:
        return {
            "sessionId": SESSION,
            "projectHash": "5728dc8d14c0b85e70ce4435d6e8169a",
            "startTime": "2026-11-30T13:00:00.000Z",
            "lastUpdated": "2026-11-30T13:00:00.000Z",
        }

    def add(self, record: Any) -> None:
        self.records.append(record)

    def message(self, type_: str, content: Any, **fields: Any) -> str:
        number = len(self.messages) + 1
        time = f"2026-11-30T13:{number // 60:02}:{number % 60:02}.000Z"
        record = {"id": f"m{number}", "timestamp": time, "type": type_, "content": content}
        record |= fields
        self.messages[record["id"]] = record
        self.add(record)
        self.add({"$set": {"lastUpdated": time}})
        return str(record["id"])

    def user(self, text: str, **fields: Any) -> str:
        return self.message("user", [{"text": text}], **fields)

    def gemini(self, text: str = "", **fields: Any) -> str:
        plain: dict[str, Any] = {"thoughts": [], "tokens": None, "model": "gemini-2.5-pro"}
        return self.message("gemini", text, **plain | fields)

    def again(self, id_: str, **fields: Any) -> None:
        self.messages[id_] = self.messages[id_] | fields
        self.add(self.messages[id_])

    def calls(self, *calls: dict[str, Any], text: str = "") -> str:
        """Add an answer with tool calls, which the CLI writes down when they are done."""
        id_ = self.gemini(text)
        self.again(id_, toolCalls=list(calls))
        self.message("user", [part for call in calls for part in call.get("result") or []])
        return id_

    def checkpoint(self, *messages: Any) -> None:
        kept = [self.messages[m] if isinstance(m, str) else m for m in messages]
        self.add({"$set": {"messages": kept, "lastUpdated": "2026-11-30T14:00:00.000Z"}})

    def raw(self) -> bytes:
        return b"".join(json.dumps(r).encode() + b"\n" for r in self.records)

    def document(self) -> bytes:
        whole = {**self.metadata(), "messages": list(self.messages.values())}
        return json.dumps(whole, indent=2).encode()


def call(
    name: str, args: Any, output: Any = "done", *, status: str = "success", **fields: Any
) -> dict[str, Any]:
    kind = "output" if status == "success" else "error"
    id_ = fields.pop("id", f"{name}__{name}_1")
    response = {"id": id_, "name": name, "response": {kind: output}}
    return {
        "id": id_,
        "name": name,
        "args": args,
        "result": [{"functionResponse": response}],
        "status": status,
        "timestamp": "2026-11-30T13:59:00.000Z",
        **fields,
    }


def shell(output: str, command: str = "make", **fields: Any) -> dict[str, Any]:
    return call("run_shell_command", {"command": command}, output, **fields)


def untrusted(text: str) -> str:
    return f"<untrusted_context>\n{text}\n</untrusted_context>"


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / ".gemini/tmp/slugger/chats"
    folder.mkdir(parents=True)
    return folder / "session-2026-11-30T13-00-5d1c6e0a.jsonl"


Read = Callable[..., Transcript]


@pytest.fixture
def read(path: Path) -> Read:
    def read(source: Session | bytes) -> Transcript:
        path.write_bytes(source.raw() if isinstance(source, Session) else source)
        return read_settled(path)

    return read


def items(transcript: Transcript) -> list[Item]:
    return [e.item for e in transcript.events if isinstance(e, ItemRecorded)]


def of(transcript: Transcript, kind: type[T]) -> list[T]:
    return [x for x in (*transcript.events, *items(transcript)) if isinstance(x, kind)]


def said(transcript: Transcript) -> list[str]:
    return [i.text for i in items(transcript) if isinstance(i, UserMessage | AssistantMessage)]


def ends(transcript: Transcript) -> list[TurnStatus]:
    return [e.status for e in of(transcript, TurnEnded)]


def public(name: str) -> Path:
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"the public session {name} is not beside this repository")
    return path


# The recorded session


@pytest.fixture(scope="module")
def recorded() -> Transcript:
    return read_settled(RECORDED)


def test_the_recording_keeps_what_was_said_but_what_the_person_went_back_before(
    recorded: Transcript,
) -> None:
    assert said(recorded) == [
        "Make the slug check pass",
        "I will run the check first.",
        "The check passes now: slugs are lower case.",
        "Now wait for the slow job",
        "Waiting for it.",
        "What would you join words with?",
        "I would use hyphens instead.",
        "What does @slug.py do?",
        "It lowers the case of the text.",
        "What comes next?",
        "Next come accents.",
        "Do the accents too",
    ]


def test_the_recording_keeps_its_commands_with_exit_codes_and_own_output(
    recorded: Transcript,
) -> None:
    first, second, third = of(recorded, Command)
    assert (first.command, first.exit_code, first.status) == (
        "python3 check.py",
        1,
        ItemStatus.FAILED,
    )
    assert first.output.startswith("slug: Hello\nTraceback")
    assert first.output.endswith("AssertionError: Hello")
    assert (second.exit_code, second.output) == (0, "slug: hello")
    assert (third.command, third.exit_code) == ("sleep 30", None)
    assert third.status is ItemStatus.INTERRUPTED


def test_the_recording_keeps_its_file_changes_as_unified_diffs(recorded: Transcript) -> None:
    assert [(c.path, c.change, c.diff) for c in of(recorded, FileChange)] == [
        (
            "/srv/slugger/slug.py",
            FileChangeKind.UPDATE,
            (
                "--- /srv/slugger/slug.py\n+++ /srv/slugger/slug.py\n"
                "@@ -1,2 +1,2 @@\n def slug(text):\n"
                "-    return text.strip()\n+    return text.strip().lower()\n"
            ),
        ),
        (
            "/srv/slugger/NOTES.md",
            FileChangeKind.ADD,
            "--- /dev/null\n+++ /srv/slugger/NOTES.md\n@@ -0,0 +1,1 @@\n+Slugs are lower case.\n",
        ),
    ]


def test_the_recordings_turns_end_as_they_did(recorded: Transcript) -> None:
    completed = TurnStatus.COMPLETED
    assert ends(recorded) == [
        completed,
        TurnStatus.INTERRUPTED,
        completed,
        completed,
        completed,
        TurnStatus.LIMITED,
    ]
    assert len(of(recorded, TurnStarted)) == 6
    assert [i.message for i in of(recorded, Interruption)] == ["Request cancelled."]


def test_the_recording_ends_in_a_used_up_quota(recorded: Transcript) -> None:
    said_so = "You have exhausted your daily quota on this model."
    assert recorded.limit == Limit(kind=LimitKind.QUOTA, message=said_so)
    events = read_transcript(RECORDED).events
    assert isinstance(last := events[recorded.facts.limited_at - 1], TurnEnded)
    assert last.limit == recorded.limit
    assert of(recorded, Error) == []


def test_the_recording_tells_where_it_was_made_and_by_which_model(recorded: Transcript) -> None:
    started, conversation = recorded.events[:2]
    assert isinstance(started, ThreadStarted)
    assert started.cwd == recorded.facts.cwd == "/srv/slugger"
    assert isinstance(conversation, ConversationStarted)
    assert conversation.provider == "gemini-cli"
    assert recorded.facts.model == "gemini-2.5-pro"
    assert [m.model for m in of(recorded, ModelSelected)] == ["gemini-2.5-pro"]
    assert len(of(recorded, ConversationCompacted)) == 1
    assert recorded.facts.skipped == {}


@pytest.mark.parametrize("seed", range(3))
def test_the_recording_gives_the_same_events_wherever_reading_stops(path: Path, seed: int) -> None:
    raw = RECORDED.read_bytes()
    path.write_bytes(raw)
    (whole,) = AGENT.sessions(path)
    expected = in_one_go(whole)
    cuts = sorted(random.Random(seed).sample(range(len(raw)), 150))
    assert in_steps(AGENT, path, raw, cuts) == expected


def test_the_recording_gives_the_same_events_line_by_line(path: Path) -> None:
    raw = RECORDED.read_bytes()
    path.write_bytes(raw)
    (whole,) = AGENT.sessions(path)
    expected = in_one_go(whole)
    cuts = [n + 1 for n, byte in enumerate(raw) if byte == ord("\n")]
    assert in_steps(AGENT, path, raw, cuts) == expected


# Whose words


def test_a_request_and_its_answer_are_a_turn(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.gemini("Mended.")
    transcript = read(session)
    assert [type(e) for e in transcript.events] == [
        ThreadStarted,
        ConversationStarted,
        TurnStarted,
        ItemRecorded,
        ModelSelected,
        ItemRecorded,
        TurnEnded,
    ]
    request, answer = items(transcript)
    assert (request.item_id, answer.item_id, request.turn_id) == ("m1", "m2", "turn:m1")
    assert transcript.thread_id == f"gemini-cli:{SESSION}"
    assert transcript.events[3].time == datetime(2026, 11, 30, 13, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        CONTEXT,
        "/help",
        "?",
        "<hook_context>be brief</hook_context>",
        "Here is the user's editor context as a JSON object. This is for your information only.",
        "Here is a summary of changes in the user's editor context, in JSON format. Only.",
        "I ran the following shell command:\n```sh\nls\n```\n\nThis produced the following result:",
        "System: Potential loop detected. Details: Repetitive patterns identified.",
        "[System: You previously returned an empty response with no text or thoughts.]",
        "- **Workspace Directories:**\n  - /srv/slugger\n- **Directory Structure:**\n",
        "   ",
    ],
)
def test_what_the_cli_writes_in_the_persons_name_is_no_request(
    session: Session, read: Read, text: str
) -> None:
    session.user(text)
    session.user("Mend it.")
    assert said(read(session)) == ["Mend it."]


def test_what_a_tool_gave_the_model_is_no_request(session: Session, read: Read) -> None:
    session.user("Run it.")
    session.calls(shell("Output: ok"))
    session.gemini("It ran.")
    transcript = read(session)
    assert said(transcript) == ["Run it.", "It ran."]
    assert len(of(transcript, TurnStarted)) == 1


def test_a_push_to_go_on_is_no_request_but_a_persons_is(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.gemini("First half.")
    session.user("Please continue.", displayContent=[{"text": "Mend it."}])
    session.gemini("Second half.")
    session.user("Please continue.")
    transcript = read(session)
    assert said(transcript) == ["Mend it.", "First half.", "Second half.", "Please continue."]
    assert len(of(transcript, TurnStarted)) == 2


def test_a_request_is_what_the_person_typed_without_the_files_it_names(
    session: Session, read: Read
) -> None:
    referenced: list[dict[str, Any]] = [
        {"text": "Read @a.py and @b.png"},
        {"text": "\n--- Content from referenced files ---"},
        {"text": "\nContent from @a.py:\n"},
        {"text": "secret = 1"},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"text": "\n--- End of content ---"},
        {"text": "<hook_context>be brief</hook_context>"},
    ]
    shown = [{"text": "Read @a.py and @b.png"}]
    session.message("user", referenced, displayContent=shown)
    session.message("user", referenced)
    session.message("user", "".join(part.get("text", "") for part in referenced[:-1]))
    first, second, third = of(read(session), UserMessage)
    assert first.text == second.text == third.text == "Read @a.py and @b.png"
    image = Attachment(kind=AttachmentKind.IMAGE)
    assert (first.attachments, second.attachments, third.attachments) == ((image,), (image,), ())


def test_a_command_that_stands_for_a_prompt_is_the_prompt(session: Session, read: Read) -> None:
    session.user("Review the last commit.", displayContent=[{"text": "/review"}])
    assert said(read(session)) == ["Review the last commit."]


def test_a_file_alone_is_a_request(session: Session, read: Read) -> None:
    file = {"fileData": {"mimeType": "application/pdf", "fileUri": "x", "displayName": "a.pdf"}}
    session.message("user", [file])
    (request,) = of(read(session), UserMessage)
    assert request.attachments == (Attachment(kind=AttachmentKind.FILE, name="a.pdf"),)


def test_thoughts_are_reasoning(session: Session, read: Read) -> None:
    session.user("Mend it.")
    thoughts = [{"subject": "Plan", "description": "Look first."}, {"description": "Then mend."}]
    parts = [{"text": "**Plan** Look first.", "thought": True}, {"text": "Mended."}]
    session.message("gemini", parts, thoughts=thoughts)
    transcript = read(session)
    assert [r.text for r in of(transcript, Reasoning)] == ["Plan\nLook first.\n\nThen mend."]
    assert said(transcript) == ["Mend it.", "Mended."]


# Newer versions of a message


def test_a_newer_version_of_a_message_wins(session: Session, read: Read) -> None:
    id_ = session.user("Mend it.")
    answer = session.gemini("Mending")
    session.again(answer, content="Mended.")
    session.again(id_, content=[{"text": "Mend it, please."}])
    transcript = read(session)
    assert said(transcript) == ["Mend it, please.", "Mended."]
    assert len(of(transcript, TurnStarted)) == 1


def test_what_did_not_change_is_not_recorded_again(
    session: Session, path: Path, read: Read
) -> None:
    session.user("Run it.")
    answer = session.gemini("I run it.", tokens={"input": 10, "output": 2, "total": 12})
    session.again(answer, toolCalls=[shell("Output: ok")])
    session.again(answer)
    read(session)
    events = read_transcript(path).events
    assert [type(e.item) for e in events if isinstance(e, ItemRecorded)] == [
        UserMessage,
        AssistantMessage,
        Command,
    ]
    assert [e.used_tokens for e in events if isinstance(e, UsageReported)] == [12]


def test_a_running_call_is_recorded_again_with_its_result(
    session: Session, path: Path, read: Read
) -> None:
    session.user("Run it.")
    answer = session.gemini()
    running = {**shell(""), "status": "executing", "result": None}
    session.again(answer, toolCalls=[running])
    session.again(answer, toolCalls=[shell("Output: ok")])
    read(session)
    recorded = [e.item for e in read_transcript(path).events if isinstance(e, ItemRecorded)]
    assert [(i.item_id, i.status) for i in recorded[1:]] == [
        ("m2:run_shell_command__run_shell_command_1", ItemStatus.IN_PROGRESS),
        ("m2:run_shell_command__run_shell_command_1", ItemStatus.COMPLETED),
    ]


def test_a_message_of_an_earlier_turn_keeps_its_turn(session: Session, read: Read) -> None:
    session.user("one")
    first = session.gemini("first")
    session.user("two")
    session.again(first, content="first, mended", model="gemini-1.5-pro", tokens={"total": 9})
    transcript = read(session)
    assert transcript.facts.model == "gemini-2.5-pro"
    assert of(transcript, UsageReported) == []
    (answer,) = of(transcript, AssistantMessage)
    assert (answer.text, answer.turn_id) == ("first, mended", "turn:m1")
    assert ends(transcript) == [TurnStatus.COMPLETED]


def test_a_message_of_very_many_calls_keeps_the_cursor_small(path: Path, session: Session) -> None:
    session.user("Run them.")
    many = [shell("Output: ok", id=f"c{n}") for n in range(4 * ITEMS_KEPT)]
    session.again(session.gemini(), toolCalls=many)
    path.write_bytes(session.raw())
    (held,) = AGENT.sessions(path)
    assert max(len(step.cursor) for step in held.steps()) < 16 * 1024


# Tools


@pytest.mark.parametrize(
    ("result", "output", "exit_code", "status"),
    [
        ("Output: ok\nProcess Group PGID: 12", "ok", 0, ItemStatus.COMPLETED),
        (untrusted("Output: ok\nProcess Group PGID: 12"), "ok", 0, ItemStatus.COMPLETED),
        (untrusted("Output: no\nExit Code: 2"), "no", 2, ItemStatus.FAILED),
        ("Output: (empty)\nExit Code: 1\nProcess Group PGID: 12", "", 1, ItemStatus.FAILED),
        ("Output: gone\nSignal: 9\nProcess Group PGID: 12", "gone", None, ItemStatus.FAILED),
        (
            (
                "Command: make\nDirectory: (root)\nOutput: a\nb\nError: (none)\nExit Code: 3\n"
                "Signal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 7"
            ),
            "a\nb",
            3,
            ItemStatus.FAILED,
        ),
        (
            (
                "Command: make\nDirectory: sub\nStdout: a\nStderr: (empty)\nError: (none)\n"
                "Exit Code: 0\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 7"
            ),
            "a",
            0,
            ItemStatus.COMPLETED,
        ),
        (
            "Command moved to background (PID: 7). Output hidden.",
            "Command moved to background (PID: 7). Output hidden.",
            None,
            ItemStatus.COMPLETED,
        ),
        ("Output: ok\nExit Code: none of your business", "ok", None, ItemStatus.COMPLETED),
    ],
)
def test_a_shell_call_is_a_command_with_its_own_output(  # noqa: PLR0917
    session: Session,
    read: Read,
    result: str,
    output: str,
    exit_code: int | None,
    status: ItemStatus,
) -> None:
    session.user("Run it.")
    session.calls(shell(result))
    (command,) = of(read(session), Command)
    assert (command.output, command.exit_code, command.status) == (output, exit_code, status)


def test_a_line_of_the_output_that_looks_like_an_exit_code_is_output(
    session: Session, read: Read
) -> None:
    result = untrusted("Output: step\nExit Code: 3\nProcess Group PGID: 12")
    session.user("Run it.")
    session.calls(shell(result, resultDisplay="step\nExit Code: 3"))
    (command,) = of(read(session), Command)
    assert (command.output, command.exit_code) == ("step\nExit Code: 3", 0)


def test_a_command_knows_the_folder_it_ran_in(session: Session, read: Read) -> None:
    session.user("Run it.")
    args = {"command": "make", "dir_path": "sub"}
    session.calls(call("run_shell_command", args, "Output: ok"))
    assert [c.cwd for c in of(read(session), Command)] == ["sub"]


def test_a_cancelled_call_is_interrupted(session: Session, read: Read) -> None:
    session.user("Run it.")
    session.calls(shell("[Operation Cancelled] Reason: no", status="cancelled"))
    (command,) = of(read(session), Command)
    assert (command.status, command.exit_code) == (ItemStatus.INTERRUPTED, None)


@pytest.mark.parametrize(
    ("name", "display", "output", "change"),
    [
        ("write_file", {"isNewFile": True}, "Successfully", FileChangeKind.ADD),
        ("write_file", {}, "Successfully created and wrote", FileChangeKind.ADD),
        ("write_file", {"isNewFile": False}, "Successfully overwrote", FileChangeKind.UPDATE),
        ("replace", {}, "Created new file: /p/a with provided", FileChangeKind.ADD),
        ("replace", {}, "Successfully modified file: /p/a", FileChangeKind.UPDATE),
        ("save_memory", {"filePath": "/p/a"}, "Remembered", FileChangeKind.UPDATE),
    ],
)
def test_an_edit_is_a_file_change(  # noqa: PLR0917
    session: Session,
    read: Read,
    name: str,
    display: dict[str, Any],
    output: str,
    change: FileChangeKind,
) -> None:
    diff = "Index: a\n====\n--- a\tCurrent\n+++ a\tProposed\n@@ -1,1 +1,1 @@\n-a\n+b"
    args = {} if name == "save_memory" else {"file_path": "/p/a"}
    session.user("Edit it.")
    session.calls(call(name, args, output, resultDisplay={"fileDiff": diff, **display}))
    (edit,) = of(read(session), FileChange)
    source = "/dev/null" if change is FileChangeKind.ADD else "/p/a"
    assert (edit.path, edit.change) == ("/p/a", change)
    assert edit.diff == f"--- {source}\n+++ /p/a\n@@ -1,1 +1,1 @@\n-a\n+b\n"


def test_a_failed_edit_has_no_diff(session: Session, read: Read) -> None:
    session.user("Edit it.")
    session.calls(call("replace", {"file_path": "/p/a"}, "No match", status="error"))
    (edit,) = of(read(session), FileChange)
    assert (edit.status, edit.diff) == (ItemStatus.FAILED, None)


def test_a_to_do_list_is_a_plan(session: Session, read: Read) -> None:
    todos = [
        {"description": "Look", "status": "completed"},
        {"description": "Mend", "status": "in_progress"},
        {"description": "Test", "status": "pending"},
    ]
    session.user("Plan it.")
    session.calls(call("write_todos", {"todos": todos}))
    assert [p.text for p in of(read(session), Plan)] == ["[x] Look\n[~] Mend\n[ ] Test"]


def test_any_other_tool_is_a_tool_call(session: Session, read: Read) -> None:
    session.user("Look.")
    session.calls(
        call("glob", {"pattern": "*.py"}, "Found 1", id="c1"),
        call("mcp_find", {}, "not there", status="error", id="c2"),
        {**call("ask", {}, id="c3"), "result": None, "resultDisplay": "Shown"},
        {**call("odd", {}, id="c4"), "result": [{"functionResponse": {"response": {"n": 1}}}]},
        {**call("plain", {}, id="c5"), "result": "as text"},
        call("replace", {}, "no path", id="c6"),
        call("run_shell_command", {}, "no command", id="c7"),
    )
    calls = of(read(session), ToolCall)
    assert [(c.name, c.output) for c in calls] == [
        ("glob", "Found 1"),
        ("mcp_find", "not there"),
        ("ask", "Shown"),
        ("odd", '{"n":1}'),
        ("plain", "as text"),
        ("replace", "no path"),
        ("run_shell_command", "no command"),
    ]
    assert (calls[0].input, calls[1].status) == ('{"pattern":"*.py"}', ItemStatus.FAILED)


# Turns


def test_a_turn_goes_on_after_calls_until_there_is_an_answer(session: Session, read: Read) -> None:
    session.user("Run it.")
    session.calls(shell("Output: ok"), text="I run it.")
    assert ends(read(session)) == [
        TurnStatus.COMPLETED
    ]  # the answer before the calls is all it has
    session.gemini("It ran.")
    transcript = read(session)
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert isinstance(transcript.events[-1], TurnEnded)


def test_calls_without_an_answer_leave_the_turn_open(session: Session, read: Read) -> None:
    session.user("Run it.")
    session.calls(shell("Output: ok"))
    assert ends(read(session)) == []


def test_a_turn_that_the_next_request_finds_unfinished_was_interrupted(
    session: Session, read: Read
) -> None:
    session.user("Run it.")
    running = {**shell(""), "status": "executing", "result": None}
    session.again(session.gemini(), toolCalls=[running])
    session.user("Never mind.")
    transcript = read(session)
    assert ends(transcript) == [TurnStatus.INTERRUPTED]
    assert [c.status for c in of(transcript, Command)] == [ItemStatus.INTERRUPTED]


def test_calls_that_were_given_up_are_written_down_after_the_interruption(
    session: Session, read: Read
) -> None:
    session.user("Run it.")
    session.gemini("I run it.")
    session.message("info", "Request cancelled.")
    session.message("info", "Request cancelled.")
    given_up = shell("[Operation Cancelled] Reason: no", status="cancelled")
    session.again(session.gemini(), toolCalls=[given_up])
    transcript = read(session)
    assert ends(transcript) == [TurnStatus.INTERRUPTED]
    assert len(of(transcript, Interruption)) == 1
    assert [c.turn_id for c in of(transcript, Command)] == ["turn:m1"]


def test_an_answer_without_a_request_has_a_turn(session: Session, read: Read) -> None:
    session.gemini("Hello.")
    assert [type(e) for e in read(session).events[2:]] == [TurnStarted, ItemRecorded, TurnEnded]


def test_notices_and_notes_are_left_out(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.message("info", "Update available")
    session.message("warning", "Low on memory")
    session.message("info", [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}])
    session.gemini(tokens=None)
    thought = {"text": "Binary content received. Proceeding with analysis.", "thought": True}
    session.message("gemini", [thought])
    session.gemini("Mended.")
    transcript = read(session)
    assert said(transcript) == ["Mend it.", "Mended."]
    assert len(items(transcript)) == 2


def test_usage_is_what_the_context_holds_after_a_message(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.gemini("a", tokens={"input": 100, "output": 20, "cached": 50, "total": 125})
    session.gemini("b", tokens={"input": 130, "output": 20})
    session.gemini("c", tokens={"input": 0, "output": 0, "total": 0})
    assert [u.used_tokens for u in of(read(session), UsageReported)] == [125, 150]


def test_another_model_is_selected_when_it_answers(session: Session, read: Read) -> None:
    session.gemini("one")
    session.gemini("two")
    session.gemini("three", model="gemini-2.5-flash")
    transcript = read(session)
    (started,) = of(transcript, ConversationStarted)
    assert started.model == "gemini-2.5-pro"
    assert [m.model for m in of(transcript, ModelSelected)] == ["gemini-2.5-flash"]
    assert transcript.facts.model == "gemini-2.5-flash"


# Errors and limits


def test_an_error_ends_the_turn_as_failed(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.message("error", "[API Error: fetch failed]")
    transcript = read(session)
    assert ends(transcript) == [TurnStatus.FAILED]
    assert [e.message for e in of(transcript, Error)] == ["[API Error: fetch failed]"]
    assert transcript.limit is None


def test_a_used_up_quota_ends_the_turn_as_limited_until_there_is_an_answer(
    session: Session, read: Read
) -> None:
    session.user("Mend it.")
    session.message("error", DAILY)
    session.message("info", "This request failed. Press F12 for diagnostics.")
    limited = read(session)
    assert ends(limited) == [TurnStatus.LIMITED]
    assert limited.limit is not None
    assert limited.limit.kind is LimitKind.QUOTA
    assert limited.facts.limited_at == len(limited.events)
    session.user("And now?")
    session.gemini("Mended.")
    cleared = read(session)
    assert (cleared.limit, cleared.facts.limited_at) == (None, 0)
    assert ends(cleared) == [TurnStatus.LIMITED, TurnStatus.COMPLETED]


def test_a_throttle_fails_the_turn_and_is_no_stop(session: Session, read: Read) -> None:
    session.user("Mend it.")
    session.message(
        "error", "[API Error: Quota exceeded for quota metric 'x'\nSuggested retry after 34.07s.]"
    )
    transcript = read(session)
    (end,) = of(transcript, TurnEnded)
    assert end.status is TurnStatus.FAILED
    assert end.limit is not None
    assert (end.limit.kind, end.limit.retry_after) == (LimitKind.THROTTLE, 34.07)
    assert transcript.limit is None


def test_an_error_of_the_cli_between_turns_is_none_of_the_agents(
    session: Session, read: Read
) -> None:
    session.message("error", "Unknown command: /foo")
    session.user("Mend it.")
    session.gemini("Mended.")
    session.message("error", "Error refreshing memory: no")
    session.message("error", "")
    transcript = read(session)
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert of(transcript, Error) == []


def test_an_error_of_the_provider_counts_without_a_request(session: Session, read: Read) -> None:
    session.message("error", DAILY)
    session.user("And now?")
    transcript = read(session)
    assert [type(e) for e in transcript.events[2:4]] == [TurnStarted, TurnEnded]
    assert ends(transcript) == [TurnStatus.LIMITED]


NOW = datetime(2026, 11, 30, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("You have exhausted your daily quota on this model.", (LimitKind.QUOTA, None, None)),
        (
            "You have exhausted your capacity on this model. Your quota will reset after 142h40m7s.",
            (LimitKind.QUOTA, NOW + timedelta(hours=142, minutes=40, seconds=7), None),
        ),
        (
            (
                "You exceeded your current quota.\n* Quota exceeded for metric: x, limit: 0\n"
                "Please retry in 12s."
            ),
            (LimitKind.QUOTA, None, None),
        ),
        (
            "You exceeded your current quota, please check your plan. Please retry in 12.5s.",
            (LimitKind.THROTTLE, None, 12.5),
        ),
        (
            "You exceeded your current quota.\nSuggested retry after 1806s.",
            (LimitKind.QUOTA, NOW + timedelta(seconds=1806), None),
        ),
        (
            "Quota exceeded for quota metric 'Requests' and limit 'Requests per day per user'",
            (LimitKind.QUOTA, None, None),
        ),
        (
            "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'",
            (LimitKind.THROTTLE, None, None),
        ),
        ("Resource has been exhausted (e.g. check quota).", (LimitKind.THROTTLE, None, None)),
        ("Your prepayment credits are depleted.", (LimitKind.CREDITS, None, None)),
        ("The model is overloaded. Please try again.", (LimitKind.THROTTLE, None, None)),
        ("Anything. (Status: UNAVAILABLE)", (LimitKind.THROTTLE, None, None)),
        ("Who? (Status: UNAUTHENTICATED)", (LimitKind.AUTHENTICATION, None, None)),
        ("API key not valid. (Status: INVALID_ARGUMENT)", (LimitKind.AUTHENTICATION, None, None)),
        (
            "The input token count (1) exceeds the maximum number of tokens allowed (2).",
            (LimitKind.CONTEXT, None, None),
        ),
        ("The model said: You have exhausted your daily quota on this model.", None),
        ("Bad. (Status: INVALID_ARGUMENT)", None),
    ],
)
def test_a_limit_is_recognised_by_the_sentence_of_the_provider(
    read: Read, text: str, limit: tuple[LimitKind, datetime | None, float | None] | None
) -> None:
    session = Session()
    session.user("go")
    session.message(
        "error", f"[API Error: {text}]\nPlease wait and try again later.", timestamp=NOW.isoformat()
    )
    found = of(read(session), TurnEnded)[0].limit
    assert (found and (found.kind, found.resets_at, found.retry_after)) == limit
    assert found is None or found.message == text
    other = Session()
    other.user("go")
    other.message("error", text)
    assert of(read(other), TurnEnded)[0].limit is None  # not marked as the provider's


# Checkpoints


def test_a_checkpoint_takes_nothing_back_and_says_nothing_twice(
    session: Session, read: Read
) -> None:
    first = session.user("one")
    answer = session.gemini("first")
    session.user("two")
    session.gemini("second")
    session.checkpoint(first, {**session.messages[answer], "content": [{"text": "<masked>"}]})
    assert said(read(session)) == ["one", "first", "two", "second"]


def test_a_checkpoint_before_anything_was_said_is_the_conversation(
    session: Session, read: Read
) -> None:
    context = {"id": "c0", "timestamp": "2026-11-30T13:00:00.000Z", "type": "user"}
    one = {"id": "c1", "type": "user", "content": [{"text": "one"}]}
    two = {"id": "c2", "type": "gemini", "content": [{"text": "first"}]}
    session.checkpoint({**context, "content": [{"text": CONTEXT}]})
    session.checkpoint({**context, "content": [{"text": CONTEXT}]}, one, two)
    transcript = read(session)
    assert said(transcript) == ["one", "first"]
    assert transcript.facts.cwd == "/srv/slugger"


def test_a_request_that_failed_stays_though_the_cli_forgets_it(
    session: Session, read: Read
) -> None:
    first = session.user("one")
    answer = session.gemini("first")
    session.user("two")
    session.checkpoint(first, answer)
    transcript = read(session)
    assert said(transcript) == ["one", "first", "two"]
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.FAILED]


def summary(session: Session, *later: Any) -> None:
    snapshot = [{"text": "<state_snapshot>\nall\n</state_snapshot>"}]
    thanks = [{"text": "Got it. Thanks for the additional context!"}]
    session.checkpoint(
        {"id": "s1", "type": "user", "content": snapshot},
        {"id": "s2", "type": "gemini", "content": thanks},
        {"id": "s3", "type": "user", "content": [{"text": "two"}]},
        *later,
    )


def test_a_summary_in_a_checkpoint_is_a_compaction_once(session: Session, read: Read) -> None:
    session.user("one")
    session.gemini("first")
    session.user("two")
    summary(session)
    id_ = session.gemini("second")
    summary(session, id_)
    transcript = read(session)
    assert said(transcript) == ["one", "first", "two", "second"]
    assert len(of(transcript, ConversationCompacted)) == 1
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]


# Going back


def test_going_back_takes_back_the_message_and_all_after_it(session: Session, read: Read) -> None:
    session.user("one")
    session.gemini("first")
    two = session.user("two")
    session.gemini("second")
    session.add({"$rewindTo": two})
    session.user("three")
    session.gemini("third")
    transcript = read(session)
    assert said(transcript) == ["one", "first", "three", "third"]
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]
    assert [r.to for r in of(transcript, TurnsRolledBack)] == [7]


def test_going_back_into_a_turn_leaves_it_interrupted(session: Session, read: Read) -> None:
    session.user("one")
    session.calls(shell("Output: ok"))
    result = list(session.messages)[-1]
    session.gemini("first")
    session.add({"$rewindTo": result})
    session.user("two")
    transcript = read(session)
    assert said(transcript) == ["one", "two"]
    assert len(of(transcript, Command)) == 1
    assert ends(transcript) == [TurnStatus.INTERRUPTED]


def test_going_back_to_the_start_keeps_the_thread(session: Session, read: Read) -> None:
    one = session.user("one")
    session.gemini("first")
    session.add({"$rewindTo": one})
    session.user("two")
    transcript = read(session)
    assert said(transcript) == ["two"]
    assert [r.to for r in of(transcript, TurnsRolledBack)] == [2]


def test_going_back_before_anything_was_said_says_nothing(session: Session, read: Read) -> None:
    session.add({"$rewindTo": session.user("/help")})
    session.user("one")
    assert of(read(session), TurnsRolledBack) == []


def long_session() -> tuple[Session, int]:
    """A session that goes back further than a reader keeps, twice, and where it first does."""
    session = Session()
    ids = [session.user(f"request {n}") for n in range(MESSAGES_KEPT + 20)]
    before = len(session.raw())
    session.add({"$rewindTo": ids[2]})
    session.user("another")
    session.gemini("answer")
    return session, before


def test_going_back_far_has_the_session_read_anew(path: Path) -> None:
    session, before = long_session()
    raw = session.raw()
    path.write_bytes(raw)
    (held,) = AGENT.sessions(path)
    steps = list(held.steps())
    assert steps[-1].anew
    expected = settled(in_one_go(held))
    texts = [e.item.text for e in expected if isinstance(e, ItemRecorded)]  # type: ignore[union-attr]
    assert texts == ["request 0", "request 1", "another", "answer"]
    cuts = range(before - 300, len(raw), 7)
    assert settled(in_steps(AGENT, path, raw, cuts)) == expected


def test_going_back_to_what_is_not_there_takes_back_all(session: Session, read: Read) -> None:
    context = {"id": "c0", "type": "user", "content": [{"text": CONTEXT}]}
    session.checkpoint(context)
    session.user("one")
    session.add({"$rewindTo": "nowhere"})
    session.user("two")
    assert said(read(session)) == ["two"]


# The file


def test_the_older_document_gives_the_same_as_the_lines(session: Session, path: Path) -> None:
    session.user("Run it.")
    session.calls(shell("Output: ok"))
    session.gemini("It ran.", tokens={"input": 10, "output": 2, "total": 12})
    session.message("error", DAILY)
    document = path.with_suffix(".json")
    document.write_bytes(session.document())
    older = read_settled(document)
    path.write_bytes(session.raw())
    newer = read_settled(path)
    assert items(older) == items(newer)
    assert ends(older) == ends(newer) == [TurnStatus.LIMITED]
    assert older.facts == newer.facts
    assert older.thread_id == newer.thread_id


def test_a_document_is_read_again_when_it_changed(session: Session, path: Path) -> None:
    document = path.with_suffix(".json")
    session.user("one")
    document.write_bytes(session.document())
    (held,) = AGENT.sessions(document)
    assert isinstance(held, DocumentSession)
    (first,) = held.steps()
    assert list(held.steps(first.cursor)) == []
    session.gemini("first")
    document.write_bytes(session.document())
    (second,) = held.steps(first.cursor)
    assert second.anew
    assert len([e for e in second.events if isinstance(e, ItemRecorded)]) == 2


@pytest.mark.parametrize("other", [b"[]", b"{}", b'{"sessionId": "x", "projectHash": "y"}'])
def test_a_document_that_holds_another_session_now_is_not_read_on(
    session: Session, path: Path, other: bytes
) -> None:
    document = path.with_suffix(".json")
    session.user("one")
    document.write_bytes(session.document())
    (held,) = AGENT.sessions(document)
    document.write_bytes(other)
    with pytest.raises(OtherSessionError):
        list(held.steps())


def test_lines_in_a_file_named_as_a_document_are_read(session: Session, path: Path) -> None:
    session.user("one")
    session.gemini("first")
    document = path.with_suffix(".json")
    document.write_bytes(session.raw())
    assert said(read_settled(document)) == ["one", "first"]


def test_metadata_on_one_line_can_hold_the_messages(session: Session, read: Read) -> None:
    session.user("one")
    session.gemini("first")
    whole = json.dumps(json.loads(session.document())).encode() + b"\n"
    assert said(read(whole)) == ["one", "first"]


def test_a_subagents_session_is_none_of_a_person(session: Session, path: Path) -> None:
    session.user("Search for it.")
    for subagent in (path, path.with_suffix(".json")):
        subagent.write_bytes(json.dumps({**session.metadata(), "kind": "subagent"}).encode())
        assert list(AGENT.sessions(subagent)) == []


def test_sessions_are_found_where_the_cli_keeps_them(path: Path, tmp_path: Path) -> None:
    assert AGENT in AGENTS
    home = Path("/home/dev")
    assert AGENT.roots({}, home) == (home / ".gemini/tmp",)
    assert AGENT.roots({"GEMINI_CLI_HOME": "/srv"}, home) == (Path("/srv/.gemini/tmp"),)
    assert AGENT.holds_sessions(path)
    assert AGENT.holds_sessions(path.with_suffix(".json"))
    path.touch()
    assert not AGENT.holds_sessions(path.with_suffix(".json"))  # the CLI went on with lines
    assert not AGENT.holds_sessions(path.with_suffix(".jsonl.tmp-7"))
    assert not AGENT.holds_sessions(path.parent / SESSION / "explorer.jsonl")
    assert not AGENT.holds_sessions(path.parent / "explorer.jsonl")
    assert not AGENT.holds_sessions(tmp_path / ".gemini/tmp/slugger/logs/session-1.jsonl")


def test_the_public_session_is_read() -> None:
    transcript = read_settled(public("user-basic.jsonl"))
    assert said(transcript) == ["synthetic gemini user prompt", "synthetic gemini assistant reply"]
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert transcript.session_id == "a1b2c3d4-e5f6-7890-abcd-ef1234567890"


def test_a_corrupt_session_is_refused_with_the_agents_that_are_known() -> None:
    with pytest.raises(TranscriptError, match=r"not a session of a known agent \(.*Gemini CLI"):
        read_transcript(public("corrupt.jsonl"))


def test_broken_lines_and_unknown_records_are_counted(session: Session, read: Read) -> None:
    session.user("one")
    session.add([1])
    session.add({"hello": 1})
    session.add({"$set": 1})
    session.add({"id": "x", "type": "hologram", "content": "beam"})
    session.add({"id": "y", "content": "no type"})
    session.again(session.gemini("first"), toolCalls=[1, {"args": {}}])
    transcript = read(session.raw() + b"{not-json\n")
    assert said(transcript) == ["one", "first"]
    assert transcript.facts.skipped == {
        "broken line": 1,
        "malformed record": 3,
        "not a record": 1,
        "unknown message: hologram": 1,
        "unknown record": 2,
    }


def test_ids_that_the_wire_refuses_are_made_safe(session: Session, read: Read) -> None:
    session.message("user", "one", id="a b/ü")
    (item,) = items(read(session))
    assert (item.item_id, item.turn_id) == (safe_id("a b/ü"), safe_id("turn:a b/ü"))


def eventful() -> Session:
    session = Session()
    session.checkpoint({"id": "c0", "type": "user", "content": [{"text": CONTEXT}]})
    session.user("one", displayContent=[{"text": "shown"}])
    thoughts = [{"subject": "Plan", "description": "Look."}]
    id_ = session.gemini("first", thoughts=thoughts, tokens={"input": 1, "output": 1, "total": 2})
    diff = {"fileDiff": "@@ -1 +1 @@\n-a\n+b\n", "filePath": "/p/a", "isNewFile": True}
    session.again(
        id_,
        toolCalls=[
            shell(untrusted("Output: ok\nExit Code: 1"), resultDisplay="ok"),
            call("replace", {"file_path": "/p/a"}, resultDisplay=diff),
            call("write_todos", {"todos": [{"description": "a", "status": "pending"}]}),
        ],
    )
    two = session.user("two")
    session.add({"$rewindTo": two})
    session.user("three")
    session.message("info", "Request cancelled.")
    summary(session)
    session.user("four")
    session.message("error", DAILY)
    return session


def _damaged(value: Any) -> Iterator[Any]:
    """Yield copies of a document, each with one value replaced by one of another type."""
    yield from (None, 1, 1e400, "x", True, [], {}, ["x"], [{"text": 1}], {"a": [1]})
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in _damaged(inner))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in _damaged(inner))


def test_no_wrong_type_anywhere_is_fatal(read: Read) -> None:
    session = eventful()
    lines = session.raw().splitlines(keepends=True)
    for number, record in enumerate(session.records[1:], 1):
        for damaged in _damaged(record):
            changed = json.dumps(damaged).encode() + b"\n"
            transcript = read(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
            for event in transcript.events:
                codec.decode_event(codec.encode(event))


def test_a_session_gives_the_same_events_wherever_reading_stops(path: Path) -> None:
    raw = eventful().raw()
    path.write_bytes(raw)
    (whole,) = AGENT.sessions(path)
    expected = in_one_go(whole)
    for cut in range(len(raw)):
        assert in_steps(AGENT, path, raw, [cut]) == expected
