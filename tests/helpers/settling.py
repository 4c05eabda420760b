"""What a session's events come to: an item that was recorded again has its newest content at its place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moonfold_handoff.transcripts import Transcript, read_transcript
from moonfold_schemas.events import ItemRecorded, ThreadEvent, TurnEnded, TurnsRolledBack


def settled(events: Iterable[ThreadEvent]) -> tuple[ThreadEvent, ...]:
    """Return events with every item once and the last end of every turn, nothing rolled back."""
    log: list[ThreadEvent | None] = []
    items: dict[str, int] = {}
    ends: dict[str, int] = {}
    for event in events:
        if isinstance(event, TurnsRolledBack):
            log[event.to :] = [None] * (len(log) - event.to)
        log.append(event)
        if isinstance(event, ItemRecorded):
            first = items.get(event.item.item_id)
            earlier = log[first] if first is not None else None
            if first is not None and isinstance(earlier, ItemRecorded):
                log[first] = ItemRecorded(time=earlier.time, item=event.item)
                log[-1] = None
            else:
                items[event.item.item_id] = len(log) - 1
        elif isinstance(event, TurnEnded):
            if event.turn_id in ends:
                log[ends[event.turn_id]] = None
            ends[event.turn_id] = len(log) - 1
    return tuple(event for event in log if event is not None)


def settle(transcript: Transcript) -> Transcript:
    return Transcript(transcript.session, settled(transcript.events), transcript.facts)


def read_settled(path: str | Path, **options: Any) -> Transcript:
    return settle(read_transcript(path, **options))
