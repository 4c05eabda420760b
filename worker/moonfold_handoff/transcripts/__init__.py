"""Agents' session files to thread events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import Any

import msgspec

from moonfold_handoff.transcripts import claude_code, codex
from moonfold_handoff.transcripts.base import Transcript, TranscriptError

__all__ = ["Transcript", "TranscriptError", "read_transcript"]

_ZSTD = b"\x28\xb5\x2f\xfd"
_IMPORTERS: tuple[tuple[Callable[[Any], bool], Callable[..., Transcript]], ...] = (
    (claude_code.recognises, claude_code.read),
    (codex.recognises, codex.read),
)


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
    if lines[0].startswith(_ZSTD):
        raise TranscriptError("The session file is compressed; unpack it with zstd -d first.")
    importer = next((i for line in lines if (i := _importer_of(line)) is not None), None)
    if importer is None:
        raise TranscriptError("The file is not a session of a known agent (Claude Code, Codex).")
    return importer(lines, session_id=path.stem, zone=zone)


def _importer_of(line: bytes) -> Callable[..., Transcript] | None:
    """Return the importer of the agent that wrote a line, if the line shows which."""
    try:
        document = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return next((read for recognises, read in _IMPORTERS if recognises(document)), None)
