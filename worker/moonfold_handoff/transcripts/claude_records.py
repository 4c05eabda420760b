"""Lines of a Claude Code session to records, with everything that can be wrong in them settled here.

Later steps may rely on it: a block is a dict, a text block has a text, a tool call has an id and a
name, a tool result names its call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    count,
    label,
    parse_time,
    string,
    to_json,
)

CONVERSATION = frozenset({"user", "assistant"})
_METADATA = frozenset(
    {
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "attachment",
        "attribution-snapshot",
        "bridge-session",
        "content-replacement",
        "context-collapse-commit",
        "context-collapse-snapshot",
        "custom-title",
        "file-history-delta",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "summary",
        "system",
        "tag",
        "worktree-state",
    }
)
_PLAIN_BLOCKS = frozenset(
    {
        "container_upload",
        "document",
        "image",
        "redacted_thinking",
        "search_result",
        "thinking",
        "tool_reference",
    }
)
TOOL_USES = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One line of the file. `line` counts from 0 and stands in for an id where there is none."""

    line: int
    type: str
    data: Json
    uuid: str | None
    sidechain: bool
    time: datetime | None
    message: Json
    blocks: tuple[Json, ...]

    @property
    def name(self) -> str:
        """What ids of this record's items are made from."""
        return self.uuid or f"line-{self.line}"

    @property
    def message_key(self) -> tuple[str, str | None] | None:
        """What the lines of one API message share, else None."""
        id_ = string(self.message.get("id"))
        if self.type != "assistant" or not id_:
            return None
        return id_, string(self.data.get("requestId"))

    @property
    def model(self) -> str | None:
        """The model that the record names."""
        return string(self.message.get("model")) or None

    @property
    def is_boundary(self) -> bool:
        """Whether the provider compacted its context here."""
        return self.type == "system" and self.data.get("subtype") == "compact_boundary"

    @property
    def queued(self) -> Json | None:
        """The attachment that holds what the person typed while the agent was busy."""
        attachment = self.data.get("attachment")
        if self.type != "attachment" or not isinstance(attachment, dict):
            return None
        return attachment if attachment.get("type") == "queued_command" else None

    def outline(self) -> Record:
        """Return the record without its words: what tells its place among the others."""
        names = ("parentUuid", "logicalParentUuid", "subtype", "attachment", "requestId")
        data = {name: self.data[name] for name in names if name in self.data}
        if isinstance(data.get("attachment"), dict):
            data["attachment"] = {"type": data["attachment"].get("type")}
        message = {"id": self.message.get("id"), "mark": hash(to_json(self.message))}
        blocks: tuple[Json, ...] = tuple(
            {name: block[name] for name in ("type", "id", "tool_use_id") if name in block}
            for block in self.blocks
        )
        return replace(self, data=data, message=message, blocks=blocks)

    def texts(self) -> list[str]:
        """Return the texts of the record's text blocks."""
        return [block["text"] for block in self.blocks if block["type"] == "text"]


def parse_content(content: Any, skipped: dict[str, int]) -> tuple[Json, ...]:
    """Return the blocks of a message's content that can be used; the rest is counted."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if not isinstance(content, list):
        count(skipped, MALFORMED)
        return ()
    blocks = []
    malformed = False
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or not _has_its_fields(block, kind):
            malformed = True
        elif not _is_known(kind):
            count(skipped, f"unknown block: {label(kind)}")
        else:
            blocks.append(block)
    if malformed:
        count(skipped, MALFORMED)
    return tuple(blocks)


def parse_record(number: int, document: Any, skipped: dict[str, int]) -> Record | None:
    """Return the record that a line's document is, or None where it is none, which is counted."""
    if not isinstance(document, dict):
        count(skipped, "not a record")
        return None
    type_ = document.get("type")
    if not isinstance(type_, str):
        count(skipped, "record without a type")
        # It stays as a link of the chain: what follows it may have it as its parent.
        type_ = ""
    elif type_ not in CONVERSATION and type_ not in _METADATA:
        count(skipped, f"unknown record: {label(type_)}")
    message: Json = {}
    blocks: tuple[Json, ...] = ()
    if type_ in CONVERSATION:
        if isinstance(document.get("message"), dict):
            message = document["message"]
            blocks = parse_content(message.get("content"), skipped)
        else:
            count(skipped, MALFORMED)
    return Record(
        line=number,
        type=type_,
        data=document,
        uuid=string(document.get("uuid")) or None,
        sidechain=document.get("isSidechain") is True,
        time=parse_time(document.get("timestamp")),
        message=message,
        blocks=blocks,
    )


def _has_its_fields(block: Json, kind: str) -> bool:
    if kind == "text":
        return isinstance(block.get("text"), str)
    if kind in TOOL_USES:
        return isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    if kind.endswith("tool_result"):
        return isinstance(block.get("tool_use_id"), str)
    return True


def _is_known(kind: str) -> bool:
    plain = kind in _PLAIN_BLOCKS or kind in TOOL_USES
    return plain or kind == "text" or kind.endswith("tool_result")
