from __future__ import annotations

import pytest
from helpers.asking import fork, limited, restart, switch
from helpers.building import assistant, started, state_of, usage, user
from msgspec.structs import replace

from moonfold_handoff.context.delivery import goes_on_natively
from moonfold_handoff.context.state import ThreadState
from moonfold_schemas import ThreadEvent
from moonfold_schemas.events import HandoffDelivered, TurnEnded, TurnStatus
from moonfold_schemas.items import Item
from moonfold_schemas.requests import HandoffRequest, NativeAbilities, Target

ABLE = NativeAbilities(resume=True, fork=True)
THERE = Target(provider="codex", conversation_id="c", native=ABLE)


def in_c(*more: ThreadEvent | Item) -> ThreadState:
    return state_of(started("c"), user("question"), assistant("answer"), *more)


def natively(request: HandoffRequest, state: ThreadState, target: Target = THERE) -> bool:
    return goes_on_natively(request, state, target)


REQUESTS: list[HandoffRequest] = [
    switch(target=THERE),
    restart(target=THERE),
    limited(candidates=(THERE,)),
]
EVERY: list[HandoffRequest] = [*REQUESTS, fork(target=THERE)]
names = pytest.mark.parametrize("request_", EVERY, ids=lambda request: type(request).__name__)


@names
def test_a_conversation_that_has_seen_all_goes_on_by_itself(request_: HandoffRequest) -> None:
    ended = TurnEnded(turn_id="turn", status=TurnStatus.LIMITED)
    assert natively(request_, in_c())
    assert natively(request_, in_c(ended, usage(9)))


@names
def test_one_that_has_not_does_not(request_: HandoffRequest) -> None:
    state = in_c(started("d"), user("more"))
    assert not natively(request_, state)
    delivered = HandoffDelivered(conversation_id="c", through=5)
    assert natively(request_, in_c(started("d"), user("more"), delivered))


@names
def test_nor_one_that_starts_fresh(request_: HandoffRequest) -> None:
    assert not natively(request_, in_c(started("c")))


@names
def test_nor_one_that_the_thread_does_not_know(request_: HandoffRequest) -> None:
    assert not natively(request_, in_c(), replace(THERE, conversation_id="x"))
    assert not natively(request_, in_c(), replace(THERE, conversation_id=None))


@names
def test_nor_one_of_another_provider(request_: HandoffRequest) -> None:
    assert not natively(request_, in_c(), replace(THERE, provider="claude-code"))


@names
def test_nor_where_it_failed(request_: HandoffRequest) -> None:
    assert not natively(replace(request_, native_failed=True), in_c())


@pytest.mark.parametrize("able", [None, False])
def test_the_session_has_to_say_that_the_target_is_able(able: bool | None) -> None:
    resumes = replace(THERE, native=NativeAbilities(resume=True, fork=able))
    forks = replace(THERE, native=NativeAbilities(resume=able, fork=True))
    for request in REQUESTS:
        assert natively(request, in_c(), resumes)
        assert not natively(request, in_c(), forks)
    assert natively(fork(target=THERE), in_c(), forks)
    assert not natively(fork(target=THERE), in_c(), resumes)


def test_a_thread_without_items_has_been_seen_by_all_who_know_it() -> None:
    assert natively(switch(target=THERE), state_of(started("c")))
