"""Reading a session that grows: cut anywhere, and gone on with from the cursor alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from moonfold_handoff.transcripts import Agent, Session
from moonfold_schemas import ThreadEvent


def in_one_go(session: Session) -> list[ThreadEvent]:
    """Return the events of a session that is read from its start."""
    events: list[ThreadEvent] = []
    for step in session.steps():
        if step.anew:
            events = []
        events.extend(step.events)
    return events


def in_steps(agent: Agent, path: Path, raw: bytes, cuts: Iterable[int]) -> list[ThreadEvent]:
    """Return the events of a file that is found at each of these lengths, by a new reader each time."""
    events: list[ThreadEvent] = []
    cursor: bytes | None = None
    for length in (*cuts, len(raw)):
        path.write_bytes(raw[:length])
        for session in agent.sessions(path):
            for step in session.steps(cursor):
                if step.anew:
                    events = []
                events.extend(step.events)
                cursor = step.cursor
    return events
