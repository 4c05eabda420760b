"""Agents' session files to thread events."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path

from moonfold_handoff.transcripts import claude_code, codex, gemini_cli, opencode
from moonfold_handoff.transcripts.base import Agent, Session, Step, Transcript, TranscriptError
from moonfold_schemas.events import ItemRecorded, ThreadEvent

__all__ = [
    "AGENTS",
    "Agent",
    "Session",
    "Step",
    "Transcript",
    "TranscriptError",
    "read_transcript",
    "sessions_in",
]

AGENTS: tuple[Agent, ...] = (claude_code.AGENT, codex.AGENT, gemini_cli.AGENT, opencode.AGENT)
"""Every agent whose sessions can be read."""

_ZSTD = b"\x28\xb5\x2f\xfd"


def sessions_in(path: Path) -> list[Session]:
    """Return the sessions in a file, whatever its format, the one that changed last first.

    Raises:
        TranscriptError: The file cannot be read, is empty, or is no known agent's.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        if not head.strip():
            raise TranscriptError("The session file is empty.")
        if head.startswith(_ZSTD):
            raise TranscriptError("The session file is compressed; unpack it with zstd -d first.")
        for agent in AGENTS:
            if sessions := list(agent.sessions(path)):
                return sessions
    except OSError as error:
        raise TranscriptError(f"Cannot read the session file: {error.strerror}.") from None
    known = ", ".join(agent.title for agent in AGENTS)
    raise TranscriptError(f"The file is not a session of a known agent ({known}).")


def read_transcript(path: str | Path, *, zone: tzinfo | None = None) -> Transcript:
    """Read an agent's session to its end, whatever its format.

    Args:
        path: The session file; of one that holds several, the session that changed last is read.
        zone: Zone of a limit notice that names none; None is the machine's.

    Raises:
        TranscriptError: The file cannot be read, its format is unknown, or it has no conversation.
    """
    session = sessions_in(Path(path))[0]
    events: list[ThreadEvent] = []
    step: Step | None = None
    for step in session.steps(zone=zone):
        if step.anew:
            events = []
        events.extend(step.events)
    last_words = session.last_words(step.cursor) if step is not None else ()
    events.extend(last_words)
    if step is None or not any(isinstance(event, ItemRecorded) for event in events):
        raise TranscriptError("The session file has no conversation.")
    facts = step.facts.at_the_end(last_words, len(events))
    if step.rest:
        facts = facts.also_skipped("partial last line")
    return Transcript(session, tuple(events), facts)
