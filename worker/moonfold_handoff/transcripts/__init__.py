"""Agents' session files to thread events."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path

import msgspec

from moonfold_handoff.transcripts import claude_code
from moonfold_handoff.transcripts.base import Transcript, TranscriptError

__all__ = ["Transcript", "TranscriptError", "read_transcript"]


def read_transcript(path: str | Path, *, zone: tzinfo | None = None) -> Transcript:
    """Read an agent's session file, whatever its format.

    Args:
        path: The session file.
        zone: Zone of a limit notice that names none; None is the machine's.

    Raises:
        TranscriptError: The file cannot be read, its format is unknown, or it has no conversation.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            lines = list(file)
    except OSError as error:
        raise TranscriptError(f"Cannot read the session file: {error.strerror}.") from None
    if not any(line.strip() for line in lines):
        raise TranscriptError("The session file is empty.")
    if not any(_is_claude_code(line) for line in lines):
        raise TranscriptError("The file is not a session of a known agent (Claude Code).")
    return claude_code.read(lines, session_id=path.stem, zone=zone)


def _is_claude_code(line: bytes) -> bool:
    try:
        return claude_code.recognises(msgspec.json.decode(line))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
