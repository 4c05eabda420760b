"""OpenCode's sessions (`opencode.db`, and what `opencode export` writes) to thread events.

Subagents' sessions, which name a parent, and what OpenCode itself says to its models are left out. While
OpenCode waits to try again it writes nothing down: a limit shows when it gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Any

from moonfold_handoff.transcripts.base import Agent, Session, TranscriptError
from moonfold_handoff.transcripts.documents import DocumentSession, read_document
from moonfold_handoff.transcripts.lines import Json, dictionary, entries, string
from moonfold_handoff.transcripts.opencode_database import DatabaseSession
from moonfold_handoff.transcripts.opencode_reader import PROVIDER, OpenCodeReader
from moonfold_handoff.transcripts.opencode_rows import session_ids

_SQLITE = b"SQLite format 3\x00"
_HEAD_BYTES = 4096
_LOG = "-wal"  # changes stand in it before they are in the database itself


class OpenCode(Agent):
    """OpenCode, which keeps all sessions in one database."""

    provider = PROVIDER
    title = "OpenCode"
    shares_files = True

    def roots(self, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        """Return its folder of data."""
        data = environment.get("XDG_DATA_HOME")
        return ((Path(data) if data else home / ".local/share") / "opencode",)

    def holds_sessions(self, path: Path) -> bool:
        """Tell the database, that of a preview channel too, and its log, which changes first."""
        name = path.name.removesuffix(_LOG)
        return name == "opencode.db" or (name.startswith("opencode-") and name.endswith(".db"))

    def file_of(self, path: Path) -> Path:
        """Return the database of a log."""
        return path.with_name(path.name.removesuffix(_LOG))

    def sessions(self, path: Path) -> Iterable[Session]:
        """Return a person's sessions in a database, or in its log, or the one of an export.

        Raises:
            TranscriptError: The database is busy or broken.
        """
        path = self.file_of(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_SQLITE):
            for session_id, asked_at in session_ids(path):
                yield DatabaseSession(session_id, path, asked_at)
        elif b'"info"' in head and (export := _export(path)) is not None:
            session_id = export["info"]["id"]
            yield DocumentSession(PROVIDER, session_id, path, _read_export)


def _export(path: Path) -> Json | None:
    """Return the export in a file, or None where there is another document or none."""
    try:
        document = dictionary(read_document(path.read_bytes()))
    except TranscriptError:
        return None
    is_one = string(dictionary(document.get("info")).get("id")) and "messages" in document
    return document if is_one else None


def _read_export(document: Any, conversation_id: str, zone: tzinfo | None) -> OpenCodeReader:
    """Return a reader that took all messages of an export, up to where the person went back to."""
    export = dictionary(document)
    info = dictionary(export.get("info"))
    reader = OpenCodeReader(
        conversation_id=conversation_id,
        cwd=string(info.get("directory")),
        title=string(info.get("title")),
        version=string(info.get("version")),
    )
    for number, message in enumerate(_said(info, entries(export.get("messages")))):
        reader.take(number, message, zone)
    return reader


def _said(info: Json, messages: list[Any]) -> Iterable[Any]:
    """Yield the messages that the person did not take back."""
    undone = dictionary(info.get("revert"))
    first = string(undone.get("messageID"))
    for message in messages:
        said = dictionary(message)
        if first is None or dictionary(said.get("info")).get("id") != first:
            yield message
            continue
        if part := string(undone.get("partID")):
            parts = entries(said.get("parts"))
            ids = [dictionary(p).get("id") for p in parts]
            yield {**said, "parts": parts[: ids.index(part)] if part in ids else parts}
        return


AGENT = OpenCode()
