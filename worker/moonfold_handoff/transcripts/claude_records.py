"""Lines of a Claude Code session to records, with everything that can be wrong in them settled here.

Later steps may rely on it: a block is a dict, a text block has a text, a tool call has an id and a
name, a tool result names its call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    decode_lines,
    label,
    parse_time,
    string,
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

    def texts(self) -> list[str]:
        """Return the texts of the record's text blocks."""
        return [block["text"] for block in self.blocks if block["type"] == "text"]


def parse_lines(lines: Iterable[bytes]) -> tuple[list[Record], Mapping[str, int]]:
    """Return the records of a session file, and how many were left out, by reason."""
    records: list[Record] = []
    skipped: Counter[str] = Counter()
    for number, document in decode_lines(lines, skipped):
        record = _record(number, document, skipped)
        if record is not None:
            records.append(record)
    return records, dict(sorted(skipped.items()))


def parse_content(content: Any, skipped: Counter[str]) -> tuple[Json, ...]:
    """Return the blocks of a message's content that can be used; the rest is counted."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if not isinstance(content, list):
        skipped[MALFORMED] += 1
        return ()
    blocks = []
    malformed = False
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or not _has_its_fields(block, kind):
            malformed = True
        elif not _is_known(kind):
            skipped[f"unknown block: {label(kind)}"] += 1
        else:
            blocks.append(block)
    if malformed:
        skipped[MALFORMED] += 1
    return tuple(blocks)


def _record(number: int, document: Any, skipped: Counter[str]) -> Record | None:
    if not isinstance(document, dict):
        skipped["not a record"] += 1
        return None
    type_ = document.get("type")
    if not isinstance(type_, str):
        skipped["record without a type"] += 1
        # It stays as a link of the chain: what follows it may have it as its parent.
        type_ = ""
    elif type_ not in CONVERSATION and type_ not in _METADATA:
        skipped[f"unknown record: {label(type_)}"] += 1
    message: Json = {}
    blocks: tuple[Json, ...] = ()
    if type_ in CONVERSATION:
        if isinstance(document.get("message"), dict):
            message = document["message"]
            blocks = parse_content(message.get("content"), skipped)
        else:
            skipped[MALFORMED] += 1
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
