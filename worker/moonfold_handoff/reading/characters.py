"""Where a text may be cut: between what a person sees as characters.

Offsets count Unicode code points. The rules are the cheap part of Unicode's extended grapheme clusters
(UAX #29): marks, variation selectors, skin tones, joined emoji, tags, flags, Hangul, and CR LF.
"""

from __future__ import annotations

import unicodedata

CLUSTER = 64  # code points of a cluster at most; a longer one, which no language has, is cut

_JOINER = "\u200d"
_NON_JOINER = "\u200c"
_FLAGS = "".join(map(chr, range(0x1F1E6, 0x1F200)))  # regional indicators, two to a flag


def floor(text: str, offset: int) -> int:
    """Return the last place up to `offset` where `text` may be cut; `offset` lies within the text.

    Of a place that it returned it returns the same.
    """
    for place in range(offset, max(offset - CLUSTER, -1), -1):
        if is_boundary(text, place):
            return place
    return offset


def page_end(text: str, start: int, characters: int) -> int:
    """Return where a page of `characters` that begins at `start` ends.

    At least one whole character is on it, however long that is. `start` is a place to cut at.
    """
    end = floor(text, min(len(text), start + characters))
    if end > start:
        return end
    for place in range(start + 1, min(len(text), start + CLUSTER)):
        if is_boundary(text, place):
            return place
    return min(len(text), start + CLUSTER)


def is_boundary(text: str, place: int) -> bool:
    """Return whether no character is split by a cut before the code point at `place`."""
    if place in {0, len(text)}:
        return True
    before, after = text[place - 1], text[place]
    if before.isascii() and after.isascii():
        return (before, after) != ("\r", "\n")
    if after in _FLAGS and before in _FLAGS:
        head = text[:place]
        return (len(head) - len(head.rstrip(_FLAGS))) % 2 == 0
    return not (_extends(after) or (before == _JOINER and not after.isspace()))


def _extends(character: str) -> bool:
    """Return whether a character belongs to the one before it."""
    return (
        character in {_JOINER, _NON_JOINER}
        or unicodedata.category(character).startswith("M")
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tags, as in the flag of Scotland
        or "\u1160" <= character <= "\u11ff"  # vowels and finals of Hangul
    )
