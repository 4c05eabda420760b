"""The fold: thread events into `ThreadState`, one at a time, each looked at once.

A pure function of the log: folding in one go or in pieces gives the same state. The one thing that
cannot be taken back from a bounded state is a rollback past what it keeps; then `RebuildNeededError`
asks for a fold from the start, with the rollbacks known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from moonfold_handoff.context.accounting import text_bytes
from moonfold_handoff.context.conversations import Conversations
from moonfold_handoff.context.portable import body, key_of, kind_of, label
from moonfold_handoff.context.sketches import sketch
from moonfold_handoff.context.state import (
    Ancestor,
    ItemRef,
    Kind,
    Progress,
    ThreadState,
)
from moonfold_handoff.context.window import Window
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    HandoffDelivered,
    ItemRecorded,
    ModelSelected,
    OpaqueEvent,
    QuotaReported,
    ThreadEvent,
    TurnEnded,
    TurnsRolledBack,
    UsageReported,
)
from moonfold_schemas.items import Item, OpaqueItem, UserMessage


class Entry(NamedTuple):
    """One event with its place in the log.

    `position` is the sequence of the first record of the item that the event records; for anything else
    it equals `sequence`.
    """

    sequence: int
    position: int
    event: ThreadEvent


class RebuildNeededError(Exception):
    """A rollback reaches past what the state keeps."""


def fold(state: ThreadState, entries: Iterable[Entry]) -> ThreadState:
    """Return `state` with `entries`, which continue the log where the state ends, folded in.

    Raises:
        RebuildNeededError: see the module; `rebuild` does it.
    """
    folding = _Folding(state)
    for entry in entries:
        folding.apply(entry)
    return folding.state()


def rollbacks(entries: Iterable[Entry]) -> list[tuple[int, int]]:
    """Return the sequences that rollbacks void, as pairs (first, last), in the order of the log."""
    return [
        (entry.event.to + 1, entry.sequence - 1)
        for entry in entries
        if isinstance(entry.event, TurnsRolledBack)
    ]


def surviving(entries: Iterable[Entry], voided: list[tuple[int, int]]) -> Iterable[Entry]:
    """Yield the entries of a log with these rollbacks, what they take back reduced to its size.

    The size stays because the provider's conversation may hold the activity still. Rollbacks stay so
    that the state covers them, and because a fork's can reach into what it took from its parent.
    """
    for entry in entries:
        taken_back = any(first <= entry.sequence <= last for first, last in voided)
        if isinstance(entry.event, ItemRecorded) and taken_back:
            yield entry._replace(event=OpaqueEvent(size=_held_bytes(entry.event.item)))
        else:
            yield entry


def adopt(parent: ThreadState, parent_id: str) -> ThreadState:
    """Return the state with which a fork begins: its parent's items, none of its conversations.

    What the parent learnt of models' windows stays known.
    """
    lineage = (*parent.lineage, Ancestor(thread_id=parent_id, through=parent.through))
    return replace(
        parent, lineage=lineage, conversations=(), recent=(), pending_request=0, outcome=None
    )


class _Folding:
    """A state being folded: the same fields, mutable."""

    def __init__(self, state: ThreadState) -> None:
        self._from = state
        self._ranked = True  # nothing that the ranking depends on has changed
        self._through = state.through
        self._activity = state.activity
        self._items = state.items
        self._first_position = state.first_position
        self._window = Window(state.window, state.evicted, state.bare)
        self._first_request = state.first_request
        self._last_request = state.last_request
        self._last_answer = state.last_answer
        self._conversations = Conversations(state)

    def state(self) -> ThreadState:
        return replace(
            self._from,
            through=self._through,
            activity=self._activity,
            items=self._items,
            first_position=self._first_position,
            evicted=self._window.evicted,
            bare=self._window.bare,
            ranking=self._from.ranking if self._ranked else (),
            window=tuple(self._window),
            first_request=self._first_request,
            last_request=self._last_request,
            last_answer=self._last_answer,
            **self._conversations.fields(),
        )

    def apply(self, entry: Entry) -> None:
        self._through = entry.sequence
        match entry.event:
            case ItemRecorded(item=item):
                self._conversations.hold(
                    entry.position, _held_bytes(item), is_request=isinstance(item, UserMessage)
                )
                self._record(entry, item)
                self._see(entry.sequence)
            case TurnsRolledBack(to=to):
                self._roll_back(to)
                self._conversations.roll_back(to, self._items_until(to))
                self._activity = min(self._activity, to)
            case ConversationStarted() as started:
                self._conversations.start(started, entry.sequence)
            case ModelSelected() as selected:
                self._conversations.select(selected, entry.sequence)
            case UsageReported() as usage:
                self._conversations.report(usage, entry.sequence)
            case ConversationCompacted() as compacted:
                self._conversations.compact(compacted, entry.sequence)
            case HandoffDelivered() as delivered:
                through = min(delivered.through, entry.sequence)  # nobody has what is still to come
                self._conversations.deliver(delivered, through, self._items_until(through))
            case QuotaReported() | TurnEnded() as told:
                self._conversations.note(told)
            case OpaqueEvent(size=size):
                self._conversations.hold(entry.position, size, is_request=False)
                self._see(entry.sequence)
            case _:
                pass

    def _see(self, sequence: int) -> None:
        self._conversations.see(sequence, self._activity, self._items)
        self._activity = sequence

    def _items_until(self, sequence: int) -> int:
        """Return how many items there are up to `sequence`, as far as the window tells."""
        return self._items - sum(ref.position > sequence for ref in self._window)

    # Items

    def _record(self, entry: Entry, item: Item) -> None:
        kind = kind_of(item)
        if kind is None:
            return
        text = body(item)
        self._ranked = False
        small = sketch(text, self._window.spoken_of, whole=kind.is_message)
        ref = ItemRef(
            position=entry.position,
            record=entry.sequence,
            kind=kind,
            progress=Progress.of(item.status),
            body=text_bytes(text),
            label=text_bytes(label(item)),
            exit_code=getattr(item, "exit_code", None),
            key=key_of(item),
            sketch=small.marks,
            pieces=small.pieces,
        )
        if entry.position != entry.sequence and self._replace(ref):
            return
        self._items += 1
        self._first_position = min(self._first_position or ref.position, ref.position)
        self._window.add(ref)
        self._note(ref)

    def _replace(self, ref: ItemRef) -> bool:
        """Put a new record of a known item in its place; False if the item is not known."""
        known = ref.position <= self._window.evicted
        known = self._window.replace(ref) or known
        for name in ("_first_request", "_last_request", "_last_answer"):
            noted = getattr(self, name)
            if noted is not None and noted.position == ref.position:
                setattr(self, name, ref)
        if known:
            self._note(ref)  # an answer may have been empty until now
        return known

    def _note(self, ref: ItemRef) -> None:
        """Keep hold of the items that a handoff wants first, however long ago they were."""
        if ref.kind is Kind.USER:
            self._first_request = min(self._first_request or ref, ref, key=_position)
            self._last_request = max(ref, self._last_request or ref, key=_position)
        elif ref.kind is Kind.ASSISTANT and ref.body:
            self._last_answer = max(ref, self._last_answer or ref, key=_position)

    def _roll_back(self, to: int) -> None:
        noted = (self._first_request, self._last_request, self._last_answer)
        held = (*self._window, *(ref for ref in noted if ref is not None))
        if all(ref.record <= to for ref in held) and self._window.evicted <= to:
            return
        kept = [ref for ref in self._window if ref.position <= to]
        if not self._window.is_complete or any(ref.record > to for ref in kept):
            raise RebuildNeededError
        self._ranked = False
        self._items = len(kept)
        self._window = Window(kept)
        self._first_request = self._last_request = self._last_answer = None
        self._first_position = kept[0].position if kept else 0
        for ref in kept:
            self._note(ref)


def _held_bytes(item: Item) -> int:
    """Return what an item occupies in the conversation that holds it, travelling or not (R22)."""
    return item.size if isinstance(item, OpaqueItem) else text_bytes(body(item))


def _position(ref: ItemRef) -> int:
    return ref.position
