from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from helpers.settling import read_settled

from moonfold_handoff.limits.sentences import reset_time
from moonfold_handoff.transcripts import AGENTS, Transcript, TranscriptError, read_transcript
from moonfold_handoff.transcripts.base import safe_id
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
DEMO = ROOT / "worker/moonfold_handoff/demo/recorded-2.1-slugger-limit.jsonl"
RECORDED = ROOT / "tests/fixtures/claude-code"
PUBLIC = ROOT.parent / "shared/fixtures/transcripts/claude-code"
T = TypeVar("T")
KNOWN = ", ".join(agent.title for agent in AGENTS)
NO_SESSION = f"The file is not a session of a known agent ({KNOWN})."
NOTICE = "You've hit your session limit · resets 9:50pm (UTC)"


class Session:
    """Writes a session line by line; each record's parent is the one before it."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._last: str | None = None

    def add(self, type_: str, message: Any = None, **fields: Any) -> str:
        number = len(self.records) + 1
        record = {
            "type": type_,
            "uuid": f"r{number}",
            "parentUuid": self._last,
            "sessionId": "session-1",
            "cwd": "/home/dev/project",
            "version": "2.1.197",
            "timestamp": f"2026-11-30T13:{number // 60:02}:{number % 60:02}.000Z",
            **({} if message is None else {"message": message}),
            **fields,
        }
        self.records.append(record)
        self._last = record["uuid"]
        return str(self._last)

    def user(self, content: Any, **fields: Any) -> str:
        return self.add("user", {"role": "user", "content": content}, **fields)

    def assistant(
        self, *blocks: Any, id_: str | None = None, stop: str | None = "end_turn", **fields: Any
    ) -> str:
        message = {
            "id": id_ or f"msg-{len(self.records)}",
            "role": "assistant",
            "model": fields.pop("model", "claude-sonnet-4-5"),
            "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks],
            "stop_reason": stop,
            "usage": fields.pop("usage", {}),
        }
        return self.add("assistant", message, **fields)

    def call(self, call: str, name: str, input_: Any, **fields: Any) -> str:
        block = {"type": "tool_use", "id": call, "name": name, "input": input_}
        return self.assistant(block, **{"stop": "tool_use", **fields})

    def result(self, id_: str, content: Any, **fields: Any) -> str:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id_, "content": content}
        if fields.pop("is_error", False):
            block["is_error"] = True
        return self.user([block], **fields)

    def notice(self, text: str, **fields: Any) -> str:
        fields = {"isApiErrorMessage": True, "model": "<synthetic>", **fields}
        return self.assistant(text, stop="stop_sequence", **fields)

    def lines(self) -> list[bytes]:
        return [json.dumps(r).encode() + b"\n" for r in self.records]

    def read(self, **options: Any) -> Transcript:
        return read(self.lines(), **options)


def read(lines: list[bytes], **options: Any) -> Transcript:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.jsonl"
        path.write_bytes(b"".join(lines))
        return read_settled(path, **options)


@pytest.fixture
def session() -> Session:
    return Session()


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
def slugger() -> Transcript:
    return read_settled(DEMO)


def test_the_recording_keeps_every_request_in_order_and_to_the_byte(slugger: Transcript) -> None:
    assert [m.text for m in of(slugger, UserMessage)] == [
        (
            "Set up a small package slugger.py with a slugify function and a pytest file. "
            "Constraint for the whole task: no third-party dependency in slugger.py, "
            "and keep max_length as a keyword."
        ),
        "Fix the accents and the trailing dash first. Leave the cut for later.",
        (
            "What does the history of this directory look like? Initialise git if it is not a "
            'repository and commit with the message "slugify: fold accents".'
        ),
        "Now the cut at a word boundary.",
        (
            'Is slugify("") handled? Add a test and also one for emoji-only titles: "🎉🎉" must '
            "give an empty string."
        ),
        "Write a README section that documents max_length, then tag v0.1.0.",
    ]


def test_the_recording_keeps_every_answer_in_order_and_to_the_byte(slugger: Transcript) -> None:
    assert [m.text for m in of(slugger, AssistantMessage)] == [
        "I will write the module and its tests first.",
        (
            "The package is in place. Three of the four tests fail: accents are dropped instead of "
            "folded, a trailing dash stays, and the cut ignores word boundaries."
        ),
        (
            "Accents are folded with NFKD and dashes are stripped. Only test_cut_at_word is still "
            "failing, as you asked."
        ),
        (
            "The directory was not a repository. I initialised it and made one commit, "
            '"slugify: fold accents", with both files.'
        ),
        (
            "All four tests pass. When the slug is longer than max_length it is cut at the last "
            "dash that fits, and a single long word is cut hard."
        ),
        (
            "Both cases give an empty string without a change to slugify, and six tests pass. mypy "
            "is not installed here, so the type check did not run."
        ),
        "I will start with the README section.",
    ]


def test_the_recording_has_its_exit_codes(slugger: Transcript) -> None:
    commands = of(slugger, Command)
    # The first run of the tests fails, but goes through tail: the command itself succeeds.
    assert commands[0].command == "python3 -m pytest -q test_slugger.py 2>&1 | tail -40"
    assert "FAILURES" in commands[0].output
    assert [c.exit_code for c in commands] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert commands[6].command == "python3 -m mypy slugger.py"
    assert commands[6].status is ItemStatus.FAILED
    assert commands[6].output == "/home/dev: No module named mypy"
    assert {c.cwd for c in commands} == {"/home/dev/project"}


def test_the_recording_has_its_file_changes(slugger: Transcript) -> None:
    changes = of(slugger, FileChange)
    add, update = FileChangeKind.ADD, FileChangeKind.UPDATE
    assert [(Path(c.path).name, c.change) for c in changes] == [
        ("slugger.py", add),
        ("test_slugger.py", add),
        ("slugger.py", update),
        ("slugger.py", update),
    ]
    added = changes[0].diff or ""
    assert added.startswith(
        "--- /dev/null\n+++ /home/dev/project/slugger.py\n@@ -0,0 +1,9 @@\n+import re\n"
    )
    updated = (changes[2].diff or "").splitlines()
    assert updated[:3] == [
        "--- /home/dev/project/slugger.py",
        "+++ /home/dev/project/slugger.py",
        "@@ -4,6 +4,6 @@",
    ]
    assert "-    text = title.lower()" in updated


def test_the_recording_ends_at_the_limit_and_the_notice_is_no_answer(slugger: Transcript) -> None:
    assert slugger.limit is not None
    assert slugger.limit.kind is LimitKind.QUOTA
    assert slugger.limit.resets_at == datetime(2026, 11, 30, 21, 50, tzinfo=UTC)
    last = slugger.events[-1]
    assert isinstance(last, TurnEnded)
    assert (last.status, last.limit) == (TurnStatus.LIMITED, slugger.limit)
    assert ends(slugger)[:-1] == [TurnStatus.COMPLETED] * 5
    assert not any("session limit" in text for text in said(slugger))
    assert not of(slugger, Error)


def test_the_recording_begins_with_what_is_known_about_it(slugger: Transcript) -> None:
    thread, conversation = slugger.events[:2]
    assert isinstance(thread, ThreadStarted)
    assert thread.cwd == slugger.facts.cwd == "/home/dev/project"
    assert isinstance(conversation, ConversationStarted)
    assert conversation.conversation_id == slugger.session_id == slugger.conversation_id
    assert (conversation.provider, conversation.model) == ("claude-code", None)
    assert [e.model for e in of(slugger, ModelSelected)] == ["claude-sonnet-4-5"]
    assert slugger.thread_id == f"claude-code:{slugger.session_id}"
    assert slugger.facts.version == "2.1.197"
    assert slugger.facts.skipped == {}


def test_the_recording_reports_usage_once_a_message(slugger: Transcript) -> None:
    usage = [e.used_tokens for e in of(slugger, UsageReported)]
    assert len(usage) == 17
    assert usage[0] == 4 + 700 + 14_000 + 25
    assert usage[-1] == 4 + 700 + 28_400 + 25


@pytest.mark.parametrize(
    "path", [DEMO, *sorted(RECORDED.glob("*.jsonl"))], ids=lambda path: path.stem
)
def test_the_same_bytes_give_the_same_bytes_and_every_event_is_valid(path: Path) -> None:
    first, second = (
        [codec.encode(e) for e in read_transcript(path, zone=UTC).events] for _ in range(2)
    )
    assert first == second
    assert [codec.encode(codec.decode_event(raw)) for raw in first] == first


def test_a_429_without_a_clock_is_a_quota_without_a_reset() -> None:
    transcript = read_settled(RECORDED / "recorded-2.1-rate-limit.jsonl")
    assert transcript.limit is not None
    assert (transcript.limit.kind, transcript.limit.resets_at) == (LimitKind.QUOTA, None)
    assert [(c.exit_code, c.output) for c in of(transcript, Command)] == [(1, "hello")]


def test_the_stated_reset_wins_over_the_sentence() -> None:
    transcript = read_settled(RECORDED / "synthetic-limit-hit.jsonl")
    assert transcript.limit is not None
    assert transcript.limit.resets_at == datetime.fromtimestamp(1796062000, UTC)
    # A failure without a stated code is a failure with an unknown code.
    assert {(c.status, c.exit_code) for c in of(transcript, Command)} >= {(ItemStatus.FAILED, None)}


# Public sessions, where they are beside the repository


@pytest.mark.parametrize(
    "name",
    [
        "compaction-meta-records",
        "edge-cases",
        "edit-session",
        "fork-rollback-chain",
        "partial-final-line",
        "python-to-rust-port",
        "representative-messages",
        "stop-hook-reflection",
        "tool-use-result",
    ],
)
def test_public_sessions_give_valid_events_with_unique_items(name: str) -> None:
    transcript = read_settled(public(f"{name}.jsonl"))
    raw = [codec.encode(e) for e in transcript.events]
    assert [codec.encode(codec.decode_event(r)) for r in raw] == raw
    ids = [i.item_id for i in items(transcript)]
    assert ids
    assert len(ids) == len(set(ids))


def test_edge_cases_lose_no_real_message() -> None:
    transcript = read_settled(public("edge-cases.jsonl"))
    texts = [m.text for m in of(transcript, UserMessage)]
    assert [t.split()[0] for t in texts] == ["Here's", "Let's", "Testing"]
    assert "🎉 emojis 🚀" in texts[2]
    assert len(of(transcript, AssistantMessage)) == 2
    assert of(transcript, Plan)[0].text.startswith("[ ] broken_todo\n[~] Implement")
    assert transcript.facts.skipped == {
        "malformed record": 3,
        "not a record": 3,
        "record without a type": 1,
    }


def test_a_public_session_keeps_the_results_of_parallel_calls() -> None:
    transcript = read_settled(public("python-to-rust-port.jsonl"))
    assert not [i for i in items(transcript) if i.status is ItemStatus.IN_PROGRESS]
    assert len(of(transcript, Command)) == 16
    assert len(of(transcript, AssistantMessage)) == 16


# The branch


def test_an_abandoned_branch_is_left_out(session: Session) -> None:
    root = session.user("one")
    session.assistant("abandoned")
    session.user("abandoned too")
    session.assistant("chosen", parentUuid=root)
    assert said(session.read()) == ["one", "chosen"]


def test_a_rewind_to_the_first_message_drops_the_first_try(session: Session) -> None:
    session.user("first try")
    session.assistant("answer to it")
    session.user("second try", parentUuid=None)
    session.assistant("good")
    assert said(session.read()) == ["second try", "good"]


def test_a_child_may_come_before_its_parent(session: Session) -> None:
    session.user("question")
    session.assistant("answer")
    session.user("next")
    session.records.insert(0, session.records.pop(1))
    assert said(session.read()) == ["question", "answer", "next"]


def test_parallel_tool_calls_keep_all_their_results(session: Session) -> None:
    session.user("both")
    first = session.call("t1", "Bash", {"command": "a"}, id_="m")
    second = session.call("t2", "Bash", {"command": "b"}, id_="m")
    session.result("t1", "out a", parentUuid=first)
    session.result("t2", "out b", parentUuid=second)
    session.assistant("done")
    assert [c.output for c in of(session.read(), Command)] == ["out a", "out b"]


def test_a_file_that_ends_in_parallel_results_keeps_both_calls(session: Session) -> None:
    session.user("both")
    first = session.call("t1", "Bash", {"command": "a"}, id_="m")
    second = session.call("t2", "Bash", {"command": "b"}, id_="m")
    session.result("t2", "out b", parentUuid=second)
    session.result("t1", "out a", parentUuid=first)
    assert [c.output for c in of(session.read(), Command)] == ["out a", "out b"]


def test_a_lost_parent_in_the_middle_keeps_what_is_before_it(session: Session) -> None:
    session.user("one")
    session.assistant("answer one")
    session.user("lost")
    session.assistant("answer to the lost one")
    session.user("two")
    lines = session.lines()
    lines[2] = b'{"type":"user","uuid":"r3"\n'
    transcript = read(lines)
    assert said(transcript) == ["one", "answer one", "answer to the lost one", "two"]
    assert transcript.facts.skipped == {"broken line": 1}


def test_a_chain_may_pass_through_records_of_other_kinds(session: Session) -> None:
    session.user("one")
    session.add("progress", data={})
    session.add("shiny-new-record")
    session.assistant("answer")
    transcript = session.read()
    assert said(transcript) == ["one", "answer"]
    assert transcript.facts.skipped == {"unknown record: shiny-new-record": 1}


def test_records_without_links_are_read_in_file_order(session: Session) -> None:
    session.user("one", parentUuid=None)
    session.assistant("two", parentUuid=None)
    session.user("three", parentUuid=None)
    for record in session.records[1:]:
        del record["uuid"]
    assert said(session.read()) == ["one", "two", "three"]


def test_links_in_a_circle_end(session: Session) -> None:
    session.user("one", parentUuid="r2")
    session.assistant("two")
    assert said(session.read()) == ["one", "two"]


def test_a_record_written_twice_counts_once(session: Session) -> None:
    session.user("one")
    session.assistant("two")
    session.records.append(session.records[1])
    assert said(session.read()) == ["one", "two"]


def test_subagents_are_left_out(session: Session) -> None:
    session.user("one")
    parent = session.call("t1", "Task", {"prompt": "look"})
    session.user("look", isSidechain=True, parentUuid=None)
    session.assistant("found", isSidechain=True, usage={"input_tokens": 7})
    session.result("t1", "found it", parentUuid=parent)
    session.assistant("done")
    transcript = session.read()
    assert said(transcript) == ["one", "done"]
    assert of(transcript, ToolCall)[0].output == "found it"
    assert not of(transcript, UsageReported)


@pytest.mark.parametrize("metadata", [{"trigger": "auto", "postTokens": 900}, {}, None, "x"])
def test_history_before_a_compaction_is_kept(session: Session, metadata: Any) -> None:
    session.user("before")
    last = session.assistant("answered")
    session.add(
        "system",
        subtype="compact_boundary",
        parentUuid=None,
        logicalParentUuid=last,
        compactMetadata=metadata,
    )
    summary = "This session is being continued from a previous conversation that ran out of context"
    session.user(summary, isCompactSummary=True)
    session.user("after")
    session.assistant("done")
    transcript = session.read()
    assert said(transcript) == ["before", "answered", "after", "done"]
    compacted = of(transcript, ConversationCompacted)
    tokens = metadata.get("postTokens") if isinstance(metadata, dict) else None
    assert [e.used_tokens for e in compacted] == [tokens]
    assert transcript.facts.skipped == {}


def test_a_boundary_without_a_logical_parent_keeps_the_history_too(session: Session) -> None:
    session.user("before")
    session.assistant("answered")
    session.add("system", subtype="compact_boundary", parentUuid=None)
    session.user("after")
    assert said(session.read()) == ["before", "answered", "after"]


# The person's words


def test_several_text_blocks_are_one_message_and_files_are_attachments(session: Session) -> None:
    session.user(
        [
            {"type": "text", "text": "  look at this \n"},
            {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
            {"type": "document", "title": "plan.pdf", "source": {}},
            {"type": "text", "text": "<system-reminder>be kind</system-reminder>"},
            {"type": "text", "text": "and this"},
        ]
    )
    assert of(session.read(), UserMessage) == [
        UserMessage(
            item_id="r1",
            turn_id="turn:r1",
            text="  look at this \n\n\nand this",
            attachments=(
                Attachment(kind=AttachmentKind.IMAGE),
                Attachment(kind=AttachmentKind.FILE, name="plan.pdf"),
            ),
        )
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<command-name>/clear</command-name>",
        "<command-message>review</command-message>\n<command-name>/review</command-name>",
        "<local-command-stdout>ok</local-command-stdout>",
        "<system-reminder>be kind</system-reminder>",
        "<task-notification>\ndone\n</task-notification>\nRead the output",
        "<bash-input>ls</bash-input>",
        "Caveat: The messages below were generated by the user while running local commands.",
        "This session is being continued from a previous conversation that ran out of context.",
        " \n",
    ],
)
def test_the_harness_is_not_taken_for_the_person(session: Session, text: str) -> None:
    session.user(text)
    session.user([{"type": "text", "text": text}])
    session.user("real")
    transcript = session.read()
    assert said(transcript) == ["real"]
    assert transcript.facts.skipped == {}


def test_words_after_a_reminder_are_kept_as_they_are(session: Session) -> None:
    text = "<system-reminder>be kind</system-reminder>\nplease go on"
    session.user(text)
    assert said(session.read()) == [text]


@pytest.mark.parametrize("flag", ["isMeta", "isCompactSummary", "isVisibleInTranscriptOnly"])
def test_records_that_say_so_are_not_the_person_s(session: Session, flag: str) -> None:
    session.user("real")
    session.user("not real", **{flag: True})
    assert said(session.read()) == ["real"]


def test_a_message_typed_while_busy_belongs_to_the_turn(session: Session) -> None:
    session.user("one")
    session.call("t1", "Bash", {"command": "a"})
    session.result("t1", "out")
    queued = {"type": "queued_command", "prompt": "also two", "commandMode": "prompt"}
    session.add("attachment", attachment=queued)
    session.add("attachment", attachment={**queued, "commandMode": "task-notification"})
    session.add("attachment", attachment={"type": "skill_listing", "content": "x"})
    session.assistant("both done")
    transcript = session.read()
    assert said(transcript) == ["one", "also two", "both done"]
    assert {i.turn_id for i in items(transcript)} == {"turn:r1"}


def test_a_lone_surrogate_does_not_cost_the_line(session: Session) -> None:
    session.user("half \ud83c")
    assert said(session.read()) == ["half \ufffd"]


# Turns


def test_a_turn_goes_from_a_request_to_the_next_one(session: Session) -> None:
    session.user("one")
    session.assistant("hm", {"type": "thinking", "thinking": "so"}, "done")
    session.user("feedback of a hook", isMeta=True)
    session.assistant("done again")
    session.user("two")
    session.assistant("done too")
    transcript = session.read()
    assert [e.turn_id for e in of(transcript, TurnStarted)] == ["turn:r1", "turn:r5"]
    assert ends(transcript) == [TurnStatus.COMPLETED] * 2
    assert [i.item_id for i in items(transcript)][:4] == ["r1", "r2:0", "r2:1", "r2:2"]
    assert of(transcript, Reasoning)[0].text == "so"
    assert of(transcript, TurnEnded)[0].time == datetime(2026, 11, 30, 13, 0, 4, tzinfo=UTC)


def _no_answer(session: Session) -> None:
    session.user("one")


def _open_call(session: Session) -> None:
    session.user("one")
    session.call("t1", "Bash", {"command": "a"})


def _open_call_without_a_reason(session: Session) -> None:
    session.user("one")
    session.call("t1", "Bash", {"command": "a"}, stop=None)


def _unread_result(session: Session) -> None:
    session.user("one")
    session.call("t1", "Bash", {"command": "a"})
    session.result("t1", "out")


@pytest.mark.parametrize(
    "write", [_no_answer, _open_call, _open_call_without_a_reason, _unread_result]
)
def test_a_file_that_ends_in_a_turn_leaves_it_open(session: Session, write: Any) -> None:
    write(session)
    assert ends(session.read()) == []


def test_a_turn_that_never_ended_is_interrupted_by_the_next_request(session: Session) -> None:
    _open_call(session)
    session.user("two")
    session.assistant("done")
    transcript = session.read()
    assert ends(transcript) == [TurnStatus.INTERRUPTED, TurnStatus.COMPLETED]
    assert of(transcript, Command)[0].status is ItemStatus.INTERRUPTED


def test_old_files_without_stop_reasons_end_a_turn_on_a_text(session: Session) -> None:
    session.user("one")
    session.assistant("done", stop=None)
    assert ends(session.read()) == [TurnStatus.COMPLETED]


def test_an_interruption_marks_the_turn_and_what_it_cut(session: Session) -> None:
    session.user("one")
    session.assistant("I was say", stop=None)
    session.user([{"type": "text", "text": "[Request interrupted by user]"}])
    session.user("two")
    session.call("t1", "Bash", {"command": "sleep 60"})
    session.user("[Request interrupted by user for tool use]")
    transcript = session.read()
    assert ends(transcript) == [TurnStatus.INTERRUPTED] * 2
    assert of(transcript, AssistantMessage)[0].status is ItemStatus.INTERRUPTED
    command = of(transcript, Command)[0]
    assert (command.status, command.exit_code) == (ItemStatus.INTERRUPTED, None)
    assert [i.message for i in of(transcript, Interruption)] == [
        "[Request interrupted by user]",
        "[Request interrupted by user for tool use]",
    ]


def test_a_complete_answer_is_not_cut_by_a_later_interruption(session: Session) -> None:
    session.user("one")
    session.assistant("complete")
    session.user("[Request interrupted by user]")
    assert of(session.read(), AssistantMessage)[0].status is ItemStatus.COMPLETED


def test_work_without_a_request_gets_a_turn_of_its_own(session: Session) -> None:
    session.user("<command-name>/review</command-name>")
    session.assistant("reviewed")
    transcript = session.read()
    assert [e.turn_id for e in of(transcript, TurnStarted)] == ["turn:r2"]
    assert said(transcript) == ["reviewed"]


def test_times_are_utc_and_absent_where_they_cannot_be_read(session: Session) -> None:
    session.user("one", timestamp="2026-11-30T14:00:00+01:00")
    session.assistant("two", timestamp="yesterday")
    one, two = (e for e in session.read().events if isinstance(e, ItemRecorded))
    assert one.time == datetime(2026, 11, 30, 13, tzinfo=UTC)
    assert two.time is None


# Models and usage


def test_another_model_in_the_middle_is_selected(session: Session) -> None:
    session.user("one")
    session.assistant("a", model="claude-opus-4-5[1m]")
    session.notice("API Error: 500")
    session.user("two")
    session.assistant("b", model="claude-sonnet-4-5")
    transcript = session.read()
    assert [(e.model, e.capacity) for e in of(transcript, ModelSelected)] == [
        ("claude-opus-4-5[1m]", 1_000_000),
        ("claude-sonnet-4-5", None),
    ]
    assert transcript.facts.model == "claude-sonnet-4-5"


def test_a_session_that_begins_with_an_answer_begins_with_its_model(session: Session) -> None:
    session.assistant("a", model="claude-opus-4-5[1m]")
    transcript = session.read()
    started = of(transcript, ConversationStarted)[0]
    assert (started.model, started.capacity) == ("claude-opus-4-5[1m]", 1_000_000)
    assert not of(transcript, ModelSelected)


def test_a_message_on_several_lines_reports_each_usage_once(session: Session) -> None:
    session.user("one")
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
    }
    for text in ("a", "and"):
        session.assistant(text, id_="m", usage={**usage, "output_tokens": 1}, stop=None)
    session.call("t1", "Bash", {"command": "a"}, id_="m", usage={**usage, "output_tokens": 9})
    session.result("t1", "out")
    session.assistant("b", usage={"input_tokens": "many"})
    transcript = session.read()
    assert [(e.used_tokens, e.max_tokens) for e in of(transcript, UsageReported)] == [
        (3211, None),
        (3219, None),
    ]


# Tools


def one_item(session: Session, kind: type[T]) -> T:
    (item,) = of(session.read(), kind)
    return item


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ("out\n", {}, (ItemStatus.COMPLETED, 0, "out\n")),
        ("Exit code 2\nboom", {"is_error": True}, (ItemStatus.FAILED, 2, "boom")),
        ("Exit code 2\nboom", {}, (ItemStatus.COMPLETED, 0, "Exit code 2\nboom")),
        ("Exit code 127", {"is_error": True}, (ItemStatus.FAILED, 127, "")),
        ("no such tool", {"is_error": True}, (ItemStatus.FAILED, None, "no such tool")),
        (
            [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
            {},
            (ItemStatus.COMPLETED, 0, "a\nb"),
        ),
        (
            "",
            {"toolUseResult": {"stdout": "o", "stderr": "e"}},
            (ItemStatus.COMPLETED, 0, "o\ne"),
        ),
        (
            "seen",
            {"toolUseResult": {"stdout": "all of it", "stderr": ""}},
            (ItemStatus.COMPLETED, 0, "seen"),
        ),
        (
            "part",
            {"toolUseResult": {"stdout": "part", "interrupted": True}},
            (ItemStatus.INTERRUPTED, None, "part"),
        ),
        (
            "The user doesn't want to proceed with this tool use. Rejected.",
            {"is_error": True},
            (
                ItemStatus.INTERRUPTED,
                None,
                "The user doesn't want to proceed with this tool use. Rejected.",
            ),
        ),
        (
            "",
            {"toolUseResult": {"stdout": "", "returnCodeInterpretation": "No matches found"}},
            (ItemStatus.COMPLETED, None, ""),
        ),
        (
            "Command running in background with ID: b1",
            {"toolUseResult": {"backgroundTaskId": "b1"}},
            (ItemStatus.COMPLETED, None, "Command running in background with ID: b1"),
        ),
    ],
)
def test_a_command_has_its_outcome(
    session: Session, content: Any, fields: Any, expected: tuple[ItemStatus, int | None, str]
) -> None:
    session.user("run")
    session.call("t1", "Bash", {"command": "make"})
    session.result("t1", content, **fields)
    command = one_item(session, Command)
    assert (command.command, command.cwd) == ("make", "/home/dev/project")
    assert (command.status, command.exit_code, command.output) == expected


def test_a_command_without_a_result_is_in_progress(session: Session) -> None:
    _open_call(session)
    command = one_item(session, Command)
    assert (command.status, command.exit_code) == (ItemStatus.IN_PROGRESS, None)


@pytest.mark.parametrize(
    ("tool", "input_", "fields", "change", "diff"),
    [
        (
            "Edit",
            {"file_path": "/p/a.py", "old_string": "x = 1", "new_string": "x = 2"},
            {},
            FileChangeKind.UPDATE,
            "--- /p/a.py\n+++ /p/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        ),
        (
            "Edit",
            {"file_path": "/p/a.py", "old_string": "x = 1", "new_string": "x = 2"},
            {
                "toolUseResult": {
                    "structuredPatch": [
                        {
                            "oldStart": 7,
                            "oldLines": 2,
                            "newStart": 7,
                            "newLines": 2,
                            "lines": [" y", "-x = 1", "+x = 2", 3],
                        },
                        "not a hunk",
                    ]
                }
            },
            FileChangeKind.UPDATE,
            "--- /p/a.py\n+++ /p/a.py\n@@ -7,2 +7,2 @@\n y\n-x = 1\n+x = 2\n",
        ),
        (
            "MultiEdit",
            {
                "file_path": "/p/a.py",
                "edits": [
                    {"old_string": "a", "new_string": "b"},
                    "broken",
                    {"old_string": "c", "new_string": "d"},
                ],
            },
            {},
            FileChangeKind.UPDATE,
            "--- /p/a.py\n+++ /p/a.py\n@@ -1 +1 @@\n-a\n+b\n@@ -1 +1 @@\n-c\n+d\n",
        ),
        (
            "Write",
            {"file_path": "/p/a.py", "content": "a\nb\n"},
            {"toolUseResult": {"type": "create", "structuredPatch": []}},
            FileChangeKind.ADD,
            "--- /dev/null\n+++ /p/a.py\n@@ -0,0 +1,2 @@\n+a\n+b\n",
        ),
        (
            "Write",
            {"file_path": "/p/a.py", "content": "b"},
            {"toolUseResult": {"type": "update", "originalFile": "a"}},
            FileChangeKind.UPDATE,
            "--- /p/a.py\n+++ /p/a.py\n@@ -1 +1 @@\n-a\n+b\n",
        ),
        (
            "NotebookEdit",
            {"notebook_path": "/p/a.ipynb", "new_source": "1 + 1"},
            {},
            FileChangeKind.UPDATE,
            "--- /p/a.ipynb\n+++ /p/a.ipynb\n@@ -0,0 +1,1 @@\n+1 + 1\n",
        ),
        ("Write", {"file_path": "/p/a.py"}, {}, FileChangeKind.UPDATE, None),
    ],
)
def test_a_file_change_has_a_diff(
    session: Session,
    *,
    tool: str,
    input_: Any,
    fields: Any,
    change: FileChangeKind,
    diff: str | None,
) -> None:
    session.user("edit")
    session.call("t1", tool, input_)
    session.result("t1", "The file has been updated.", **fields)
    item = one_item(session, FileChange)
    assert (item.change, item.diff, item.status) == (change, diff, ItemStatus.COMPLETED)


def test_a_failed_file_change_is_kept_as_failed(session: Session) -> None:
    session.user("edit")
    session.call("t1", "Edit", {"file_path": "/p/a", "old_string": "a", "new_string": "b"})
    session.result("t1", "<tool_use_error>String not found</tool_use_error>", is_error=True)
    item = one_item(session, FileChange)
    assert item.status is ItemStatus.FAILED
    assert item.diff is not None


def test_plans_and_to_do_lists_are_text(session: Session) -> None:
    session.user("plan")
    session.call("t1", "ExitPlanMode", {"plan": "1. do it"})
    session.result("t1", "approved")
    todos = [
        {"content": "a", "status": "completed"},
        {"content": "b", "status": "in_progress"},
        {"content": "c", "status": "pending"},
        {"status": "pending"},
        {"content": "d", "status": ["odd"]},
        "e",
        7,
    ]
    session.call("t2", "TodoWrite", {"todos": todos})
    session.result("t2", "ok")
    assert [p.text for p in of(session.read(), Plan)] == [
        "1. do it",
        "[x] a\n[~] b\n[ ] c\n[ ] d\n[ ] e",
    ]


def test_every_other_tool_is_a_tool_call(session: Session) -> None:
    session.user("look")
    session.call("t1", "Grep", {"pattern": "é"})
    session.result("t1", "No files", is_error=True)
    session.call("t2", "Bash", {"command": ["not", "text"]})
    session.call("t3", "Edit", "not an object")
    grep, bash, edit = of(session.read(), ToolCall)
    assert (grep.name, grep.input, grep.output) == ("Grep", '{"pattern":"é"}', "No files")
    assert grep.status is ItemStatus.FAILED
    assert (bash.name, edit.input) == ("Bash", '"not an object"')


def test_a_tool_call_may_hold_a_number_of_any_size(session: Session) -> None:
    session.user("count")
    session.call("t1", "Count", {"to": 2**70})
    assert one_item(session, ToolCall).input == f'{{"to":{2**70}}}'


# Limits and errors

QUOTA, CREDITS = LimitKind.QUOTA, LimitKind.CREDITS
LIMITED, FAILED = TurnStatus.LIMITED, TurnStatus.FAILED


@pytest.mark.parametrize(
    ("text", "fields", "kind", "status"),
    [
        (NOTICE, {"error": "rate_limit", "apiErrorStatus": 429}, QUOTA, LIMITED),
        ("Something new", {"error": "rate_limit"}, QUOTA, LIMITED),
        ("Something new", {"apiErrorStatus": 429}, QUOTA, LIMITED),
        (NOTICE, {}, QUOTA, LIMITED),
        ("Claude AI usage limit reached|1760000400", {}, QUOTA, LIMITED),
        ("5-hour limit reached ∙ resets 3am", {}, QUOTA, LIMITED),
        ("You\u2019ve hit your Opus limit · resets 3am", {}, QUOTA, LIMITED),
        ("You're out of extra usage · resets 1pm (UTC)", {"error": "rate_limit"}, QUOTA, LIMITED),
        ("Usage credits are required for this model.", {"apiErrorStatus": 429}, CREDITS, LIMITED),
        ("You're out of credits", {"error": "rate_limit"}, CREDITS, LIMITED),
        ("Credit balance is too low", {"error": "billing_error"}, CREDITS, LIMITED),
        ("Credit balance is too low", {}, CREDITS, LIMITED),
        (
            "API Error: Server is temporarily limiting requests (not your usage limit)",
            {"error": "rate_limit", "apiErrorStatus": 429},
            LimitKind.THROTTLE,
            FAILED,
        ),
        ("API Error: 529 Overloaded", {"error": "overloaded"}, LimitKind.THROTTLE, FAILED),
        ("API Error: 529 Overloaded", {}, LimitKind.THROTTLE, FAILED),
        ("Overloaded", {"apiErrorStatus": 529}, LimitKind.THROTTLE, FAILED),
        (
            "Please run /login · API Error: 401",
            {"error": "authentication_failed", "apiErrorStatus": 401},
            LimitKind.AUTHENTICATION,
            FAILED,
        ),
        ("API Error: 403", {"apiErrorStatus": 403}, LimitKind.AUTHENTICATION, FAILED),
        ("Prompt is too long", {"error": "invalid_request"}, LimitKind.CONTEXT, FAILED),
    ],
)
def test_a_notice_ends_the_turn_with_its_limit(
    session: Session, text: str, fields: Any, kind: LimitKind, status: TurnStatus
) -> None:
    session.user("go")
    session.notice(text, **fields)
    transcript = session.read(zone=UTC)
    (end,) = of(transcript, TurnEnded)
    assert end.limit is not None
    assert (end.status, end.limit.kind, end.limit.message) == (status, kind, text)
    assert transcript.limit == (end.limit if status is LIMITED else None)
    assert said(transcript) == ["go"]
    assert not of(transcript, Error)


@pytest.mark.parametrize(
    "fields",
    [{"error": "server_error", "apiErrorStatus": 500}, {}, {"isApiErrorMessage": False}],
)
def test_any_other_api_error_is_an_error_item(session: Session, fields: Any) -> None:
    session.user("go")
    session.notice("API Error: 500 Internal server error", **fields)
    transcript = session.read()
    assert ends(transcript) == [FAILED]
    assert [e.message for e in of(transcript, Error)] == ["API Error: 500 Internal server error"]
    assert said(transcript) == ["go"]


def test_a_synthetic_notice_that_is_no_error_says_nothing(session: Session) -> None:
    session.user("go")
    session.assistant("No response requested.", model="<synthetic>")
    assert said(session.read()) == ["go"]


def test_a_normal_answer_clears_the_limit(session: Session) -> None:
    session.user("go")
    session.notice(NOTICE, error="rate_limit")
    session.user("go on")
    waiting = session.read()
    assert waiting.limit is not None
    assert ends(waiting) == [LIMITED]
    session.assistant("going on")
    assert session.read().limit is None


def test_prose_output_and_retries_are_never_limits(session: Session) -> None:
    session.user(NOTICE)
    session.call("t1", "Bash", {"command": "cat notes"})
    session.result("t1", NOTICE)
    session.add("system", subtype="api_error", error={"status": 429}, retryInMs=500)
    session.assistant(NOTICE)
    transcript = session.read()
    assert transcript.limit is None
    assert said(transcript) == [NOTICE, NOTICE]
    assert ends(transcript) == [TurnStatus.COMPLETED]


NOW = datetime(2026, 11, 30, 13, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Claude AI usage limit reached|1760000400", "2025-10-09T09:00:00Z"),
        ("You've hit your session limit · resets 9:50pm (Asia/Saigon)", "2026-11-30T14:50:00Z"),
        ("You've hit your session limit · resets 7pm (Asia/Saigon)", "2026-12-01T12:00:00Z"),
        ("Your limit will reset at 5pm (Europe/Warsaw).", "2026-11-30T16:00:00Z"),
        ("5-hour limit reached ∙ resets 3am", "2026-12-01T01:00:00Z"),
        ("resets at 12am (UTC)", "2026-12-01T00:00:00Z"),
        ("resets 12PM (UTC)", "2026-12-01T12:00:00Z"),
        ("resets Dec 12, 8am (Europe/Paris)", "2026-12-12T07:00:00Z"),
        ("resets Oct 12, 8am (Europe/Paris)", "2026-10-12T06:00:00Z"),
        ("resets Jan 2, 8am (Europe/Paris)", "2027-01-02T07:00:00Z"),
        ("resets Jan 2, 2027, 8:30am (UTC)", "2027-01-02T08:30:00Z"),
        # The sentence has no seconds: this minute, a moment later, is not tomorrow.
        ("resets 1:44pm (UTC)", "2026-11-30T13:44:00Z"),
        ("resets 3am (Nowhere/Land)", None),
        ("resets 3am (../../etc/passwd)", None),
        ("resets Feb 31, 8am (UTC)", None),
        ("resets 15pm (UTC)", None),
        ("resets soon", None),
    ],
)
def test_a_reset_time_is_read_from_the_sentence(sentence: str, expected: str | None) -> None:
    zone = timezone(timedelta(hours=2))
    at = datetime.fromisoformat(expected) if expected else None
    assert reset_time(sentence, NOW, zone) == at


def test_a_clock_without_a_date_says_nothing() -> None:
    assert reset_time("resets 3am (UTC)", None, UTC) is None


# Damage


def test_lines_that_are_no_records_are_counted(session: Session) -> None:
    session.user("one")
    session.add("file-history-snapshot")
    lines = [*session.lines(), b"42\n", b"\n", b"{oops\n", b"\xff\n", b'{"a":1}\n', b'{"type":']
    transcript = read(lines)
    assert said(transcript) == ["one"]
    assert transcript.facts.skipped == {
        "broken line": 2,
        "not a record": 1,
        "partial last line": 1,
        "record without a type": 1,
    }


def test_a_last_line_without_a_newline_counts_if_it_is_complete(session: Session) -> None:
    session.user("one")
    session.assistant("two")
    lines = session.lines()
    assert said(read([lines[0], lines[1].rstrip()])) == ["one", "two"]


def test_a_malformed_record_is_counted_and_its_good_blocks_are_kept(session: Session) -> None:
    session.user(["text", {"type": "text", "text": "good"}, {"type": "text", "text": 3}])
    session.add("user", "a string")
    session.user(None)
    session.assistant({"type": "hologram"}, "answer")
    transcript = session.read()
    assert said(transcript) == ["good", "answer"]
    assert transcript.facts.skipped == {"malformed record": 3, "unknown block: hologram": 1}


def _damaged(value: Any) -> Iterator[Any]:
    """Yield copies of a document, each with one value replaced by one of another type."""
    yield from (None, 1, 1e400, "x", True, [], {}, ["x"], [{"type": "text"}], {"a": [1]})
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in _damaged(inner))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in _damaged(inner))


def test_no_wrong_type_anywhere_is_fatal(session: Session) -> None:
    session.user("one")
    session.call("t1", "Write", {"file_path": "/p/a", "content": "a"}, usage={"input_tokens": 1})
    patch = [{"oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1, "lines": ["+a"]}]
    details = {"type": "update", "structuredPatch": patch, "originalFile": "b"}
    session.result("t1", [{"type": "text", "text": "ok"}], toolUseResult=details)
    session.call("t2", "MultiEdit", {"file_path": "/p/a", "edits": [{"old_string": "a"}]})
    session.call("t3", "TodoWrite", {"todos": [{"content": "a", "status": "pending"}]})
    session.add("attachment", attachment={"type": "queued_command", "prompt": "two"})
    session.add("system", subtype="compact_boundary", compactMetadata={"postTokens": 3})
    quota = {"status": "rejected", "resetsAt": 1796062000}
    session.notice(NOTICE, error="rate_limit", apiErrorStatus=429, quotaLimits=quota)
    lines = session.lines()
    for number, record in enumerate(session.records):
        for damaged in _damaged(record):
            changed = json.dumps(damaged).encode() + b"\n"
            transcript = read([*lines[:number], changed, *lines[number + 1 :]])
            for event in transcript.events:
                codec.decode_event(codec.encode(event))


def test_ids_that_the_wire_refuses_are_made_safe(session: Session) -> None:
    session.user("one", uuid="a b/ü", sessionId="my session")
    transcript = session.read()
    (item,) = items(transcript)
    assert item.item_id == safe_id("a b/ü")
    assert item.item_id.startswith("a-b---")
    assert transcript.session_id == "my session"
    assert transcript.conversation_id == safe_id("my session")
    assert transcript.thread_id.startswith("claude-code:my-session-")
    assert safe_id("a b") != safe_id("a/b")
    assert len(safe_id("x" * 500)) == 200
    assert safe_id("already-safe_1:2.3") == "already-safe_1:2.3"


def test_two_records_of_one_id_stay_two_items(session: Session) -> None:
    session.user("one", uuid="same", parentUuid=None)
    session.assistant("two", uuid="same", parentUuid=None)
    assert [i.item_id for i in items(session.read())] == ["same", "same:again-1"]


# Files


def test_a_file_names_the_session_where_its_records_do_not(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    path.write_text('{"type":"user","message":{"role":"user","content":"hello"}}\n')
    transcript = read_transcript(path)
    assert (transcript.session_id, transcript.thread_id) == ("abc", "claude-code:abc")
    assert said(transcript) == ["hello"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The session file is empty."),
        (b"\n\n", "The session file is empty."),
        (b"secret words\n", NO_SESSION),
        (
            b'{"type":[],"role":{},"content":"secret"}\n',
            NO_SESSION,
        ),
        (
            b'{"type":"user","isSidechain":true,"message":{"content":"secret"}}\n',
            "The session file has no conversation.",
        ),
    ],
)
def test_a_file_without_a_conversation_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    with pytest.raises(TranscriptError) as caught:
        read_transcript(path)
    assert str(caught.value) == message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="Cannot read the session file: No such file"):
        read_transcript(tmp_path / "missing.jsonl")


def test_records_without_a_conversation_are_refused() -> None:
    with pytest.raises(TranscriptError, match="not a session of a known agent"):
        read([b'{"type":"mode","mode":"normal"}\n'])
