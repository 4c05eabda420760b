"""Ranking: in which order items, and pieces of long ones, are worth taking.

What the next turns will need is foretold by what the conversation speaks of: identifiers, weighted by
how often and how recently they were mentioned. An item, or a piece, is worth the weight of the
identifiers that nothing ranked before it mentions, against its cost. A failure counts for more, an
outcome or a change that a later one of the same replaced for less.

The ranking depends on the state alone, so it is made once, when the state is folded, and a handoff only
goes down the list.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from moonfold_handoff.context.pieces import Pieces
from moonfold_handoff.context.sketches import TROUBLE, split_marks
from moonfold_handoff.context.state import WINDOW_BYTES, ItemRef, Progress, ThreadState

HORIZON = 200  # items back that are asked what the conversation speaks of
DECAY = 0.97  # of a mention's weight, an item further back
FAINT_WEIGHT = 0.02  # of an identifier that was mentioned longer ago
TROUBLE_WEIGHT = 0.3  # of a piece that tells of trouble
END_WEIGHT = 0.4  # of the last piece, where an output says how it went
TALK_WEIGHT = 0.6  # of the newest message, for being one
TALK_DECAY = 0.9  # of that, a message further back
FAILED_WORTH = 1.2
REPLACED_WORTH = 0.5
COST_POWER = 0.6  # below 1: one larger item beats many small ones of the same worth a byte
OPENING_COST = 100  # bytes that the first part of an item counts as more: fewer items, more of each
SMALLEST_COST = 20  # bytes that a piece counts as at least

Rank = tuple[int, int]
"""Index of an item in the window, and the number of its piece; 0 for an item that goes whole."""


def rank(state: ThreadState) -> tuple[Rank, ...]:
    """Return what is worth taking, the best first, as far as any handoff could carry it."""
    ranking = _Ranking(state)
    return tuple(ranking.order())


def replaced(window: Iterable[ItemRef]) -> set[int]:
    """Return the positions of outcomes and changes that a later one of the same replaced."""
    last: dict[str, int] = {}
    earlier = set()
    for ref in window:
        if ref.key:
            if ref.key in last:
                earlier.add(last[ref.key])
            last[ref.key] = ref.position
    return earlier


def has_failed(ref: ItemRef) -> bool:
    """Return whether an item tells of a failure."""
    return ref.progress is Progress.FAILED or bool(ref.exit_code)


class _Unit:
    """An item of the window, with what it is worth beside what it mentions."""

    __slots__ = ("bonus", "cost", "marks", "pieces", "worth")

    def __init__(self, ref: ItemRef, marks: list[str], worth: float, bonus: float) -> None:
        self.worth = worth
        self.bonus = bonus
        self.pieces = Pieces(ref) if ref.pieces else None
        self.cost = ref.cost
        self.marks = _divide(marks, ref.pieces[2::3]) if ref.pieces else [marks]


class _Ranking:
    def __init__(self, state: ThreadState) -> None:
        self._window = state.window
        self._marks = [split_marks(ref.sketch) for ref in state.window]
        self._weights = self._weigh()
        self._covered: set[str] = set()
        self._units = self._make_units()
        for ref in (state.last_request, state.last_answer, state.first_request):
            if ref is not None:  # these go before all else
                self._cover(split_marks(ref.sketch))

    def order(self) -> Iterator[Rank]:
        """Yield what covers most for its cost, again and again, until nothing covers anything more.

        What something covers only falls as other things are taken, so one that still leads when it is
        looked at anew is the best there is, and most are never looked at again. What the neighbours of a
        piece cost falls too, by a gap; they are queued anew.
        """
        queue = [
            (-score, -index, piece)
            for index, unit in enumerate(self._units)
            for piece, score in self._first_scores(unit)
        ]
        heapq.heapify(queue)
        room = WINDOW_BYTES
        while queue and room > 0:
            score, newest_first, piece = heapq.heappop(queue)
            unit = self._units[-newest_first]
            if unit.pieces is not None and piece in unit.pieces.taken:
                continue
            anew = -self._score(unit, piece)
            if anew >= 0:
                continue
            if anew > score and queue and anew > queue[0][0]:
                heapq.heappush(queue, (anew, newest_first, piece))
                continue
            yield -newest_first, piece
            room -= self._take(unit, piece)
            if unit.pieces is not None:
                for other in (piece - 1, piece + 1):
                    if 0 < other <= unit.pieces.last and other not in unit.pieces.taken:
                        heapq.heappush(queue, (-self._score(unit, other), newest_first, other))

    def _weigh(self) -> dict[str, float]:
        """Return how much each identifier is spoken of."""
        weights: dict[str, float] = defaultdict(lambda: FAINT_WEIGHT)
        weight = 1.0
        for marks in reversed(self._marks[-HORIZON:]):
            for mark in marks:
                weights[mark] += weight
            weight *= DECAY
        weights[TROUBLE] = TROUBLE_WEIGHT
        return weights

    def _make_units(self) -> list[_Unit]:
        earlier = replaced(self._window)
        units = []
        bonus = TALK_WEIGHT
        for ref, marks in zip(reversed(self._window), reversed(self._marks), strict=True):
            worth = REPLACED_WORTH if ref.position in earlier else 1.0
            worth *= FAILED_WORTH if has_failed(ref) else 1.0
            talk = ref.kind.is_message
            units.append(_Unit(ref, marks, worth, bonus if talk else 0.0))
            bonus *= TALK_DECAY if talk else 1.0
        units.reverse()
        return units

    def _first_scores(self, unit: _Unit) -> Iterator[tuple[int, float]]:
        """Yield each piece with a score that is at least its score now: nothing counts as covered."""
        weight = self._weights.__getitem__
        if unit.pieces is None:
            gain = sum(map(weight, unit.marks[0])) * unit.worth + unit.bonus
            yield 0, gain / math.pow(unit.cost, COST_POWER)
            return
        opening = sum(map(weight, unit.marks[0]))
        for piece in range(1, unit.pieces.last + 1):
            gain = opening + sum(map(weight, unit.marks[piece]))
            if piece == unit.pieces.last:
                gain += END_WEIGHT
            cost = unit.pieces.cost_of(piece) + OPENING_COST
            yield piece, gain * unit.worth / math.pow(cost, COST_POWER)

    def _score(self, unit: _Unit, piece: int) -> float:
        """Return what an item, or one piece of it, is worth for what it costs."""
        gain = self._gain(unit.marks[piece])
        if unit.pieces is None:
            return (gain * unit.worth + unit.bonus) / math.pow(unit.cost, COST_POWER)
        if piece == unit.pieces.last:
            gain += END_WEIGHT
        if not unit.pieces.taken:
            gain += self._gain(unit.marks[0])
        opening = 0 if unit.pieces.taken else OPENING_COST
        cost = max(SMALLEST_COST, unit.pieces.cost_of(piece)) + opening
        return gain * unit.worth / math.pow(cost, COST_POWER)

    def _gain(self, marks: Iterable[str]) -> float:
        weights, covered = self._weights, self._covered
        return sum([weights[mark] for mark in marks if mark not in covered])

    def _take(self, unit: _Unit, piece: int) -> int:
        """Count a piece as taken and return its cost."""
        self._cover(unit.marks[piece])
        if unit.pieces is None:
            unit.bonus = 0.0
            return unit.cost
        self._cover(unit.marks[0])
        before = unit.pieces.spent
        unit.pieces.take(piece)
        return unit.pieces.spent - before

    def _cover(self, marks: Iterable[str]) -> None:
        self._covered.update(marks)
        self._covered.discard(TROUBLE)


def _divide(marks: list[str], counts: Iterable[int]) -> list[list[str]]:
    """Return the marks of each piece."""
    divided = []
    start = 0
    for count in counts:
        divided.append(marks[start : start + count])
        start += count
    return divided
