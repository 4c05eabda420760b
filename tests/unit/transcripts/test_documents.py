"""Sessions that are one JSON document are read whole, and again when they changed."""

from __future__ import annotations

import json
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

import pytest

from moonfold_handoff.transcripts.base import Facts, TranscriptError
from moonfold_handoff.transcripts.documents import DocumentSession
from moonfold_handoff.transcripts.json_lines import Reader
from moonfold_handoff.transcripts.lines import count
from moonfold_schemas.events import ThreadStarted


class _Titles(Reader):
    """Tells of a thread for each title."""

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:
        del number, zone
        if isinstance(document, str):
            self.journal.add(ThreadStarted(title=document))
        else:
            count(self.skipped, "no title")

    def facts(self) -> Facts:
        return Facts(skipped=self.skipped)


def read(document: Any, conversation_id: str, zone: tzinfo | None) -> Reader:
    reader = _Titles(conversation_id=conversation_id)
    for number, title in enumerate(document):
        reader.take(number, title, zone)
    return reader


def session(path: Path, *titles: Any) -> DocumentSession:
    path.write_text(json.dumps(titles), encoding="utf-8")
    return DocumentSession("titles", "s1", path, read)


def test_a_document_is_read_in_one_step(tmp_path: Path) -> None:
    [step] = session(tmp_path / "s.json", "one", "two", 3).steps(zone=UTC)
    assert step.events == (ThreadStarted(title="one"), ThreadStarted(title="two"))
    assert step.anew
    assert step.facts == Facts(skipped={"no title": 1})
    assert step.rest == 0


def test_an_unchanged_document_gives_no_step(tmp_path: Path) -> None:
    one = session(tmp_path / "s.json", "one")
    [step] = one.steps()
    assert list(one.steps(step.cursor)) == []


def test_a_changed_document_gives_all_its_events_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    [before] = session(path, "one").steps()
    [after] = session(path, "two", "three").steps(before.cursor)
    assert after.anew
    assert after.events == (ThreadStarted(title="two"), ThreadStarted(title="three"))


def test_a_cursor_of_something_else_is_no_cursor(tmp_path: Path) -> None:
    [step] = session(tmp_path / "s.json", "one").steps(b"other")
    assert len(step.events) == 1


def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b'\xef\xbb\xbf["one"]')
    [step] = DocumentSession("titles", "s1", path, read).steps()
    assert len(step.events) == 1


@pytest.mark.parametrize("content", [b'["one"', b"", b"[" * 100_000, b"\xff"])
def test_a_half_written_document_is_refused_without_quoting_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match=r"^The session file is no JSON document\.$"):
        list(DocumentSession("titles", "s1", path, read).steps())


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    gone = DocumentSession("titles", "s1", tmp_path / "s.json", read)
    with pytest.raises(TranscriptError, match=r"^Cannot read the session file: "):
        list(gone.steps())
