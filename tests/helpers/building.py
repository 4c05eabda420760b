"""Short ways to write down items, logs, states and handoffs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from moonfold_handoff.context.fold import (
    Entry,
    RebuildNeededError,
    fold,
    rollbacks,
    surviving,
)
from moonfold_handoff.context.portable import kind_of
from moonfold_handoff.context.rendering import Rendering, render
from moonfold_handoff.context.selection import Selection, select
from moonfold_handoff.context.state import ThreadState
from moonfold_schemas.events import (
    ConversationStarted,
    ItemRecorded,
    ThreadEvent,
    TurnsRolledBack,
    UsageReported,
)
from moonfold_schemas.items import (
    AssistantMessage,
    Attachment,
    AttachmentKind,
    Command,
    Error,
    FileChange,
    FileChangeKind,
    Interruption,
    Item,
    ItemBase,
    ItemStatus,
    OpaqueItem,
    Plan,
    Reasoning,
    ToolCall,
    UserMessage,
)

THREAD = "3f8b0c52-9d1e-4a67-b2f4-6c0d9e7a1b35"
SEED = b"a seed"

_numbers = itertools.count(1)


# Items. Each has an id of its own unless one is given.


def _head(changes: dict[str, Any]) -> dict[str, Any]:
    return {"item_id": f"item-{next(_numbers)}", "turn_id": "turn", **changes}


def user(text: str = "", *, images: int = 0, files: int = 0, **changes: Any) -> UserMessage:
    image, file = Attachment(kind=AttachmentKind.IMAGE), Attachment(kind=AttachmentKind.FILE)
    return UserMessage(text=text, attachments=(image,) * images + (file,) * files, **_head(changes))


def assistant(text: str = "", **changes: Any) -> AssistantMessage:
    return AssistantMessage(text=text, **_head(changes))


def command(line: str, output: str = "", exit_code: int | None = 0, **changes: Any) -> Command:
    return Command(command=line, output=output, exit_code=exit_code, **_head(changes))


def file_change(
    path: str,
    change: FileChangeKind = FileChangeKind.UPDATE,
    diff: str | None = None,
    **changes: Any,
) -> FileChange:
    return FileChange(path=path, change=change, diff=diff, **_head(changes))


def plan(text: str, **changes: Any) -> Plan:
    return Plan(text=text, **_head(changes))


def error(message: str, **changes: Any) -> Error:
    return Error(message=message, **_head(changes))


def interruption(message: str = "", **changes: Any) -> Interruption:
    return Interruption(message=message, **_head(changes))


def reasoning(text: str, **changes: Any) -> Reasoning:
    return Reasoning(text=text, **_head(changes))


def tool_call(name: str, input_: str = "", output: str = "", **changes: Any) -> ToolCall:
    return ToolCall(name=name, input=input_, output=output, **_head(changes))


def opaque_item(size: int, **changes: Any) -> OpaqueItem:
    return OpaqueItem(size=size, **_head(changes))


def with_status(item: Item, status: ItemStatus) -> Item:
    changed: Item = type(item)(
        **{name: getattr(item, name) for name in item.__struct_fields__} | {"status": status}
    )
    return changed


# Conversations.


def started(conversation_id: str = "c", **changes: Any) -> ConversationStarted:
    return ConversationStarted(
        conversation_id=conversation_id, **{"provider": "codex", "model": "large", **changes}
    )


def usage(used: int, conversation_id: str = "c", **changes: Any) -> UsageReported:
    return UsageReported(conversation_id=conversation_id, used_tokens=used, **changes)


# Logs.


@dataclass
class Log:
    """A thread's log, numbered as the store numbers it."""

    through: int = 0
    entries: list[Entry] = field(default_factory=list)
    _positions: dict[str, int] = field(default_factory=dict)

    def add(self, *what: ThreadEvent | Item) -> Log:
        for one in what:
            event = ItemRecorded(item=one) if isinstance(one, ItemBase) else one
            self.through += 1
            position = self.through
            if isinstance(event, ItemRecorded):
                position = self._positions.setdefault(event.item.item_id, position)
            elif isinstance(event, TurnsRolledBack):
                # What is recorded again after it was taken back is a new item.
                kept = {i: first for i, first in self._positions.items() if first <= event.to}
                self._positions = kept
            self.entries.append(Entry(self.through, position, event))
        return self

    @property
    def state(self) -> ThreadState:
        return folded(self.entries)


def log(*what: ThreadEvent | Item) -> Log:
    return Log().add(*what)


def state_of(*what: ThreadEvent | Item) -> ThreadState:
    return log(*what).state


def folded(entries: list[Entry], state: ThreadState | None = None) -> ThreadState:
    """Fold a whole log, or what continues `state`; from the start where a rollback asks for it."""
    try:
        return fold(state or ThreadState(), entries)
    except RebuildNeededError:
        return rebuilt(entries)


def rebuilt(entries: list[Entry]) -> ThreadState:
    return fold(ThreadState(), surviving(entries, rollbacks(entries)))


def meant(entries: Iterable[Entry]) -> list[tuple[Entry, Item]]:
    """Return what a log means, the slow way: for each item that can travel its newest record."""
    alive: list[tuple[Entry, Item]] = []
    for entry in entries:
        if isinstance(entry.event, TurnsRolledBack):
            to = entry.event.to
            alive = [(kept, item) for kept, item in alive if kept.sequence <= to]
        elif isinstance(entry.event, ItemRecorded):
            alive.append((entry, entry.event.item))
    newest = {entry.position: (entry, item) for entry, item in alive}
    return [newest[p] for p in sorted(newest) if kind_of(newest[p][1]) is not None]


# Handoffs.


def contents(entries: Iterable[Entry], selection: Selection) -> dict[int, Item]:
    """Return the chosen items by position, read from the records that the state names."""
    items = {e.sequence: e.event.item for e in entries if isinstance(e.event, ItemRecorded)}
    return {choice.ref.position: items[choice.ref.record] for choice in selection.choices}


def hand_off(
    history: Log, allowance: int, *, seed: bytes = SEED, thread_id: str = THREAD
) -> tuple[Selection, Rendering]:
    selection = select(history.state, thread_id, allowance)
    return selection, render(selection, contents(history.entries, selection), seed)


def chosen(selection: Selection) -> list[int]:
    return [choice.ref.position for choice in selection.choices]


def spans(ranges: Iterable[Any]) -> list[tuple[int, int]]:
    return [(span.first, span.last) for span in ranges]


def mark_of(text: str) -> str:
    """Return the mark of a rendered text, which its first line shows."""
    return text[1:5]


# What the standard library says of the same bytes.


def json_bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
