"""Codex's session files, which it names rollouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moonfold_handoff.transcripts.codex_opening import PROVIDER
from moonfold_handoff.transcripts.codex_reader import CodexReader
from moonfold_handoff.transcripts.codex_records import parse_record, recognises
from moonfold_handoff.transcripts.json_lines import JsonLinesAgent
from moonfold_handoff.transcripts.lines import string

_SESSION = re.compile(r"rollout-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-(.+)")


class Codex(JsonLinesAgent):
    """Codex, which keeps a session as `sessions/YYYY/MM/DD/rollout-<time>-<session>.jsonl`."""

    provider = PROVIDER
    title = "Codex"
    reader = CodexReader

    def roots(self, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        """Return its folders of sessions, archived ones too."""
        folder = environment.get("CODEX_HOME")
        root = Path(folder) if folder else home / ".codex"
        return root / "sessions", root / "archived_sessions"

    def holds_sessions(self, path: Path) -> bool:
        """Tell a rollout by its name."""
        return path.suffix == self.suffix and path.stem.startswith("rollout-")

    def recognises(self, document: Any) -> bool:
        """Tell whether a document is a record of a rollout."""
        return recognises(document)

    def session_id(self, head: Iterable[Any], stem: str) -> str | None:
        """Return what the file's first record says, else what it is named for."""
        records = (parse_record(number, document, None, {}) for number, document in enumerate(head))
        metas = (r.payload for r in records if r is not None and r.type == "session_meta")
        # A fork has its parent's as a second one.
        meta = next(metas, {})
        named = _SESSION.fullmatch(stem)
        written = string(meta.get("id")) or string(meta.get("session_id"))
        return written or (named[1] if named else stem)


AGENT = Codex()
