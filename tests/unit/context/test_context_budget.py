from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from helpers.building import assistant, json_bytes, started, state_of, usage

from moonfold_handoff.context.budget import (
    attachment_tokens,
    clamp_cap,
    compute_budget,
    request_bytes,
    reserve_tokens,
)
from moonfold_handoff.context.state import Conversation, ThreadState
from moonfold_schemas.events import ModelSelected
from moonfold_schemas.items import AttachmentKind
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import Budget, Figure, LimitingInput, Origin

IMAGE, FILE = AttachmentKind.IMAGE, AttachmentKind.FILE
CAP = Figure(value=16_000, origin=Origin.DEFAULT)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The inputs of one allowance; the window is the target's, usage is the conversation's."""

    cap: int = 16_000
    window: int | None = 32_000
    used: int | None = None
    maximum: int | None = None
    threshold: int | None = None
    estimate: int = 0
    images: int = 0
    files: int = 0
    text: str = "Continue"

    def budget(self) -> Budget:
        conversation = Conversation(
            conversation_id="c",
            provider="codex",
            used_tokens=self.used,
            max_tokens=self.maximum,
            compact_threshold=self.threshold,
            estimated_tokens=self.estimate,
        )
        return compute_budget(
            ThreadState(conversations=(conversation,)),
            Target(provider="codex", conversation_id="c", capacity=self.window),
            NewRequest(text=self.text, attachments=(IMAGE,) * self.images + (FILE,) * self.files),
            Figure(value=self.cap, origin=Origin.SETTING),
        )


SCREENSHOTS = "Compare these screenshots"


@pytest.mark.parametrize(
    ("case", "allowance"),
    [
        (Case(), 15_990),
        (Case(estimate=8_000), 7_990),
        (Case(images=1), 7_798),
        (Case(files=1), 11_894),
        (Case(images=2), 0),
        (Case(used=0, estimate=99_999), 15_990),
        (Case(text=""), 15_998),
        (Case(window=16_000), 0),
        (Case(window=1_000_000, threshold=32_000), 15_990),
        (Case(window=None, used=23_000, maximum=24_000), 0),
        (Case(cap=2_000), 2_000),
        (Case(cap=64_000, window=1_000_000, text="x" * 70_000, images=1), 64_000),
        (Case(cap=64_000, window=1_000_000, text="x" * 70_000, images=1, used=0), 64_000),
        (Case(window=None), 16_000),
        (Case(window=None, images=9, text=SCREENSHOTS), 16_000),
        (Case(window=None, images=10, text=SCREENSHOTS), 14_053),
        (Case(window=None, images=11, text=SCREENSHOTS), 5_861),
        (Case(window=None, images=12, text=SCREENSHOTS), 0),
        (Case(window=None, estimate=120_000), 0),
        (Case(window=None, used=37_321, maximum=258_400, images=2), 16_000),
    ],
    ids=str,
)
def test_reference_values(case: Case, allowance: int) -> None:
    assert case.budget().allowance == allowance


@pytest.mark.parametrize("unknown", [0, -1, None])
def test_a_maximum_or_threshold_of_zero_or_less_is_unknown(unknown: int | None) -> None:
    budget = Case(window=unknown, maximum=unknown, threshold=unknown).budget()
    assert budget.window == Figure(value=128_000, origin=Origin.ASSUMED)
    assert budget.allowance == 16_000


@pytest.mark.parametrize(
    ("case", "window"),
    [
        (
            Case(window=50_000, maximum=60_000, threshold=70_000),
            Figure(value=50_000, origin=Origin.REQUEST),
        ),
        (
            Case(window=60_000, maximum=50_000, threshold=70_000),
            Figure(value=50_000, origin=Origin.TELEMETRY),
        ),
        (
            Case(window=70_000, maximum=60_000, threshold=50_000),
            Figure(value=50_000, origin=Origin.COMPACT_THRESHOLD),
        ),
        (
            Case(window=0, maximum=200_000, threshold=-1),
            Figure(value=200_000, origin=Origin.TELEMETRY),
        ),
        (
            Case(window=1_000_000, maximum=0, threshold=0),
            Figure(value=1_000_000, origin=Origin.REQUEST),
        ),
    ],
    ids=str,
)
def test_the_window_is_the_smallest_known_bound_and_says_which(case: Case, window: Figure) -> None:
    assert case.budget().window == window


def test_every_input_is_shown_with_its_origin() -> None:
    budget = Case(used=5_000, images=1, files=1).budget()
    assert budget == Budget(
        cap=Figure(value=16_000, origin=Origin.SETTING),
        ceiling=Figure(value=64_000, origin=Origin.RULE),
        window=Figure(value=32_000, origin=Origin.REQUEST),
        existing=Figure(value=5_000, origin=Origin.TELEMETRY),
        request=Figure(value=10, origin=Origin.REQUEST),
        attachments=Figure(value=12_288, origin=Origin.REQUEST),
        reserve=Figure(value=16_000, origin=Origin.RULE),
        allowance=0,
        limited_by=LimitingInput.ROOM,
    )


@pytest.mark.parametrize(
    ("case", "limited_by"),
    [
        (Case(), LimitingInput.ROOM),
        (Case(window=16_000), LimitingInput.ROOM),
        (Case(cap=2_000), LimitingInput.CAP),
        (Case(cap=70_000, window=1_000_000), LimitingInput.CEILING),
    ],
    ids=str,
)
def test_the_smallest_bound_is_named(case: Case, limited_by: LimitingInput) -> None:
    assert case.budget().limited_by is limited_by


@pytest.mark.parametrize(
    ("tokens", "clamped"),
    [
        (-5, 1_024),
        (0, 1_024),
        (1_023, 1_024),
        (1_024, 1_024),
        (16_000, 16_000),
        (64_000, 64_000),
        (64_001, 64_000),
    ],
)
def test_a_cap_is_clamped(tokens: int, clamped: int) -> None:
    assert clamp_cap(tokens) == clamped


@pytest.mark.parametrize(
    ("window", "reserve"), [(1, 16_000), (64_000, 16_000), (64_004, 16_001), (1_000_000, 250_000)]
)
def test_the_reserve_is_16000_or_a_quarter_of_the_window(window: int, reserve: int) -> None:
    assert reserve_tokens(window) == reserve


def test_attachments_cost_by_kind_alone() -> None:
    assert attachment_tokens(()) == 0
    assert attachment_tokens((IMAGE, FILE, FILE)) == 8_192 + 2 * 4_096


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (None, 0),
        (NewRequest(), 0),
        (NewRequest(text=""), 2),
        (NewRequest(text="Continue"), 10),
        (NewRequest(text='"\n🎉'), json_bytes('"\n🎉')),
        (NewRequest(json_bytes=70_002), 70_002),
        (NewRequest(text="Continue", json_bytes=99), 10),
    ],
)
def test_a_request_costs_its_literal(request_: NewRequest | None, size: int) -> None:
    assert request_bytes(request_) == size


def test_preparing_without_a_request_leaves_its_room_free() -> None:
    budget = compute_budget(ThreadState(), Target(provider="codex", capacity=32_000), None, CAP)
    assert (budget.request.value, budget.attachments.value, budget.allowance) == (0, 0, 16_000)


def window_of(state: ThreadState, **target: Any) -> Figure:
    chosen = Target(**{"provider": "codex", "model": "large", **target})
    return compute_budget(state, chosen, None, CAP).window


def existing_of(state: ThreadState, **target: Any) -> Figure:
    chosen = Target(**{"provider": "codex", "model": "large", **target})
    return compute_budget(state, chosen, None, CAP).existing


def test_a_fresh_conversation_holds_nothing_whatever_the_old_one_used() -> None:
    state = state_of(started(), assistant("x" * 999), usage(581_117))
    assert existing_of(state) == Figure(value=0, origin=Origin.FRESH)


def test_a_conversation_nothing_is_known_of_is_assumed_empty() -> None:
    state = state_of(started(), usage(581_117))
    assert existing_of(state, conversation_id="other") == Figure(value=0, origin=Origin.ASSUMED)


def test_saved_activity_stands_in_for_missing_telemetry() -> None:
    state = state_of(started(), assistant("x" * 999))
    assert existing_of(state, conversation_id="c") == Figure(value=999, origin=Origin.ESTIMATED)


@pytest.mark.parametrize(
    ("told", "measured", "origin"),
    [(32_000, None, Origin.KNOWN_CAPACITY), (None, 32_000, Origin.TELEMETRY)],
)
@pytest.mark.parametrize("chosen", [{}, {"conversation_id": "fresh"}], ids=str)
def test_a_fresh_conversation_keeps_what_is_known_of_its_selection(
    told: int | None, measured: int | None, origin: Origin, chosen: dict[str, Any]
) -> None:
    state = state_of(
        started(capacity=told), usage(581_117, max_tokens=measured), *map(started, chosen.values())
    )
    assert window_of(state, **chosen) == Figure(value=32_000, origin=origin)
    assert existing_of(state, **chosen).value == 0


@pytest.mark.parametrize(
    "target",
    [
        {"provider": "claude-code"},
        {"model": "small"},
        {"model": None},
        {"options": {"model_auto_compact_token_limit": 9}},
    ],
    ids=str,
)
def test_capacities_of_other_selections_say_nothing(target: dict[str, Any]) -> None:
    state = state_of(started(capacity=32_000))
    assert window_of(state, **target) == Figure(value=128_000, origin=Origin.ASSUMED)


def test_the_threshold_of_another_conversation_does_not_bind_a_fresh_one() -> None:
    state = state_of(started(capacity=200_000), usage(9, compact_threshold=32_000))
    assert window_of(state).value == 200_000


def test_a_changed_model_discards_what_the_old_one_showed() -> None:
    state = state_of(
        started(capacity=32_000),
        usage(30_000, max_tokens=32_000, compact_threshold=31_000),
        ModelSelected(conversation_id="c", model="huge", capacity=1_000_000),
    )
    chosen = {"model": "huge", "conversation_id": "c"}
    assert window_of(state, **chosen).value == 1_000_000
    assert existing_of(state, **chosen) == Figure(value=0, origin=Origin.ESTIMATED)
