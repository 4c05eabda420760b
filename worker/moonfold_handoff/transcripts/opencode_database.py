"""Sessions in OpenCode's database, read while OpenCode writes to it.

Rows change: an answer's when it is completed, a part's while its tool runs. `time_updated` says when a row
was written last, so what was read already is looked through from a little before the newest row of the last
time; what is known by its mark is passed over. Messages behind the last one read are new.

Where rows that were read are gone, as after an undo, or others came in between, the counts tell, and the
session is read anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from moonfold_handoff.transcripts.base import Session, Step, TranscriptError
from moonfold_handoff.transcripts.json_lines import FORMAT, STEP_BYTES, StartOverError
from moonfold_handoff.transcripts.lines import Json, count, dictionary, integer
from moonfold_handoff.transcripts.opencode_reader import PROVIDER, OpenCodeReader
from moonfold_handoff.transcripts.opencode_rows import START, Place, Row, Tables, Undo, snapshot

STEP_MESSAGES = 500  # read in one step, at most
LATE_MILLISECONDS = 2_000  # a row can be written so long after the time that it is given
ROWS_KEPT = 256  # marks of the rows written last


class _Cursor(msgspec.Struct, array_like=True):
    """Where reading stopped.

    Attributes:
        reader: What is known of the session.
        format: Of the cursor.
        place: The last message that was read.
        messages: How many messages were read.
        parts: How many parts.
        undone: Which part of a message the person went back to.
        since: Rows written at this time or later are looked at again, in milliseconds since the epoch.
        rows: Those of them that were read: when they were written, and a mark of their content.
    """

    reader: OpenCodeReader
    format: int = FORMAT
    place: Place = START
    messages: int = 0
    parts: int = 0
    undone: str = ""
    since: int = 0
    rows: dict[str, tuple[int, int]] = {}


class DatabaseSession(Session):
    """A session in OpenCode's database."""

    def __init__(self, session_id: str, path: Path, asked_at: float | None = None) -> None:
        super().__init__(PROVIDER, session_id, path)
        self.asked_at = asked_at

    def steps(
        self,
        cursor: bytes | None = None,
        *,
        zone: tzinfo | None = None,  # noqa: ARG002 -- OpenCode states no time of day
    ) -> Iterator[Step]:
        """Read what was added and changed; see `Session.steps`.

        Raises:
            TranscriptError: The database is busy, broken or of another layout, or the session is gone.
        """
        kept = _decoded(cursor)
        anew = kept is None
        reading = _Reading(kept or self._from_start())
        while reading.has_more:
            try:
                with snapshot(self.path) as database:
                    taken = reading.step(Tables(database, self.session_id))
            except StartOverError:
                reading, anew = _Reading(self._from_start(), accepts=True), True
                continue
            if taken or anew:
                yield reading.told(anew=anew)
            anew = False

    def _from_start(self) -> _Cursor:
        return _Cursor(OpenCodeReader(conversation_id=self.conversation_id))


class _Seen(NamedTuple):
    """What was seen of the rows written lately; the fields are those of the cursor."""

    since: int
    rows: dict[str, tuple[int, int]]

    def is_changed(self, row: Row) -> bool:
        """Tell whether a row was written since."""
        return row.updated >= self.since and self.rows.get(row.id) != (row.updated, row.mark)

    def is_new(self, part: Row) -> bool:
        """Tell whether a part that changed was not there before."""
        return part.id not in self.rows and part.created >= self.since

    def is_only_cleared(self, part: Row) -> bool:
        """Tell whether OpenCode only noted that it leaves out a call's output from now on."""
        state: Json = dictionary(dictionary(part.document).get("state"))
        times = dictionary(state.get("time"))
        cleared, ended = integer(times.get("compacted")), integer(times.get("end"))
        return cleared is not None and ended is not None and ended < self.since <= cleared


class _Reading:
    """One go through a session, from wherever it stands.

    Attributes:
        has_more: Whether another step may find more.
    """

    def __init__(self, kept: _Cursor, *, accepts: bool = False) -> None:
        """Begin where a cursor stands; `accepts` takes the rows as they are, countable or not."""
        self.has_more = True
        self._kept = kept
        self._accepts = accepts
        self._looked_back = False

    def told(self, *, anew: bool) -> Step:
        """Return the step that was made."""
        reader = self._kept.reader
        events = reader.journal.drain()
        return Step(events, msgspec.msgpack.encode(self._kept), anew, reader.facts())

    def step(self, tables: Tables) -> int:
        """Take what changed, once, and new messages up to a limit; return how many were taken.

        Raises:
            StartOverError: What was read has changed in another way than by being written further.
            TranscriptError: The session is not there any more.
        """
        undo = self._learn(tables)
        taken = 0
        if not self._looked_back:
            seen = _Seen(self._kept.since, self._kept.rows)
            # What is written from now on has the newest time, or a later one.
            self._look_back_from(tables.newest() - LATE_MILLISECONDS)
            if self._kept.place != START:
                taken += self._take_changed(tables, seen)
            self._looked_back = True
        if undo.is_clearing and self._kept.place != START:
            self.has_more = False
        else:
            taken += self._take_new(tables)
        if not self.has_more:
            self._check(tables.counts(self._kept.place))
        return taken

    def _check(self, counts: tuple[int, int]) -> None:
        """See by the counts whether what was read is still there, and nothing else beside it."""
        if counts == (self._kept.messages, self._kept.parts):
            return
        if not self._accepts:
            raise StartOverError
        # Damaged rows cannot all be read; they are no reason to begin again and again.
        self._kept.messages, self._kept.parts = counts

    def _learn(self, tables: Tables) -> Undo:
        """Learn what is known of the session, and what the person took back."""
        about = tables.about()
        if about is None:
            raise TranscriptError("The session is not in the OpenCode database any more.")
        reader = self._kept.reader
        reader.cwd, reader.title, reader.version = about.directory, about.title, about.version
        if self._kept.place == START:
            self._kept.undone = about.undo.mark
        if about.undo.takes_back(self._kept.place) or about.undo.mark != self._kept.undone:
            raise StartOverError
        return about.undo

    def _take_changed(self, tables: Tables, seen: _Seen) -> int:
        """Take the rows that changed among those that were read."""
        taken = 0
        for row in self._usable(tables.changed(self._kept.place, seen.since)):
            parts = list(self._usable(tables.parts(row.id)))
            changed = [part for part in parts if seen.is_changed(part)]
            if not changed and not seen.is_changed(row):
                continue
            self._kept.parts += sum(seen.is_new(part) for part in changed)
            told = [part for part in changed if not seen.is_only_cleared(part)]
            self._take(row, told, parts, again=True)
            self._remember(row, *changed)
            taken += 1
        return taken

    def _take_new(self, tables: Tables) -> int:
        """Take the messages behind the last one, up to a limit."""
        taken = size = 0
        self.has_more = False
        for row in self._usable(tables.after(self._kept.place)):
            if size >= STEP_BYTES or taken >= STEP_MESSAGES:
                self.has_more = True
                break
            parts = list(self._usable(tables.parts(row.id)))
            self._take(row, parts, parts, again=False)
            self._remember(row, *parts)
            self._kept.place = Place(row.created, row.id)
            self._kept.messages += 1
            self._kept.parts += len(parts)
            size += sum(len(written.raw or b"") for written in (row, *parts))
            taken += 1
        return taken

    def _take(self, row: Row, changed: list[Row], parts: list[Row], *, again: bool) -> None:
        """Hand a message over, a request always with all of its parts."""
        info = self._document(row)
        if info is not None:
            shown = parts if dictionary(info).get("role") == "user" else changed
            documents = [data for part in shown if (data := self._document(part)) is not None]
            self._kept.reader.take_message({"info": info, "parts": documents}, again=again)

    def _usable(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row.id:
                yield row
            else:
                count(self._kept.reader.skipped, "row without an id")

    def _document(self, row: Row) -> Any:
        """Return a row's document with its id, as an export has it, or None where it has none."""
        document = row.document
        if document is None:
            count(self._kept.reader.skipped, "row too long" if row.raw is None else "broken row")
        return {**document, "id": row.id} if isinstance(document, dict) else document

    # Rows that were written lately

    def _remember(self, *rows: Row) -> None:
        for row in rows:
            if row.updated >= self._kept.since:
                self._kept.rows[row.id] = (row.updated, row.mark)
        while len(self._kept.rows) > ROWS_KEPT:
            # So many rows of one moment were written at once, and none of them will follow.
            self._look_back_from(min(updated for updated, _ in self._kept.rows.values()) + 1)

    def _look_back_from(self, since: int) -> None:
        self._kept.since = max(since, self._kept.since)
        rows = self._kept.rows.items()
        self._kept.rows = {id_: row for id_, row in rows if row[0] >= self._kept.since}


def _decoded(cursor: bytes | None) -> _Cursor | None:
    """Return what a cursor stands for, or None where it cannot be read any more."""
    if cursor is None:
        return None
    try:
        kept = msgspec.msgpack.decode(cursor, type=_Cursor)
    except msgspec.DecodeError:
        return None
    return kept if kept.format == FORMAT else None
