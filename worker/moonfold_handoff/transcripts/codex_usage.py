"""How full Codex says its context is."""

from __future__ import annotations

from typing import Any

from moonfold_handoff.transcripts.lines import Json, dictionary, integer, tokens


class Usage:
    """Reads `token_count` records, each figure once, and `token_usage_record`s for their truth."""

    def __init__(self) -> None:
        self._measured: int | None = None
        self._last: Json | None = None

    def measured(self, record: Json) -> None:
        """Take what the provider itself counted for one answer."""
        usage = dictionary(record.get("usage"))
        self._measured = tokens(usage.get("total_tokens")) or self._measured

    def reported(self, info: Any) -> tuple[int, int | None] | None:
        """Return the tokens in the context and the window, or None where there is nothing new."""
        if not isinstance(info, dict) or info == self._last:
            return None
        self._last = info
        total = dictionary(info.get("total_token_usage"))
        window = integer(info.get("model_context_window"))
        used = tokens(dictionary(info.get("last_token_usage")).get("total_tokens"))
        # After an answer that did not fit, Codex sets its totals to the window; nobody counted that.
        if window and total.get("total_tokens") == window and not total.get("input_tokens"):
            used = self._measured or window
        return (used, window) if used else None

    def forget(self) -> None:
        """Forget what was counted: the context is another one now."""
        self._measured = self._last = None
