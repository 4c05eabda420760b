"""The corpus: recorded sessions as logs in which each item has its final content from the start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from moonfold_handoff.context.fold import Entry, fold, rollbacks, surviving
from moonfold_handoff.context.portable import body, kind_of
from moonfold_handoff.context.state import ItemRef, ThreadState
from moonfold_handoff.transcripts import TranscriptError, read_transcript
from moonfold_schemas.events import ItemRecorded, OpaqueEvent, ThreadEvent
from moonfold_schemas.items import Item

from .identifiers import identifiers

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "fixtures" / "transcripts"
OWN = (ROOT / "worker" / "moonfold_handoff" / "demo", ROOT / "tests" / "fixtures")
LEAST_ITEMS = 24


class Travelling(NamedTuple):
    """An item that can travel."""

    position: int
    item: Item
    ref: ItemRef
    text: str

    @property
    def identifiers(self) -> frozenset[str]:
        return identifiers(self.text)


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session; the log in the order it is numbered, the items in that of their positions."""

    name: str
    thread_id: str
    entries: tuple[Entry, ...]
    items: tuple[Travelling, ...]

    @property
    def fingerprint(self) -> str:
        """What the same recording has in common however often it is stored."""
        digest = hashlib.sha256()
        for item in self.items:
            digest.update(item.text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


class LeftOut(NamedTuple):
    """A file that is not measured, and why."""

    name: str
    reason: str


def corpus_files() -> tuple[list[Path], list[LeftOut]]:
    """Return this project's own recordings and the shared ones, where they are there."""
    name = f"../{SHARED.relative_to(ROOT.parent).as_posix()}"
    left_out = [] if SHARED.is_dir() else [LeftOut(name, "There is no such folder.")]
    files = [
        path
        for folder in (*OWN, SHARED)
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".json", ".jsonl"}
    ]
    return files, left_out


def read_sessions(files: Iterable[Path]) -> tuple[list[Session], list[LeftOut]]:
    """Return the sessions long enough to measure, each recording once, and what was left out."""
    sessions: list[Session] = []
    left_out: list[LeftOut] = []
    seen: dict[str, str] = {}
    for path in files:
        name = _name(path)
        try:
            session = read_session(path, name)
        except TranscriptError as error:
            left_out.append(LeftOut(name, str(error)))
            continue
        known = seen.get(session.thread_id) or seen.get(session.fingerprint)
        if known is not None:
            left_out.append(LeftOut(name, f"The same recording as {known}."))
            continue
        seen[session.thread_id] = seen[session.fingerprint] = name
        if len(session.items) < LEAST_ITEMS:
            left_out.append(LeftOut(name, f"Fewer than {LEAST_ITEMS} items that can travel."))
        else:
            sessions.append(session)
    return sessions, left_out


def read_session(path: Path, name: str) -> Session:
    transcript = read_transcript(path)
    entries = tuple(_settled(transcript.events))
    items = sorted(_travelling(entries), key=lambda item: item.position)
    return Session(name, transcript.thread_id, entries, tuple(items))


def _settled(events: Iterable[ThreadEvent]) -> Iterator[Entry]:
    """Yield the log with the final content of each item at its first record, none at later ones."""
    positions: dict[str, int] = {}
    log: list[Entry] = []
    for sequence, event in enumerate(events, start=1):
        position = sequence
        if isinstance(event, ItemRecorded):
            position = positions.setdefault(event.item.item_id, sequence)
        log.append(Entry(sequence, position, event))
    alive = list(surviving(log, rollbacks(log)))
    final = {entry.position: entry for entry in alive if isinstance(entry.event, ItemRecorded)}
    for entry in alive:
        if not isinstance(entry.event, ItemRecorded):
            yield entry
        elif entry.sequence == entry.position:
            yield entry._replace(event=final[entry.position].event)
        else:
            yield entry._replace(position=entry.sequence, event=OpaqueEvent())


def _travelling(entries: Iterable[Entry]) -> Iterator[Travelling]:
    for entry in entries:
        if isinstance(entry.event, ItemRecorded) and kind_of(entry.event.item) is not None:
            item = entry.event.item
            (ref,) = fold(ThreadState(), [entry]).window
            yield Travelling(entry.position, item, ref, body(item))


def _name(path: Path) -> str:
    """Return a short name for a file of the corpus that tells the agent; of another its stem."""
    path = path.resolve().with_suffix("")
    if path.is_relative_to(SHARED):
        return path.relative_to(SHARED).as_posix()
    if path.is_relative_to(OWN[1]):
        return path.relative_to(OWN[1].parent).as_posix()
    return path.name
