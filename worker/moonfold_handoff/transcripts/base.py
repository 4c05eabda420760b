"""What an agent's module provides, and what reading a session gives.

A *session* is read step by step: each step gives events and a *cursor* to go on from, so that only what
was added is read, after a restart of the process as well. The same records give the same events, wherever
the steps end. An item that changes is recorded again under its id; nothing is taken back but by
`turns.rolled_back`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

import msgspec

from moonfold_schemas.base import ID_PATTERN
from moonfold_schemas.events import Limit, LimitKind, ThreadEvent, TurnEnded, TurnStatus

STOPS = frozenset({LimitKind.QUOTA, LimitKind.CREDITS})
"""The kinds that call for another provider; the rest is waited out or repaired."""

_LAST_WORD = frozenset({TurnStatus.COMPLETED, TurnStatus.LIMITED})  # an answer clears a limit
_ID = re.compile(ID_PATTERN)
_NOT_ID = re.compile(r"[^A-Za-z0-9._:-]")
_ID_LENGTH = 200


class TranscriptError(ValueError):
    """A file that is no transcript, or one without a conversation.

    The message never quotes the file: conversations are private.
    """


class OtherSessionError(TranscriptError):
    """The file does not hold the session any more."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session where reading stopped.

    Attributes:
        cwd: Where the session began.
        model: The model of the last real answer.
        version: The agent's version at the end of the session.
        limit: The quota or credit limit that has the last word, else None.
        limited_at: Number of the event that told of it; 0 without one.
        skipped: How many lines or records were left out, by reason.
    """

    cwd: str | None = None
    model: str | None = None
    version: str | None = None
    limit: Limit | None = None
    limited_at: int = 0
    skipped: dict[str, int] = {}

    def also_skipped(self, reason: str) -> Facts:
        """Return the facts with one more line left out."""
        skipped = {**self.skipped, reason: self.skipped.get(reason, 0) + 1}
        return msgspec.structs.replace(self, skipped=dict(sorted(skipped.items())))

    def at_the_end(self, last_words: tuple[ThreadEvent, ...], number: int) -> Facts:
        """Return the facts of a session that does not grow any more.

        Args:
            last_words: What it says by just ending.
            number: Number of the last event, these included.
        """
        end = last_words[-1] if last_words else None
        if not isinstance(end, TurnEnded) or end.status not in _LAST_WORD:
            return self
        return msgspec.structs.replace(self, limit=end.limit, limited_at=number if end.limit else 0)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of reading gave.

    Attributes:
        events: What happened. The events of a session are numbered from 1; a `turns.rolled_back` in them
            means such a number.
        cursor: Where to go on; opaque, and bounded whatever the session's length.
        anew: Whether `events` are the session's first: there was no cursor, or what it stood for has
            changed (the file was replaced or cut, the person went back to an earlier message).
        facts: What is known by now.
        rest: Bytes at the end that are not a whole record yet.
    """

    events: tuple[ThreadEvent, ...]
    cursor: bytes
    anew: bool
    facts: Facts
    rest: int = 0


class Session(ABC):
    """One session of an agent, wherever it is kept.

    Attributes:
        provider: The agent that wrote the session, such as `claude-code`.
        session_id: The session as the agent names it; what its own resume takes.
        path: The file that holds it.
        asked_at: When it was last asked something, in seconds since the epoch, where its file holds other
            sessions too; else None.
    """

    asked_at: float | None = None

    def __init__(self, provider: str, session_id: str, path: Path) -> None:
        self.provider = provider
        self.session_id = session_id
        self.path = path

    @property
    def thread_id(self) -> str:
        """The thread that the session's events belong to."""
        return safe_id(f"{self.provider}:{self.session_id}")

    @property
    def conversation_id(self) -> str:
        """The provider conversation that the events name."""
        return safe_id(self.session_id)

    @abstractmethod
    def steps(self, cursor: bytes | None = None, *, zone: tzinfo | None = None) -> Iterator[Step]:
        """Read what was added since `cursor`; no step where nothing was. It blocks.

        Args:
            cursor: Of an earlier step; None, or one that cannot be read any more: from the start.
            zone: Zone of a limit notice that names none; None is the machine's.

        Raises:
            OtherSessionError: The file holds another session, or none.
            TranscriptError: The file cannot be read any more.
        """

    def last_words(self, cursor: bytes) -> tuple[ThreadEvent, ...]:  # noqa: ARG002
        """Return what a session that does not grow any more says by just ending.

        Formats that do not write down how a turn ended need it; it is not asked for while a session may
        still grow.
        """
        return ()


class Agent(ABC):
    """An agent whose sessions can be read. To add one, write a module with an instance, `AGENT`.

    Attributes:
        provider: The provider's name on the wire.
        title: The agent's name for people.
        shares_files: Whether one file holds many sessions.
    """

    provider: str
    title: str
    shares_files: bool = False

    @abstractmethod
    def roots(self, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        """Return the folders below which the agent keeps its sessions, there or not."""

    @abstractmethod
    def holds_sessions(self, path: Path) -> bool:
        """Tell by its name whether a file below a root holds sessions of a person (no subagent's)."""

    def file_of(self, path: Path) -> Path:
        """Return the file whose sessions a file has a part of; mostly itself."""
        return path

    @abstractmethod
    def sessions(self, path: Path) -> Iterable[Session]:
        """Return the sessions in a file, the one that changed last first; none if it is another's.

        Raises:
            OSError: The file cannot be read.
        """


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session, read to its end.

    Attributes:
        session: The session.
        events: The events, in order.
        facts: What is known of it.
    """

    session: Session
    events: tuple[ThreadEvent, ...]
    facts: Facts

    @property
    def provider(self) -> str:
        """The agent that wrote the session."""
        return self.session.provider

    @property
    def session_id(self) -> str:
        """The session as the agent names it."""
        return self.session.session_id

    @property
    def thread_id(self) -> str:
        """The thread that the events belong to."""
        return self.session.thread_id

    @property
    def conversation_id(self) -> str:
        """The provider conversation that the events name."""
        return self.session.conversation_id

    @property
    def limit(self) -> Limit | None:
        """The quota or credit limit that has the last word."""
        return self.facts.limit


def safe_id(source: str) -> str:
    """Return `source` as a wire identifier; what had to change ends in a short hash of `source`."""
    if _ID.match(source):
        return source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_NOT_ID.sub('-', source)[: _ID_LENGTH - 9]}-{digest}"
