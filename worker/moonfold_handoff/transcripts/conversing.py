"""What readers share whose sessions are one conversation: its beginning, its model, its limit."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from moonfold_handoff.transcripts.base import Facts
from moonfold_handoff.transcripts.json_lines import Reader
from moonfold_schemas.events import (
    ConversationStarted,
    Limit,
    ModelSelected,
    ThreadStarted,
    TurnStatus,
)


class ConversationReader(Reader):
    """A reader that knows where, with what and how far.

    Attributes:
        cwd: Where the session began.
        model: The model of the last real answer.
        version: The agent's version at the end of the session.
        limit: The quota or credit limit that has the last word.
        limited_at: Number of the event that told of the last one.
        turn: The open turn; empty where none is. It stays open after its end, until a person asks anew:
            a hook, or a background task, can make the agent go on.
        outcome: How the turn ended; None: the agent still has something to do.
    """

    provider: ClassVar[str]

    cwd: str | None = None
    model: str | None = None
    version: str | None = None
    limit: Limit | None = None
    limited_at: int = 0
    turn: str = ""
    outcome: TurnStatus | None = None

    def facts(self) -> Facts:
        """Return what is known by now."""
        return Facts(
            cwd=self.cwd,
            model=self.model,
            version=self.version,
            limit=self.limit,
            limited_at=self.limited_at if self.limit else 0,
            skipped=dict(sorted(self.skipped.items())),
        )

    def capacity(self) -> int | None:
        """Return the context window in tokens, as far as the session itself tells it."""
        return None

    def begin(self, time: datetime | None, *, title: str | None = None) -> None:
        """Begin the thread, before the first event."""
        if self.journal.count:
            return
        self.journal.add(ThreadStarted(time=time, title=title, cwd=self.cwd))
        self.journal.add(
            ConversationStarted(
                time=time,
                conversation_id=self.conversation_id,
                provider=self.provider,
                model=self.model,
                capacity=self.capacity(),
            )
        )

    def select(self, model: str | None, time: datetime | None) -> None:
        """Take note of the model that answers."""
        if not model or model == self.model:
            return
        self.model = model
        if self.journal.count:
            self.journal.add(
                ModelSelected(
                    time=time,
                    conversation_id=self.conversation_id,
                    model=model,
                    capacity=self.capacity(),
                )
            )
