"""What the state keeps of how turns ended, and of quotas."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from helpers.building import folded, log, started, state_of, user

from moonfold_handoff.context.fold import adopt
from moonfold_handoff.context.state import Outcome, Quota, ThreadState
from moonfold_schemas.events import (
    Limit,
    LimitKind,
    QuotaReported,
    QuotaWindow,
    TurnEnded,
    TurnStatus,
)

NOON = datetime(2026, 10, 12, 12, tzinfo=UTC)
SECRET = "a-very-private-sentence"


def ended(status: TurnStatus = TurnStatus.COMPLETED, limit: Limit | None = None) -> TurnEnded:
    return TurnEnded(turn_id="turn", status=status, limit=limit, time=NOON)


def quota(*used: float, credits_: bool = False, conversation_id: str = "c") -> QuotaReported:
    windows = tuple(QuotaWindow(name="w", used_percent=one, resets_at=NOON) for one in used)
    return QuotaReported(conversation_id=conversation_id, windows=windows, has_credits=credits_)


LIMITED = ended(TurnStatus.LIMITED, Limit(kind=LimitKind.QUOTA, resets_at=NOON, message=SECRET))


def test_a_conversation_knows_its_account() -> None:
    state = state_of(started("c", instance="work"), started("d"))
    assert [one.instance for one in state.conversations] == ["work", None]


def test_a_limit_is_kept_without_its_sentence() -> None:
    state = state_of(started("c"), LIMITED)
    limit = Limit(kind=LimitKind.QUOTA, resets_at=NOON)
    assert state.outcome == Outcome("c", TurnStatus.LIMITED, NOON, limit)
    assert SECRET not in str(state)


def test_the_last_turn_tells() -> None:
    state = state_of(started("c"), LIMITED, started("d"), ended())
    assert state.outcome == Outcome("d", TurnStatus.COMPLETED, NOON)


@pytest.mark.parametrize("status", [TurnStatus.FAILED, TurnStatus.INTERRUPTED])
def test_a_turn_that_failed_or_was_interrupted_tells_nothing(status: TurnStatus) -> None:
    before = state_of(started("c"), LIMITED).outcome
    assert state_of(started("c"), LIMITED, ended(status)).outcome == before
    assert state_of(started("c"), ended(status)).outcome is None


def test_a_turn_that_no_known_conversation_carried_tells_nothing() -> None:
    assert state_of(user("hello"), LIMITED).outcome is None


def test_a_fork_begins_without_an_outcome() -> None:
    assert adopt(state_of(started("c"), LIMITED), "parent").outcome is None


def test_the_newest_report_says_how_full_the_fullest_window_is() -> None:
    state = state_of(started("c"), quota(99), quota(40, 91.5, 3))
    assert state.carrier is not None
    assert state.carrier.quota == Quota(91.5, NOON)


@pytest.mark.parametrize("report", [quota(), quota(100, credits_=True)])
def test_a_report_without_a_window_that_counts_ends_the_earlier_one(report: QuotaReported) -> None:
    state = state_of(started("c"), quota(99), report)
    assert state.carrier is not None
    assert state.carrier.quota is None


def test_a_report_of_an_unknown_conversation_is_left_alone() -> None:
    state = state_of(started("c"), quota(99, conversation_id="other"))
    assert state.conversation("c") == state_of(started("c")).conversation("c")


def test_nobody_carries_a_thread_without_conversations() -> None:
    assert state_of(user("hello")).carrier is None


def test_folding_in_pieces_and_saving_between_gives_the_same() -> None:
    history = log(started("c", instance="work"), quota(95), LIMITED, ended(), LIMITED)
    state = ThreadState()
    for entry in history.entries:
        saved = msgspec.json.encode(folded([entry], state))
        state = msgspec.json.decode(saved, type=ThreadState)
    assert state == history.state
    assert state.outcome is not None
