"""With whom a thread goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from helpers.building import assistant, command, log, started, state_of, user

from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.context.candidates import Decision, decide
from moonfold_handoff.context.capacity import NOTHING_KNOWN
from moonfold_handoff.context.planning import Plan, plan
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import NoTargetYetError, ReferencesDoNotFitError
from moonfold_schemas.events import HandoffDelivered, LimitKind
from moonfold_schemas.requests import Target
from moonfold_schemas.results import FailureCode, Figure, Origin, PassedOverReason

NOON = datetime(2026, 10, 12, 12, tzinfo=UTC)
CODEX = Instance("codex")
LIMITED, NO_ROOM = PassedOverReason.AT_ITS_LIMIT, PassedOverReason.NO_ROOM
SHORT = state_of(started(), user("question"), assistant("answer"))
LONG = state_of(started(), user("q" * 3_000), command("make"), assistant("a" * 3_000))


def target(provider: str, room: int = 16_000, instance: str | None = None) -> Target:
    """Return a target with so much room: its window less what is kept free of it."""
    return Target(provider=provider, instance=instance, capacity=16_000 + room)


def used_up(hours: float, *, assumed: bool = False) -> Notice:
    return Notice(LimitKind.QUOTA, NOON, NOON + timedelta(hours=hours), assumed)


def chosen(
    *candidates: Target,
    state: ThreadState = SHORT,
    left: Instance | None = CODEX,
    notices: dict[Instance, Notice] | None = None,
) -> Decision:
    cap = Figure(value=16_000, origin=Origin.DEFAULT)
    offer = partial(plan, state, "thread", request=None, cap=cap, catalogue=NOTHING_KNOWN)
    return decide(candidates, offer, left=left, notices=notices or {})


def test_the_first_candidate_is_taken() -> None:
    first = target("a")
    decision = chosen(first, target("b"))
    assert decision.plan.target == first
    assert decision.plan.selection.coverage.selected_items == 2
    assert decision.passed_over == ()


def test_what_a_later_candidate_would_get_is_not_worked_out() -> None:
    asked = []

    def offer(target: Target) -> Plan:
        asked.append(target.provider)
        cap = Figure(value=16_000, origin=Origin.DEFAULT)
        return plan(SHORT, "thread", target, request=None, cap=cap, catalogue=NOTHING_KNOWN)

    notices = {Instance("a"): used_up(1)}
    decide([target("a"), target("b"), target("c")], offer, left=None, notices=notices)
    assert asked == ["b"]


def test_the_instance_that_the_thread_leaves_is_passed_over() -> None:
    decision = chosen(target("codex"), target("a"), notices={CODEX: used_up(2)})
    assert decision.plan.target.provider == "a"
    [passed] = decision.passed_over
    assert (passed.target, passed.reason) == (target("codex"), LIMITED)
    assert passed.until == NOON + timedelta(hours=2)


def test_another_account_of_the_same_provider_is_not() -> None:
    other = target("codex", instance="work")
    assert chosen(target("codex"), other).plan.target == other
    assert chosen(target("codex"), left=Instance("codex", "work")).passed_over == ()
    assert chosen(target("codex"), left=None).passed_over == ()


def test_a_candidate_at_its_limit_is_passed_over_until_it_ends() -> None:
    notices = {Instance("a"): used_up(2), Instance("b"): used_up(1, assumed=True)}
    decision = chosen(target("a"), target("b"), target("c"), notices=notices)
    assert decision.plan.target.provider == "c"
    first, second = decision.passed_over
    assert (first.reason, first.until) == (LIMITED, NOON + timedelta(hours=2))
    assert "quota" in first.message
    assert "2026-10-12 14:00 UTC" in first.message
    assert (second.reason, second.until) == (LIMITED, None)
    assert "nobody knows" in second.message


def test_a_candidate_without_room_for_the_references_is_passed_over() -> None:
    decision = chosen(target("a", room=0), target("b"))
    assert decision.plan.target.provider == "b"
    [passed] = decision.passed_over
    assert passed.reason is NO_ROOM
    assert passed.needed is not None
    assert passed.available == 0
    assert "reference" in passed.message


def test_a_candidate_without_room_for_the_must_haves_is_passed_over() -> None:
    decision = chosen(target("a", room=4_000), target("b"), state=LONG)
    assert decision.plan.target.provider == "b"
    [passed] = decision.passed_over
    assert (passed.reason, passed.available) == (NO_ROOM, 4_000)
    assert passed.needed is not None
    assert 6_000 < passed.needed < 7_000
    assert str(passed.needed) in passed.message


def test_what_is_left_out_besides_the_must_haves_does_not_matter() -> None:
    commands = [command(f"make step-{number}", "done " * 20) for number in range(20)]
    state = state_of(started(), user("question"), *commands, assistant("answer"))
    decision = chosen(target("a", room=1_000), target("b"), state=state)
    assert decision.plan.target.provider == "a"
    assert decision.plan.selection.coverage.omitted_items > 0


def test_where_none_has_room_for_the_must_haves_the_first_with_references_is_taken() -> None:
    decision = chosen(
        target("a", room=0),
        target("b", room=2_000),
        target("c", room=4_000),
        target("d"),
        state=LONG,
        notices={Instance("d"): used_up(1)},
    )
    assert decision.plan.target.provider == "b"
    assert [one.target.provider for one in decision.passed_over] == ["a"]


def test_a_message_longer_than_any_ceiling_stops_no_thread() -> None:
    state = state_of(started(), user("q" * 70_000), assistant("answer"))
    assert chosen(target("a"), target("b"), state=state).plan.target.provider == "a"


def test_where_all_are_at_their_limit_the_earliest_known_reset_is_told() -> None:
    notices = {
        Instance("a"): used_up(3),
        Instance("b"): used_up(2),
        Instance("c"): used_up(1, assumed=True),
    }
    with pytest.raises(NoTargetYetError) as caught:
        chosen(*map(target, "abc"), notices=notices)
    error = caught.value
    assert (error.code, error.retryable) == (FailureCode.NO_TARGET_AVAILABLE, True)
    assert error.resets_at == NOON + timedelta(hours=2)
    assert [one.target.provider for one in error.passed_over] == ["a", "b", "c"]
    assert "2026-10-12 14:00 UTC" in str(error)


def test_where_no_reset_is_known_none_is_told() -> None:
    with pytest.raises(NoTargetYetError, match="nobody knows when") as caught:
        chosen(target("codex"))
    assert caught.value.resets_at is None


def test_a_limit_among_the_reasons_makes_it_worth_trying_again() -> None:
    with pytest.raises(NoTargetYetError) as caught:
        chosen(target("a", room=0), target("b"), notices={Instance("b"): used_up(1)})
    reasons = [one.reason for one in caught.value.passed_over]
    assert reasons == [NO_ROOM, LIMITED]


def test_room_alone_is_no_question_of_time() -> None:
    with pytest.raises(ReferencesDoNotFitError) as caught:
        chosen(target("a", room=0), target("b", room=50))
    error = caught.value
    assert (error.retryable, error.resets_at, error.available) == (False, None, 50)
    assert [one.reason for one in error.passed_over] == [NO_ROOM] * 2


def test_a_target_that_goes_on_by_itself_needs_no_room() -> None:
    full = Target(provider="codex", capacity=16_000, conversation_id="c")
    cap = Figure(value=16_000, origin=Origin.DEFAULT)
    native = plan(
        SHORT, "thread", full, request=None, cap=cap, catalogue=NOTHING_KNOWN, native=True
    )
    assert native.lacking is None
    assert decide([full], lambda _: native, left=None, notices={}).plan is native


def test_requests_that_are_not_answered_are_must_haves() -> None:
    history = log(started(), user("original"), assistant("answer"))
    history.add(user("u" * 2_000), user("newest"))
    decision = chosen(target("a", room=1_500), target("b"), state=history.state)
    assert decision.plan.target.provider == "b"


def test_a_candidate_that_comes_back_needs_only_what_is_new() -> None:
    history = log(started(), user("q" * 3_000), assistant("a" * 3_000))
    seen = HandoffDelivered(conversation_id="d", through=history.through, tokens=10)
    history.add(started("d", provider="a"), seen, user("newest"), assistant("new"))
    history.add(started("e", provider="b"), user("and this"))
    back = Target(provider="a", capacity=17_000, conversation_id="d")
    assert chosen(target("a", room=1_000), back, state=history.state).passed_over
    assert chosen(back, target("b"), state=history.state).plan.target == back
