"""What choosing works with: a choice and its reason, and the room that is left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from moonfold_handoff.context.state import ItemRef

# Bytes of a Responses API message around its text, comma included; the longest role's.
ENVELOPE_BYTES = len(
    ',{"type":"message","role":"developer","content":[{"type":"output_text","text":""}]}'
)

Span = tuple[int, int]
"""Characters `first` to `end` of an item's body, `end` not included."""


class Reason(StrEnum):
    """Why an item is in or out."""

    EVERYTHING_FITS = "everything fits"
    NEWEST_REQUEST = "newest request"
    NEWEST_ANSWER = "newest answer"
    UNANSWERED = "a request that is not answered yet"
    ORIGINAL_REQUEST = "original request"
    RECENT = "recent"
    ASKED = "the new request mentions it"
    FAILED = "a failure that matters now"
    IN_PLAY = "mentions what is being worked on"
    NO_ROOM = "no room left"
    TOO_LONG = "longer than all the room there was"
    SUPERSEDED = "there is a later outcome or change of the same"


class Choice(NamedTuple):
    """A chosen item.

    Attributes:
        ref: the item.
        reason: why it goes.
        cost: bytes reserved for it in the attributed text.
        spans: what of its body goes, in order; () for all of it.
    """

    ref: ItemRef
    reason: Reason
    cost: int
    spans: tuple[Span, ...] = ()


class Omission(NamedTuple):
    """An item that stays behind, and why."""

    ref: ItemRef
    reason: Reason


def whole(ref: ItemRef, reason: Reason) -> Choice:
    """Return the choice of all of an item."""
    return Choice(ref, reason, ref.cost)


@dataclass(slots=True)
class Room:
    """Bytes left in each of the two deliveries.

    Attributes:
        text: of the allowance, for the attributed text.
        items: of the ceiling, for the serialised native items (R15).
    """

    text: int
    items: int

    def takes(self, ref: ItemRef) -> bool:
        """Take room for all of an item; False if there is not enough."""
        return self.take(ref.cost, items_cost(ref))

    def take(self, text: int, items: int) -> bool:
        """Take so many bytes in either delivery; False, and nothing taken, if there are not enough."""
        if text > self.text or items > self.items:
            return False
        self.text -= text
        self.items -= items
        return True


def items_cost(ref: ItemRef) -> int:
    """Return what a whole item takes of the native items; a message goes there without attribution."""
    bare = ref.kind.is_message and ref.body
    return ENVELOPE_BYTES + (ref.body if bare else ref.cost)
