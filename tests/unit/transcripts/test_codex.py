from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest
from helpers.rollouts import (
    EXITED,
    LATER,
    LATEST,
    NOON,
    PATCH,
    RECORDED,
    RUNNING,
    SENTENCE,
    USAGE_LIMIT,
    Rollout,
    ends,
    items,
    of,
    public,
    read,
    said,
    window,
    write_everything,
)
from helpers.settling import read_settled, settle

from moonfold_handoff.limits import Evidence, recognise
from moonfold_handoff.transcripts import Transcript, TranscriptError, read_transcript
from moonfold_schemas import codec
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    ItemRecorded,
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
    Attachment,
    AttachmentKind,
    Command,
    Error,
    FileChange,
    FileChangeKind,
    Interruption,
    ItemStatus,
    Plan,
    Reasoning,
    ToolCall,
    UserMessage,
)


@pytest.fixture
def rollout() -> Rollout:
    made = Rollout()
    made.meta()
    return made


def kinds(transcript: Transcript) -> Counter[str]:
    return Counter(type(item).__name__ for item in items(transcript))


# Recorded sessions


@pytest.fixture(scope="module")
def limited() -> Transcript:
    return read_settled(RECORDED / "rollout-0.171-usage-limit.jsonl", zone=UTC)


@pytest.fixture(scope="module")
def patched() -> Transcript:
    return read_settled(RECORDED / "rollout-0.171-patch-interrupt.jsonl", zone=UTC)


def test_the_recording_keeps_every_request_to_the_byte(limited: Transcript) -> None:
    assert [m.text for m in of(limited, UserMessage)] == [
        "MODE-WORK Please fix the failing test",
        "INJECTED user message from other agent",
        "continue please",
        "MODE-429 hit the limit",
    ]


def test_the_recording_has_each_item_once(limited: Transcript) -> None:
    assert kinds(limited) == {
        "UserMessage": 4,
        "AssistantMessage": 4,
        "Command": 2,
        "FileChange": 1,
        "Plan": 1,
        "Reasoning": 1,
        "ToolCall": 1,
    }
    assert [(c.command, c.exit_code, c.output) for c in of(limited, Command)] == [
        ("echo test_a FAILED; echo oops >&2; exit 3", 3, "test_a FAILED\noops\n"),
        (
            "python3 hello.py",
            2,
            (
                "python3: can't open file '/home/dev/project/hello.py': "
                "[Errno 2] No such file or directory\n"
            ),
        ),
    ]
    assert [p.text for p in of(limited, Plan)] == ["[x] run tests\n[~] fix bug"]
    assert limited.facts.skipped == {}


def test_the_recording_reports_usage_and_capacity(limited: Transcript) -> None:
    usage = of(limited, UsageReported)
    assert [u.used_tokens for u in usage] == [5320, 5480, 5660, 5850, 5850]
    assert {u.max_tokens for u in usage} == {258_400}
    assert of(limited, ConversationStarted)[0].capacity == 258_400


def test_the_recording_ends_at_the_limit(limited: Transcript) -> None:
    assert limited.limit is not None
    assert limited.limit.kind is LimitKind.QUOTA
    assert limited.limit.resets_at == datetime(2026, 11, 30, 17, 11, tzinfo=UTC)
    assert limited.limit.message == SENTENCE
    last = limited.events[-1]
    assert isinstance(last, TurnEnded)
    assert (last.status, last.limit) == (TurnStatus.LIMITED, limited.limit)
    assert not of(limited, Error)


def test_the_other_recording_ends_at_its_limit_too() -> None:
    transcript = read_settled(RECORDED / "recorded-0.171-usage-limit.jsonl", zone=UTC)
    assert said(transcript) == [
        "Run the tests please",
        "The command failed with exit code 1.",
        "Now fix it",
    ]
    assert transcript.limit is not None
    assert transcript.limit.resets_at == datetime(2026, 11, 30, 17, 33, tzinfo=UTC)
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.LIMITED]


def test_the_recording_says_whose_it_is(patched: Transcript) -> None:
    thread, conversation = patched.events[:2]
    assert isinstance(thread, ThreadStarted)
    assert thread.cwd == patched.facts.cwd == "/home/dev/project"
    assert isinstance(conversation, ConversationStarted)
    assert (conversation.provider, conversation.model) == ("codex", "gpt-5.3-codex")
    assert conversation.conversation_id == patched.session_id == patched.conversation_id
    assert patched.session_id == "01a22c9e-9139-7450-9f6b-c2c3ee7df57b"
    assert patched.thread_id == f"codex:{patched.session_id}"
    assert patched.facts.version == "0.171.0"


def test_the_recording_has_its_patches(patched: Transcript) -> None:
    assert [(c.path, c.change, c.status, c.diff) for c in of(patched, FileChange)] == [
        (
            "/home/dev/project/hello2.py",
            FileChangeKind.ADD,
            ItemStatus.COMPLETED,
            "--- /dev/null\n+++ /home/dev/project/hello2.py\n@@ -0,0 +1,1 @@\n+print('hello')\n",
        ),
        (
            "/home/dev/project/hello3.py",
            FileChangeKind.ADD,
            ItemStatus.FAILED,
            "--- /dev/null\n+++ /home/dev/project/hello3.py\n@@ -0,0 +1,1 @@\n+print('hello3')\n",
        ),
    ]


def test_the_recording_has_its_interruption(patched: Transcript) -> None:
    assert len(of(patched, Interruption)) == 1
    assert ends(patched) == [
        TurnStatus.COMPLETED,
        TurnStatus.COMPLETED,
        TurnStatus.INTERRUPTED,
        TurnStatus.COMPLETED,
    ]
    (command,) = of(patched, Command)
    assert (command.command, command.status) == ("sleep 30", ItemStatus.INTERRUPTED)
    assert (command.exit_code, command.output) == (None, "")
    assert patched.limit is None
    assert patched.facts.skipped == {"output without a call": 1}


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_same_bytes_give_the_same_bytes_and_every_event_is_valid(path: Path) -> None:
    first, second = (
        [codec.encode(e) for e in read_transcript(path, zone=UTC).events] for _ in range(2)
    )
    assert first == second
    assert [codec.encode(codec.decode_event(raw)) for raw in first] == first


# Public sessions, where they are beside the repository


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "rollout-0.40-a",
            {"UserMessage": 2, "AssistantMessage": 2, "Command": 16, "Reasoning": 17},
        ),
        (
            "rollout-0.40-b",
            {"UserMessage": 1, "AssistantMessage": 1, "Command": 34, "Reasoning": 33},
        ),
        ("rollout-0.144-basic", {"UserMessage": 2, "AssistantMessage": 2, "Command": 1}),
    ],
)
def test_public_sessions_have_each_item_once(name: str, expected: dict[str, int]) -> None:
    transcript = read_settled(public(name))
    assert kinds(transcript) == expected
    assert transcript.facts.skipped == {}
    ids = [i.item_id for i in items(transcript)]
    assert len(ids) == len(set(ids))
    raw = [codec.encode(e) for e in transcript.events]
    assert [codec.encode(codec.decode_event(r)) for r in raw] == raw


def test_a_session_of_0_40_has_its_texts_codes_and_options() -> None:
    path = public("rollout-0.40-a")
    transcript = read_settled(path)
    payloads = [json.loads(line)["payload"] for line in path.read_text("utf-8").splitlines()]
    typed = [p["message"] for p in payloads if p.get("type") == "user_message"]
    assert [m.text for m in of(transcript, UserMessage)] == typed
    assert of(transcript, UserMessage)[0].attachments == (Attachment(kind=AttachmentKind.IMAGE),)
    commands = of(transcript, Command)
    assert [c.exit_code for c in commands] == [2, 1, 0, 1] + [0] * 12
    assert commands[2].command.endswith("&& ls apps/spectora-labs/src/app")
    assert commands[2].output.startswith("(protected)\naccount-inactive\n")
    # The request stands above the first record that names the model.
    (conversation,) = of(transcript, ConversationStarted)
    assert (conversation.model, conversation.options) == (None, {})
    (selected,) = of(transcript, ModelSelected)
    assert (selected.model, selected.options) == ("gpt-5-codex", {"reasoning_effort": "high"})
    usage = of(transcript, UsageReported)
    assert [u.used_tokens for u in usage][-2:] == [17_863, 16_181]
    assert {u.max_tokens for u in usage} == {272_000}
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]
    assert transcript.facts.version == "0.40.0"


def test_a_session_of_0_144_keeps_the_history_before_its_compaction() -> None:
    transcript = read_settled(public("rollout-0.144-basic"))
    assert said(transcript) == [
        "Remember synthetic migrator nonce BETA-2048.",
        "I will remember the synthetic nonce.",
        "Continue after the synthetic compaction.",
        "The synthetic post-compaction fixture is complete.",
    ]
    assert len(of(transcript, ConversationCompacted)) == 1
    assert [(c.command, c.output) for c in of(transcript, Command)] == [("pwd", "/work")]


# Messages


def test_a_message_in_both_shapes_is_one_whichever_comes_first(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.assistant("two")
    rollout.event("user_message", message="three")
    rollout.message("user", "three")
    rollout.message("assistant", "four")
    rollout.event("agent_message", message="four")
    assert said(rollout.read()) == ["one", "two", "three", "four"]


def test_a_text_said_twice_is_two_messages(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("go")
    rollout.user("go")
    rollout.assistant("working")
    rollout.assistant("working")
    rollout.message("assistant", "done")
    rollout.message("assistant", "done")
    assert said(rollout.read()) == ["go", "go", "working", "working", "done", "done"]


def test_each_shape_alone_is_enough(rollout: Rollout) -> None:
    rollout.event("user_message", message="only typed")
    rollout.event("agent_message", message="only told")
    rollout.message("user", "only in the history")
    rollout.message("assistant", "there too")
    rollout.completed("UserMessage", id="u", content=[{"type": "text", "text": "only completed"}])
    rollout.completed("AgentMessage", id="a", content=[{"type": "Text", "text": "likewise"}])
    assert said(rollout.read()) == [
        "only typed",
        "only told",
        "only in the history",
        "there too",
        "only completed",
        "likewise",
    ]


def test_the_event_has_the_words_as_they_were_typed(rollout: Rollout) -> None:
    rollout.message("user", "# Context from the editor\nfile.py\n## My request:\n  fix it ")
    rollout.event("user_message", message="  fix it ", local_images=["/home/dev/shot.png"])
    (message,) = of(rollout.read(), UserMessage)
    assert message.text == "  fix it "
    assert message.attachments == (Attachment(kind=AttachmentKind.IMAGE, name="shot.png"),)


@pytest.mark.parametrize(
    "text",
    [
        "<environment_context>\n<cwd>/x</cwd>\n</environment_context>",
        "<permissions instructions>do this</permissions instructions>",
        "<skills_instructions>do this</skills_instructions>",
        "<user_instructions>do this</user_instructions>",
        "# AGENTS.md instructions for /home/dev/project\n\nbe nice",
        "<turn_aborted>\nThe user interrupted\n</turn_aborted>",
        "<user_shell_command>\nls\n</user_shell_command>",
        "Another language model started to solve this problem and produced a summary of its thinking",
    ],
)
def test_what_codex_adds_is_not_the_person_s(rollout: Rollout, text: str) -> None:
    rollout.message("user", text)
    rollout.message("user", "mine")
    rollout.message("developer", "obey")
    rollout.message("user", text, "also mine")
    transcript = rollout.read()
    assert said(transcript) == ["mine", "also mine"]
    assert len(of(transcript, TurnStarted)) == 2


def test_what_codex_says_it_added_is_not_the_person_s(rollout: Rollout) -> None:
    for origin, text in (("harness", "Remember the rules."), ("user", "hello")):
        metadata = {"content_item_metadata": [{"provenance": {"type": origin}}]}
        rollout.message("user", text, internal_chat_message_metadata_passthrough=metadata)
    rollout.add(
        "event_msg", type="user_message", message="<cwd>/</cwd>", kind="environment_context"
    )
    assert said(rollout.read()) == ["hello"]


def test_the_marks_around_an_image_are_not_words(rollout: Rollout) -> None:
    content = [
        {"type": "input_text", "text": "<image name=[Image #1]>"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_text", "text": "</image>"},
        {"type": "input_text", "text": "what is this?"},
    ]
    rollout.item("message", role="user", content=content)
    rollout.item("message", role="user", content=content[1:2])
    messages = of(rollout.read(), UserMessage)
    image = Attachment(kind=AttachmentKind.IMAGE)
    assert [(m.text, m.attachments) for m in messages] == [
        ("what is this?", (image,)),
        ("", (image,)),
    ]


def test_a_file_is_an_attachment_with_its_name(rollout: Rollout) -> None:
    content = [
        {"type": "input_text", "text": "read this"},
        {"type": "input_file", "filename": "plan.pdf", "file_data": "AAAA"},
    ]
    rollout.item("message", role="user", content=content)
    (message,) = of(rollout.read(), UserMessage)
    assert message.attachments == (Attachment(kind=AttachmentKind.FILE, name="plan.pdf"),)


def test_reasoning_is_recorded_once(rollout: Rollout) -> None:
    rollout.event("agent_reasoning", text="**First**")
    rollout.event("agent_reasoning", text="**Second**")
    parts = [{"type": "summary_text", "text": t} for t in ("**First**", "**Second**")]
    rollout.item("reasoning", summary=parts, content=None)
    rollout.completed("Reasoning", id="r", summary_text=["**First**", "**Second**"])
    assert [r.text for r in of(rollout.read(), Reasoning)] == ["**First**\n\n**Second**"]


def test_reasoning_is_one_item_also_with_an_answer_between_its_records(rollout: Rollout) -> None:
    rollout.event("agent_reasoning", text="**First**")
    rollout.event("agent_message", message="done")
    rollout.item("reasoning", summary=[{"type": "summary_text", "text": "**First**"}])
    rollout.message("assistant", "done")
    rollout.event("agent_reasoning", text="**Second**")
    assert [r.text for r in of(rollout.read(), Reasoning)] == ["**First**", "**Second**"]


def test_reasoning_events_count_where_there_is_nothing_else(rollout: Rollout) -> None:
    rollout.event("agent_reasoning", text="hm")
    assert [r.text for r in of(rollout.read(), Reasoning)] == ["hm"]


# Commands


@pytest.mark.parametrize(
    ("name", "arguments", "command", "cwd"),
    [
        ("shell", {"command": ["bash", "-lc", "ls | wc"]}, "ls | wc", "/home/dev/project"),
        ("shell", {"command": ["/bin/zsh", "-c", "ls"], "workdir": "."}, "ls", "/home/dev/project"),
        ("shell", {"command": ["git", "commit", "-m", "a b"]}, "git commit -m 'a b'", None),
        ("shell", {"command": "pwd", "workdir": "sub/dir"}, "pwd", "/home/dev/project/sub/dir"),
        ("shell_command", {"command": "pwd", "workdir": "/tmp"}, "pwd", "/tmp"),
        ("exec_command", {"cmd": "make", "yield_time_ms": 1}, "make", "/home/dev/project"),
        ("container.exec", {"command": ["powershell", "-Command", "dir"]}, "dir", None),
    ],
)
def test_a_command_line_is_what_a_person_would_type(
    rollout: Rollout, name: str, arguments: Any, command: str, cwd: str | None
) -> None:
    rollout.call(name, arguments)
    (item,) = of(rollout.read(), Command)
    assert item.command == command
    assert item.cwd == (cwd or "/home/dev/project")
    assert (item.item_id, item.status) == ("call-1", ItemStatus.IN_PROGRESS)


NESTED = "Wall time: 0 seconds\nOutput:\nExit code: 1\nWall time: 0 seconds\nOutput:\nbad"
LINES = "Exit code: 0\nWall time: 0 seconds\nTotal output lines: 9\nOutput:\nx"
BLOCKS = [{"type": "input_text", "text": "plain"}, {"type": "input_image"}]
PROGRAM = '{"output":"a program that prints JSON"}'


@pytest.mark.parametrize(
    ("output", "status", "exit_code", "text"),
    [
        (EXITED, "failed", 3, "no\nOutput:\nway\n"),
        ('{"output":"hi\\n","metadata":{"exit_code":0}}', "completed", 0, "hi\n"),
        ('{"output":"","metadata":{"exit_code":1}}', "failed", 1, ""),
        ("Exit code: 127\nWall time: 0 seconds\nOutput:\nnot found", "failed", 127, "not found"),
        (LINES, "completed", 0, "x"),
        (NESTED, "failed", 1, "bad"),
        (RUNNING, "in_progress", None, "still"),
        ("Wall time: 4.0 seconds\naborted by user", "interrupted", None, ""),
        ("aborted by user after 2.1s\nhalf", "interrupted", None, "half"),
        ("exec command rejected by user", "interrupted", None, ""),
        ("execution error: Io(Os)", "failed", None, "execution error: Io(Os)"),
        (BLOCKS, "completed", None, "plain"),
        ({"content": "old", "success": False}, "failed", None, "old"),
        (PROGRAM, "completed", None, PROGRAM),
    ],
)
def test_a_command_has_its_outcome(
    rollout: Rollout, output: Any, status: str, exit_code: int | None, text: str
) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make"})
    rollout.output(output)
    rollout.end()
    (item,) = of(rollout.read(), Command)
    assert (item.status, item.exit_code, item.output) == (status, exit_code, text)


def test_what_codex_wrote_down_completes_the_same_command(rollout: Rollout) -> None:
    rollout.call("shell", {"command": ["bash", "-lc", "make"]})
    rollout.event(
        "exec_command_end",
        call_id="call-1",
        command=["bash", "-lc", "make"],
        cwd="/home/dev/project/sub",
        stdout="out",
        stderr="err",
        exit_code=2,
    )
    (item,) = of(rollout.read(), Command)
    assert (item.status, item.exit_code, item.output) == (ItemStatus.FAILED, 2, "outerr")


@pytest.mark.parametrize(
    ("fields", "status", "exit_code"),
    [
        ({"status": "completed", "exit_code": 0}, "completed", 0),
        ({"status": "failed", "exit_code": -1}, "failed", None),
        ({"status": "failed"}, "failed", None),
        ({"status": "declined"}, "interrupted", None),
        ({"status": "in_progress"}, "in_progress", None),
        ({}, "completed", None),
    ],
)
def test_what_codex_wrote_down_has_a_status(
    rollout: Rollout, fields: dict[str, Any], status: str, exit_code: int | None
) -> None:
    rollout.call("exec_command", {"cmd": "make"})
    rollout.completed("CommandExecution", id="call-1", aggregated_output="x", **fields)
    (item,) = of(rollout.read(), Command)
    assert (item.status, item.exit_code, item.output) == (status, exit_code, "x")


@pytest.mark.parametrize(
    "output",
    ['{"output":"a","metadata":{', '{"output":"a","metadata":3}', '{"output":3,"metadata":{}}'],
)
def test_output_that_only_looks_like_the_old_json_is_text(rollout: Rollout, output: str) -> None:
    rollout.call("shell", {"command": "cat"})
    rollout.output(output)
    assert [c.output for c in of(rollout.read(), Command)] == [output]


def test_a_command_may_end_after_its_turn(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("go")
    for call in ("call-1", "call-2", "call-3"):
        rollout.call("exec_command", {"cmd": f"run {call}"}, call)
    running = "Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\nso far"
    rollout.output(running, "call-1")
    rollout.output("Wall time: 1.0 seconds\naborted by user", "call-2")
    rollout.event("turn_aborted", turn_id="turn-1", reason="interrupted")
    before = [c.status for c in of(rollout.read(), Command)]
    assert before == [ItemStatus.INTERRUPTED] * 3
    rollout.completed("CommandExecution", id="call-1", exit_code=0, aggregated_output="all of it")
    rollout.completed(
        "CommandExecution", id="call-2", exit_code=-1, status="failed", aggregated_output="part"
    )
    transcript = rollout.read()
    assert [(c.status, c.exit_code, c.output) for c in of(transcript, Command)] == [
        (ItemStatus.COMPLETED, 0, "all of it"),
        (ItemStatus.INTERRUPTED, None, "part"),
        (ItemStatus.INTERRUPTED, None, ""),
    ]
    assert isinstance(transcript.events[-1], TurnEnded)


def test_a_running_command_is_completed_by_what_is_read_of_it_later(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make"})
    rollout.output("Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\none\n")
    rollout.call("write_stdin", {"session_id": 7, "chars": ""}, "call-2")
    rollout.output("Wall time: 1 seconds\nProcess exited with code 0\nOutput:\ntwo\n", "call-2")
    rollout.end()
    transcript = rollout.read()
    (item,) = of(transcript, Command)
    assert (item.status, item.exit_code, item.output) == (ItemStatus.COMPLETED, 0, "one\ntwo\n")
    assert [t.name for t in of(transcript, ToolCall)] == ["write_stdin"]


def test_what_is_read_of_a_running_command_adds_up(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make"})
    running = "Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\n"
    rollout.output(f"{running}one\n")
    for number in (2, 3):
        rollout.call("write_stdin", {"session_id": 7, "chars": ""}, f"call-{number}")
        rollout.output(f"{running}part {number}\n", f"call-{number}")
    transcript = rollout.read()
    (command,) = of(transcript, Command)
    assert (command.status, command.output) == (
        ItemStatus.IN_PROGRESS,
        "one\npart 2\npart 3\n",
    )
    assert [(t.status, t.output) for t in of(transcript, ToolCall)] == [
        (ItemStatus.COMPLETED, "part 2\n"),
        (ItemStatus.COMPLETED, "part 3\n"),
    ]


def test_what_is_read_of_a_process_that_nobody_began_is_a_tool_call(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("write_stdin", {"session_id": 7})
    rollout.output(RUNNING)
    transcript = rollout.read()
    assert [(t.status, t.output) for t in of(transcript, ToolCall)] == [
        (ItemStatus.COMPLETED, "still")
    ]
    assert not of(transcript, Command)


def test_what_is_read_of_a_running_command_is_bounded(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make"})
    running = "Process running with session ID 7\nOutput:\n"
    rollout.output(f"{running}begin\n")
    for number in range(4):
        rollout.call("write_stdin", {"session_id": 7}, f"write-{number}")
        rollout.output(f"{running}{'x' * 100_000}\nnumber {number}\n", f"write-{number}")
    (command,) = of(rollout.read(), Command)
    assert len(command.output) < 300_000
    assert command.output.startswith("begin\nxxx")
    assert "\n[output left out]\n" in command.output
    assert command.output.endswith("x\nnumber 3\n")


def test_of_many_running_commands_the_first_are_given_up(rollout: Rollout) -> None:
    rollout.start()
    for number in range(80):
        rollout.call("exec_command", {"cmd": "serve"}, f"call-{number}")
        running = f"Process running with session ID {number}\nOutput:\n"
        rollout.output(running, f"call-{number}")
    for number in (0, 79):
        rollout.completed("CommandExecution", id=f"call-{number}", exit_code=0)
    commands = of(rollout.read(), Command)
    assert len(commands) == 80
    assert commands[0].status is ItemStatus.IN_PROGRESS
    assert commands[-1].status is ItemStatus.COMPLETED


def test_a_process_that_runs_on_stays_in_progress_after_a_completed_turn(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "serve"})
    rollout.output("Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\n")
    rollout.end(last_agent_message="It runs.")
    assert [c.status for c in of(rollout.read(), Command)] == [ItemStatus.IN_PROGRESS]


def test_a_local_shell_call_and_the_person_s_own_command_are_commands(rollout: Rollout) -> None:
    action = {"type": "exec", "command": ["bash", "-lc", "ls"], "working_directory": "/tmp"}
    rollout.item("local_shell_call", call_id="call-1", status="completed", action=action)
    rollout.output("Exit code: 0\nOutput:\na")
    rollout.completed(
        "CommandExecution",
        id="call-2",
        source="user_shell",
        command=["/bin/bash", "-lc", "git status"],
        cwd="file:///home/dev/my%20project",
        status="completed",
        exit_code=0,
        aggregated_output="clean",
    )
    assert [(c.command, c.cwd, c.exit_code, c.output) for c in of(rollout.read(), Command)] == [
        ("ls", "/tmp", 0, "a"),
        ("git status", "/home/dev/my project", 0, "clean"),
    ]


# Patches

CHANGES = [
    (
        "/home/dev/project/new.py",
        "add",
        "--- /dev/null\n+++ /home/dev/project/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n",
    ),
    (
        "/home/dev/project/old.py",
        "update",
        "--- /home/dev/project/old.py\n+++ /home/dev/project/old.py\n@@ def f():\n-a\n+b\n",
    ),
    (
        "/home/dev/project/to.py",
        "rename",
        "--- /home/dev/project/from.py\n+++ /home/dev/project/to.py\n@@\n-c\n+d\n",
    ),
    ("/home/dev/project/gone.py", "delete", None),
]


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"},
        {"cmd": f'cd /home/dev/project && apply_patch <<"PATCH"\n{PATCH}\nPATCH'},
        {"command": ["bash", "-lc", f"apply_patch <<EOF\n{PATCH}\nEOF"]},
        {"command": ["apply_patch", PATCH]},
        {"command": ["apply_patch", f"{PATCH}\n"], "workdir": "/home/dev/project"},
    ],
)
def test_a_patch_in_a_shell_call_is_a_change_of_each_file(rollout: Rollout, arguments: Any) -> None:
    rollout.call("exec_command" if "cmd" in arguments else "shell", arguments)
    rollout.output("Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess. Updated")
    transcript = rollout.read()
    changes = of(transcript, FileChange)
    assert [(c.path, c.change, c.diff) for c in changes] == CHANGES
    assert {c.status for c in changes} == {ItemStatus.COMPLETED}
    assert [c.item_id for c in changes] == [f"call-1:{n}" for n in range(4)]
    assert not of(transcript, Command)


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess.", "completed"),
        ('{"output":"Success.","metadata":{"exit_code":0,"duration_seconds":0}}', "completed"),
        ("Success. Updated the following files:\nA new.py", "completed"),
        ("apply_patch verification failed: no such file", "failed"),
        ("unsupported custom tool call: apply_patch", "failed"),
        ("I would rather not", "failed"),
        ("aborted by user after 1s", "interrupted"),
    ],
)
def test_a_patch_has_its_outcome(rollout: Rollout, output: str, status: str) -> None:
    rollout.item("custom_tool_call", name="apply_patch", input=PATCH, call_id="call-1")
    rollout.item("custom_tool_call_output", call_id="call-1", output=output)
    assert {c.status for c in of(rollout.read(), FileChange)} == {status}


def test_a_script_that_does_more_than_patch_is_a_command(rollout: Rollout) -> None:
    rollout.call("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF\nmake test"})
    rollout.completed(
        "FileChange",
        id="call-1",
        changes={"/home/dev/project/new.py": {"type": "add", "content": "one\ntwo\n"}},
        status="completed",
    )
    rollout.output("Exit code: 2\nOutput:\nred")
    transcript = rollout.read()
    assert [(c.exit_code, c.output) for c in of(transcript, Command)] == [(2, "red")]
    assert [(c.path, c.change, c.diff) for c in of(transcript, FileChange)] == CHANGES[:1]


@pytest.mark.parametrize("kind", ["FileChange", "patch_apply_end"])
def test_what_codex_wrote_down_about_a_patch_counts(rollout: Rollout, kind: str) -> None:
    rollout.item("custom_tool_call", name="apply_patch", input=PATCH, call_id="call-1")
    changes = {
        "/home/dev/project/x.py": {
            "type": "update",
            "unified_diff": "@@ -1 +1 @@\n-a\n+b\n",
            "move_path": None,
        },
        "/home/dev/project/y.py": {"delete": {"content": "z\n"}},
    }
    if kind == "FileChange":
        rollout.completed(kind, id="call-1", changes={}, status="failed")
        rollout.completed(kind, id="call-2", changes=changes, status="completed")
    else:
        rollout.event(kind, call_id="call-1", success=False, changes={})
        rollout.event(kind, call_id="call-2", success=True, changes=changes)
    found = of(rollout.read(), FileChange)
    assert [c.status for c in found] == [ItemStatus.FAILED] * 4 + [ItemStatus.COMPLETED] * 2
    assert found[4].diff == (
        "--- /home/dev/project/x.py\n+++ /home/dev/project/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert found[5].diff == "--- /home/dev/project/y.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-z\n"


def test_a_patch_in_a_script_counts_also_after_the_script(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make patch"})
    rollout.output(EXITED)
    changes = {"/home/dev/project/new.py": {"type": "add", "content": "one\ntwo\n"}}
    rollout.completed("FileChange", id="call-1", changes=changes, status="completed")
    rollout.completed("FileChange", id="call-1", changes={}, status="completed")
    transcript = rollout.read()
    assert [(c.path, c.change, c.diff) for c in of(transcript, FileChange)] == CHANGES[:1]
    assert [c.exit_code for c in of(transcript, Command)] == [3]


@pytest.mark.parametrize(
    ("told", "status"),
    [("completed", "completed"), ("failed", "failed"), ("declined", "interrupted")],
)
def test_what_codex_wrote_down_about_a_patch_has_the_last_word(
    rollout: Rollout, told: str, status: str
) -> None:
    rollout.item("custom_tool_call", name="apply_patch", input=PATCH, call_id="call-1")
    rollout.completed("FileChange", id="call-1", changes={}, status=told)
    rollout.item("custom_tool_call_output", call_id="call-1", output="as you wish")
    assert {c.status for c in of(rollout.read(), FileChange)} == {status}


# Other tools


def test_plans_are_text(rollout: Rollout) -> None:
    steps = [("read", "completed"), ("write", "in_progress"), ("run", "pending")]
    plan = [{"step": step, "status": status} for step, status in steps]
    rollout.call("update_plan", {"explanation": "why", "plan": plan})
    rollout.output("Plan updated")
    rollout.completed("Plan", id="plan-1", text="1. Do it")
    assert [(p.text, p.status) for p in of(rollout.read(), Plan)] == [
        ("[x] read\n[~] write\n[ ] run", ItemStatus.COMPLETED),
        ("1. Do it", ItemStatus.COMPLETED),
    ]


def test_every_other_tool_is_a_tool_call(rollout: Rollout) -> None:
    rollout.call("view_image", {"path": "a.png"}, "call-1")
    rollout.output("attached", "call-1")
    rollout.call("shell", {"command": "rm"}, "call-2", namespace="mcp__files")
    rollout.call("shell", "{not json", "call-3")
    rollout.item("web_search_call", status="completed", action={"type": "search", "query": "q"})
    rollout.item("tool_search_call", call_id="call-4", arguments={"query": "q"})
    rollout.item("tool_search_output", call_id="call-4", tools=[])
    transcript = rollout.read()
    calls = of(transcript, ToolCall)
    assert [(c.name, c.input, c.output, c.status) for c in calls] == [
        ("view_image", '{"path": "a.png"}', "attached", ItemStatus.COMPLETED),
        ("mcp__files.shell", '{"command": "rm"}', "", ItemStatus.IN_PROGRESS),
        ("shell", "{not json", "", ItemStatus.IN_PROGRESS),
        ("web_search", '{"type":"search","query":"q"}', "", ItemStatus.COMPLETED),
        ("tool_search", '{"query":"q"}', "[]", ItemStatus.COMPLETED),
    ]
    assert not of(transcript, Command)


# Turns


def test_turns_are_as_the_file_has_them(rollout: Rollout) -> None:
    rollout.start("turn-1", model_context_window=258_400)
    rollout.user("one")
    rollout.user("and this")
    rollout.assistant("done")
    rollout.end("turn-1", last_agent_message="done")
    rollout.start("turn-2")
    rollout.user("two")
    transcript = rollout.read()
    assert [t.turn_id for t in of(transcript, TurnStarted)] == ["turn-1", "turn-2"]
    assert [m.turn_id for m in of(transcript, UserMessage)] == ["turn-1", "turn-1", "turn-2"]
    assert ends(transcript) == [TurnStatus.COMPLETED]


def test_older_files_have_a_turn_for_each_request(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.assistant("done")
    rollout.user("two")
    rollout.call("shell", {"command": "ls"})
    rollout.user("three")
    rollout.output("Exit code: 0\nOutput:\n")
    rollout.assistant("done too")
    transcript = rollout.read()
    assert ends(transcript) == [
        TurnStatus.COMPLETED,
        TurnStatus.INTERRUPTED,
        TurnStatus.COMPLETED,
    ]
    assert len({m.turn_id for m in of(transcript, UserMessage)}) == 3
    # Its output came after all.
    assert of(transcript, Command)[0].status is ItemStatus.COMPLETED


def test_a_file_that_ends_in_a_turn_leaves_it_open(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.call("shell", {"command": "ls"})
    assert ends(rollout.read()) == []


def test_a_turn_that_is_begun_twice_is_one(rollout: Rollout) -> None:
    rollout.start("turn-1")
    rollout.user("one")
    rollout.start("turn-1")
    rollout.user("two")
    rollout.end("turn-1")
    transcript = rollout.read()
    assert [t.turn_id for t in of(transcript, TurnStarted)] == ["turn-1"]
    assert ends(transcript) == [TurnStatus.COMPLETED]


def test_a_turn_that_never_ended_is_interrupted_by_the_next(rollout: Rollout) -> None:
    rollout.start("turn-1")
    rollout.user("one")
    rollout.start("turn-2")
    rollout.end("turn-1")
    rollout.end("turn-2")
    assert ends(rollout.read()) == [TurnStatus.INTERRUPTED, TurnStatus.COMPLETED]


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize(("reason", "marks"), [("interrupted", 1), ("replaced", 0)])
def test_an_aborted_turn_is_interrupted(
    rollout: Rollout, started: bool, reason: str, marks: int
) -> None:
    if started:
        rollout.start()
    rollout.user("one")
    rollout.call("shell", {"command": "sleep 9"})
    rollout.event("turn_aborted", reason=reason)
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.INTERRUPTED]
    assert len(of(transcript, Interruption)) == marks
    assert of(transcript, Command)[0].status is ItemStatus.INTERRUPTED


def test_a_rollback_takes_back_the_last_turns_with_a_request(rollout: Rollout) -> None:
    for number in (1, 2, 3):
        rollout.start(f"turn-{number}")
        rollout.context("other" if number == 2 else "gpt-5-codex")
        rollout.user(f"request {number}")
        rollout.assistant(f"answer {number}")
        rollout.end(f"turn-{number}")
    rollout.start("compaction")
    rollout.end("compaction")
    rollout.event("thread_rolled_back", num_turns=2)
    rollout.start("turn-4")
    rollout.context("gpt-5-codex")
    rollout.user("request 4")
    transcript = rollout.read_raw()
    (rolled,) = of(transcript, TurnsRolledBack)
    kept = transcript.events[: rolled.to]
    recorded = [e.item for e in kept if isinstance(e, ItemRecorded)]
    assert [i.text for i in recorded if isinstance(i, UserMessage)] == ["request 1"]
    assert isinstance(kept[-1], TurnEnded)
    following = transcript.events[rolled.to]
    assert isinstance(following, TurnStarted)
    assert following.turn_id == "turn-2"
    # The model that was selected in what is taken back is taken back with it.
    assert [e.model for e in of(transcript, ModelSelected)] == ["other", "gpt-5-codex"]


def test_a_rollback_in_an_older_file_ends_the_open_turn_first(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.assistant("first")
    rollout.user("two")
    rollout.assistant("second")
    rollout.event("thread_rolled_back", num_turns=9)
    rollout.event("thread_rolled_back", num_turns=1)
    rollout.event("thread_rolled_back")
    transcript = rollout.read_raw()
    assert [e.to for e in of(transcript, TurnsRolledBack)] == [2]
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]
    assert transcript.facts.skipped == {"malformed record": 1}


# The conversation


def test_another_model_or_effort_is_selected(rollout: Rollout) -> None:
    rollout.start("turn-1", model_context_window=258_400)
    rollout.context("gpt-5-codex", effort="high")
    rollout.user("one")
    rollout.end("turn-1")
    rollout.start("turn-2", model_context_window=1_000_000)
    rollout.context("gpt-6", effort="high")
    rollout.context("gpt-6", effort="high")
    settings = {"settings": {"reasoning_effort": "low"}}
    rollout.context("gpt-6", collaboration_mode=settings)
    transcript = rollout.read()
    (started,) = of(transcript, ConversationStarted)
    assert (started.model, started.options, started.capacity) == (
        "gpt-5-codex",
        {"reasoning_effort": "high"},
        258_400,
    )
    assert [(e.model, e.options, e.capacity) for e in of(transcript, ModelSelected)] == [
        ("gpt-6", {"reasoning_effort": "high"}, 1_000_000),
        ("gpt-6", {"reasoning_effort": "low"}, 1_000_000),
    ]
    assert transcript.facts.model == "gpt-6"


def test_a_window_that_is_named_for_another_model_is_not_the_first_s(rollout: Rollout) -> None:
    rollout.context("small")
    rollout.user("one")
    rollout.context("large")
    rollout.usage(100)
    assert of(rollout.read(), ConversationStarted)[0].capacity is None


def test_usage_is_reported_where_it_is_new(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.rates({"primary": None})
    rollout.usage(5_000)
    rollout.usage(5_000)
    rollout.usage(0)
    rollout.usage(6_000, window=None)
    assert [(u.used_tokens, u.max_tokens) for u in of(rollout.read(), UsageReported)] == [
        (5_000, 258_400),
        (6_000, None),
    ]


@pytest.mark.parametrize("measured", [True, False])
def test_totals_that_were_set_to_the_window_are_not_believed(
    rollout: Rollout, measured: bool
) -> None:
    rollout.user("one")
    if measured:
        rollout.add("token_usage_record", usage={"total_tokens": 250_000})
    rollout.usage(
        0,
        total_token_usage={"input_tokens": 0, "total_tokens": 258_400},
        last_token_usage={"input_tokens": 0, "total_tokens": 8_400},
    )
    used = [u.used_tokens for u in of(rollout.read(), UsageReported)]
    assert used == [250_000 if measured else 258_400]


def test_history_before_a_compaction_is_kept_and_nothing_comes_again(rollout: Rollout) -> None:
    summary = (
        "Another language model started to solve this problem and produced a summary of its "
        "thinking process.\nWe fixed it."
    )
    rollout.start()
    rollout.user("one")
    rollout.assistant("first")
    rollout.message("assistant", "We fixed it.")
    rollout.completed("ContextCompaction", id="c")
    replaced = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
    ]
    rollout.add("compacted", message=summary, replacement_history=replaced)
    rollout.event("context_compacted")
    rollout.message("user", summary)
    rollout.message("user", "<environment_context>x</environment_context>")
    rollout.assistant("second")
    rollout.add("compacted", message="another summary")
    transcript = rollout.read()
    assert said(transcript) == ["one", "first", "second"]
    assert [e.used_tokens for e in of(transcript, ConversationCompacted)] == [None, None]


def test_a_fork_is_its_own_session(rollout: Rollout) -> None:
    rollout.meta(id="parent", cwd="/elsewhere", cli_version="0.1.0")
    rollout.user("one")
    transcript = rollout.read()
    assert (transcript.session_id, transcript.facts.cwd) == ("session-1", "/home/dev/project")
    assert transcript.facts.version == "0.171.0"


# Limits

AT_1511 = datetime(2026, 11, 30, 17, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (USAGE_LIMIT, "quota", "limited"),
        ({"message": SENTENCE}, "quota", "limited"),
        (
            {"message": SENTENCE, "codex_error_info": {"usage_limit_exceeded": {}}},
            "quota",
            "limited",
        ),
        (
            {"message": SENTENCE.replace("\u2019", "'"), "codex_error_info": "other"},
            "quota",
            "limited",
        ),
        (
            {
                "message": "Your workspace is out of credits. Add credits to continue.",
                "codex_error_info": "usage_limit_exceeded",
            },
            "credits",
            "limited",
        ),
        (
            {
                "message": "exceeded retry limit, last status: 429 Too Many Requests",
                "codex_error_info": {
                    "response_too_many_failed_attempts": {"http_status_code": 429}
                },
            },
            "throttle",
            "failed",
        ),
        (
            {"message": "exceeded retry limit, last status: 429 Too Many Requests"},
            "throttle",
            "failed",
        ),
        (
            {
                "message": "Selected model is at capacity. Please try a different model.",
                "codex_error_info": "server_overloaded",
            },
            "throttle",
            "failed",
        ),
        ({"message": "x", "codex_error_info": "context_window_exceeded"}, "context", "failed"),
        ({"message": "x", "codex_error_info": "unauthorized"}, "authentication", "failed"),
        (
            {"codex_error_info": {"http_connection_failed": {"http_status_code": 401}}},
            "authentication",
            "failed",
        ),
    ],
)
@pytest.mark.parametrize("place", ["task_complete", "event"])
def test_an_error_ends_the_turn_with_its_limit(
    rollout: Rollout, place: str, error: dict[str, Any], kind: str, status: str
) -> None:
    rollout.start()
    rollout.user("one")
    if place == "event":
        rollout.event("error", **error)
        rollout.end()
    else:
        rollout.end(error=error)
    transcript = rollout.read()
    (end,) = of(transcript, TurnEnded)
    assert end.status == status
    assert end.limit is not None
    assert end.limit.kind == kind
    assert transcript.limit == (end.limit if status == "limited" else None)
    assert end.limit.resets_at == (AT_1511 if kind == "quota" else None)
    assert not of(transcript, Error)


@pytest.mark.parametrize("info", [None, "other", {"http_connection_failed": {}}, 7, ["x"]])
def test_any_other_error_is_an_error_item_once(rollout: Rollout, info: Any) -> None:
    error = {"message": "stream closed: usage limit of the proxy", "codex_error_info": info}
    rollout.start()
    rollout.user("one")
    rollout.event("error", **error)
    rollout.end(error=error)
    transcript = rollout.read()
    assert [e.message for e in of(transcript, Error)] == [error["message"]]
    assert ends(transcript) == [TurnStatus.FAILED]
    assert transcript.limit is None


def test_an_error_in_a_file_without_ends_ends_the_turn(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.event("error", **USAGE_LIMIT)
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.LIMITED]
    assert transcript.limit is not None


def test_a_normal_answer_clears_the_limit(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.event("error", **USAGE_LIMIT)
    rollout.user("and now?")
    rollout.assistant("fine")
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.LIMITED, TurnStatus.COMPLETED]
    assert transcript.limit is None


@pytest.mark.parametrize(
    ("rates", "resets_at"),
    [
        ({"primary": window(100, resets_at=LATER.timestamp()), "secondary": None}, LATER),
        (
            {
                "primary": window(100, resets_at=LATER.timestamp()),
                "secondary": window(100.0, resets_at=LATEST.timestamp()),
            },
            LATEST,
        ),
        (
            {
                "primary": window(100, resets_at=LATER.timestamp()),
                "secondary": window(99, resets_at=LATEST.timestamp()),
            },
            LATER,
        ),
        # The second line after the first is the one that this is relative to.
        ({"primary": window(101, resets_in_seconds=60)}, NOON + timedelta(seconds=64)),
        ({"primary_used_percent": 100.0, "secondary_used_percent": 4.0}, None),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_without_an_answer_and_a_window_that_is_used_up_is_limited(
    rollout: Rollout, rates: Any, resets_at: datetime | None, ended: bool
) -> None:
    if ended:
        rollout.start()
        rollout.user("one")
    else:
        rollout.message("developer", "x")
        rollout.user("one")
    rollout.rates(rates)
    if ended:
        rollout.end()
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.LIMITED]
    assert transcript.limit is not None
    assert (transcript.limit.kind, transcript.limit.resets_at) == (LimitKind.QUOTA, resets_at)


@pytest.mark.parametrize(
    "rates",
    [
        {"primary": window(99.9, resets_at=LATER.timestamp())},
        {"primary": window(100, resets_at=NOON.timestamp() - 60)},
        {"primary": window(100, resets_at=LATER.timestamp()), "credits": {"has_credits": True}},
        {"primary": window(100, resets_at=LATER.timestamp()), "credits": {"unlimited": True}},
        {"primary": {"used_percent": "100"}},
    ],
)
def test_windows_with_room_are_no_limit(rollout: Rollout, rates: Any) -> None:
    rollout.start()
    rollout.user("one")
    rollout.rates(rates)
    rollout.end()
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert transcript.limit is None


def test_an_answer_at_the_edge_of_the_window_is_no_limit(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.rates({"primary": window(100, resets_at=LATER.timestamp())})
    rollout.assistant("just made it")
    rollout.user("two")
    transcript = rollout.read()
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.LIMITED]


def test_the_written_reset_wins_over_the_sentence(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("one")
    rollout.rates({"primary": window(100, resets_at=LATER.timestamp())})
    rollout.end(error=USAGE_LIMIT)
    limit = rollout.read().limit
    assert limit is not None
    assert limit.resets_at == LATER


def test_credits_that_are_used_up_have_no_clock(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("one")
    rollout.rates({"rate_limit_reached_type": "workspace_owner_credits_depleted"})
    rollout.end(error={**USAGE_LIMIT, "message": "You\u2019ve hit your usage limit."})
    limit = rollout.read().limit
    assert limit is not None
    assert (limit.kind, limit.resets_at) == (LimitKind.CREDITS, None)


def test_a_throttle_keeps_the_provider_s_own_delay(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("one")
    error = "Rate limit reached for gpt-5. Please try again in 1.5s."
    rollout.end(error={"message": error, "codex_error_info": "rate_limit_exceeded"})
    (end,) = of(rollout.read(), TurnEnded)
    assert end.limit is not None
    assert (end.limit.kind, end.limit.retry_after) == (LimitKind.THROTTLE, 1.5)


@pytest.mark.parametrize("text", [SENTENCE, "exceeded retry limit, last status: 429"])
def test_prose_and_output_are_never_limits(rollout: Rollout, text: str) -> None:
    rollout.start()
    rollout.user(text)
    rollout.call("shell", {"command": f"echo '{text}'"})
    rollout.output(f"Exit code: 1\nOutput:\n{text}")
    rollout.event("stream_error", message=text)
    rollout.event("warning", message=text)
    rollout.assistant(text)
    rollout.end(last_agent_message=text)
    transcript = rollout.read()
    assert transcript.limit is None
    assert ends(transcript) == [TurnStatus.COMPLETED]


TOKYO = timezone(timedelta(hours=9))


def reset_time(sentence: str, now: datetime | None, zone: tzinfo) -> datetime | None:
    text = f"You've hit your usage limit. {sentence}"
    limit = recognise("codex", Evidence(text=text, now=now, zone=zone))
    assert limit is not None
    return limit.resets_at


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("try again at 5:11 PM.", "2026-11-30T17:11:00+00:00"),
        ("Try again at 9:00 AM.", "2026-12-01T09:00:00+00:00"),
        ("or try again at 9:00 AM.", "2026-12-01T09:00:00+00:00"),
        ("try again at 11:58 AM.", "2026-11-30T11:58:00+00:00"),
        ("try again at Nov 30th, 2026 5:11 PM.", "2026-11-30T17:11:00+00:00"),
        ("try again at Dec 1st, 2026 12:30 AM.", "2026-12-01T00:30:00+00:00"),
        ("try again at Jan 3rd 9 AM", "2027-01-03T09:00:00+00:00"),
        ("Try again in 5 days 22 hours 11 minutes.", "2026-12-06T10:11:00+00:00"),
        ("Try again in 1 hour 1 minute.", "2026-11-30T13:01:00+00:00"),
        ("Try again in ~4293 min.", "2026-12-03T11:33:00+00:00"),
        ("try again later.", None),
        ("try again at 25:00 PM.", None),
        ("try again at Foo 30th, 2026 5:11 PM.", None),
        ("Try again in 999999999999 days.", None),
    ],
)
def test_a_reset_time_is_read_from_the_sentence(sentence: str, expected: str | None) -> None:
    found = reset_time(sentence, NOON, UTC)
    assert (found.isoformat() if found else None) == expected


def test_a_clock_is_the_machine_s_unless_told_and_needs_a_date() -> None:
    assert reset_time("try again at 9:11 PM.", NOON, TOKYO) == datetime(
        2026, 11, 30, 12, 11, tzinfo=UTC
    )
    assert reset_time("try again at 9:11 PM.", None, TOKYO) is None
    assert reset_time("try again in 5 minutes", None, UTC) is None


# Files


def test_lines_and_records_that_say_nothing_are_counted(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.add("world_state", full=True)
    rollout.add("new_thing", a=1)
    rollout.event("new event!")
    rollout.item("new_item")
    rollout.completed("NewItem")
    rollout.completed("WebSearch", id="w")
    rollout.item("message", role="poet", content=[])
    rollout.event("item_completed", item=3)
    rollout.records.append({"type": "event_msg", "payload": 3})
    rollout.records.append({"payload": {}})
    lines = [*rollout.lines(), b"[1]\n", b"{broken\n", b"\xff\n", b"\n", b'{"type":"event_m']
    transcript = settle(read(lines))
    assert said(transcript) == ["one"]
    assert transcript.facts.skipped == {
        "broken line": 2,
        "malformed record": 3,
        "not a record": 1,
        "partial last line": 1,
        "record without a type": 1,
        "unknown event: new-event-": 1,
        "unknown item: NewItem": 1,
        "unknown item: new_item": 1,
        "unknown record: new_thing": 1,
    }


def test_files_of_before_the_envelope_are_read() -> None:
    documents: list[dict[str, Any]] = [
        {"id": "old-1", "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>x</environment_context>"}
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"record_type": "state"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {
            "type": "function_call",
            "name": "shell",
            "arguments": '{"command":["bash","-lc","ls"]}',
            "call_id": "call-1",
        },
        {
            "type": "function_call_output",
            "call_id": "call-1",
            "output": '{"output":"a\\n","metadata":{"exit_code":0,"duration_seconds":0.0}}',
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello"}],
        },
    ]
    transcript = settle(read([json.dumps(d).encode() + b"\n" for d in documents]))
    assert transcript.session_id == "old-1"
    assert said(transcript) == ["hi", "hello"]
    assert [(c.command, c.exit_code, c.output) for c in of(transcript, Command)] == [
        ("ls", 0, "a\n")
    ]
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert transcript.facts.skipped == {}


def test_times_are_the_records_own(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.records[-2]["timestamp"] = "2026-11-30T21:00:00+09:00"
    rollout.records.append({**rollout.records[-1], "timestamp": "yesterday"})
    rollout.records[-1]["payload"] = {"type": "agent_message", "message": "two"}
    transcript = rollout.read()
    times = [e.time for e in transcript.events if isinstance(e, ItemRecorded)]
    assert times == [NOON, None]
    assert transcript.events[0].time == NOON


def test_two_items_of_one_id_stay_two(rollout: Rollout) -> None:
    for text in ("a", "b"):
        rollout.message("user", text, id="same/id")
    ids = [i.item_id for i in items(rollout.read())]
    assert len(set(ids)) == 2
    assert all(i.startswith("same-id") for i in ids)


def everywhere(document: Any) -> Iterator[list[str | int]]:
    """Yield the path of every value in a document."""
    places = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in places:
        yield [key]
        yield from ([key, *rest] for rest in everywhere(value))


@pytest.mark.parametrize("wrong", [None, 7, -1, "x", [], {}, [None], {"type": []}, 1e300, True])
def test_no_wrong_type_anywhere_is_fatal(wrong: Any) -> None:
    rollout = Rollout()
    write_everything(rollout)
    for number, record in enumerate(rollout.records[:-2]):
        for path in everywhere(record):
            changed = json.loads(json.dumps(record))
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = wrong
            lines = rollout.lines()
            lines[number] = json.dumps(changed).encode() + b"\n"
            transcript = settle(read(lines, zone=UTC))
            assert said(transcript)[-1] == "last"
            for event in transcript.events:
                codec.decode_event(codec.encode(event))


def test_a_rollout_is_known_by_its_records(rollout: Rollout, tmp_path: Path) -> None:
    rollout.records = rollout.records[1:]
    rollout.user("one")
    path = tmp_path / "rollout-2026-11-30T12-00-00-01a22c9f-2dcd-7a83-8a73-136ecfa97cc2.jsonl"
    path.write_bytes(b"".join(rollout.lines()))
    transcript = read_transcript(path)
    assert transcript.provider == "codex"
    assert transcript.session_id == "01a22c9f-2dcd-7a83-8a73-136ecfa97cc2"
    assert said(transcript) == ["one"]


def test_a_rollout_without_a_conversation_is_refused(rollout: Rollout) -> None:
    rollout.context()
    rollout.message("developer", "secret")
    with pytest.raises(TranscriptError, match=r"^The session file has no conversation\.$"):
        rollout.read()


def test_a_compressed_rollout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x04\x00secret\n")
    with pytest.raises(
        TranscriptError, match=r"^The session file is compressed; unpack it with zstd -d first\.$"
    ):
        read_transcript(path)
