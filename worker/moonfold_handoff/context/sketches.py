"""Items in small: what each mentions, piece by piece, so that choosing needs no text.

A message, and any activity that is short, is one piece. A long output or diff is cut at line breaks into
pieces of which any may travel; its first piece is its first line, the command or the path. Of a very
long one only the start and the end are looked at, the middle is a single piece that mentions nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from moonfold_handoff.context.accounting import text_bytes
from moonfold_handoff.context.identifiers import MARK_CHARACTERS, marks

WHOLE = 400  # characters up to which activity travels whole or not at all
PIECES = 16  # about as many as a long text is cut into
LEAST_PIECE = 200  # characters
LARGEST_PIECE = 600  # characters
LONGEST_HEADER = 300  # characters of a first line that is a piece of its own
HEAD_SCANNED = 8_000  # characters of a very long text that are looked at, from its start
TAIL_SCANNED = 16_000  # and from its end, where outputs say how it went

PIECE_MARKS = 8  # identifiers kept of one piece of many
ITEM_MARKS = 32  # identifiers kept of an item that is one piece
FIRST_MARKS = 3  # of however short an item
MARK_SPACING = 30  # characters of an item for each further mark

TROUBLE = "!err"
"""The mark of a piece that tells of trouble; no identifier's mark begins with `!`."""

_TROUBLE = re.compile(
    r"\b(?:error|fail(?:ed|ure|ures)?|exception|traceback|panic(?:ked)?|assert\w*|warning|denied)\b"
    r"|\bnot found\b|^E  ",
    re.IGNORECASE | re.MULTILINE,
)


SpokenOf = Callable[[], frozenset[str]]
"""Tells the marks that the recent conversation mentions; asked only where a sketch has to choose."""


class Sketch(NamedTuple):
    """What is kept of an item's text.

    Attributes:
        marks: the marks of all pieces, one after the other.
        pieces: for each piece its characters, its bytes (R14) and its marks; () if it is one piece.
    """

    marks: str
    pieces: tuple[int, ...] = ()


def sketch(text: str, spoken_of: SpokenOf, *, whole: bool) -> Sketch:
    """Return the sketch of an item's body.

    Args:
        text: the body.
        spoken_of: what the recent conversation mentions is kept before anything else.
        whole: whether the item travels whole or not at all, however long it is.
    """
    if whole or len(text) <= WHOLE:
        limit = min(ITEM_MARKS, FIRST_MARKS + len(text) // MARK_SPACING)
        return Sketch("".join(_choose(_scan(text), limit, spoken_of)))
    kept: list[str] = []
    pieces: list[int] = []
    for start, end in cut_into_pieces(text):
        piece = text[start:end]
        chosen: list[str] = []
        if not _is_middle(start, len(text)):
            chosen = _choose(marks(piece), PIECE_MARKS, spoken_of)
            if start and _TROUBLE.search(piece):
                chosen.append(TROUBLE)
        kept += chosen
        pieces += (end - start, text_bytes(piece), len(chosen))
    return Sketch("".join(kept), tuple(pieces))


def cut_into_pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a long text begin and end, in order and without gaps."""
    length = len(text)
    size = max(LEAST_PIECE, min(LARGEST_PIECE, length // PIECES))
    start = text.find("\n", 0, LONGEST_HEADER) + 1
    if start:
        yield 0, start
    while start < length:
        if _is_middle(start, length):
            end = length - TAIL_SCANNED
        else:
            end = text.find("\n", start + size // 2, start + 2 * size) + 1
            end = end or min(length, start + size)
        yield start, end
        start = end


def _is_middle(start: int, length: int) -> bool:
    """Return whether the piece that begins at `start` is what is not looked at of a very long text."""
    return HEAD_SCANNED <= start < length - TAIL_SCANNED


def split_marks(marks: str) -> list[str]:
    """Return the marks that are written one after the other in `marks`."""
    return [marks[i : i + MARK_CHARACTERS] for i in range(0, len(marks), MARK_CHARACTERS)]


def _scan(text: str) -> list[str]:
    """Return the marks in `text`; nothing is looked for in the middle of a very long one."""
    if len(text) > HEAD_SCANNED + TAIL_SCANNED:
        text = f"{text[:HEAD_SCANNED]}\n{text[-TAIL_SCANNED:]}"
    return marks(text)


def _choose(found: list[str], limit: int, spoken_of: SpokenOf) -> list[str]:
    """Return at most `limit` marks: those spoken of, then those named last."""
    if len(found) <= limit:
        return found
    found.reverse()
    spoken = spoken_of()
    known = [mark for mark in found if mark in spoken]
    rest = [mark for mark in found if mark not in spoken]
    return (known + rest)[:limit]
