"""The lines around carried text: who speaks, where something was cut, where the history ends.

Each carries the handoff's mark, which occurs nowhere in the carried text. Lines are made and counted
here and nowhere else.
"""

from __future__ import annotations

from moonfold_handoff.context.accounting import text_bytes

MARK_BYTES = 4
FRAME_BYTES = 13  # `[mark #` + ` ` + `]` + line breaks around a body, escaped; digits come on top
WIDEST_MARK = "m" * MARK_BYTES


def attribution(mark: str, position: int, label: str) -> str:
    """Return the line before an item's body, `[mark #14 command, exit 1]`."""
    return f"[{mark} #{position} {label}]"


def end_line(mark: str) -> str:
    """Return the line that ends the history."""
    return f"[{mark} end]"


def gap(mark: str, position: int, first: int, end: int) -> str:
    """Return what stands for characters `first` to `end` of an item's body.

    It names the item and the offset at which a reader continues.
    """
    return f"\n[{mark} #{position} cut {first}-{end}]\n"


_GAP_BYTES = text_bytes(gap(WIDEST_MARK, 0, 0, 0)) - 3  # without its three numbers


def gap_bytes(position: int, characters: int) -> int:
    """Return the most that a gap in a body of so many characters costs."""
    return _GAP_BYTES + len(str(position)) + 2 * len(str(characters))
