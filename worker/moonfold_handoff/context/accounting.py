"""Where bytes are counted: one token a UTF-8 byte, JSON escaping included (R14)."""

from __future__ import annotations

import msgspec

_encode = msgspec.json.Encoder().encode

QUOTES = 2  # bytes around a JSON string literal


def literal_bytes(text: str) -> int:
    """Return the length in bytes of `text` as a JSON string literal, quotes included."""
    return len(_encode(text))


def text_bytes(text: str) -> int:
    """Return what `text` adds to a JSON string literal: its bytes, escaped, without quotes."""
    return len(_encode(text)) - QUOTES


def longest_prefix(text: str, limit: int) -> int:
    """Return how many characters from the start of `text` cost at most `limit` bytes."""
    return _longest(text[: max(limit, 0)], limit, from_end=False)


def longest_suffix(text: str, limit: int) -> int:
    """Return how many characters at the end of `text` cost at most `limit` bytes."""
    return _longest(text[-limit:] if limit > 0 else "", limit, from_end=True)


def _longest(text: str, limit: int, *, from_end: bool) -> int:
    # A character costs at least one byte, so the caller's slice of `limit` characters is enough.
    if text_bytes(text) <= limit:
        return len(text)
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        part = text[-middle:] if from_end else text[:middle]
        if text_bytes(part) <= limit:
            fits = middle
        else:
            too_long = middle
    return fits
