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
