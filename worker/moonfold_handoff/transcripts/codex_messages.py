"""Messages in a rollout: whose words they are, and which records tell of the same one.

Codex writes a message up to twice, as an item of the model's history and as an event. The event has the
person's text as it was typed; the item can have harness text around it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from moonfold_handoff.transcripts.codex_records import Record
from moonfold_handoff.transcripts.lines import Json, dictionary, entries, string
from moonfold_schemas.items import Attachment, AttachmentKind, UserMessage

SUMMARY_PREFIX = (
    "Another language model started to solve this problem and produced a summary of its thinking"
)

_KEPT = 8  # messages of a role; records that tell of the same one stand near each other

_TAGS = (
    "apps_instructions",
    "collaboration_mode",
    "environment_context",
    "goal_context",
    "hook_prompt",
    "model_switch",
    "permissions instructions",
    "plugins_instructions",
    "skill",
    "skills_instructions",
    "subagent_notification",
    "turn_aborted",
    "user_action",
    "user_instructions",
    "user_shell_command",
)
_INJECTED = re.compile(
    rf"\s*(?:<(?:{'|'.join(_TAGS)})[\s>]|# AGENTS\.md instructions\b|{re.escape(SUMMARY_PREFIX)}"
    r"|Warning: The maximum number of unified exec processes)"
)
_IMAGE_TAG = re.compile(r"\s*</?image\b[^>]*>\s*")
# The event of an answer is without these, the item with them.
_HIDDEN = re.compile(r"<(proposed_plan|oai-mem-citation)>.*?</\1>", re.DOTALL)
_NOT_PLAIN = frozenset({"environment_context", "user_instructions"})


@dataclass(frozen=True, slots=True)
class Words:
    """A message's text and what was attached to it."""

    text: str
    attachments: tuple[Attachment, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record."""
        return not self.text.strip() and not self.attachments


class Answer(msgspec.Struct, frozen=True):
    """A message of the agent, as one record tells of it.

    Attributes:
        line: The record's line.
        time: When it was written.
        source: The kind of record.
        id: What the message is called.
        text: Its text.
        is_final: Whether it can be the last one of its turn.
    """

    line: int
    time: datetime | None
    source: str
    id: str
    text: str
    is_final: bool

    @classmethod
    def of(cls, record: Record, fields: Json, text: str) -> Answer:
        """Return the answer in a record's `fields`."""
        id_ = string(fields.get("id")) or record.name
        is_final = fields.get("phase") != "commentary"
        return cls(record.line, record.time, record.kind, id_, text, is_final)


class Heard(msgspec.Struct):
    """A message that was recorded.

    Attributes:
        id: What the record called it.
        text: Its text, or what stands for it where a whole text is never compared in part.
        sources: The kinds of record that told of it.
        item: The item, where another record can change it.
    """

    id: str
    text: str
    sources: list[str]
    item: UserMessage | None = None

    def merge(self, words: Words, *, as_typed: bool) -> UserMessage | None:
        """Take what another record tells of a message; return the item if that changes it.

        Args:
            words: The record's words.
            as_typed: Whether they are what the person typed, without a client's text around it.
        """
        if (item := self.item) is None:
            return None
        attachments = words.attachments or item.attachments
        if not as_typed:
            attachments = item.attachments or words.attachments
        text = words.text if as_typed else item.text
        self.item = msgspec.structs.replace(item, text=text, attachments=attachments)
        return None if self.item == item else self.item


class Said(msgspec.Struct):
    """The last messages of one turn and role, to find the one that another source tells of again.

    Attributes:
        wrapped: Whether an item can have a client's text above the words.
        heard: The messages.
    """

    wrapped: bool = False
    heard: list[Heard] = msgspec.field(default_factory=list)

    def add(self, source: str, id_: str, text: str, item: UserMessage | None = None) -> None:
        """Note a message that was recorded."""
        self.heard.append(Heard(id_, self._compared(text), [source], item))
        del self.heard[:-_KEPT]

    def grow(self, text: str) -> None:
        """Note that the last message goes on, and its whole text."""
        self.heard[-1].text = self._compared(text)

    def again(self, source: str, id_: str, text: str) -> Heard | None:
        """Return the message that `source` tells of once more, else None."""
        open_ = [h for h in self.heard if source not in h.sources]
        text = self._compared(text)
        found = next((h for h in open_ if h.id == id_), None)
        found = found or next((h for h in open_ if h.text == text), None)
        if found is None and self.wrapped and text:
            found = next((h for h in open_ if h.text and _holds(h.text, text)), None)
        if found is not None:
            found.sources.append(source)
        return found

    def _compared(self, text: str) -> str:
        visible = _HIDDEN.sub("", text).strip()
        return visible if self.wrapped else digest(visible)


def digest(text: str) -> str:
    """Return what stands for a text where only equality counts."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def summary_digests(text: str) -> list[str]:
    """Return what stands for a compaction's summary, as it is written and as the model gave it."""
    text = text.strip()
    own = text.partition("\n")[2].strip() if text.startswith(SUMMARY_PREFIX) else ""
    return [digest(t) for t in (text, own) if t]


def _holds(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return longer.endswith(shorter) and longer[-len(shorter) - 1].isspace()


def person_words(payload: Json) -> Words:
    """Return the person's part of a `user` message of the model's history."""
    content = _blocks(payload.get("content"))
    has_files = any(string(b.get("type")) in {"input_image", "input_file"} for b in content)
    texts = [
        text
        for block, origin in zip(content, _origins(payload, len(content)), strict=True)
        if (text := string(block.get("text"))) is not None
        and origin != "harness"
        and not _INJECTED.match(text)
        and not (has_files and _IMAGE_TAG.fullmatch(text))
    ]
    return Words("".join(texts), tuple(_attachments(content)))


def typed_words(payload: Json) -> Words:
    """Return the person's words of a `user_message` event."""
    if string(payload.get("kind")) in _NOT_PLAIN:
        return Words("")
    images = [{"type": "image"} for _ in entries(payload.get("images"))]
    files = [{"type": "local_image", "path": p} for p in entries(payload.get("local_images"))]
    text = string(payload.get("message")) or ""
    return Words(text, tuple(_attachments([*images, *files])))


def item_words(item: Json) -> Words:
    """Return the words of a completed `UserMessage` or `AgentMessage`, or of an answer's item."""
    content = _blocks(item.get("content"))
    texts = (string(b.get("text")) for b in content)
    return Words("".join(t for t in texts if t), tuple(_attachments(content)))


def reasoning_text(payload: Json) -> str:
    """Return what a reasoning record says in words: the summary, else the raw content."""
    for name in ("summary", "summary_text", "content", "raw_content"):
        parts = entries(payload.get(name))
        texts = (string(p) or string(dictionary(p).get("text")) for p in parts)
        if text := "\n\n".join(t for t in texts if t):
            return text
    return string(payload.get("text")) or ""


def _blocks(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [b for b in entries(content) if isinstance(b, dict)]


def _origins(payload: Json, count: int) -> list[str | None]:
    """Return who each block of a message comes from, where Codex wrote that down."""
    passthrough = dictionary(payload.get("internal_chat_message_metadata_passthrough"))
    metadata = entries(passthrough.get("content_item_metadata"))
    if len(metadata) != count:
        return [None] * count
    provenances = (dictionary(dictionary(m).get("provenance")) for m in metadata)
    return [string(p.get("type")) for p in provenances]


def _attachments(blocks: Iterable[Json]) -> Iterable[Attachment]:
    for block in blocks:
        kind = string(block.get("type"))
        if kind in {"image", "input_image", "local_image"}:
            yield Attachment(kind=AttachmentKind.IMAGE, name=_file_name(block.get("path")))
        elif kind in {"file", "input_file"}:
            yield Attachment(kind=AttachmentKind.FILE, name=string(block.get("filename")))


def _file_name(path: Any) -> str | None:
    if not isinstance(path, str):
        return None
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name
