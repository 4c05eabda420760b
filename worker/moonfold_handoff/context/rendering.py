"""From a selection to the two deliveries: attributed text, and messages for native injection.

History is data. Every attribution line carries a mark that occurs nowhere in the carried text, so no
text can forge one or end the history early.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from moonfold_handoff.context.accounting import literal_bytes
from moonfold_handoff.context.choices import Span
from moonfold_handoff.context.framing import MARK_BYTES, attribution, end_line, gap
from moonfold_handoff.context.portable import body, label
from moonfold_handoff.context.selection import Selection
from moonfold_handoff.context.state import Kind
from moonfold_schemas.items import Item
from moonfold_schemas.results import Delivery, InputText, OutputText, ResponseMessage

# It spells nothing. There are five times as many marks as a handoff of 64,000 characters can contain.
MARK_ALPHABET = "ghjkmnpqrstvwxyz23456789"

_encode_items = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Rendering:
    """Both deliveries of one selection, with what they really cost."""

    text: str
    items: tuple[ResponseMessage, ...]
    text_bytes: int
    items_bytes: int
    own_text_bytes: int

    def cost(self, delivery: Delivery) -> int:
        """Return what `delivery` is charged: the bytes of its texts as JSON literals (R14)."""
        if delivery is Delivery.TEXT:
            return self.text_bytes
        return sum(literal_bytes(part.text) for item in self.items for part in item.content)


def render(selection: Selection, contents: Mapping[int, Item], seed: bytes) -> Rendering:
    """Return both deliveries of `selection`.

    Args:
        selection: what travels.
        contents: the chosen items by position.
        seed: what makes the mark unpredictable; the same seed gives the same bytes.
    """
    if selection.preamble is None:
        return Rendering("", (), literal_bytes(""), len(_encode_items(())), 0)
    bodies = [body(contents[choice.ref.position]) for choice in selection.choices]
    carried = [
        text[first:end]
        for choice, text in zip(selection.choices, bodies, strict=True)
        for first, end in choice.spans or ((0, len(text)),)
    ]
    mark = choose_mark(seed, carried)
    preamble = selection.preamble.text(mark, selection.coverage)
    blocks = [preamble]
    items = [_message("developer", preamble)]
    for choice, text in zip(selection.choices, bodies, strict=True):
        position = choice.ref.position
        shown = _shown(text, choice.spans, mark, position) if choice.spans else text
        line = attribution(mark, position, label(contents[position]))
        attributed = f"{line}\n{shown}"
        blocks.append(attributed)
        items.append(_native(choice.ref.kind, shown, line, attributed))
    text = "\n".join([*blocks, end_line(mark)])
    return Rendering(
        text=text,
        items=tuple(items),
        text_bytes=literal_bytes(text),
        items_bytes=len(_encode_items(items)),
        own_text_bytes=sum(len(piece.encode()) for piece in carried),
    )


def choose_mark(seed: bytes, texts: Iterable[str]) -> str:
    """Return a mark that occurs in none of `texts`: the first such of a sequence that `seed` fixes."""
    carried = "\n".join(texts)
    counter = 0
    while True:
        digest = hashlib.blake2b(counter.to_bytes(8, "big"), key=seed[:64]).digest()
        mark = "".join(MARK_ALPHABET[byte % len(MARK_ALPHABET)] for byte in digest[:MARK_BYTES])
        if mark not in carried:
            return mark
        counter += 1


def _shown(text: str, spans: tuple[Span, ...], mark: str, position: int) -> str:
    """Return the pieces of a body with a gap line wherever something was cut."""
    parts = []
    at = 0
    for first, end in spans:
        if first > at:
            parts.append(gap(mark, position, at, first))
        parts.append(text[first:end])
        at = end
    if at < len(text):
        parts.append(gap(mark, position, at, len(text)))
    return "".join(parts)


def _native(kind: Kind, shown: str, line: str, attributed: str) -> ResponseMessage:
    """Return the item as a message: its own role and raw text, or attributed activity."""
    if kind is Kind.USER:
        # A message without text (only an image, say) would be empty, which providers refuse.
        return _message("user", shown or line)
    return _message("assistant", (shown or line) if kind is Kind.ASSISTANT else attributed)


def _message(role: Literal["user", "assistant", "developer"], text: str) -> ResponseMessage:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return ResponseMessage(role=role, content=(part,))
