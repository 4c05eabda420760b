from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.rollouts import (
    EXITED,
    LATER,
    LATEST,
    RECORDED,
    RUNNING,
    USAGE_LIMIT,
    WRITTEN,
    Rollout,
    ends,
    of,
    public,
    said,
    window,
    write_rolled_back,
)
from helpers.settling import read_settled

from moonfold_handoff.transcripts import Transcript, codex, sessions_in
from moonfold_schemas.events import (
    ConversationStarted,
    ItemRecorded,
    QuotaReported,
    ThreadEvent,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import AssistantMessage, Command, ItemStatus


@pytest.fixture
def rollout() -> Rollout:
    made = Rollout()
    made.meta()
    return made


# In steps


def in_one_go(path: Path) -> list[ThreadEvent]:
    (session,) = sessions_in(path)
    return [event for step in session.steps(zone=UTC) for event in step.events]


def in_steps(path: Path, raw: bytes, cuts: Iterable[int]) -> list[ThreadEvent]:
    """Return the events of a file that is found at each of these lengths."""
    events: list[ThreadEvent] = []
    cursor: bytes | None = None
    for length in (*cuts, len(raw)):
        path.write_bytes(raw[:length])
        for session in codex.AGENT.sessions(path):
            for step in session.steps(cursor, zone=UTC):
                assert step.anew is (cursor is None)
                events.extend(step.events)
                cursor = step.cursor
    return events


def cuts_of(raw: bytes) -> list[int]:
    """Return the ends of all lines, without and with their break, and places in their middle."""
    lines = raw.splitlines(keepends=True)
    ends = list(itertools.accumulate(map(len, lines)))
    middles = [end - len(line) // 2 for end, line in zip(ends, lines, strict=True)]
    return sorted({*ends, *middles, *(end - 1 for end in ends)})


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recording_in_steps_gives_the_same_events(path: Path, tmp_path: Path) -> None:
    raw = path.read_bytes()
    assert in_steps(tmp_path / path.name, raw, cuts_of(raw)) == in_one_go(path)


@pytest.mark.parametrize("name", ["rollout-0.40-a", "rollout-0.40-b", "rollout-0.144-basic"])
def test_a_public_session_in_steps_gives_the_same_events(name: str, tmp_path: Path) -> None:
    path = public(name)
    raw = path.read_bytes()
    assert in_steps(tmp_path / path.name, raw, cuts_of(raw)) == in_one_go(path)


@pytest.mark.parametrize("write", WRITTEN)
def test_a_session_in_steps_gives_the_same_events(
    write: Callable[[Rollout], None], tmp_path: Path
) -> None:
    rollout = Rollout()
    write(rollout)
    raw = b"".join(rollout.lines())
    stepped = in_steps(tmp_path / "rollout.jsonl", raw, cuts_of(raw))
    assert stepped == in_one_go(tmp_path / "rollout.jsonl")
    assert any(isinstance(event, ItemRecorded) for event in stepped)


def test_a_session_cut_at_every_byte_gives_the_same_events(
    rollout: Rollout, tmp_path: Path
) -> None:
    rollout.start()
    rollout.message("user", "one 🎉")
    rollout.call("shell", {"command": "ls"})
    rollout.end(error=USAGE_LIMIT)
    raw = b"".join(rollout.lines())
    path = tmp_path / "rollout.jsonl"
    assert in_steps(path, raw, range(1, len(raw))) == in_one_go(path)


def test_a_cursor_is_small_whatever_the_session_s_length(rollout: Rollout, tmp_path: Path) -> None:
    for number in range(1_500):
        rollout.start(f"turn-{number}")
        rollout.context("gpt-5-codex" if number % 2 else "gpt-6")
        rollout.user(f"request {number}")
        rollout.event("agent_reasoning", text=f"thought {number}")
        rollout.call("exec_command", {"cmd": "serve"}, f"call-{number}")
        rollout.output(RUNNING, f"call-{number}")
        rollout.event("error", message=f"error {number}")
        rollout.assistant(f"answer {number}")
        rollout.rates({"limit_id": f"model-{number}", "primary": window(number % 100)})
        rollout.end(f"turn-{number}")
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(b"".join(rollout.lines()))
    (session,) = sessions_in(path)
    *_, last = session.steps()
    assert len(last.cursor) < 48 * 1024


# Followed as it is written


@pytest.mark.parametrize("place", ["task_complete", "event"])
def test_a_limit_is_known_as_soon_as_its_record_is_read(
    rollout: Rollout, tmp_path: Path, place: str
) -> None:
    rollout.start()
    rollout.user("one")
    if place == "event":
        rollout.event("error", **USAGE_LIMIT)
    else:
        rollout.end(error=USAGE_LIMIT)
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(b"".join(rollout.lines()))
    (session,) = sessions_in(path)
    (step,) = session.steps(zone=UTC)
    end = step.events[step.facts.limited_at - 1]
    assert isinstance(end, TurnEnded)
    assert end.status is TurnStatus.LIMITED
    assert step.facts.limit == end.limit
    assert end.limit is not None


def test_an_error_that_is_told_twice_ends_its_turn_once(rollout: Rollout) -> None:
    error = {"message": "You've hit your usage limit. Try again in 5 minutes."}
    rollout.start()
    rollout.user("one")
    rollout.event("error", **error)
    rollout.end(error=error)
    transcript = rollout.read_raw()
    assert ends(transcript) == [TurnStatus.LIMITED]
    assert transcript.facts.limited_at == len(transcript.events)


def test_a_turn_that_goes_on_after_an_error_ends_once_more(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("one")
    rollout.call("shell", {"command": "ls"})
    rollout.event("error", **USAGE_LIMIT)
    rollout.output("Exit code: 0\nOutput:\nfile")
    rollout.assistant("done")
    rollout.end()
    transcript = rollout.read_raw()
    assert ends(transcript) == [TurnStatus.LIMITED, TurnStatus.COMPLETED]
    assert [c.status for c in of(transcript, Command)] == [
        ItemStatus.IN_PROGRESS,
        ItemStatus.INTERRUPTED,
        ItemStatus.COMPLETED,
    ]
    assert transcript.limit is None


@pytest.mark.parametrize("more", ["answer", "call", "request"])
def test_an_error_counts_anew_where_the_turn_went_on(rollout: Rollout, more: str) -> None:
    rollout.start()
    rollout.user("one")
    rollout.event("error", **USAGE_LIMIT)
    if more == "answer":
        rollout.assistant("working", phase="commentary")
    elif more == "call":
        rollout.call("shell", {"command": "ls"})
    else:
        rollout.user("and now?")
    rollout.end(error=USAGE_LIMIT)
    transcript = rollout.read_raw()
    assert ends(transcript) == [TurnStatus.LIMITED, TurnStatus.LIMITED]
    assert transcript.facts.limited_at == len(transcript.events)


def test_an_answer_that_only_the_history_has_clears_the_limit(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.event("error", **USAGE_LIMIT)
    rollout.message("user", "and now?")
    rollout.message("assistant", "fine")
    transcript = rollout.read()
    assert said(transcript) == ["one", "and now?", "fine"]
    assert transcript.limit is None


def test_a_turn_in_which_nothing_happens_says_nothing_before_the_session_begins(
    rollout: Rollout,
) -> None:
    rollout.start("turn-1", model_context_window=1)
    rollout.start("turn-2", model_context_window=258_400)
    rollout.context("gpt-6")
    rollout.user("one")
    transcript = rollout.read_raw()
    assert [type(event) for event in transcript.events] == [
        ThreadStarted,
        ConversationStarted,
        TurnStarted,
        ItemRecorded,
    ]
    (started,) = of(transcript, ConversationStarted)
    assert (started.model, started.capacity) == ("gpt-6", 258_400)
    assert [t.turn_id for t in of(transcript, TurnStarted)] == ["turn-2"]


def test_what_is_told_of_a_call_that_is_over_adds_nothing(rollout: Rollout) -> None:
    rollout.start()
    rollout.call("exec_command", {"cmd": "make"})
    rollout.output(EXITED)
    rollout.end()
    rollout.completed("CommandExecution", id="call-1", exit_code=3, aggregated_output="x")
    rollout.event("exec_command_end", call_id="call-1", exit_code=3, stdout="x")
    rollout.output("again")
    transcript = rollout.read_raw()
    assert len(of(transcript, Command)) == 2
    assert ends(transcript) == [TurnStatus.COMPLETED]
    assert transcript.facts.skipped == {}


def test_what_is_rolled_back_is_not_recorded_again(rollout: Rollout) -> None:
    write_rolled_back(rollout)
    events = rollout.read_raw().events
    (rolled,) = (number for number, e in enumerate(events) if isinstance(e, TurnsRolledBack))
    after = [e.item for e in events[rolled:] if isinstance(e, ItemRecorded)]
    assert [i.item_id for i in after if isinstance(i, Command)] == ["call-0"]


def test_a_client_s_answer_between_turns_is_a_turn_of_its_own(rollout: Rollout) -> None:
    rollout.start()
    rollout.user("one")
    rollout.assistant("two")
    rollout.end(last_agent_message="two")
    rollout.message("assistant", "added")
    rollout.start("turn-2")
    transcript = rollout.read_raw()
    assert ends(transcript) == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]
    assert [m.turn_id for m in of(transcript, AssistantMessage)] == ["turn-1", "turn:line-7"]


# Quota windows


def test_a_recording_reports_its_quota_once() -> None:
    transcript = read_settled(RECORDED / "rollout-0.171-usage-limit.jsonl", zone=UTC)
    (report,) = of(transcript, QuotaReported)
    assert not report.has_credits
    assert [(w.name, w.used_percent, w.minutes) for w in report.windows] == [
        ("primary", 42.0, 300),
        ("secondary", 7.0, 10_080),
    ]
    assert report.windows[0].resets_at == datetime.fromtimestamp(1_796_053_825, UTC)


def quotas(transcript: Transcript) -> list[list[tuple[str, float]]]:
    reports = of(transcript, QuotaReported)
    return [[(w.name, w.used_percent) for w in report.windows] for report in reports]


def test_quota_is_reported_for_every_whole_percent(rollout: Rollout) -> None:
    rollout.user("one")
    for used in (40.2, 40.9, 41.0, 41.0, 99.9, 100):
        rollout.rates({"primary": window(used)})
    assert quotas(rollout.read()) == [
        [("primary", 40.2)],
        [("primary", 41.0)],
        [("primary", 99.9)],
        [("primary", 100.0)],
    ]


@pytest.mark.parametrize(
    ("first", "second", "reports"),
    [
        ({"resets_at": LATER.timestamp()}, {"resets_at": LATER.timestamp() + 2}, 1),
        ({"resets_at": LATER.timestamp()}, {"resets_at": LATEST.timestamp()}, 2),
        ({"resets_at": LATER.timestamp()}, {}, 2),
        # Relative to their records, which are a second apart.
        ({"resets_in_seconds": 600}, {"resets_in_seconds": 599}, 1),
        ({"resets_in_seconds": 600}, {"resets_in_seconds": 300}, 2),
        ({"window_minutes": 299}, {"window_minutes": 300}, 1),
    ],
)
def test_quota_is_reported_when_its_window_is_another_one(
    rollout: Rollout, first: Any, second: Any, reports: int
) -> None:
    rollout.user("one")
    rollout.rates({"primary": window(50, **first)})
    rollout.rates({"primary": window(50, **second)})
    assert len(quotas(rollout.read())) == reports


def test_quota_is_reported_when_a_window_or_the_credits_come_and_go(rollout: Rollout) -> None:
    rollout.user("one")
    credits_ = {"has_credits": True}
    rollout.rates({"primary": window(50)})
    rollout.rates({"primary": window(50), "secondary": window(50)})
    rollout.rates({"secondary": window(50)})
    rollout.rates({"primary": window(50)})
    rollout.rates({"primary": window(50), "credits": credits_})
    rollout.rates({"primary": window(50), "credits": credits_})
    rollout.rates({"primary": None})
    transcript = rollout.read()
    assert [len(windows) for windows in quotas(transcript)] == [1, 2, 1, 1, 1]
    assert [r.has_credits for r in of(transcript, QuotaReported)] == [False] * 4 + [True]


def test_each_kind_of_limit_has_its_own_windows(rollout: Rollout) -> None:
    rollout.user("one")
    for _ in range(2):
        rollout.rates({"limit_id": "codex", "primary": window(50)})
        rollout.rates({"limit_id": "spark", "primary": window(7)})
    assert quotas(rollout.read()) == [[("primary", 50.0)], [("spark.primary", 7.0)]]


def test_quota_of_older_files_is_reported_too(rollout: Rollout) -> None:
    rollout.user("one")
    rollout.rates({"primary_used_percent": 35.0, "primary_window_minutes": 299})
    (report,) = of(rollout.read(), QuotaReported)
    (primary,) = report.windows
    assert (primary.name, primary.used_percent, primary.minutes) == ("primary", 35.0, 299)
    assert primary.resets_at is None


@pytest.mark.parametrize("used", ["50", None, True, -1, 1e301])
def test_what_cannot_be_a_share_of_a_window_is_no_quota(rollout: Rollout, used: Any) -> None:
    rollout.user("one")
    rollout.rates({"primary": {"used_percent": used}})
    assert quotas(rollout.read()) == []


# Where sessions are


@pytest.mark.parametrize(
    ("environment", "folder"), [({}, "/home/dev/.codex"), ({"CODEX_HOME": "/data"}, "/data")]
)
def test_sessions_are_below_codex_s_home(environment: dict[str, str], folder: str) -> None:
    roots = codex.AGENT.roots(environment, Path("/home/dev"))
    assert roots == (Path(folder, "sessions"), Path(folder, "archived_sessions"))


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("rollout-2026-11-30T12-00-00-01a22c9f.jsonl", True),
        ("rollout-2026-11-30T12-00-00-01a22c9f.jsonl.zst", False),
        ("history.jsonl", False),
    ],
)
def test_a_session_s_file_is_known_by_its_name(name: str, holds: bool) -> None:
    assert codex.AGENT.holds_sessions(Path("/home/dev/.codex/sessions", name)) is holds
