"""Gemini CLI's session files (`~/.gemini/tmp/<project>/chats/session-*.jsonl`) to thread events.

Older versions kept a session as one JSON document, which is read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path
from typing import Any

from moonfold_handoff.transcripts.base import OtherSessionError, Session, TranscriptError, safe_id
from moonfold_handoff.transcripts.documents import DocumentSession, read_document
from moonfold_handoff.transcripts.gemini_reader import PROVIDER, GeminiReader, is_metadata
from moonfold_handoff.transcripts.json_lines import JsonLinesAgent, Order
from moonfold_handoff.transcripts.lines import Json, dictionary, entries, string


class GeminiCli(JsonLinesAgent):
    """Gemini CLI, which keeps a session as `tmp/<project>/chats/session-<time>-<id>.jsonl`."""

    provider = PROVIDER
    title = "Gemini CLI"
    reader = GeminiReader

    def roots(self, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        """Return its folder of projects; `GEMINI_CLI_HOME` stands for the home directory."""
        return (Path(environment.get("GEMINI_CLI_HOME") or home) / ".gemini" / "tmp",)

    def holds_sessions(self, path: Path) -> bool:
        """Tell a person's sessions from those of subagents, which lie deeper.

        An old document that the CLI went on with as lines is left to those.
        """
        if path.parent.name != "chats" or not path.name.startswith("session-"):
            return False
        moved = path.suffix == ".json" and path.with_suffix(self.suffix).exists()
        return path.suffix in {self.suffix, ".json"} and not moved

    def recognises(self, document: Any) -> bool:
        """Tell whether a document is what a session of Gemini CLI begins with."""
        return isinstance(document, dict) and is_metadata(document)

    def session_id(self, head: Iterable[Any], stem: str) -> str | None:  # noqa: ARG002
        """Return what the session's metadata says; a subagent's session is none of a person."""
        metadata = [document for document in head if self.recognises(document)]
        if any(document.get("kind") == "subagent" for document in metadata):
            return None
        return metadata[-1]["sessionId"] or None

    def sessions(self, path: Path) -> Iterable[Session]:
        """Return the one session in a file, of either form."""
        if path.suffix == ".json":
            with suppress(TranscriptError):
                document = read_document(path.read_bytes())
                if self.recognises(document) and (id_ := self.session_id([document], path.stem)):
                    yield DocumentSession(self.provider, id_, path, _read_document)
                return
        yield from super().sessions(path)

    def survey(self, documents: Iterable[tuple[int, Any]]) -> Order:
        """Return the lines that count: those that the person did not go back to before."""
        kept: list[int] = []
        first: dict[str, int] = {}
        for number, document in documents:
            record = dictionary(document)
            target = string(record.get("$rewindTo"))
            if target is None:
                kept.append(number)
                for id_ in _ids(record):
                    first.setdefault(id_, number)
                continue
            # Going back to a message that is not there takes back all, as the CLI has it.
            at = first.get(target, min(first.values(), default=number))
            kept = [line for line in kept if line < at]
            first = {id_: line for id_, line in first.items() if line < at}
        return {line: (line, 0) for line in kept}


def _ids(record: Json) -> Iterator[str]:
    if (id_ := string(record.get("id"))) is not None:
        yield id_
        return
    listed = dictionary(record.get("$set")).get("messages") or record.get("messages")
    for message in entries(listed):
        if (id_ := string(dictionary(message).get("id"))) is not None:
            yield id_


def _read_document(document: Any, conversation_id: str, zone: tzinfo | None) -> GeminiReader:
    held = document.get("sessionId") if AGENT.recognises(document) else None
    if held is None or safe_id(held) != conversation_id:
        raise OtherSessionError("The file holds another session now.")
    reader = GeminiReader(conversation_id=conversation_id)
    reader.take(0, document, zone)
    return reader


AGENT = GeminiCli()
