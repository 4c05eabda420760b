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

from moonfold_handoff.context.accounting import (
    literal_bytes,
    longest_prefix,
    longest_suffix,
    text_bytes,
)
from moonfold_handoff.context.portable import body, label
from moonfold_handoff.context.preamble import MARK_BYTES, end_line
from moonfold_handoff.context.selection import Choice, Selection
from moonfold_handoff.context.state import Kind
from moonfold_schemas.items import Item
from moonfold_schemas.results import Delivery, InputText, OutputText, ResponseMessage

# It spells nothing. There are five times as many marks as a handoff of 64,000 characters can contain.
MARK_ALPHABET = "ghjkmnpqrstvwxyz23456789"
HEAD_SHARE = 3  # an abridged body gives this part to its head, the rest to its tail

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
    bodies = {position: body(item) for position, item in contents.items()}
    cuts = {
        choice.ref.position: cut(bodies[choice.ref.position], choice.limit, choice.ref.position)
        for choice in selection.choices
        if choice.limit is not None
    }
    carried = list(_carried(selection, bodies, cuts))
    mark = choose_mark(seed, carried)
    preamble = selection.preamble.text(mark, selection.coverage)
    blocks = [preamble]
    items = [_message("developer", preamble)]
    for choice in selection.choices:
        position = choice.ref.position
        shown = bodies[position]
        if position in cuts:
            shown = cuts[position].apply(shown, mark, position)
        line = f"[{mark} #{position} {label(contents[position])}]"
        attributed = f"{line}\n{shown}"
        blocks.append(attributed)
        items.append(_native(choice, shown, line, attributed))
    text = "\n".join([*blocks, end_line(mark)])
    return Rendering(
        text=text,
        items=tuple(items),
        text_bytes=literal_bytes(text),
        items_bytes=len(_encode_items(items)),
        own_text_bytes=sum(len(part.encode()) for part in carried),
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


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a long text is abridged: characters `head` to `tail` are left out."""

    head: int
    tail: int

    def apply(self, text: str, mark: str, position: int) -> str:
        """Return the abridged text, with a marker from which a reader can continue."""
        if self.head >= self.tail:
            return text
        return text[: self.head] + _gap(mark, position, self.head, self.tail) + text[self.tail :]


def cut(text: str, limit: int, position: int) -> Cut:
    """Return the cut that leaves head and tail of `text` in at most `limit` bytes, marker included.

    Cuts at line breaks where that gives up little. Nothing is left out if `text` fits.
    """
    if text_bytes(text) <= limit:
        return Cut(len(text), len(text))
    room = limit - text_bytes(_gap("m" * MARK_BYTES, position, len(text), len(text)))
    head = longest_prefix(text, room // HEAD_SHARE)
    head = _line_break(text[:head]) or head
    room -= text_bytes(text[:head])
    tail = len(text) - longest_suffix(text[head:], room)
    line = text.find("\n", tail)
    if 0 <= line < (tail + len(text)) // 2:
        tail = line + 1
    return Cut(head, tail)


def _carried(
    selection: Selection, bodies: Mapping[int, str], cuts: Mapping[int, Cut]
) -> Iterable[str]:
    for choice in selection.choices:
        text = bodies[choice.ref.position]
        gap = cuts.get(choice.ref.position, Cut(len(text), len(text)))
        yield text[: gap.head]
        yield text[gap.tail :]


def _gap(mark: str, position: int, first: int, end: int) -> str:
    return f"\n[{mark} #{position} characters {first} to {end} left out]\n"


def _line_break(head: str) -> int:
    """Return where the last whole line of `head` ends, or 0 if that would give up half of it."""
    cut = head.rfind("\n")
    return cut if cut > len(head) // 2 else 0


def _native(choice: Choice, shown: str, line: str, attributed: str) -> ResponseMessage:
    """Return the item as a message: its own role and raw text, or attributed activity."""
    if not choice.ref.kind.is_message:
        return _message("assistant", attributed)
    # A message without text (only an image, say) would be an empty message, which providers refuse.
    return _message("user" if choice.ref.kind is Kind.USER else "assistant", shown or line)


def _message(role: Literal["user", "assistant", "developer"], text: str) -> ResponseMessage:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return ResponseMessage(role=role, content=(part,))
