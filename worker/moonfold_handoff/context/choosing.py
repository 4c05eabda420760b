"""Choosing when not everything fits.

First the newest request, the newest answer and the original request; then a share for the recent
conversation and one for what the new request mentions; then down the ranking; what is left is filled
with whatever is recent. Messages go whole or not at all (R3), long outputs and diffs by pieces. The same
state and request always give the same choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from moonfold_handoff.context.choices import ENVELOPE_BYTES, Choice, Reason, Room, whole
from moonfold_handoff.context.identifiers import MARK_CHARACTERS, marks
from moonfold_handoff.context.pieces import Pieces
from moonfold_handoff.context.ranking import has_failed, rank
from moonfold_handoff.context.state import ItemRef, Kind, ThreadState

TALK_SHARE = 10  # this part of the allowance goes to recent requests and answers before all else
ASKED_SHARE = 4  # this part goes to what the new request mentions
ASKED_MARKS = 24  # identifiers of the new request that are looked for
LEAST_ROOM = 64  # bytes; with less nothing is looked for
MOST_GAP_BYTES = 80  # of the mark of a gap, which a piece can make unnecessary


def choose(
    state: ThreadState, room: Room, allowance: int, asked: str | None = None
) -> list[Choice]:
    """Return what goes.

    Args:
        state: the thread.
        room: what may be taken; it is used up.
        allowance: bytes that the whole handoff may cost.
        asked: the new request, whose identifiers are looked for.
    """
    choosing = _Choosing(state, room)
    for ref, reason in must_haves(state):
        choosing.take_whole(ref, reason)
    choosing.take_talk(allowance // TALK_SHARE)
    if asked:
        choosing.take_asked(marks(asked)[:ASKED_MARKS], allowance // ASKED_SHARE)
    choosing.take_ranked()
    choosing.fill()
    return choosing.choices()


def must_haves(state: ThreadState) -> Iterator[tuple[ItemRef, Reason]]:
    """Yield what goes before all else, in that order; an item may be several of these."""
    for ref, reason in (
        (state.last_request, Reason.NEWEST_REQUEST),
        *((ref, Reason.UNANSWERED) for ref in _unanswered(state)),
        (state.last_answer, Reason.NEWEST_ANSWER),
        (state.first_request, Reason.ORIGINAL_REQUEST),
    ):
        if ref is not None:
            yield ref, reason


def _unanswered(state: ThreadState) -> Iterator[ItemRef]:
    """Yield requests since the newest answer, the newest first."""
    answered = 0 if state.last_answer is None else state.last_answer.position
    for ref in reversed(state.window):
        if ref.position <= answered:
            return
        if ref.kind is Kind.USER:
            yield ref


class _Choosing:
    def __init__(self, state: ThreadState, room: Room) -> None:
        self._state = state
        self._room = room
        self._whole: dict[int, Choice] = {}
        self._pieces: dict[int, Pieces] = {}
        self._tried: set[int] = set()  # positions of items of which a piece was asked for
        self._reasons: dict[int, Reason] = {}

    def take_whole(self, ref: ItemRef, reason: Reason) -> bool:
        if ref.position in self._whole or not self._room.takes(ref):
            return False
        self._whole[ref.position] = whole(ref, reason)
        return True

    def take_talk(self, share: int) -> None:
        """Take recent messages within `share` bytes."""
        for ref in reversed(self._state.window):
            if share < LEAST_ROOM:
                return
            if ref.kind.is_message and ref.cost <= share and self.take_whole(ref, Reason.RECENT):
                share -= ref.cost

    def take_asked(self, asked: Iterable[str], share: int) -> None:
        """Take the newest mention of each identifier of the new request within `share` bytes."""
        least = self._room.text - share
        for mark in asked:
            for ref in reversed(self._state.window):
                place = ref.sketch.find(mark)
                while place > 0 and place % MARK_CHARACTERS:  # parts of two other marks
                    place = ref.sketch.find(mark, place + 1)
                if place < 0:
                    continue
                if ref.position not in self._whole and self._room.text - least > 0:
                    self._take(ref, _piece_at(ref, place // MARK_CHARACTERS), Reason.ASKED, least)
                break

    def take_ranked(self) -> None:
        """Go down the ranking."""
        window = self._state.window
        for index, piece in self._state.ranking or rank(self._state):
            if self._room.text < LEAST_ROOM:
                return
            self._take(window[index], piece, None)

    def fill(self) -> None:
        """Take what is recent until the room is used up, long outputs from their end."""
        for ref in reversed(self._state.window):
            if self._room.text < LEAST_ROOM:
                return
            if not ref.pieces:
                self.take_whole(ref, Reason.RECENT)
            elif ref.position in self._tried or ref.least <= self._room.text:
                self._fill_with(ref)

    def _fill_with(self, ref: ItemRef) -> None:
        """Take pieces of an item from its end, as far as there is room; mostly there is none."""
        sizes = ref.pieces[1::3]
        for piece in range(len(sizes) - 1, 0, -1):
            held = self._pieces.get(ref.position)
            begun = held is not None and held.taken
            if (
                sizes[piece] + (-MOST_GAP_BYTES if begun else ref.frame + sizes[0])
                <= self._room.text
            ):
                self._take(ref, piece, Reason.RECENT)

    def choices(self) -> list[Choice]:
        """Return all that was taken."""
        parts = [
            Choice(pieces.ref, self._reasons[position], pieces.spent, pieces.spans())
            for position, pieces in self._pieces.items()
            if pieces.taken
        ]
        return [*self._whole.values(), *parts]

    def _take(self, ref: ItemRef, piece: int, reason: Reason | None, least: int = 0) -> None:
        """Take an item, or a piece of it, if that leaves at least `least` bytes of room."""
        if not ref.pieces:
            if self._room.text - ref.cost >= least:
                self.take_whole(ref, reason or _worth(ref))
            return
        pieces = self._pieces.get(ref.position)
        if pieces is None:
            self._tried.add(ref.position)
            # Most are asked for in vain once room is short; this much each costs at least.
            if ref.frame + ref.pieces[1] + ref.pieces[3 * piece + 1] > self._room.text - least:
                return
            pieces = self._pieces[ref.position] = Pieces(ref)
        if piece in pieces.taken or pieces.least_of(piece) > self._room.text - least:
            return
        cost = pieces.cost_of(piece)
        envelope = 0 if pieces.taken else ENVELOPE_BYTES
        if self._room.text - cost >= least and self._room.take(cost, cost + envelope):
            pieces.take(piece)
            self._reasons.setdefault(ref.position, reason or _worth(ref))


def _piece_at(ref: ItemRef, mark: int) -> int:
    """Return the piece that has the mark of that number; the first piece comes with any other."""
    return max(1, sum(end <= mark for end in accumulate(ref.pieces[2::3])))


def _worth(ref: ItemRef) -> Reason:
    return Reason.FAILED if has_failed(ref) else Reason.IN_PLAY
