"""Texts made of characters as a person sees them, so that a test knows where each one ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import strategies as st

CHARACTERS = (
    "a",
    " ",
    "\n",
    "\r\n",
    "ß",
    "é",
    "e\u0301",  # with its accent apart
    "ก\u0e49",  # Thai with a tone
    "न\u093f",  # Devanagari with a vowel
    "\u1112\u1161\u11ab",  # Hangul in its parts
    "漢",
    "🙂",
    "☀\ufe0f",  # as an emoji
    "👍\U0001f3fd",  # with a skin tone
    "🇻🇳",
    "🇩🇪",
    "👨‍👩‍👧‍👦",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # Scotland
)

texts = st.lists(st.sampled_from(CHARACTERS), max_size=60)


def ends(characters: Sequence[str]) -> set[int]:
    """Return every place between two characters, the beginning and the end included."""
    return {0, *accumulate(map(len, characters))}
