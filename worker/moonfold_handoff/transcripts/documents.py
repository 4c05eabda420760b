"""Sessions that are one JSON document, rewritten as a whole: any change is read from the start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any

from moonfold_handoff.transcripts.base import Session, Step, TranscriptError
from moonfold_handoff.transcripts.json_lines import FORMAT, Reader
from moonfold_handoff.transcripts.lines import decode

ReadDocument = Callable[[Any, str, tzinfo | None], Reader]
"""Takes a document, the conversation's id and a zone; returns a reader that took all of it."""


class DocumentSession(Session):
    """A session in a file with one JSON document.

    A cursor is a digest of the file, so a changed one gives all its events anew.
    """

    def __init__(self, provider: str, session_id: str, path: Path, read: ReadDocument) -> None:
        super().__init__(provider, session_id, path)
        self._read = read

    def steps(self, cursor: bytes | None = None, *, zone: tzinfo | None = None) -> Iterator[Step]:
        """Read the document if it changed; see `Session.steps`.

        Raises:
            TranscriptError: The file cannot be read, or is no JSON; it may be half written just now.
        """
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            raise TranscriptError(f"Cannot read the session file: {error.strerror}.") from None
        now = bytes([FORMAT]) + hashlib.blake2b(raw, digest_size=16).digest()
        if now == cursor:
            return
        reader = self._read(read_document(raw), self.conversation_id, zone)
        yield Step(reader.journal.drain(), now, anew=True, facts=reader.facts())


def read_document(raw: bytes) -> Any:
    """Return the JSON document that a file's bytes are.

    Raises:
        TranscriptError: They are no JSON.
    """
    try:
        return decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        raise TranscriptError("The session file is no JSON document.") from None
