"""Where a text occurs, whatever the case of its letters, and what stands around it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from moonfold_handoff.reading.answers import Snippet
from moonfold_handoff.reading.characters import floor, page_end

SNIPPETS = 3  # of one item
AROUND = 80  # characters before and after what was found


def search(text: str, needle: str) -> tuple[int, tuple[Snippet, ...]]:
    """Return how often `needle`, which is case-folded, occurs in `text`, and the first places."""
    folded = text.casefold()
    count = folded.count(needle)
    if not count:
        return 0, ()
    # Folding can make a text longer (ß becomes ss); where each of its characters ends then.
    ends = None if len(folded) == len(text) else [*accumulate(len(c.casefold()) for c in text)]
    snippets: list[Snippet] = []
    place, covered = folded.find(needle), 0
    while place >= 0 and len(snippets) < SNIPPETS:
        end = place + len(needle)
        if ends is not None:
            first, last = bisect_right(ends, place), bisect_left(ends, end) + 1
        else:
            first, last = place, end
        if last > covered:
            start = floor(text, max(covered, first - AROUND))
            covered = page_end(text, start, last + AROUND - start)
            snippets.append(Snippet(offset=start, text=text[start:covered]))
        place = folded.find(needle, end)
    return count, tuple(snippets)
