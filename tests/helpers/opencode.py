"""A database as OpenCode 1.18.33 keeps it, written row by row as OpenCode writes it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

# The tables that hold a conversation, with all of their columns and indexes.
SCHEMA = """
CREATE TABLE session (
    id text PRIMARY KEY, project_id text NOT NULL, workspace_id text, parent_id text,
    slug text NOT NULL, directory text NOT NULL, path text, title text NOT NULL,
    version text NOT NULL, share_url text, summary_additions integer, summary_deletions integer,
    summary_files integer, summary_diffs text, metadata text, cost real DEFAULT 0 NOT NULL,
    tokens_input integer DEFAULT 0 NOT NULL, tokens_output integer DEFAULT 0 NOT NULL,
    tokens_reasoning integer DEFAULT 0 NOT NULL, tokens_cache_read integer DEFAULT 0 NOT NULL,
    tokens_cache_write integer DEFAULT 0 NOT NULL, revert text, permission text, agent text,
    model text, time_created integer NOT NULL, time_updated integer NOT NULL,
    time_compacting integer, time_archived integer
);
CREATE TABLE message (
    id text PRIMARY KEY,
    session_id text NOT NULL REFERENCES session (id) ON DELETE CASCADE,
    time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL
);
CREATE TABLE part (
    id text PRIMARY KEY,
    message_id text NOT NULL REFERENCES message (id) ON DELETE CASCADE,
    session_id text NOT NULL,
    time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL
);
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE INDEX part_session_idx ON part (session_id);
CREATE INDEX session_parent_idx ON session (parent_id);
"""

BEGUN = 1_796_040_000_000  # 2026-11-30T12:00:00Z


class OpenCodeDatabase:
    """A database with a connection that writes, one transaction for each row.

    `now` is the writer's clock in milliseconds; it goes on by `tick` with every write.
    """

    def __init__(self, path: Path, *, journal: str = "wal") -> None:
        self.path = path
        self.now = BEGUN
        self.tick = 1
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute(f"PRAGMA journal_mode = {journal}")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.executescript(SCHEMA)

    def close(self) -> None:
        self.connection.close()

    def run(self, statement: str, *values: Any) -> None:
        self.connection.execute(statement, values)

    def session(self, id_: str = "ses_1", **fields: Any) -> str:
        columns: dict[str, Any] = {
            "id": id_,
            "project_id": "global",
            "slug": "quiet-otter",
            "directory": "/home/dev/project",
            "title": "New session - 2026-11-30T12:00:00.000Z",
            "version": "1.18.33",
            "time_created": self.now,
            "time_updated": self._tick(),
            **fields,
        }
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self.run(f"INSERT OR REPLACE INTO session ({names}) VALUES ({marks})", *columns.values())
        return id_

    def change_session(self, id_: str, **fields: Any) -> None:
        fields["time_updated"] = self._tick()
        names = ", ".join(f"{name} = ?" for name in fields)
        self.run(f"UPDATE session SET {names} WHERE id = ?", *fields.values(), id_)

    def message(
        self, id_: str, data: Any, session: str = "ses_1", created: int | None = None
    ) -> None:
        updated = self._tick()
        created = updated if created is None else created
        self.run(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
            " SET data = excluded.data, time_updated = excluded.time_updated",
            *(id_, session, created, updated, _column(data)),
        )

    def part(self, id_: str, message: str, data: Any, session: str = "ses_1") -> None:
        now = self._tick()
        self.run(
            "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
            " SET data = excluded.data, time_updated = excluded.time_updated",
            *(id_, message, session, now, now, _column(data)),
        )

    def remove(self, table: str, id_: str) -> None:
        self.run(f"DELETE FROM {table} WHERE id = ?", id_)

    def replay(self, event: dict[str, Any]) -> None:
        """Do what one event of OpenCode's own log says was written."""
        type_, data = event["type"], event["data"]
        if type_ == "message.part.updated":
            part = data["part"]
            self.now = max(self.now, data["time"])
            self.part(part["id"], part["messageID"], _bare(part), part["sessionID"])
        elif type_ == "message.updated":
            info = data["info"]
            times = info["time"]
            self.now = max(self.now, times["created"], times.get("completed", 0))
            self.message(info["id"], _bare(info), info["sessionID"], times["created"])
        elif type_ == "message.removed":
            self.remove("message", data["messageID"])
        elif type_ == "session.created":
            info = data["info"]
            self.now = info["time"]["created"]
            self.session(
                info["id"],
                **{name: info[name] for name in ("slug", "directory", "title", "version")},
            )
        else:
            info = data["info"]
            revert = info.get("revert")
            self.change_session(
                info["id"], title=info["title"], revert=revert and json.dumps(revert)
            )

    def _tick(self) -> int:
        self.now += self.tick
        return self.now


def _bare(document: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in {"id", "sessionID", "messageID"}}


def _column(data: Any) -> Any:
    return data if isinstance(data, str | bytes) else json.dumps(data)
