from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.opencode import BEGUN, OpenCodeDatabase
from helpers.settling import settled

from moonfold_handoff.transcripts import (
    Session,
    TranscriptError,
    opencode_database,
    opencode_rows,
    read_transcript,
    sessions_in,
)
from moonfold_handoff.transcripts.opencode import AGENT
from moonfold_schemas import codec
from moonfold_schemas.events import (
    ConversationCompacted,
    ItemRecorded,
    LimitKind,
    ModelSelected,
    ThreadEvent,
    ThreadStarted,
    TurnEnded,
    TurnStatus,
)
from moonfold_schemas.items import (
    AssistantMessage,
    Command,
    FileChange,
    Interruption,
    Item,
    ItemStatus,
    Plan,
    Reasoning,
    UserMessage,
)

ROOT = Path(__file__).resolve().parents[3]
RECORDED = [
    json.loads(line)
    for line in (ROOT / "tests/fixtures/opencode/recorded-1.18.33.jsonl").read_text().splitlines()
]
EXPORTED = ROOT / "tests/fixtures/opencode/exported-1.18.33.json"
WORK, TALK = "ses_dd27ac137ffemZBu4j2A0REcho", "ses_dd2792420ffepMKyC6sBDeIUC5"
MODEL = {"providerID": "zen", "modelID": "big-pickle"}
CURSOR_BYTES = 64 * 1024


@pytest.fixture
def database(tmp_path: Path) -> Iterator[OpenCodeDatabase]:
    database = OpenCodeDatabase(tmp_path / "opencode.db")
    yield database
    database.close()


@pytest.fixture
def session(database: OpenCodeDatabase) -> Session:
    database.session()
    return opencode_database.DatabaseSession("ses_1", database.path)


@pytest.fixture
def recorded(database: OpenCodeDatabase) -> OpenCodeDatabase:
    for event in RECORDED:
        database.replay(event)
    return database


class Follower:
    """Reads a session as it grows, each time from the cursor of the time before."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cursor: bytes | None = None
        self.events: list[ThreadEvent] = []
        self.anew = 0

    def read(self) -> list[ThreadEvent]:
        """Return what was added."""
        added: list[ThreadEvent] = []
        for step in self.session.steps(self.cursor):
            if step.anew:
                self.anew += self.cursor is not None
                self.events, added = [], []
            self.cursor = step.cursor
            added.extend(step.events)
            self.events.extend(step.events)
        return added


@pytest.fixture
def follower(session: Session) -> Follower:
    return Follower(session)


def in_one_go(session: Session) -> list[ThreadEvent]:
    return [event for step in session.steps() for event in step.events]


def items(events: list[ThreadEvent]) -> list[Item]:
    return [e.item for e in settled(events) if isinstance(e, ItemRecorded)]


def said(events: list[ThreadEvent]) -> list[str]:
    return [i.text for i in items(events) if isinstance(i, UserMessage | AssistantMessage)]


def ends(events: list[ThreadEvent]) -> list[TurnStatus]:
    return [e.status for e in settled(events) if isinstance(e, TurnEnded)]


def ask(database: OpenCodeDatabase, number: int, words: str) -> str:
    id_ = f"msg_{number:05}"
    database.message(id_, {"role": "user", "model": MODEL, "time": {"created": BEGUN}})
    database.part(f"prt_{number:05}_1", id_, {"type": "text", "text": words})
    return id_


def reply(
    database: OpenCodeDatabase, number: int, *parts: Any, done: bool = True, **fields: Any
) -> str:
    id_ = f"msg_{number:05}"
    times = {"created": BEGUN, **({"completed": BEGUN + 1} if done else {})}
    info = {
        "role": "assistant",
        "parentID": f"msg_{number - 1:05}",
        **MODEL,
        "time": times,
        **({"finish": "stop"} if done else {}),
        **fields,
    }
    database.message(id_, info)
    for index, part in enumerate(parts, start=1):
        database.part(f"prt_{number:05}_{index}", id_, part)
    return id_


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def bash(status: str, output: str = "", **state: Any) -> dict[str, Any]:
    state = {"status": status, "input": {"command": "make"}, "output": output, **state}
    return {"type": "tool", "tool": "bash", "callID": "c", "state": state}


# The recording


def test_the_recording_has_what_the_agent_did(recorded: OpenCodeDatabase) -> None:
    (work,) = (s for s in AGENT.sessions(recorded.path) if s.session_id == WORK)
    events = in_one_go(work)
    done = items(events)
    commands = [i for i in done if isinstance(i, Command)]
    assert [(c.exit_code, c.output, c.status) for c in commands] == [
        (3, "hi\n", ItemStatus.FAILED),
        (None, "begun\n", ItemStatus.INTERRUPTED),
    ]
    changes = [i for i in done if isinstance(i, FileChange)]
    assert [(Path(c.path).name, str(c.change)) for c in changes] == [
        ("a.txt", "add"),
        ("a.txt", "update"),
        ("a.txt", "update"),
        ("b.txt", "add"),
    ]
    assert (changes[2].diff or "").endswith("@@ -1,2 +1,2 @@\n-one\n+ONE\n three\n")
    assert [i.text for i in done if isinstance(i, Plan)] == ["[x] a\n[ ] b"]
    assert [e.model for e in events if isinstance(e, ModelSelected)] == ["loop/gpt-5"]
    limits = [e.limit and e.limit.kind for e in events if isinstance(e, TurnEnded)]
    assert limits == [
        *(None, None, LimitKind.QUOTA, LimitKind.QUOTA, LimitKind.AUTHENTICATION),
        *(LimitKind.CREDITS, None, None),
    ]


def test_the_recording_leaves_out_what_was_undone(recorded: OpenCodeDatabase) -> None:
    (talk,) = (s for s in AGENT.sessions(recorded.path) if s.session_id == TALK)
    events = in_one_go(talk)
    assert "to be undone" not in said(events)
    assert said(events)[-2:] == ["instead of it", "Plain answer."]
    assert len([i for i in items(events) if isinstance(i, Interruption)]) == 2
    assert len([e for e in events if isinstance(e, ConversationCompacted)]) == 1


def test_an_export_says_what_the_database_says(recorded: OpenCodeDatabase) -> None:
    (talk,) = (s for s in AGENT.sessions(recorded.path) if s.session_id == TALK)
    assert in_one_go(talk) == list(read_transcript(EXPORTED).events)


def test_reading_after_every_write_comes_to_what_reading_once_does(
    database: OpenCodeDatabase,
) -> None:
    followers: dict[str, Follower] = {}
    for event in RECORDED:
        database.replay(event)
        for session in AGENT.sessions(database.path):
            followers.setdefault(session.session_id, Follower(session)).read()
    assert set(followers) == {WORK, TALK}
    # An undo, and another after it was undone itself; removing what was undone changes nothing.
    assert (followers[WORK].anew, followers[TALK].anew) == (0, 2)
    for follower in followers.values():
        grown, once = settled(follower.events), settled(in_one_go(follower.session))
        # The title came later than the thread began.
        assert isinstance(once[0], ThreadStarted)
        assert grown[0] in {once[0], ThreadStarted(time=once[0].time, cwd=once[0].cwd)}
        assert grown[1:] == once[1:]


@pytest.mark.parametrize("seed", range(4))
def test_reading_now_and_then_comes_to_what_reading_once_does(
    database: OpenCodeDatabase, seed: int
) -> None:
    chance = random.Random(seed)
    followers: dict[str, Follower] = {}
    for event in RECORDED:
        database.replay(event)
        for session in AGENT.sessions(database.path) if chance.random() < 0.1 else ():
            followers.setdefault(session.session_id, Follower(session)).read()
    for session in AGENT.sessions(database.path):
        follower = followers[session.session_id]
        follower.read()
        assert settled(follower.events)[1:] == settled(in_one_go(session))[1:]


@pytest.mark.parametrize("session_id", [WORK, TALK])
def test_steps_that_end_anywhere_give_the_same_events(
    recorded: OpenCodeDatabase, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opencode_database.DatabaseSession(session_id, recorded.path)
    whole = in_one_go(session)
    monkeypatch.setattr(opencode_database, "STEP_MESSAGES", 1)
    follower: list[ThreadEvent] = []
    cursor: bytes | None = None
    # Each time the process is killed after its first step.
    while (step := next(session.steps(cursor), None)) is not None:
        assert step.anew == (cursor is None)
        follower.extend(step.events)
        cursor = step.cursor
    assert follower == whole


def test_events_are_valid_and_the_same_every_time(recorded: OpenCodeDatabase) -> None:
    for session in AGENT.sessions(recorded.path):
        first, second = ([codec.encode(e) for e in in_one_go(session)] for _ in range(2))
        assert first == second
        assert [codec.encode(codec.decode_event(raw)) for raw in first] == first


# Growing


def test_a_session_that_did_not_change_gives_no_step(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, text("two"))
    follower.read()
    assert list(follower.session.steps(follower.cursor)) == []


def test_an_empty_session_begins_when_something_is_said(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    assert follower.read() == []
    ask(database, 1, "one")
    assert said(follower.read()) == ["one"]


def test_a_request_whose_words_come_later_begins_its_turn_with_them(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, text("two"))
    database.message("msg_00003", {"role": "user", "time": {}})
    follower.read()
    database.part("prt_00003_1", "msg_00003", text("three"))
    assert said(follower.read()) == ["three"]
    database.part("prt_00003_2", "msg_00003", {"type": "file", "mime": "image/png"})
    (event,) = follower.read()
    assert isinstance(event, ItemRecorded)
    assert isinstance(event.item, UserMessage)
    assert (event.item.text, len(event.item.attachments)) == ("three", 1)
    assert event.item.turn_id == "turn:msg_00003"


def test_a_call_is_recorded_again_only_when_it_changed(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, bash("running"), done=False)
    follower.read()
    database.part("prt_00002_1", "msg_00002", {**bash("running"), "metadata": {"seen": True}})
    assert follower.read() == []
    database.part("prt_00002_1", "msg_00002", bash("completed", "ok", metadata={"exit": 0}))
    (event,) = follower.read()
    assert isinstance(event, ItemRecorded)
    assert isinstance(event.item, Command)
    assert (event.item.status, event.item.exit_code) == (ItemStatus.COMPLETED, 0)


def test_parts_keep_their_places_whichever_is_finished_first(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, {**text(""), "time": {"start": BEGUN}}, bash("running"), done=False)
    follower.read()
    database.part("prt_00002_2", "msg_00002", bash("completed"))
    follower.read()
    times = {"start": BEGUN, "end": BEGUN + 1}
    database.part("prt_00002_1", "msg_00002", {**text("words"), "time": times})
    follower.read()
    kinds = [type(item) for item in items(follower.events)]
    assert kinds == [UserMessage, AssistantMessage, Command]
    assert settled(follower.events) == settled(in_one_go(follower.session))


def test_a_text_that_stays_open_is_given_up_with_its_message(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    begun = {"time": {"start": BEGUN}}
    thought = {"type": "reasoning", "text": "hm", **begun}
    reply(database, 2, thought, {**text("half"), **begun}, done=False)
    follower.read()
    error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    reply(database, 2, error=error)
    follower.read()
    open_ = [i for i in items(follower.events) if isinstance(i, Reasoning | AssistantMessage)]
    assert [i.status for i in open_] == [ItemStatus.INTERRUPTED] * 2
    assert settled(follower.events) == settled(in_one_go(follower.session))
    assert follower.read() == []


def test_a_call_of_an_agent_that_was_killed_is_interrupted_by_the_next_request(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, bash("running"), done=False)
    follower.read()
    ask(database, 3, "two")
    follower.read()
    assert ends(follower.events) == [TurnStatus.INTERRUPTED]
    assert [i.status for i in items(follower.events)][1] is ItemStatus.INTERRUPTED


def test_an_agent_that_is_steered_goes_on_in_both_turns(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, bash("running"), done=False)
    follower.read()
    ask(database, 3, "rather this")
    follower.read()
    database.part("prt_00002_1", "msg_00002", bash("completed", metadata={"exit": 0}))
    reply(database, 2, finish="tool-calls")
    follower.read()
    reply(database, 4, text("done"))
    follower.read()
    command = items(follower.events)[1]
    assert (command.turn_id, command.status) == ("turn:msg_00001", ItemStatus.COMPLETED)
    assert ends(follower.events) == [TurnStatus.INTERRUPTED, TurnStatus.COMPLETED]


def test_a_compaction_that_is_noted_once_more_copies_no_request(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    compaction = {"type": "compaction", "auto": True, "overflow": True}
    database.message("msg_00002", {"role": "user", "time": {}})
    database.part("prt_00002_1", "msg_00002", compaction)
    reply(database, 3, text("a summary"), summary=True)
    ask(database, 4, "one")
    reply(database, 5, text("answer"))
    follower.read()
    database.part("prt_00002_1", "msg_00002", {**compaction, "tail_start_id": "msg_00001"})
    assert follower.read() == []
    ask(database, 6, "one")
    follower.read()
    assert said(follower.events) == ["one", "answer", "one"]


def test_an_answer_to_an_earlier_request_ends_that_requests_turn(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    ask(database, 2, "two")
    reply(database, 3, text("to one"), parentID="msg_00001")
    follower.read()
    (end,) = (e for e in settled(follower.events) if isinstance(e, TurnEnded))
    assert (end.turn_id, end.status) == ("turn:msg_00001", TurnStatus.COMPLETED)


def test_rows_of_one_millisecond_are_neither_missed_nor_doubled(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    database.tick = 0
    ask(database, 1, "one")
    assert said(follower.read()) == ["one"]
    reply(database, 2, text("two"), done=False)
    assert said(follower.read()) == ["two"]
    database.part("prt_00002_1", "msg_00002", text("two, changed"))
    assert said(follower.read()) == ["two, changed"]
    database.part("prt_00002_2", "msg_00002", text("three"))
    assert said(follower.read()) == ["three"]
    assert follower.read() == []
    assert follower.anew == 0


def test_a_row_that_was_written_late_is_not_missed(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, bash("running"), done=False)
    ask(database, 3, "two")
    follower.read()
    database.now -= 1_000
    database.part("prt_00002_1", "msg_00002", bash("completed"))
    assert len(items(follower.read())) == 1
    assert follower.anew == 0


def test_many_rows_of_one_moment_are_read_once_and_changes_after_them(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    database.tick = 0
    for number in range(1, 600, 2):
        ask(database, number, f"request {number}")
        reply(database, number + 1, text(f"answer {number}"))
    follower.read()
    assert len(said(follower.events)) == 600
    assert follower.read() == []
    database.tick = 1
    database.part("prt_00002_1", "msg_00002", text("changed"))
    assert said(follower.read()) == ["changed"]
    assert follower.anew == 0


def test_many_changes_between_two_readings_are_all_read(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    for number in range(1, 801, 2):
        ask(database, number, "request")
        reply(database, number + 1, bash("running"), done=False)
    follower.read()
    database.tick = 20
    for number in range(2, 801, 2):
        database.part(f"prt_{number:05}_1", f"msg_{number:05}", bash("completed"))
        reply(database, number)
    follower.read()
    assert {i.status for i in items(follower.events)} == {ItemStatus.COMPLETED}
    assert follower.read() == []
    assert follower.anew == 0


def test_a_message_that_left_the_memory_only_changes_its_items(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    for number in range(1, 201, 2):
        ask(database, number, "request")
        reply(database, number + 1, text("answer"), tokens={"input": 7})
    follower.read()
    database.now += 10_000
    database.part("prt_00001_1", "msg_00001", text("another request"))
    database.part("prt_00002_1", "msg_00002", text("another answer"))
    reply(database, 2, tokens={"input": 7}, cost=1)
    events = follower.read()
    assert [e.item.turn_id for e in events if isinstance(e, ItemRecorded)] == ["turn:msg_00001"] * 2
    assert len(events) == 2
    assert settled(follower.events) == settled(in_one_go(follower.session))


def test_outputs_that_opencode_clears_are_not_recorded_again(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    times = {"start": BEGUN, "end": BEGUN + 5}
    for number in range(1, 601, 2):
        ask(database, number, "request")
        reply(database, number + 1, bash("completed", "ok", time=times))
    follower.read()
    database.now += 10_000
    cleared = {**times, "compacted": database.now}
    for number in range(2, 601, 2):
        database.part(
            f"prt_{number:05}_1", f"msg_{number:05}", bash("completed", "ok", time=cleared)
        )
    assert follower.read() == []
    late = {"start": BEGUN, "end": database.now, "compacted": database.now + 1}
    database.part("prt_00002_1", "msg_00002", bash("completed", "other", time=late))
    assert len(follower.read()) == 1


def test_a_cursor_that_cannot_be_read_starts_anew(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    follower.read()
    assert follower.cursor is not None
    fields = msgspec.msgpack.decode(follower.cursor)
    fields[1] += 1
    for cursor in (b"", b"junk", msgspec.msgpack.encode(fields)):
        (step,) = follower.session.steps(cursor)
        assert step.anew
        assert said(list(step.events)) == ["one"]


# Undoing, and rows that are gone


def test_an_undo_takes_back_and_a_redo_brings_back(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, text("two"))
    ask(database, 3, "three")
    reply(database, 4, text("four"), text("five"))
    follower.read()
    database.change_session("ses_1", revert=json.dumps({"messageID": "msg_00003"}))
    follower.read()
    assert said(follower.events) == ["one", "two"]
    database.change_session("ses_1", revert=None)
    follower.read()
    assert said(follower.events) == ["one", "two", "three", "four", "five"]
    assert follower.anew == 1


def test_an_undo_of_a_part_leaves_what_is_before_it(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    reply(database, 2, text("two"), text("three"))
    ask(database, 3, "four")
    revert = {"messageID": "msg_00002", "partID": "prt_00002_2"}
    database.change_session("ses_1", revert=json.dumps(revert))
    follower.read()
    assert said(follower.events) == ["one", "two"]
    assert follower.read() == []
    database.remove("message", "msg_00003")
    database.remove("part", "prt_00002_2")
    database.change_session("ses_1", revert=None)
    ask(database, 4, "five")
    follower.read()
    assert said(follower.events) == ["one", "two", "five"]


def test_what_was_undone_says_nothing_while_it_is_being_removed(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    ask(database, 2, "two")
    reply(database, 3, text("three"))
    database.change_session("ses_1", revert=json.dumps({"messageID": "msg_00002"}))
    follower.read()
    database.remove("message", "msg_00002")
    assert follower.read() == []
    database.remove("message", "msg_00003")
    database.change_session("ses_1", revert=None)
    ask(database, 4, "four")
    assert said(follower.read()) == ["four"]
    assert follower.anew == 0


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda d: d.remove("message", "msg_00002"), ["one", "four"]),
        (lambda d: d.remove("part", "prt_00002_1"), ["one", "three", "four"]),
        (
            lambda d: (
                d.message("msg_00000", {"role": "user", "time": {}}, created=BEGUN),
                d.part("prt_00000", "msg_00000", text("zero")),
            ),
            ["zero", "one", "two", "three", "four"],
        ),
        (
            lambda d: (d.remove("message", "msg_00003"), ask(d, 5, "five")),
            ["one", "two", "three", "five"],
        ),
    ],
    ids=["message removed", "part removed", "message before", "removed and added"],
)
def test_a_session_whose_past_changed_is_read_anew(
    database: OpenCodeDatabase,
    follower: Follower,
    change: Callable[[OpenCodeDatabase], object],
    left: list[str],
) -> None:
    ask(database, 1, "one")
    reply(database, 2, text("two"), text("three"))
    ask(database, 3, "four")
    follower.read()
    change(database)
    follower.read()
    assert follower.anew == 1
    assert said(follower.events) == left


def test_a_session_that_is_gone_is_refused(database: OpenCodeDatabase, follower: Follower) -> None:
    ask(database, 1, "one")
    follower.read()
    database.remove("session", "ses_1")
    with pytest.raises(TranscriptError, match="not in the OpenCode database any more"):
        follower.read()


# Several sessions, large ones, a writer at work


def test_a_database_gives_a_persons_sessions_the_newest_first(
    database: OpenCodeDatabase,
) -> None:
    for name in ("ses_a", "ses_b"):
        database.session(name, title=f"Session {name}")
    database.session("ses_sub", parent_id="ses_a")
    database.message("msg_a", {"role": "user", "time": {}}, "ses_a")
    database.part("prt_a", "msg_a", text("for a"), "ses_a")
    database.message("msg_b", {"role": "user", "time": {}}, "ses_b")
    database.part("prt_b", "msg_b", text("for b"), "ses_b")
    database.change_session("ses_a", title="Renamed")
    sessions = sessions_in(database.path)
    assert [s.session_id for s in sessions] == ["ses_a", "ses_b"]
    assert [said(in_one_go(s)) for s in sessions] == [["for a"], ["for b"]]
    assert read_transcript(database.path).session_id == "ses_a"


def test_the_log_of_a_database_stands_for_it(database: OpenCodeDatabase) -> None:
    database.session()
    (session,) = AGENT.sessions(database.path.with_name("opencode.db-wal"))
    assert session.path == database.path


def test_a_writer_in_the_middle_of_its_work_is_neither_seen_nor_kept_waiting(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    database.run("BEGIN IMMEDIATE")
    ask(database, 2, "two")
    assert said(follower.read()) == ["one"]
    for _ in follower.session.steps():
        database.run("COMMIT")
        database.run("PRAGMA wal_checkpoint(TRUNCATE)")
    assert said(follower.read()) == ["two"]


def test_a_database_that_is_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode_rows, "BUSY_SECONDS", 0.0)
    database = OpenCodeDatabase(tmp_path / "opencode.db", journal="delete")
    database.session()
    (session,) = AGENT.sessions(database.path)
    database.run("BEGIN EXCLUSIVE")
    with pytest.raises(TranscriptError, match="busy"):
        list(session.steps())
    with pytest.raises(TranscriptError, match="busy"):
        sessions_in(database.path)
    database.close()


def test_a_long_session_is_read_in_steps_with_flat_memory(
    database: OpenCodeDatabase, session: Session
) -> None:
    database.run("BEGIN")
    for number in range(1, 5_001, 2):
        ask(database, number, f"request {number}")
        reply(database, number + 1, text("an answer " * 200))
    database.run("COMMIT")
    steps = cursor_bytes = spoken = 0
    tracemalloc.start()
    for step in session.steps():
        steps += 1
        cursor_bytes = max(cursor_bytes, len(step.cursor))
        spoken += sum(isinstance(event, ItemRecorded) for event in step.events)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spoken == 5_000
    assert steps == 10
    assert cursor_bytes < CURSOR_BYTES
    assert peak < 8 * 1024 * 1024


# Damage


def test_rows_that_are_no_documents_are_counted(
    database: OpenCodeDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode_rows, "MOST_ROW_CHARACTERS", 1_000)
    ask(database, 1, "one")
    database.message("msg_00002", "{broken")
    database.message("msg_00003", b"\xff\xfe")
    database.message("msg_00004", "[1]")
    ask(database, 5, "five " * 300)
    database.message("msg_00006", {"role": "user", "padding": "x" * 2_000})
    database.run("INSERT INTO message VALUES (NULL, 'ses_1', 1, 1, '{}')")
    database.run("INSERT INTO message VALUES ('msg_00007', 'ses_1', 'noon', 1, '{}')")
    database.run("INSERT INTO part VALUES (x'00ff', 'msg_00001', 'ses_1', 'noon', 'noon', '7')")
    (step,) = session.steps()
    assert said(list(step.events)) == ["one"]
    assert step.facts.skipped == {
        "broken row": 2,
        "malformed record": 1,
        "row too long": 2,
        "row without an id": 1,
    }
    assert list(session.steps(step.cursor)) == []


def test_a_row_whose_id_is_no_text_holds_nothing_up(
    database: OpenCodeDatabase, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode_database, "STEP_MESSAGES", 1)
    ask(database, 1, "one")
    database.run(
        "INSERT INTO message VALUES (CAST(x'ff' AS TEXT), 'ses_1', ?, ?, '{}')",
        *(database.now, database.now + 1),
    )
    ask(database, 2, "two")
    follower.read()
    assert said(follower.events) == ["one", "two"]
    assert follower.anew == 1
    ask(database, 3, "three")
    assert said(follower.read()) == ["three"]
    assert follower.anew == 1


def test_no_session_of_another_shape_is_fatal(
    database: OpenCodeDatabase, follower: Follower
) -> None:
    ask(database, 1, "one")
    for revert in ("", "{", "[]", "null", '{"messageID": 3}', '{"messageID": "none"}', b"\xff"):
        database.change_session("ses_1", revert=revert, title=revert, version=revert)
        assert said(in_one_go(follower.session)) == ["one"]


@pytest.mark.parametrize("size", [16, 100, 4096, 9000])
def test_a_database_that_was_cut_off_is_refused(
    tmp_path: Path, database: OpenCodeDatabase, size: int
) -> None:
    database.session()
    ask(database, 1, "secret words")
    database.run("PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / "cut.db"
    path.write_bytes(database.path.read_bytes()[:size])
    with pytest.raises(TranscriptError, match="Cannot read the OpenCode database"):
        sessions_in(path)


def test_a_database_that_breaks_while_it_is_followed_is_refused(
    tmp_path: Path, database: OpenCodeDatabase
) -> None:
    database.session()
    ask(database, 1, "secret words")
    database.run("PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / "broken.db"
    path.write_bytes(database.path.read_bytes())
    (session,) = AGENT.sessions(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 8_000)
    with pytest.raises(TranscriptError, match="Cannot read the OpenCode database"):
        list(session.steps())


@pytest.mark.parametrize("table", ["session", "message", "part"])
def test_a_database_of_something_else_holds_no_sessions(
    database: OpenCodeDatabase, table: str
) -> None:
    database.session()
    database.run(f"DROP TABLE {table}")
    assert list(AGENT.sessions(database.path)) == []
    with pytest.raises(TranscriptError, match="not a session of a known agent"):
        sessions_in(database.path)


def test_a_database_of_another_layout_is_refused(
    database: OpenCodeDatabase, session: Session
) -> None:
    database.run("ALTER TABLE part RENAME COLUMN time_updated TO changed")
    with pytest.raises(TranscriptError, match="Cannot read the OpenCode database"):
        list(session.steps())


def test_a_database_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="Cannot read the session file: No such file"):
        sessions_in(tmp_path / "opencode.db")
    with pytest.raises(OSError, match="No such file"):
        list(AGENT.sessions(tmp_path / "opencode.db-wal"))
