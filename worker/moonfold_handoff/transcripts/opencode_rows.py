"""The tables of OpenCode's database, looked at and never written to.

They and their indexes are those of OpenCode 1.18.33, in these columns unchanged since 1.2.0. Messages are in
order by `time_created` and then `id`, the parts of one by `id`. What an undo takes back stays in the tables
until the next request; `Undo` leaves it out.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from moonfold_handoff.transcripts.base import TranscriptError
from moonfold_handoff.transcripts.lines import decode, dictionary, integer, string

BUSY_SECONDS = 1.0  # to wait for a writer, who only locks readers out of a database without WAL
MOST_ROW_CHARACTERS = 16 * 1024 * 1024  # a longer row is left out

_TABLES = """
    SELECT count(*) FROM sqlite_master
    WHERE type = 'table' AND name IN ('session', 'message', 'part')
"""
_SESSIONS = """
    SELECT id, time_updated FROM session WHERE parent_id IS NULL AND typeof(id) = 'text'
    ORDER BY time_updated DESC, id
"""
_ABOUT = "SELECT directory, title, version, revert FROM session WHERE id = ?"
_NEWEST = """
    SELECT max(newest) FROM (
        SELECT max(time_updated) AS newest FROM message WHERE session_id = :session
        UNION ALL SELECT max(time_updated) FROM part WHERE session_id = :session
    )
"""
_TIME_OF = "SELECT time_created FROM message WHERE id = ? AND session_id = ?"
_AFTER = """
    SELECT id, time_created, time_updated,
        CASE WHEN length(data) <= :most THEN CAST(data AS BLOB) END
    FROM message
    WHERE session_id = :session AND typeof(id) = 'text' AND typeof(time_created) = 'integer'
        AND (time_created, id) > (:time, :id)
        AND (:undo_id = '' OR (time_created, id) < (:undo_time, :undo_id)
            OR (id = :undo_id AND :undo_part != ''))
    ORDER BY time_created, id
"""
_CHANGED = """
    SELECT id, time_created, time_updated,
        CASE WHEN length(data) <= :most THEN CAST(data AS BLOB) END
    FROM message
    WHERE session_id = :session AND typeof(id) = 'text' AND typeof(time_created) = 'integer'
        AND (time_created, id) <= (:time, :id)
        AND (time_updated >= :since OR id IN (
            SELECT message_id FROM part WHERE session_id = :session AND time_updated >= :since
        ))
    ORDER BY time_created, id
"""
_PARTS = """
    SELECT id, time_created, time_updated,
        CASE WHEN length(data) <= :most THEN CAST(data AS BLOB) END
    FROM part
    WHERE message_id = :message AND (:undo_part = '' OR message_id != :undo_id OR id < :undo_part)
    ORDER BY id
"""
_COUNTS = """
    WITH known AS (
        SELECT id FROM message
        WHERE session_id = :session AND typeof(id) = 'text' AND typeof(time_created) = 'integer'
            AND (time_created, id) <= (:time, :id)
    )
    SELECT (SELECT count(*) FROM known), (
        SELECT count(*) FROM part
        WHERE message_id IN (SELECT id FROM known)
            AND (:undo_part = '' OR message_id != :undo_id OR id < :undo_part)
    )
"""


class Place(NamedTuple):
    """A message's place in its session: when it was begun, in milliseconds since the epoch, and its id."""

    time: int
    id: str


START = Place(-1, "")


class Row(NamedTuple):
    """A row of a message or a part; its times are in milliseconds since the epoch.

    `id` is empty for one that cannot be asked for by it, and `raw` None for one that is too long.
    """

    id: str
    created: int
    updated: int
    raw: bytes | None

    @property
    def mark(self) -> int:
        """What its content is known by."""
        return zlib.crc32(self.raw or b"")

    @property
    def document(self) -> Any:
        """The JSON in it, or None where there is none."""
        return document(self.raw or b"")


class Undo(NamedTuple):
    """From where on the person took back what was said.

    Attributes:
        place: The first message that was taken back; `START` without one.
        part: The part of it where that begins; empty for the whole message.
        is_clearing: Whether its messages are being removed just now, one by one, for the next request.
    """

    place: Place = START
    part: str = ""
    is_clearing: bool = False

    @property
    def mark(self) -> str:
        """What tells whether parts of a message were taken back, or others than before."""
        return f"{self.place.id} {self.part}" if self.part else ""

    def takes_back(self, place: Place) -> bool:
        """Tell whether the message at a place is among what was taken back."""
        if self.place == START:
            return False
        return place > self.place or (place == self.place and not self.part)


class About(NamedTuple):
    """What the database has of a session as a whole."""

    directory: str | None
    title: str | None
    version: str | None
    undo: Undo


class Tables:
    """The rows of one session in one snapshot of the database."""

    def __init__(self, database: sqlite3.Connection, session_id: str) -> None:
        self._database = database
        self._session_id = session_id
        self._where: dict[str, Any] = {"session": session_id, "most": MOST_ROW_CHARACTERS}

    def about(self) -> About | None:
        """Return what is known of the session, or None where it is gone; it has to be asked first."""
        found = self._database.execute(_ABOUT, (self._session_id,)).fetchone()
        if found is None:
            return None
        directory, title, version, revert = map(string, found)
        undo = self._undo(dictionary(document((revert or "").encode())))
        self._where |= {
            "undo_time": undo.place.time,
            "undo_id": undo.place.id,
            "undo_part": undo.part,
        }
        return About(directory, title, version, undo)

    def newest(self) -> int:
        """Return when a row of the session was written last."""
        return integer(self._database.execute(_NEWEST, self._where).fetchone()[0]) or 0

    def after(self, place: Place) -> Iterator[Row]:
        """Yield the messages behind a place."""
        return self._rows(_AFTER, time=place.time, id=place.id)

    def changed(self, place: Place, since: int) -> Iterator[Row]:
        """Yield the messages up to a place that were written since, or have a part that was."""
        return self._rows(_CHANGED, time=place.time, id=place.id, since=since)

    def parts(self, message: str) -> Iterator[Row]:
        """Yield the parts of a message."""
        return self._rows(_PARTS, message=message)

    def counts(self, place: Place) -> tuple[int, int]:
        """Return how many messages there are up to a place, and how many parts they have."""
        where = {**self._where, "time": place.time, "id": place.id}
        messages, parts = self._database.execute(_COUNTS, where).fetchone()
        return messages, parts

    def _undo(self, revert: dict[str, Any]) -> Undo:
        message = string(revert.get("messageID"))
        if not message:
            return Undo()
        found = self._database.execute(_TIME_OF, (message, self._session_id)).fetchone()
        if found is None:
            return Undo(is_clearing=True)
        return Undo(Place(integer(found[0]) or 0, message), string(revert.get("partID")) or "")

    def _rows(self, query: str, **where: Any) -> Iterator[Row]:
        for id_, created, updated, raw in self._database.execute(query, {**self._where, **where}):
            is_text = isinstance(id_, str) and "\ufffd" not in id_
            yield Row(id_ if is_text else "", integer(created) or 0, integer(updated) or 0, raw)


def session_ids(path: Path) -> list[tuple[str, float]]:
    """Return a person's sessions in a database, the one that was asked something last first.

    Each with the time of that, in seconds since the epoch: OpenCode notes it with every request.

    Raises:
        TranscriptError: The database is busy or broken.
    """
    with snapshot(path) as database:
        if database.execute(_TABLES).fetchone() != (3,):
            return []
        found = database.execute(_SESSIONS)
        return [(id_, (integer(updated) or 0) / 1000) for id_, updated in found]


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database to look at it as it is now.

    A writer is not kept waiting: OpenCode's database has a write-ahead log.

    Raises:
        TranscriptError: The database is busy or broken.
    """
    try:
        location = f"{path.resolve().as_uri()}?mode=ro"
        with closing(
            sqlite3.connect(location, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as database:
            database.text_factory = _text
            database.execute("BEGIN")
            yield database
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without its extension
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise TranscriptError("The OpenCode database is busy; try again.") from None
        raise TranscriptError("Cannot read the OpenCode database.") from None


def document(raw: bytes) -> Any:
    """Return the JSON document in a column, or None where there is none."""
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
