"""What an item looks like when it travels: its kind, its attribution label, its body.

The body is also the text that a reader pages through: offsets in an abridged item count its characters.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from moonfold_handoff.context.identifiers import mark_of
from moonfold_handoff.context.state import Kind
from moonfold_schemas.items import (
    AssistantMessage,
    Command,
    Error,
    FileChange,
    Interruption,
    Item,
    ItemStatus,
    OpaqueItem,
    Plan,
    Reasoning,
    ToolCall,
    UserMessage,
)

_KINDS: dict[type[Item], Kind] = {
    UserMessage: Kind.USER,
    AssistantMessage: Kind.ASSISTANT,
    Command: Kind.COMMAND,
    FileChange: Kind.FILE_CHANGE,
    Plan: Kind.PLAN,
    Error: Kind.ERROR,
    Interruption: Kind.INTERRUPTION,
}

_STATUS = {
    ItemStatus.IN_PROGRESS: ", in progress",
    ItemStatus.COMPLETED: "",
    ItemStatus.FAILED: ", failed",
    ItemStatus.INTERRUPTED: ", interrupted",
}


def kind_of(item: Item) -> Kind | None:
    """Return the item's kind, or None if it never travels (R7)."""
    return _KINDS.get(type(item))


def label(item: Item) -> str:
    """Return who or what the item comes from, as in `[#14 command, exit 1]`."""
    match item:
        case UserMessage():
            return f"user{_attachments(item)}{_STATUS[item.status]}"
        case Command(exit_code=int(code)):
            stopped = item.status is ItemStatus.INTERRUPTED
            return f"command, exit {code}{_STATUS[item.status] if stopped else ''}"
        case FileChange():
            return f"file {item.change.value}{_STATUS[item.status]}"
        case _:
            kind = kind_of(item)
            name = "item" if kind is None else kind.name.lower()
            return f"{name}{_STATUS[item.status]}"


def body(item: Item) -> str:
    """Return the item's text; for a message exactly what was said."""
    match item:
        case UserMessage() | AssistantMessage() | Plan() | Reasoning():
            return item.text
        case Command():
            return f"$ {item.command}\n{item.output}" if item.output else f"$ {item.command}"
        case FileChange():
            return f"{item.path}\n{item.diff}" if item.diff else item.path
        case Error() | Interruption():
            return item.message
        case ToolCall():
            return f"{item.name} {item.input}\n{item.output}"
        case OpaqueItem():
            return ""
    assert_never(item)


def key_of(item: Item) -> str:
    """Return a mark of what the item is an outcome or a change of; "" if of nothing.

    Of two items with the same key the later one tells how things stand.
    """
    match item:
        case Command():
            return mark_of(f"$ {item.command}")
        case FileChange():
            return mark_of(item.path)
        case Plan():
            return mark_of("plan")
        case _:
            return ""


def _attachments(item: UserMessage) -> str:
    counts = Counter(attachment.kind.value for attachment in item.attachments)
    return "".join(f", {n} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(counts.items()))
