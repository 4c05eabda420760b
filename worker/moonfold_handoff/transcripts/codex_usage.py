"""How full Codex says its context and the account's quota windows are."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Any

import msgspec

from moonfold_handoff.transcripts.codex_limits import RateLimits
from moonfold_handoff.transcripts.lines import Json, dictionary, integer, to_json, tokens
from moonfold_schemas.events import QuotaReported, UsageReported

_FAMILIES_KEPT = 8  # kinds of limits; one is usual, and a model of its own has one more


class Usage(msgspec.Struct):
    """Reads `token_count` records, each figure once, and `token_usage_record`s for their truth.

    Attributes:
        counted: What the provider itself counted last, in tokens.
        mark: Tells the figures that were reported last.
        rates: The rate limits that were reported last, by their kind.
    """

    counted: int | None = None
    mark: int | None = None
    rates: dict[str, RateLimits] = msgspec.field(default_factory=dict)

    def measured(self, record: Json) -> None:
        """Take what the provider itself counted for one answer."""
        usage = dictionary(record.get("usage"))
        self.counted = tokens(usage.get("total_tokens")) or self.counted

    def reported(
        self, info: Any, conversation_id: str, time: datetime | None
    ) -> UsageReported | None:
        """Return the tokens in the context and the window, or None where there is nothing new."""
        mark = zlib.crc32(to_json(info).encode())
        if not isinstance(info, dict) or mark == self.mark:
            return None
        self.mark = mark
        total = dictionary(info.get("total_token_usage"))
        window = integer(info.get("model_context_window"))
        used = tokens(dictionary(info.get("last_token_usage")).get("total_tokens"))
        # After an answer that did not fit, Codex sets its totals to the window; nobody counted that.
        if window and total.get("total_tokens") == window and not total.get("input_tokens"):
            used = self.counted or window
        if not used:
            return None
        return UsageReported(
            time=time, conversation_id=conversation_id, used_tokens=used, max_tokens=window
        )

    def forget(self) -> None:
        """Forget what was counted: the context is another one now."""
        self.counted = self.mark = None

    def quota(
        self, rates: RateLimits, conversation_id: str, time: datetime | None
    ) -> QuotaReported | None:
        """Return the quota windows, or None where they did not move."""
        if not rates.windows or not rates.differ(self.rates.get(rates.family, RateLimits())):
            return None
        self.rates.pop(rates.family, None)
        self.rates[rates.family] = rates
        if len(self.rates) > _FAMILIES_KEPT:
            del self.rates[next(iter(self.rates))]
        return QuotaReported(
            time=time,
            conversation_id=conversation_id,
            windows=rates.windows,
            has_credits=rates.has_credits,
        )
