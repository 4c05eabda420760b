"""States of the past, in memory: many forks of one point fold its history once.

Only what is asked for while the kept state is ahead comes here. The key holds the entry at the sequence
itself, so that a thread that expired and began anew under the same id is another one.
"""

from __future__ import annotations

from collections import OrderedDict

from moonfold_handoff.context.state import ThreadState

STATES = 16  # kept by a worker, the most recently used ones

Key = tuple[str, int, bytes]
"""Thread id, sequence, and the bytes of the event recorded there."""


class PastStates:
    """The states used last, `limit` of them."""

    def __init__(self, limit: int = STATES) -> None:
        self._limit = limit
        self._states: OrderedDict[Key, ThreadState] = OrderedDict()

    def get(self, key: Key) -> ThreadState | None:
        """Return a state, if it is still here."""
        if key in self._states:
            self._states.move_to_end(key)
        return self._states.get(key)

    def put(self, key: Key, state: ThreadState) -> None:
        """Keep a state in place of the one that was not used for longest."""
        self._states[key] = state
        self._states.move_to_end(key)
        if len(self._states) > self._limit:
            self._states.popitem(last=False)
