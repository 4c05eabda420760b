from __future__ import annotations

from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.store.past import STATES, PastStates


def key(number: int, event: bytes = b"event") -> tuple[str, int, bytes]:
    return "thread", number, event


def state(number: int) -> ThreadState:
    return ThreadState(through=number)


def test_a_state_is_found_under_its_key_alone() -> None:
    past = PastStates()
    past.put(key(1), state(1))
    assert past.get(key(1)) == state(1)
    assert past.get(key(2)) is None
    assert past.get(("other", 1, b"event")) is None
    assert past.get(key(1, b"another event")) is None


def test_so_many_are_kept() -> None:
    past = PastStates()
    for number in range(STATES + 3):
        past.put(key(number), state(number))
    found = [number for number in range(STATES + 3) if past.get(key(number))]
    assert found == list(range(3, STATES + 3))


def test_the_one_not_used_for_longest_goes() -> None:
    past = PastStates(limit=2)
    past.put(key(1), state(1))
    past.put(key(2), state(2))
    assert past.get(key(1)) is not None
    past.put(key(3), state(3))
    assert past.get(key(2)) is None
    assert past.get(key(1)) is not None
    past.put(key(3), state(33))
    past.put(key(4), state(4))
    assert past.get(key(1)) is None
    assert past.get(key(3)) == state(33)
    assert past.get(key(4)) == state(4)
