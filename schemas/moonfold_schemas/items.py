"""Items: what a conversation consists of, tagged by `kind`.

Two kinds never travel in a handoff (R7): `reasoning` and `tool_call`. They are recorded because they
occupy the conversation that holds them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from moonfold_schemas.base import Bound, Id, Tokens, Wire


class ItemStatus(StrEnum):
    """How far an item got."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class AttachmentKind(StrEnum):
    """What an attachment is; decides how much room it reserves (R21)."""

    IMAGE = "image"
    FILE = "file"


class FileChangeKind(StrEnum):
    """What happened to a file."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"
    RENAME = "rename"


class Attachment(Wire, frozen=True, kw_only=True):
    """That something was attached to a message. Its content never travels (R7)."""

    kind: AttachmentKind
    name: str | None = None


class ItemBase(Wire, tag_field="kind", frozen=True, kw_only=True):
    """Fields of every item.

    Recording the same `item_id` again replaces the item's content at its first position.
    """

    item_id: Id
    turn_id: Id
    status: ItemStatus = ItemStatus.COMPLETED


class UserMessage(ItemBase, tag="user_message", frozen=True, kw_only=True):
    """A request of the person."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class AssistantMessage(ItemBase, tag="assistant_message", frozen=True, kw_only=True):
    """An answer of the agent, in its own words."""

    text: str


class Command(ItemBase, tag="command", frozen=True, kw_only=True):
    """A command that the agent ran. `exit_code` is null while unknown."""

    command: str
    exit_code: Bound | None = None
    output: str = ""
    cwd: str | None = None


class FileChange(ItemBase, tag="file_change", frozen=True, kw_only=True):
    """A change of one file; `diff` is a unified diff where it is known."""

    path: str
    change: FileChangeKind
    diff: str | None = None


class Plan(ItemBase, tag="plan", frozen=True, kw_only=True):
    """The agent's plan or to-do list, as text."""

    text: str


class Error(ItemBase, tag="error", frozen=True, kw_only=True):
    """An error that the provider or the agent reported inside the conversation."""

    message: str


class Interruption(ItemBase, tag="interruption", frozen=True, kw_only=True):
    """That the person interrupted the agent here."""

    message: str = ""


class Reasoning(ItemBase, tag="reasoning", frozen=True, kw_only=True):
    """The model's reasoning. Never travels (R7)."""

    text: str = ""


class ToolCall(ItemBase, tag="tool_call", frozen=True, kw_only=True):
    """A call of a tool other than a command or a file change. Never travels (R7)."""

    name: str
    input: str = ""
    output: str = ""


class OpaqueItem(ItemBase, tag="opaque", frozen=True, kw_only=True):
    """An item of a kind this version does not know. Never travels; its size still counts.

    `size` is the length in bytes of the event that recorded it.
    """

    original_kind: Annotated[str, Meta(max_length=200)] = field(default="")
    size: Tokens = 0


Item = (
    UserMessage
    | AssistantMessage
    | Command
    | FileChange
    | Plan
    | Error
    | Interruption
    | Reasoning
    | ToolCall
    | OpaqueItem
)
"""Any item, discriminated by `kind`."""
