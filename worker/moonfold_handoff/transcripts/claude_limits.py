"""Claude Code's limits, as its importer asks for them; `moonfold_handoff.limits` recognises them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from moonfold_handoff import limits
from moonfold_handoff.limits.sentences import reset_time
from moonfold_schemas.events import Limit

__all__ = ["recognise", "reset_time"]


def recognise(
    record: Mapping[str, Any], text: str, now: datetime | None, zone: tzinfo | None
) -> Limit | None:
    """Return the limit that an error record tells of, or None for any other error.

    Args:
        record: The record, marked as an error by Claude Code.
        text: The notice in it.
        now: When it was written; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    evidence = limits.Evidence(body=dict(record), text=text, now=now, zone=zone)
    return limits.recognise("claude-code", evidence)
