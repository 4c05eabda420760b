"""Messages in a rollout: whose words they are, and which records tell of the same one.

Codex writes a message up to twice, as an item of the model's history and as an event. The event has the
person's text as it was typed; the item can have harness text around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from moonfold_handoff.transcripts.lines import Json, dictionary, entries, string
from moonfold_schemas.items import Attachment, AttachmentKind

SUMMARY_PREFIX = (
    "Another language model started to solve this problem and produced a summary of its thinking"
)

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


@dataclass(slots=True)
class _Recorded:
    place: int
    id: str
    text: str
    sources: set[str] = field(default_factory=set)


class Said:
    """The messages of one turn and role, to find the one that another source tells of again."""

    def __init__(self, *, wrapped: bool = False) -> None:
        self._wrapped = wrapped  # whether an item can have a client's text above the words
        self._recorded: list[_Recorded] = []

    def add(self, place: int, source: str, id_: str, text: str) -> None:
        """Note a message that was recorded at a place."""
        self._recorded.append(_Recorded(place, id_, _visible(text), {source}))

    def again(self, source: str, id_: str, text: str) -> int | None:
        """Return the place of the message that `source` tells of once more, else None."""
        open_ = [r for r in self._recorded if source not in r.sources]
        text = _visible(text)
        found = next((r for r in open_ if r.id == id_), None)
        found = found or next((r for r in open_ if r.text == text), None)
        if found is None and self._wrapped and text:
            found = next((r for r in open_ if r.text and _holds(r.text, text)), None)
        if found is None:
            return None
        found.sources.add(source)
        return found.place


def _visible(text: str) -> str:
    return _HIDDEN.sub("", text).strip()


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
