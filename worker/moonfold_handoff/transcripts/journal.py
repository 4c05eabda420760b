"""The journal that a reader fills with events, with what all readers do to it."""

from __future__ import annotations

import zlib
from datetime import datetime

import msgspec

from moonfold_handoff.transcripts.base import safe_id
from moonfold_schemas.events import ItemRecorded, ThreadEvent
from moonfold_schemas.items import Item, ItemStatus

NAMES_KEPT = 1_024  # marks of the ids given last; a record written twice stands near the first one


class Journal(msgspec.Struct):
    """Events in the order of the session, numbered from 1.

    Attributes:
        count: Events so far.
        fresh: Events that were not drained yet; empty in a cursor.
        names: Marks of the ids that were given last.
    """

    count: int = 0
    fresh: list[ThreadEvent] = []
    names: dict[int, None] = {}

    def add(self, event: ThreadEvent) -> int:
        """Append an event and return its number."""
        self.fresh.append(event)
        self.count += 1
        return self.count

    def record(self, item: Item, time: datetime | None) -> int:
        """Append an item, or the new content of one; return the event's number."""
        return self.add(ItemRecorded(time=time, item=item))

    def interrupt(self, item: Item, time: datetime | None) -> None:
        """Record an item again as interrupted."""
        self.record(msgspec.structs.replace(item, status=ItemStatus.INTERRUPTED), time)

    def drain(self) -> tuple[ThreadEvent, ...]:
        """Return what was added since the last time."""
        events = tuple(self.fresh)
        self.fresh.clear()
        return events

    def unique(self, name: str) -> str:
        """Return a wire identifier for `name` that no item near this one has.

        Two records of one id are rare, and a file that was put together by hand has them.
        """
        id_, again = safe_id(name), 0
        while (mark := zlib.crc32(id_.encode())) in self.names:
            again += 1
            id_ = safe_id(f"{name}:again-{again}")
        self.names[mark] = None
        if len(self.names) > NAMES_KEPT:
            del self.names[next(iter(self.names))]
        return id_
