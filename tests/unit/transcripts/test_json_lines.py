from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.stepping import in_one_go, in_steps

from moonfold_handoff.transcripts import claude_code, json_lines
from moonfold_handoff.transcripts.base import OtherSessionError, Session, Step, TranscriptError
from moonfold_schemas import ThreadEvent, encode
from moonfold_schemas.events import ItemRecorded

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "worker/moonfold_handoff/demo/recorded-2.1-slugger-limit.jsonl"
SESSION = "3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"


def record(number: int, type_: str = "user", **fields: Any) -> dict[str, Any]:
    return {
        "type": type_,
        "uuid": f"r{number}",
        "parentUuid": f"r{number - 1}" if number > 1 else None,
        "message": {"role": type_, "content": f"text {number}"},
        **fields,
    }


def line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def talk(count: int, first: int = 1) -> bytes:
    return b"".join(
        line(record(n, "user" if n % 2 else "assistant")) for n in range(first, first + count)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION}.jsonl"


def the_session(path: Path) -> Session:
    (session,) = claude_code.AGENT.sessions(path)
    return session


def texts(events: Iterable[ThreadEvent]) -> list[str]:
    return [getattr(e.item, "text", "") for e in events if isinstance(e, ItemRecorded)]


def read(session: Session, cursor: bytes | None = None) -> list[Step]:
    return list(session.steps(cursor))


# Going on


def test_what_was_read_is_not_read_again(path: Path) -> None:
    path.write_bytes(talk(2))
    session = the_session(path)
    (first,) = read(session)
    assert (first.anew, texts(first.events)) == (True, ["text 1", "text 2"])
    assert read(session, first.cursor) == []
    with path.open("ab") as file:
        file.write(talk(2, first=3))
    (second,) = read(session, first.cursor)
    assert (second.anew, texts(second.events)) == (False, ["text 3", "text 4"])


def test_half_a_line_waits_for_its_other_half(path: Path) -> None:
    whole = talk(1)
    path.write_bytes(whole + talk(1, first=2)[:30])
    session = the_session(path)
    (step,) = read(session)
    assert (texts(step.events), step.rest) == (["text 1"], 30)
    assert read(session, step.cursor) == []
    path.write_bytes(whole + talk(1, first=2))
    (rest,) = read(session, step.cursor)
    assert (texts(rest.events), rest.rest) == (["text 2"], 0)


def test_a_whole_record_does_not_wait_for_its_line_break(path: Path) -> None:
    path.write_bytes(talk(2)[:-1])
    session = the_session(path)
    (step,) = read(session)
    assert texts(step.events) == ["text 1", "text 2"]
    with path.open("ab") as file:
        file.write(b"\n" + talk(1, first=3))
    (rest,) = read(session, step.cursor)
    assert texts(rest.events) == ["text 3"]
    assert list(step.events + rest.events) == in_one_go(session)


def test_a_number_at_the_end_may_be_half_a_number(path: Path) -> None:
    path.write_bytes(talk(1) + b"42")
    session = the_session(path)
    (step,) = read(session)
    assert step.rest == 2
    with path.open("ab") as file:
        file.write(b"7\n")
    (rest,) = read(session, step.cursor)
    assert rest.facts.skipped == {"not a record": 1}


def test_a_large_file_is_read_in_many_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "STEP_BYTES", 300)
    path.write_bytes(talk(20))
    session = the_session(path)
    steps = read(session)
    assert len(steps) > 5
    assert [step.anew for step in steps] == [True] + [False] * (len(steps) - 1)
    assert [t for step in steps for t in texts(step.events)] == [f"text {n}" for n in range(1, 21)]
    # Each step's cursor stands where the next one begins.
    for number, step in enumerate(steps):
        later = [e for s in steps[number + 1 :] for e in s.events]
        assert [e for s in read(session, step.cursor) for e in s.events] == later


@pytest.mark.parametrize("seed", range(10))
def test_steps_that_end_anywhere_give_the_same_events(path: Path, seed: int) -> None:
    raw = DEMO.read_bytes()
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(len(raw)), 25))
    path.write_bytes(raw)
    whole = [encode(e) for e in in_one_go(the_session(path))]
    assert [encode(e) for e in in_steps(claude_code.AGENT, path, raw, cuts)] == whole


def test_a_cursor_stays_small_however_long_the_session(path: Path) -> None:
    path.write_bytes(talk(20_000))
    cursors = [len(step.cursor) for step in read(the_session(path))]
    assert max(cursors) < 64 * 1024


def test_blank_lines_and_a_byte_order_mark_count_for_nothing(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + talk(1) + b"\n  \r\n" + talk(1, first=2))
    (step,) = read(the_session(path))
    assert texts(step.events) == ["text 1", "text 2"]
    assert step.facts.skipped == {}


def test_a_line_that_is_too_long_is_left_out_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(json_lines, "STEP_BYTES", 500)
    long = line(record(2, message={"role": "user", "content": "x" * 5000}))
    path.write_bytes(talk(1) + long[:3000])
    session = the_session(path)
    (step,) = read(session)
    assert texts(step.events) == ["text 1"]
    path.write_bytes(talk(1) + long + line(record(3, parentUuid="r1")))
    rest = read(session, step.cursor)
    assert [t for s in rest for t in texts(s.events)] == ["text 3"]
    assert rest[-1].facts.skipped == {"line too long": 1}


# Files that change otherwise than by growing


def test_a_file_that_shrank_is_read_anew(path: Path) -> None:
    path.write_bytes(talk(4))
    session = the_session(path)
    (step,) = read(session)
    path.write_bytes(talk(2))
    (again,) = read(session, step.cursor)
    assert (again.anew, texts(again.events)) == (True, ["text 1", "text 2"])


def test_a_file_with_another_past_is_read_anew(path: Path) -> None:
    path.write_bytes(talk(2))
    session = the_session(path)
    (step,) = read(session)
    path.write_bytes(talk(2).replace(b"text 2", b"text B") + talk(1, first=3))
    (again,) = read(session, step.cursor)
    assert (again.anew, texts(again.events)) == (True, ["text 1", "text B", "text 3"])


def test_a_file_that_became_another_session_is_told(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(line(record(1, sessionId="a")))
    session = the_session(path)
    (step,) = read(session)
    path.write_bytes(line(record(1, sessionId="b")))
    with pytest.raises(OtherSessionError):
        read(session, step.cursor)
    path.write_bytes(b"")
    with pytest.raises(OtherSessionError):
        read(session, step.cursor)


def test_a_file_that_is_gone_is_told(path: Path) -> None:
    path.write_bytes(talk(1))
    session = the_session(path)
    (step,) = read(session)
    path.unlink()
    with pytest.raises(TranscriptError, match="Cannot read the session file: No such file"):
        read(session, step.cursor)


@pytest.mark.parametrize("cursor", [b"", b"\xc1", msgspec.msgpack.encode([1, 2, 3])])
def test_a_cursor_that_cannot_be_read_means_from_the_start(path: Path, cursor: bytes) -> None:
    path.write_bytes(talk(2))
    (step,) = read(the_session(path), cursor)
    assert (step.anew, texts(step.events)) == (True, ["text 1", "text 2"])


def test_a_cursor_of_another_format_means_from_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(talk(2))
    session = the_session(path)
    (step,) = read(session)
    monkeypatch.setattr(json_lines, "FORMAT", json_lines.FORMAT + 1)
    (again,) = read(session, step.cursor)
    assert again.anew


# A person who goes back


def rewound() -> Iterator[bytes]:
    yield talk(4)
    # The second request again, otherwise: what followed the first one is abandoned.
    yield line(record(5, parentUuid="r2"))
    yield line(record(6, "assistant"))
    yield line(record(7))


def test_a_rewind_makes_the_session_begin_anew_without_what_was_abandoned(path: Path) -> None:
    session, cursor, seen = None, None, []
    for part in rewound():
        with path.open("ab") as file:
            file.write(part)
        session = session or the_session(path)
        for step in session.steps(cursor):
            seen.append((step.anew, texts(step.events)))
            cursor = step.cursor
    assert seen == [
        (True, ["text 1", "text 2", "text 3", "text 4"]),
        (True, ["text 1", "text 2", "text 5"]),
        (False, ["text 6"]),
        (False, ["text 7"]),
    ]


def test_a_record_on_an_abandoned_branch_makes_that_one_the_session(path: Path) -> None:
    path.write_bytes(b"".join(rewound()) + line(record(8, parentUuid="r4")))
    assert texts(in_one_go(the_session(path))) == ["text 1", "text 2", "text 3", "text 4", "text 8"]


def test_what_hangs_on_the_active_branch_does_not_make_it_be_read_again(path: Path) -> None:
    path.write_bytes(b"".join(rewound()))
    with path.open("ab") as file:
        file.write(line({"type": "system", "uuid": "s1", "parentUuid": "r7", "subtype": "x"}))
    session = the_session(path)
    cursor = read(session)[-1].cursor
    with path.open("ab") as file:
        file.write(line(record(9, "assistant", parentUuid="s1")))
    (step,) = read(session, cursor)
    assert (step.anew, texts(step.events)) == (False, ["text 9"])


def test_a_note_on_an_earlier_message_does_not_hide_a_rewind(path: Path) -> None:
    note = {"type": "system", "uuid": "s1", "parentUuid": "r2", "subtype": "x"}
    path.write_bytes(talk(4) + line(note) + line(record(5, parentUuid="s1")))
    assert texts(in_one_go(the_session(path))) == ["text 1", "text 2", "text 5"]


# Whose file it is


def test_a_folder_of_sessions_holds_no_subagents_files() -> None:
    assert claude_code.AGENT.holds_sessions(Path(f"/p/-project/{SESSION}.jsonl"))
    for name in ("-project/x/subagents/agent-1.jsonl", "-project/notes.txt"):
        assert not claude_code.AGENT.holds_sessions(Path("/p") / name)


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({}, "/home/dev/.claude/projects"),
        ({"CLAUDE_CONFIG_DIR": "/elsewhere"}, "/elsewhere/projects"),
    ],
)
def test_the_sessions_of_claude_code_are_where_it_keeps_them(
    environment: dict[str, str], root: str
) -> None:
    assert claude_code.AGENT.roots(environment, Path("/home/dev")) == (Path(root),)


def test_a_file_is_named_for_its_session_whatever_its_records_say(path: Path) -> None:
    path.write_bytes(line(record(1, sessionId="the one it was resumed from")))
    assert the_session(path).session_id == SESSION


def test_a_file_of_something_else_has_no_session(path: Path) -> None:
    path.write_bytes(b'{"type":"mode"}\nno json\n' + b"[]\n" * 300 + talk(1))
    assert list(claude_code.AGENT.sessions(path)) == []
