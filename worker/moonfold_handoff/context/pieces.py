"""A long item that goes piece by piece, and what each piece costs."""

from __future__ import annotations

from moonfold_handoff.context.choices import Span
from moonfold_handoff.context.framing import gap_bytes
from moonfold_handoff.context.state import ItemRef


class Pieces:
    """The pieces of one item, some of them taken.

    The first piece, which is the command or the path, comes with any other.

    Attributes:
        last: number of the last piece.
        taken: numbers of the pieces taken.
        spent: bytes that they take of the attributed text, with attribution and gaps.
    """

    __slots__ = ("_bytes", "_gap", "_start", "last", "ref", "spent", "taken")

    def __init__(self, ref: ItemRef) -> None:
        self.ref = ref
        self.taken: set[int] = set()
        self.spent = 0
        self._bytes = ref.pieces[1::3]
        self.last = len(self._bytes) - 1
        self._gap = gap_bytes(ref.position, sum(ref.pieces[0::3]))
        # Attribution, first piece, and one gap for all that follows it.
        self._start = ref.frame + self._bytes[0] + self._gap

    def least_of(self, piece: int) -> int:
        """Return bytes that taking `piece` adds at least: quickly told, where it is asked often in vain."""
        return self._bytes[piece] - self._gap

    def cost_of(self, piece: int) -> int:
        """Return the bytes that taking `piece` adds, with those of the gaps that it opens or closes."""
        taken = self.taken or {0}
        gaps = (piece - 1 not in taken) + (piece < self.last and piece + 1 not in taken) - 1
        return self._bytes[piece] + gaps * self._gap + (0 if self.taken else self._start)

    def take(self, piece: int) -> None:
        """Take a piece, and the first one if it is not taken yet."""
        self.spent += self.cost_of(piece)
        self.taken |= {0, piece}

    @property
    def is_complete(self) -> bool:
        """Whether all of the item is taken."""
        return len(self.taken) > self.last

    def spans(self) -> tuple[Span, ...]:
        """Return what of the body is taken; () for all of it."""
        if self.is_complete:
            return ()
        spans: list[Span] = []
        start = 0
        for piece, length in enumerate(self.ref.pieces[0::3]):
            end = start + length
            if piece in self.taken:
                joined = bool(spans) and spans[-1][1] == start
                spans[-1:] = [(spans[-1][0], end)] if joined else [*spans[-1:], (start, end)]
            start = end
        return tuple(spans)


def least_cost(ref: ItemRef) -> int:
    """Return the bytes of the smallest form in which an item can travel."""
    if not ref.pieces:
        return ref.cost
    pieces = Pieces(ref)
    return min(map(pieces.cost_of, range(1, pieces.last + 1)))
