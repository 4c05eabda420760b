"""Tells whether a record of a Claude Code session goes on from what was read last.

Nearly all do. One that does not (the person went back to an earlier message, another process wrote into
the same file) makes another branch the active one, which only the whole file tells; see `claude_branch`.
"""

from __future__ import annotations

import zlib

import msgspec

from moonfold_handoff.transcripts.claude_records import CONVERSATION, Record
from moonfold_handoff.transcripts.lines import string, to_json

LINKS_KEPT = 512  # records that a new one can name as its parent without the file being read again


class Link(msgspec.Struct, array_like=True):
    """One record of the chain.

    Attributes:
        place: Where it stands in the chain; what is no part of the conversation stands at its parent's.
        talks: Whether it says something of the conversation.
        answers_tool: Whether it is the result of a tool call.
        message: The API message that it is a line of.
        mark: What tells two records of one id apart.
    """

    place: int
    talks: bool
    answers_tool: bool
    message: str | None
    mark: int


class Links(msgspec.Struct):
    """The end of the chain that is being read, by the records' ids."""

    known: dict[str, Link] = {}
    count: int = 0
    talked: bool = False
    linked: bool = False

    def repeats(self, record: Record) -> bool:
        """Tell whether a record was written already, as a crash and a resume do."""
        known = self.known.get(record.uuid or "")
        return known is not None and known.mark == _mark(record)

    def extends(self, record: Record) -> bool:
        """Tell whether a record of the conversation goes on from the last one."""
        if not self.talked or record.uuid is None:
            return True
        parent = self._parent(record)
        if parent is None:
            # A first message beside another one; and a parent that is lost, or long ago.
            return not (_names_parent(record) or (self.linked and begins(record)))
        after = self._after(parent)
        if not after:
            return True
        messages = {k.message for k in self.known.values() if k.place <= parent.place}
        messages.add(_message(record))
        # The lines of one message and the results of parallel calls stand beside each other.
        return all(k.answers_tool or (k.message and k.message in messages) for k in after)

    def add(self, record: Record) -> None:
        """Note a record that is part of the chain, or hangs on it."""
        if record.uuid is None:
            self.talked = self.talked or talks(record)
            return
        parent = self._parent(record)
        self.linked = self.linked or parent is not None
        self.count += 1
        says = talks(record)
        self.talked = self.talked or says
        self.known.pop(record.uuid, None)
        self.known[record.uuid] = Link(
            place=self.count if says or parent is None else parent.place,
            talks=says,
            answers_tool=any(b["type"] == "tool_result" for b in record.blocks),
            message=_message(record),
            mark=_mark(record),
        )
        if len(self.known) > LINKS_KEPT:
            del self.known[next(iter(self.known))]

    def hangs_on(self, record: Record) -> bool:
        """Tell whether a record's parent is in the chain."""
        return self._parent(record) is not None

    def _after(self, parent: Link) -> list[Link]:
        """Return what was said after a record, the last first."""
        after = []
        for link in reversed(self.known.values()):
            if link.talks:
                if link.place <= parent.place:
                    break
                after.append(link)
        return after

    def _parent(self, record: Record) -> Link | None:
        for name in ("parentUuid", "logicalParentUuid"):
            parent = string(record.data.get(name))
            if parent and parent != record.uuid and parent in self.known:
                return self.known[parent]
        return None


def talks(record: Record) -> bool:
    """Tell whether a record says something about the conversation."""
    return record.type in CONVERSATION or record.is_boundary or record.queued is not None


def begins(record: Record) -> bool:
    """Tell whether a record without a parent is a first message, and no broken chain.

    A person who rewinds to the very first message leaves two of them in the file.
    """
    if record.type != "user" or record.data.get("parentUuid") is not None:
        return False
    return not any(block["type"] == "tool_result" for block in record.blocks)


def _names_parent(record: Record) -> bool:
    names = ("parentUuid", "logicalParentUuid")
    return any(string(record.data.get(n)) not in {None, "", record.uuid} for n in names)


def _message(record: Record) -> str | None:
    key = record.message_key
    return None if key is None else f"{key[0]} {key[1] or ''}"


def _mark(record: Record) -> int:
    return zlib.crc32(f"{record.type} {to_json(record.message)}".encode())
