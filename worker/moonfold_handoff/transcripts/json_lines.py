"""Sessions that are files of JSON Lines, which agents append to: read from where reading stopped.

An agent's module gives a `Reader`, a struct that turns one document after the other into events. All that a
reader knows is in its fields, so that it can be kept between two steps, and they are bounded.
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec

from moonfold_handoff.transcripts.base import (
    Agent,
    Facts,
    OtherSessionError,
    Session,
    Step,
    TranscriptError,
)
from moonfold_handoff.transcripts.journal import Journal
from moonfold_handoff.transcripts.lines import count, decode
from moonfold_schemas.events import ThreadEvent

STEP_BYTES = 1024 * 1024  # read in one step, about
MOST_LINE_BYTES = 64 * 1024 * 1024  # a longer line is left out: no agent writes one
HEAD_LINES = 200  # looked at to learn whose session a file is
SEAL_BYTES = 4096  # before where reading stopped, by which a file is known again
FORMAT = 1  # raise it when cursors of before cannot be read, or readers give other events

_BOM = b"\xef\xbb\xbf"

Order = Mapping[int, tuple[int, int]]
"""Lines that count, by number: the line at which each is taken, and its place among those taken there."""


class StartOverError(Exception):
    """The session no longer goes on from what was read of it; it has to be read from the start."""


class Reader(msgspec.Struct, kw_only=True):
    """What turns a session's documents into events; a struct, so that it is a cursor too.

    Attributes:
        journal: The events.
        conversation_id: What the events name.
        skipped: How many lines or records were left out, by reason.
    """

    conversation_id: str
    journal: Journal = msgspec.field(default_factory=Journal)
    skipped: dict[str, int] = msgspec.field(default_factory=dict)

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:
        """Add what one document tells.

        Args:
            number: Its line, from 0.
            document: The line's JSON.
            zone: Zone of a limit notice that names none; None is the machine's.

        Raises:
            StartOverError: The session goes on from an earlier point than the last one.
        """
        raise NotImplementedError

    def take_in_order(
        self, number: int, document: Any, zone: tzinfo | None, *, counts: bool
    ) -> None:
        """Add what one document tells, where a survey has told whether it counts."""
        raise NotImplementedError

    def facts(self) -> Facts:
        """Return what is known by now."""
        raise NotImplementedError

    def last_words(self) -> None:
        """Add what the end of a session that does not grow any more tells; mostly nothing."""


class _Cursor(msgspec.Struct, array_like=True):
    """Where reading stopped: after so many bytes and lines, in a file known by its seal."""

    format: int
    offset: int
    lines: int
    seal: bytes
    reader: msgspec.Raw


class JsonLinesAgent(Agent):
    """An agent that writes each session as a file of JSON Lines."""

    suffix: ClassVar[str] = ".jsonl"
    reader: ClassVar[type[Reader]]

    @abstractmethod
    def recognises(self, document: Any) -> bool:
        """Tell whether a document is one that only this agent writes."""

    @abstractmethod
    def session_id(self, head: Iterable[Any], stem: str) -> str | None:
        """Return the session's id, or None while the file's first documents do not tell it.

        Args:
            head: The file's first documents.
            stem: The file's name without its suffix.
        """

    def survey(self, documents: Iterable[tuple[int, Any]]) -> Order | None:  # noqa: ARG002
        """Return which lines of a whole file count, and when; None: each as it stands there."""
        return None

    def holds_sessions(self, path: Path) -> bool:
        """Tell whether a file is one of the agent's, by its suffix."""
        return path.suffix == self.suffix

    def sessions(self, path: Path) -> Iterable[Session]:
        """Return the one session in a file."""
        head = list(_head(path))
        if any(self.recognises(document) for document in head):
            session_id = self.session_id(head, path.stem)
            if session_id is not None:
                yield JsonLinesSession(self, session_id, path)


class JsonLinesSession(Session):
    """A session in a file of JSON Lines."""

    def __init__(self, agent: JsonLinesAgent, session_id: str, path: Path) -> None:
        super().__init__(agent.provider, session_id, path)
        self._agent = agent
        self._decode = msgspec.msgpack.Decoder(agent.reader).decode

    def steps(self, cursor: bytes | None = None, *, zone: tzinfo | None = None) -> Iterator[Step]:
        """Read what was added; see `Session.steps`."""
        try:
            with self.path.open("rb") as file:
                reading = self._resumed(file, cursor, zone)
                anew = reading is None
                if reading is None:
                    self._check_owner()
                    reading = self._from_start(file, zone)
                try:
                    yield from reading.steps(anew=anew)
                except StartOverError:
                    file.seek(0)
                    survey = _Survey(file)
                    order = self._agent.survey(survey)
                    yield from self._from_start(file, zone, order, survey.lines).steps(anew=True)
        except OSError as error:
            raise TranscriptError(f"Cannot read the session file: {error.strerror}.") from None

    def last_words(self, cursor: bytes) -> tuple[ThreadEvent, ...]:
        """Return what the end of the file tells; see `Session.last_words`."""
        reader = self._decode(msgspec.msgpack.decode(cursor, type=_Cursor).reader)
        reader.last_words()
        return reader.journal.drain()

    def _check_owner(self) -> None:
        """See that the file, which may have been replaced, is still this session's.

        Raises:
            OtherSessionError: It is not.
        """
        held = (session.session_id for session in self._agent.sessions(self.path))
        if self.session_id not in held:
            raise OtherSessionError("The file holds another session now.")

    def _from_start(
        self, file: BinaryIO, zone: tzinfo | None, order: Order | None = None, surveyed: int = 0
    ) -> _Reading:
        file.seek(0)
        reader = self._agent.reader(conversation_id=self.conversation_id)
        return _Reading(file, reader, zone, order=order, surveyed=surveyed)

    def _resumed(
        self, file: BinaryIO, cursor: bytes | None, zone: tzinfo | None
    ) -> _Reading | None:
        """Return how to go on from a cursor, or None where the file is not the one it was made for."""
        if cursor is None:
            return None
        try:
            kept = msgspec.msgpack.decode(cursor, type=_Cursor)
            if kept.format != FORMAT or _seal(file, kept.offset) != kept.seal:
                return None
            reader = self._decode(kept.reader)
        except msgspec.DecodeError:
            return None
        file.seek(kept.offset)
        return _Reading(file, reader, zone, offset=kept.offset, lines=kept.lines)


class _Reading:
    """One go through a file, from wherever it stands."""

    def __init__(
        self,
        file: BinaryIO,
        reader: Reader,
        zone: tzinfo | None,
        *,
        offset: int = 0,
        lines: int = 0,
        order: Order | None = None,
        surveyed: int = 0,
    ) -> None:
        self._file = file
        self._reader = reader
        self._zone = zone
        self._order = order
        self._surveyed = surveyed
        self._offset = offset
        self._lines = lines
        self._held: dict[int, list[tuple[int, int, Any]]] = {}

    def steps(self, *, anew: bool) -> Iterator[Step]:
        """Yield a step for each `STEP_BYTES` or so."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(self._offset)
        while True:
            before = self._offset
            while self._offset - before < STEP_BYTES and self._take_line():
                pass
            if self._offset == before and not anew:
                return
            rest = max(0, end - self._offset)
            yield Step(
                self._reader.journal.drain(), self._cursor(), anew, self._reader.facts(), rest
            )
            anew = False

    def _take_line(self) -> bool:
        """Read a line; False where there is no whole one."""
        line, size = _next_line(self._file)
        if not size or not self._is_whole(line):
            self._file.seek(self._offset)
            return False
        self._offset += size
        number = self._lines
        if line is not None and not line.strip():
            return True
        self._lines += 1
        try:
            document = decode(_bare(line, number)) if line is not None else None
        except (ValueError, RecursionError):
            count(self._reader.skipped, "broken line")
        else:
            if line is None:
                count(self._reader.skipped, "line too long")
            else:
                self._hand_over(number, document)
        return True

    def _is_whole(self, line: bytes | None) -> bool:
        """Tell whether a line is finished: by its break, or as an object, half of which is none."""
        if line is None or line.endswith(b"\n"):
            return True
        try:
            return isinstance(decode(_bare(line, self._lines)), dict)
        except (ValueError, RecursionError):
            return False

    def _hand_over(self, number: int, document: Any) -> None:
        if self._order is None or number >= self._surveyed:
            self._reader.take(number, document, self._zone)
            return
        at, place = self._order.get(number, (number, -1))
        if at > number:
            self._held.setdefault(at, []).append((place, number, document))
            return
        due = [*self._held.pop(number, []), (place, number, document)]
        for rank, line, held in sorted(due, key=lambda entry: entry[:2]):
            self._reader.take_in_order(line, held, self._zone, counts=rank >= 0)

    def _cursor(self) -> bytes:
        reader = msgspec.Raw(msgspec.msgpack.encode(self._reader))
        seal = _seal(self._file, self._offset)
        self._file.seek(self._offset)
        return msgspec.msgpack.encode(_Cursor(FORMAT, self._offset, self._lines, seal, reader))


def _head(path: Path) -> Iterator[Any]:
    """Yield the first documents of a file."""
    with path.open("rb") as file:
        for number, document in _documents(file):
            if number >= HEAD_LINES:
                return
            yield document


def _documents(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Yield number and JSON document of each line that is one; blank lines have no number."""
    number = 0
    while True:
        line, size = _next_line(file)
        if not size:
            return
        if line is not None and not line.strip():
            continue
        with suppress(ValueError, RecursionError):
            if line is not None:
                yield number, decode(_bare(line, number))
        number += 1


class _Survey:
    """The documents of a file, and how many lines they were."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lines = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for number, document in _documents(self._file):
            self.lines = number + 1
            yield number, document


def _next_line(file: BinaryIO) -> tuple[bytes | None, int]:
    """Return the next line, or None for one that is too long, and its size; (b"", 0) at the end."""
    line = file.readline(MOST_LINE_BYTES)
    size = len(line)
    if size < MOST_LINE_BYTES or line.endswith(b"\n"):
        return line, size
    while more := file.readline(STEP_BYTES):
        size += len(more)
        if more.endswith(b"\n"):
            return None, size
    return b"", 0  # it is still being written


def _bare(line: bytes, number: int) -> bytes:
    return line.removeprefix(_BOM) if number == 0 else line


def _seal(file: BinaryIO, offset: int) -> bytes:
    """Return a digest of what stands before `offset`; of something else where the file is shorter."""
    start = max(0, offset - SEAL_BYTES)
    file.seek(start)
    return hashlib.blake2b(file.read(offset - start), digest_size=12).digest()
