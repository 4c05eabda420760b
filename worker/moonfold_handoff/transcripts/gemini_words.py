"""Words in Gemini CLI's messages, and whose they are: the CLI writes a lot in the person's name.

The forms are those of `@google/gemini-cli-core` 0.61, and of the versions before that are known.
"""

from __future__ import annotations

import re
from typing import Any

from moonfold_handoff.transcripts.lines import Json, string
from moonfold_schemas.items import Attachment, AttachmentKind

CANCELLED = "Request cancelled."
"""What the CLI notes, as an `info` message, when the person interrupts it."""

_API_ERROR = re.compile(r"\[API Error: (?P<text>.*?)\](?:\n|\Z)", re.DOTALL)
# How the CLI itself tells what no person asked of the model: its `isIgnoredUserContent`.
_COMMANDS = ("/", "?")
_NOT_HUMAN = (
    "<hook_context>",
    "<session_context>",
    "<state_snapshot>",
    "- **Workspace Directories:**",
    "Here is a summary of changes in the user's editor context",
    "Here is the user's editor context as a JSON object",
    "I ran the following shell command:\n```sh\n",
    "System: Potential loop detected.",
    "This is the Gemini CLI. We are setting up the context for our chat.",
    "[System: You ",
)
# Asks for more of an answer; a person who writes just this has no other text on display.
_CONTINUATION = "Please continue."
_SNAPSHOT = "<state_snapshot>"
_SNAPSHOT_TAKEN = "Got it. Thanks for the additional context!"
_REFERENCED = re.compile(
    r"\n?--- Content from referenced (?:files|context) ---.*?(?:\n--- End of content ---|\Z)",
    re.DOTALL,
)
_WORKSPACE = re.compile(r"\*\*Workspace Directories:\*\*\n  - (?P<path>[^\n]+)")


def parts_of(content: Any) -> list[Json]:
    """Return the parts of a content, which is a text, a part, or a list of both."""
    listed = content if isinstance(content, list) else [content]
    parts = [{"text": part} if isinstance(part, str) else part for part in listed]
    return [part for part in parts if isinstance(part, dict)]


def words(content: Any) -> str:
    """Return the text of a content, without the model's thoughts, stripped."""
    texts = (string(p.get("text")) for p in parts_of(content) if p.get("thought") is not True)
    return "".join(text for text in texts if text is not None).strip()


def human_message(record: Json) -> tuple[str, tuple[Attachment, ...]] | None:
    """Return a person's text and attachments, or None where the CLI wrote a `user` message itself.

    What the CLI adds for the model alone, as the content of files that the person names, is left out.
    """
    parts = parts_of(record.get("content"))
    sent = words(record.get("content"))
    shown = words(record.get("displayContent"))
    if any("functionResponse" in part for part in parts):
        return None
    if sent.startswith((*_COMMANDS, *_NOT_HUMAN)) or (sent == _CONTINUATION and shown):
        return None
    # A command that stands for a prompt is shown as the command; the prompt tells more.
    text = shown if shown and not shown.startswith(_COMMANDS) else _without_additions(parts)
    attachments = tuple(a for part in parts if (a := _attachment(part)) is not None)
    return (text, attachments) if text or attachments else None


def workspace(record: Json) -> str | None:
    """Return the folder that the session works in, from the context that the CLI begins it with."""
    match = _WORKSPACE.search(words(record.get("content")))
    return match["path"].strip() or None if match else None


def compaction(messages: list[Json]) -> str | None:
    """Return the id of the message by which a checkpoint replaces a conversation, if it has one."""
    for message in messages:
        text = words(message.get("content"))
        if (message.get("type") == "user" and _SNAPSHOT in text) or text == _SNAPSHOT_TAKEN:
            return string(message.get("id"))
    return None


def _without_additions(parts: list[Json]) -> str:
    texts = (string(part.get("text")) or "" for part in parts)
    own = "".join(text for text in texts if not text.lstrip().startswith("<hook_context>"))
    return _REFERENCED.sub("", own).strip()


def _attachment(part: Json) -> Attachment | None:
    for name in ("inlineData", "fileData"):
        if isinstance(data := part.get(name), dict):
            is_image = (string(data.get("mimeType")) or "").startswith("image/")
            kind = AttachmentKind.IMAGE if is_image else AttachmentKind.FILE
            return Attachment(kind=kind, name=string(data.get("displayName")))
    return None


def api_error(text: str) -> str | None:
    """Return what the provider said, from an error that it caused; None for any other error."""
    match = _API_ERROR.match(text)
    return match["text"] if match else None
