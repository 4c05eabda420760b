"""Unified diffs out of the passages that agents write down."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def hunks(old: str, new: str) -> list[str]:
    """Return the lines of the hunks from one passage to another; they count from the passage's start."""
    if not old:
        added = new.removesuffix("\n").split("\n")
        return [f"@@ -0,0 +1,{len(added)} @@", *(f"+{line}" for line in added)] if new else []
    return list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm=""))[2:]


def file_diff(source: str, path: str, lines: Sequence[str]) -> str | None:
    """Return the diff of a file from its hunks, or None without any."""
    return "\n".join((f"--- {source}", f"+++ {path}", *lines)) + "\n" if lines else None
