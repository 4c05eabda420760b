"""What every importer returns, and the identifiers that it makes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from moonfold_schemas.base import ID_PATTERN
from moonfold_schemas.events import Limit, LimitKind, ThreadEvent

STOPS = frozenset({LimitKind.QUOTA, LimitKind.CREDITS})
"""The kinds that call for another provider; the rest is waited out or repaired."""

_ID = re.compile(ID_PATTERN)
_NOT_ID = re.compile(r"[^A-Za-z0-9._:-]")
_ID_LENGTH = 200


class TranscriptError(ValueError):
    """A file that is no transcript, or one without a conversation.

    The message never quotes the file: conversations are private.
    """


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session of an agent, as thread events.

    Attributes:
        provider: The agent that wrote the session, such as `claude-code`.
        session_id: The session as the agent names it; what its own resume takes.
        thread_id: The thread that the events belong to.
        conversation_id: The provider conversation that the events name.
        cwd: Where the session began.
        model: The model of the last real answer.
        version: The agent's version at the end of the session.
        events: The events, in order.
        limit: The quota or credit limit that has the last word, else None.
        skipped: How many lines or records were left out, by reason.
    """

    provider: str
    session_id: str
    thread_id: str
    conversation_id: str
    cwd: str | None
    model: str | None
    version: str | None
    events: tuple[ThreadEvent, ...]
    limit: Limit | None
    skipped: Mapping[str, int]


def safe_id(source: str) -> str:
    """Return `source` as a wire identifier; what had to change ends in a short hash of `source`."""
    if _ID.match(source):
        return source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_NOT_ID.sub('-', source)[: _ID_LENGTH - 9]}-{digest}"
