"""What is known of a rollout's session before its first event is written.

A session is told of when something happens in it, by when its file has named the model, mostly; what it
names later follows as events of its own.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from moonfold_handoff.transcripts.journal import Journal
from moonfold_handoff.transcripts.lines import Json, dictionary, string
from moonfold_schemas.base import Option
from moonfold_schemas.events import ConversationStarted, ThreadStarted

PROVIDER = "codex"

_LONGEST = 200  # characters of a model's name, or of an option


class Selection(msgspec.Struct, frozen=True, array_like=True):
    """A model and its options."""

    model: str | None = None
    options: dict[str, Option] = msgspec.field(default_factory=dict)


class Opening(msgspec.Struct):
    """The session's own facts.

    Attributes:
        has_meta: Whether the session's own record was read: a fork has its parent's as a second one.
        time: The first time in the file.
        cwd: Where the session began.
        version: The version of Codex that began it.
    """

    has_meta: bool = False
    time: datetime | None = None
    cwd: str | None = None
    version: str | None = None

    def introduce(self, meta: Json) -> None:
        """Take a `session_meta`, of which the first counts."""
        if not self.has_meta:
            self.has_meta = True
            self.cwd = string(meta.get("cwd")) or self.cwd
            self.version = string(meta.get("cli_version")) or None

    def write(
        self, journal: Journal, conversation_id: str, selection: Selection, window: int | None
    ) -> None:
        """Write the first events; `window` is the context window in tokens, where it is known."""
        journal.add(ThreadStarted(time=self.time, cwd=self.cwd))
        journal.add(
            ConversationStarted(
                time=self.time,
                conversation_id=conversation_id,
                provider=PROVIDER,
                model=selection.model,
                options=selection.options,
                capacity=window,
            )
        )


def selection_of(context: Json) -> Selection | None:
    """Return the model and the options of a `turn_context`, or None if it names no model."""
    model = string(context.get("model"))
    if not model:
        return None
    settings = dictionary(dictionary(context.get("collaboration_mode")).get("settings"))
    effort = string(context.get("effort")) or string(settings.get("reasoning_effort"))
    options: dict[str, Option] = {"reasoning_effort": effort[:_LONGEST]} if effort else {}
    return Selection(model[:_LONGEST], options)
