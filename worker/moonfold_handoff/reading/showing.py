"""Answers as text, for a model or a person: each item under its attribution line, the note at the end.

As in a handoff, the lines carry a mark that occurs nowhere in what they frame, so no text can forge one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from moonfold_handoff.context.framing import attribution, end_line
from moonfold_handoff.context.rendering import choose_mark
from moonfold_handoff.reading.answers import Entry, Found, Hit, Page

SEED_BYTES = 16


def page_text(page: Page) -> str:
    """Return a page as text."""
    mark = _mark(entry.text for entry in page.items)
    blocks = [
        f"{attribution(mark, entry.position, entry.label + _part(entry))}\n{entry.text}"
        for entry in page.items
    ]
    return _framed(mark, blocks, page.note)


def found_text(found: Found) -> str:
    """Return what a search found as text."""
    mark = _mark(snippet.text for hit in found.hits for snippet in hit.snippets)
    return _framed(mark, [_hit(mark, hit) for hit in found.hits], found.note)


def _mark(texts: Iterable[str]) -> str:
    return choose_mark(secrets.token_bytes(SEED_BYTES), texts)


def _framed(mark: str, blocks: list[str], note: str) -> str:
    return "\n".join([*blocks, end_line(mark), note] if note else [*blocks, end_line(mark)])


def _part(entry: Entry) -> str:
    if entry.offset == 0 and entry.next_offset is None:
        return ""
    end = entry.offset + len(entry.text)
    return f", characters {entry.offset}-{end} of {entry.characters_total}"


def _hit(mark: str, hit: Hit) -> str:
    places = "1 place" if hit.count == 1 else f"{hit.count} places"
    lines = [attribution(mark, hit.position, f"{hit.label}, {places}")]
    for snippet in hit.snippets:
        lines += [f"[{mark} #{hit.position} from {snippet.offset}]", snippet.text]
    return "\n".join(lines)
