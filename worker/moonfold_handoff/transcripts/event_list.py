"""The list that an importer fills with events, with what all of them do to it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from moonfold_handoff.transcripts.base import safe_id
from moonfold_schemas.events import ItemRecorded, ThreadEvent
from moonfold_schemas.items import Item, ItemStatus


class EventList:
    """Events in the order of the thread. A *place* is an index in the list."""

    def __init__(self) -> None:
        self.events: list[ThreadEvent] = []
        self._ids: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.events)

    def add(self, event: ThreadEvent) -> None:
        """Append an event."""
        self.events.append(event)

    def record(self, item: Item, time: datetime | None) -> int:
        """Append an item and return its place."""
        self.events.append(ItemRecorded(time=time, item=item))
        return len(self.events) - 1

    def item(self, place: int) -> Item | None:
        """Return the item at a place."""
        event = self.events[place]
        return event.item if isinstance(event, ItemRecorded) else None

    def replace(self, place: int, item: Item) -> None:
        """Give the item at a place its new content; its time stays."""
        event = self.events[place]
        if isinstance(event, ItemRecorded):
            self.events[place] = msgspec.structs.replace(event, item=item)

    def interrupt(self, place: int) -> None:
        """Mark the item at a place as interrupted."""
        if (item := self.item(place)) is not None:
            self.replace(place, msgspec.structs.replace(item, status=ItemStatus.INTERRUPTED))

    def unique(self, name: str) -> str:
        """Return a wire identifier for `name` that no item of the list has yet."""
        id_ = safe_id(name)
        self._ids[id_] += 1
        # Two records of one id are rare, and a file that was put together by hand has them.
        return id_ if self._ids[id_] == 1 else self.unique(f"{name}:again-{self._ids[id_] - 1}")
