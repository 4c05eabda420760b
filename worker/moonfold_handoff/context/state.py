"""`ThreadState`: what a handoff could ever use of a thread, bounded whatever the thread's length.

It holds no text: an item is a reference with its costs, and the few chosen ones are read from the log.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum

from msgspec import Struct, field
from msgspec.structs import replace

from moonfold_handoff.context.capacity import selection_key
from moonfold_handoff.context.framing import FRAME_BYTES
from moonfold_schemas.base import Option
from moonfold_schemas.events import Limit, TurnStatus
from moonfold_schemas.items import ItemStatus

STATE_VERSION = 4
"""Raise it when the meaning of a field changes: older states are then folded anew from the log."""

WINDOW_ITEMS = 512  # references kept; about 45 bytes each when saved
WINDOW_BYTES = 64_000  # stop keeping older items once this much could be carried without them (R15)
ABRIDGED_BYTES = 320  # about the least in which a part of an output is worth carrying
SKETCH_BYTES = 16_000  # of all sketches together; the oldest items lose theirs first
PIECE_BYTES = 4  # about what one figure of `pieces` takes when saved


class Kind(IntEnum):
    """Kind of an item that can travel."""

    USER = 0
    ASSISTANT = 1
    COMMAND = 2
    FILE_CHANGE = 3
    PLAN = 4
    ERROR = 5
    INTERRUPTION = 6

    @property
    def is_message(self) -> bool:
        """Whether it travels whole or not at all, under its own role (R3)."""
        return self is Kind.USER or self is Kind.ASSISTANT


class Progress(IntEnum):
    """An item's status, as a number to keep the state small."""

    IN_PROGRESS = 0
    COMPLETED = 1
    FAILED = 2
    INTERRUPTED = 3

    @classmethod
    def of(cls, status: ItemStatus) -> Progress:
        """Return the number for a wire status."""
        return cls[status.name]


class ItemRef(Struct, frozen=True, array_like=True):
    """One item of the thread, without its text.

    Attributes:
        position: sequence of the item's first record, its short name.
        record: sequence of the record that holds its content now.
        kind: what it is.
        progress: how far it got.
        body: bytes of its body inside a JSON string literal (R14).
        label: bytes of its attribution label.
        exit_code: of a command, where known.
        key: what an outcome or a change is one of: a mark of the command, of the path, of the plan.
        sketch: marks of the identifiers it mentions; see `sketches`.
        pieces: characters, bytes and marks of each piece in which it may travel; () if only whole.
    """

    position: int
    record: int
    kind: Kind
    progress: Progress
    body: int
    label: int
    exit_code: int | None = None
    key: str = ""
    sketch: str = ""
    pieces: tuple[int, ...] = ()

    @property
    def cost(self) -> int:
        """Bytes that the whole item adds to the attributed text."""
        return FRAME_BYTES + len(str(self.position)) + self.label + self.body

    @property
    def frame(self) -> int:
        """Bytes of its attribution and line breaks."""
        return FRAME_BYTES + len(str(self.position)) + self.label

    @property
    def least(self) -> int:
        """Bytes of the smallest form in which it can travel."""
        return self.cost if self.kind.is_message else min(self.cost, ABRIDGED_BYTES)

    @property
    def sketch_bytes(self) -> int:
        """Bytes that its sketch takes of the saved state, about."""
        return len(self.sketch) + PIECE_BYTES * len(self.pieces)


class Quota(Struct, frozen=True, array_like=True):
    """How far an account's fullest quota window is used up, in percent, and when it opens again."""

    percent: float
    resets_at: datetime | None = None


class Outcome(Struct, frozen=True):
    """How the last turn ended that tells whether its provider goes on.

    Attributes:
        conversation_id: what carried the thread.
        status: completed or limited; a failed or interrupted turn tells nothing.
        time: when it ended, where the producer knew.
        limit: what the provider said, without its sentence.
    """

    conversation_id: str
    status: TurnStatus
    time: datetime | None = None
    limit: Limit | None = None


class Conversation(Struct, frozen=True):
    """What is known of one provider conversation that carries, or carried, the thread.

    Attributes:
        instance: the account, where several are used.
        options: those that touch the context window.
        capacity: its window in tokens, as the session told it.
        used_tokens: tokens in its context, as the provider reported them; None where unknown.
        max_tokens: its window, as the provider reported it.
        compact_threshold: where the provider compacts it, in tokens.
        reported_at: sequence that these figures describe.
        selected_at: sequence from which its model and options are in force.
        estimated_tokens: what it holds, counted from saved activity (R22).
        seen: sequence up to which it has all of the thread, because it wrote it or was given it.
        seen_items: items up to there.
        quota: how far its account is used up, as reported; None where unknown, or where credits go on.
    """

    conversation_id: str
    provider: str
    instance: str | None = None
    model: str | None = None
    options: dict[str, Option] = field(default_factory=dict)
    capacity: int | None = None
    used_tokens: int | None = None
    max_tokens: int | None = None
    compact_threshold: int | None = None
    reported_at: int = 0
    selected_at: int = 0
    estimated_tokens: int = 0
    seen: int = 0
    seen_items: int = 0
    quota: Quota | None = None

    @property
    def selection(self) -> str:
        """What tells its window apart from those of other models and options."""
        return selection_key(self.provider, self.model, self.options)

    @property
    def held(self) -> int:
        """Tokens in its context, by telemetry where there is any (R22)."""
        return self.estimated_tokens if self.used_tokens is None else self.used_tokens


class KnownWindow(Struct, frozen=True, array_like=True):
    """What a thread has learnt of a selection's window: as told by a session, as measured."""

    told: int | None = None
    measured: int | None = None


class Ancestor(Struct, frozen=True, array_like=True):
    """A thread that a fork descends from, and the last sequence taken from it."""

    thread_id: str
    through: int


class ThreadState(Struct, frozen=True):
    """The fold of a thread's log up to `through`.

    Attributes:
        through: sequence of the last event folded in.
        items: number of items that can travel, kept or not.
        first_position: position of the thread's first item.
        evicted: position of the newest item no longer kept in `window`; 0 if all are.
        bare: position of the newest item in `window` whose sketch was dropped; 0 if none was.
        ranking: what is worth taking, the best first; see `ranking`. () where it is not made yet.
        window: the most recent items, oldest first.
        first_request: the original request.
        last_request: the newest request.
        last_answer: the newest answer of the agent.
        conversations: provider conversations, the most recently used last.
        windows: known windows by selection, the most recently told last.
        recent: position and size of the items recorded last, which count once if recorded again.
        activity: sequence of the latest activity recorded.
        pending_request: bytes asked in the running turn that the agent has not begun to answer.
        outcome: how the last turn ended that tells of its provider.
        lineage: ancestors of a fork, the eldest first.
    """

    version: int = STATE_VERSION
    through: int = 0
    items: int = 0
    first_position: int = 0
    evicted: int = 0
    bare: int = 0
    ranking: tuple[tuple[int, int], ...] = ()
    window: tuple[ItemRef, ...] = ()
    first_request: ItemRef | None = None
    last_request: ItemRef | None = None
    last_answer: ItemRef | None = None
    conversations: tuple[Conversation, ...] = ()
    windows: dict[str, KnownWindow] = field(default_factory=dict)
    recent: tuple[tuple[int, int], ...] = ()
    activity: int = 0
    pending_request: int = 0
    outcome: Outcome | None = None
    lineage: tuple[Ancestor, ...] = ()

    def conversation(self, conversation_id: str | None) -> Conversation | None:
        """Return what is known of a conversation, or None."""
        return next((c for c in self.conversations if c.conversation_id == conversation_id), None)

    @property
    def carrier(self) -> Conversation | None:
        """What is known of the conversation that carries the thread now, or None."""
        return self.conversations[-1] if self.conversations else None

    def since(self, conversation: Conversation | None) -> ThreadState:
        """Return the state of what a conversation has not seen; all of it for a fresh one."""
        if conversation is None or not conversation.seen:
            return self
        seen = conversation.seen
        kept = [ref for ref in self.window if ref.position > seen]
        dropped = len(self.window) - len(kept)

        def unseen(ref: ItemRef | None) -> ItemRef | None:
            return ref if ref is not None and ref.position > seen else None

        evicted = self.evicted if self.evicted > seen else 0
        items = max(len(kept), self.items - conversation.seen_items) if evicted else len(kept)
        return replace(
            self,
            items=items,
            first_position=seen + 1 if evicted else (kept[0].position if kept else 0),
            evicted=evicted,
            window=tuple(kept),
            ranking=tuple((i - dropped, piece) for i, piece in self.ranking if i >= dropped),
            first_request=unseen(self.first_request),
            last_request=unseen(self.last_request),
            last_answer=unseen(self.last_answer),
        )

    def holder(self, thread_id: str, sequence: int) -> str:
        """Return which thread of the lineage holds the record at `sequence`."""
        for ancestor in self.lineage:
            if sequence <= ancestor.through:
                return ancestor.thread_id
        return thread_id

    @property
    def kept(self) -> tuple[ItemRef, ...]:
        """Every item that can still be chosen, in order: the window and what is held beside it."""
        beside = {
            ref.position: ref
            for ref in (self.first_request, self.last_request, self.last_answer)
            if ref is not None and ref.position <= self.evicted
        }
        return (*(beside[position] for position in sorted(beside)), *self.window)
