"""Tells a person's words from what the harness writes in the person's name."""

from __future__ import annotations

import re

from moonfold_handoff.transcripts.claude_records import Record
from moonfold_handoff.transcripts.lines import Json, string
from moonfold_schemas.items import Attachment, AttachmentKind

_INTERRUPTION = re.compile(r"\[Request interrupted by user[^\]\n]*\]\s*")
_NOT_HUMAN = (
    "<bash-input>",
    "<bash-stderr>",
    "<bash-stdout>",
    "<command-args>",
    "<command-contents>",
    "<command-message>",
    "<command-name>",
    "<ide_diagnostics>",
    "<ide_opened_file>",
    "<ide_selection>",
    "<local-command-caveat>",
    "<local-command-stderr>",
    "<local-command-stdout>",
    "<task-notification>",
    "<user-prompt-submit-hook>",
    "Caveat: The messages below were generated",
    "This session is being continued from a previous conversation that ran out of context",
)
_NOT_HUMAN_FLAGS = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly")


def is_of_the_harness(record: Record) -> bool:
    """Tell whether the record says itself that no person wrote it."""
    return any(record.data.get(flag) is True for flag in _NOT_HUMAN_FLAGS)


def is_interruption(text: str) -> bool:
    """Tell whether a text is the mark that the person interrupted the agent."""
    return _INTERRUPTION.fullmatch(text) is not None


def human_message(
    blocks: tuple[Json, ...], *, with_files_only: bool
) -> tuple[str, tuple[Attachment, ...]] | None:
    """Return the person's text and attachments, or None if the blocks are not from a person."""
    texts = [b["text"] for b in blocks if b["type"] == "text" and _is_human(b["text"])]
    attachments = tuple(
        Attachment(
            kind=AttachmentKind.IMAGE if b["type"] == "image" else AttachmentKind.FILE,
            name=string(b.get("title")),
        )
        for b in blocks
        if b["type"] in {"image", "document"}
    )
    if not texts and not (attachments and with_files_only):
        return None
    return "\n\n".join(texts), attachments


def _is_human(text: str) -> bool:
    stripped = text.strip()
    if not stripped or stripped.startswith(_NOT_HUMAN) or is_interruption(text):
        return False
    # The person's words can follow a reminder in one block; then the block is kept as it is.
    return not (
        stripped.startswith("<system-reminder>") and stripped.endswith("</system-reminder>")
    )
