"""What each provider conversation holds and how much it can hold, kept event by event (R16-R18, R22).

* A conversation that starts, fresh or again, has no usage; what is known of its selection's window stays.
* Another model, or another option that touches the window, discards usage and compaction threshold. An
  option that does not touch it changes nothing.
* Telemetry counts if it describes the selection in force, and nothing newer is known already.
* The estimate counts what the conversation really holds since its start or last compaction: what was
  recorded while it carried the thread, travelling kinds or not, and the handoff that it was given. What
  was omitted from that handoff it does not hold.
* How the last turn ended, and how full the account's quota is, tell whether a failover is near.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from moonfold_handoff.context.availability import fullest
from moonfold_handoff.context.capacity import (
    MAX_TOKENS,
    model_name,
    positive,
    selection_key,
    window_options,
)
from moonfold_handoff.context.state import (
    Conversation,
    KnownWindow,
    Outcome,
    Quota,
    ThreadState,
)
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    HandoffDelivered,
    ModelSelected,
    QuotaReported,
    TurnEnded,
    TurnStatus,
    UsageReported,
)

MAX_CONVERSATIONS = 8  # conversations whose usage is kept, the most recently used ones
MAX_WINDOWS = 16  # selections whose window is remembered, the most recently told ones
RECENT_ITEMS = 64  # items that count once however often they are recorded anew meanwhile
ASSUMED_DELIVERY = 16_000  # tokens of a handoff whose size its event does not tell: the default cap


class Conversations:
    """The conversations of a thread being folded."""

    def __init__(self, state: ThreadState) -> None:
        self._by_id = {known.conversation_id: known for known in state.conversations}
        self._windows = dict(state.windows)
        self._recent = dict(state.recent)
        self._pending_request = state.pending_request
        self._outcome = state.outcome

    def fields(self) -> dict[str, Any]:
        """Return the fields of `ThreadState` that are kept here."""
        return {
            "conversations": tuple(self._by_id.values()),
            "windows": self._windows,
            "recent": tuple(self._recent.items()),
            "pending_request": self._pending_request,
            "outcome": self._outcome,
        }

    def start(self, event: ConversationStarted, sequence: int) -> None:
        """Begin to carry the thread in a conversation (R17)."""
        told = positive(event.capacity)
        continued = self._by_id.get(event.continues or "")
        self._remember(event, told=told)
        self._use(
            Conversation(
                conversation_id=event.conversation_id,
                provider=event.provider,
                instance=event.instance,
                model=model_name(event.model),
                options=window_options(event.provider, event.options),
                capacity=told,
                selected_at=sequence,
                estimated_tokens=0 if continued is None else continued.held,
                seen=0 if continued is None else continued.seen,
                seen_items=0 if continued is None else continued.seen_items,
            )
        )
        self._count_anew()

    def select(self, event: ModelSelected, sequence: int) -> None:
        """Take another model or other options (R18)."""
        known = self._by_id.get(event.conversation_id)
        if known is None:
            return
        if known.conversation_id != self._current_id:
            self._count_anew()  # what was recorded so far, another conversation holds
        told = positive(event.capacity)
        options = window_options(known.provider, event.options)
        changed = replace(known, model=model_name(event.model), options=options)
        self._remember(changed, told=told)
        if known.selection == changed.selection:
            self._use(replace(changed, capacity=told or known.capacity))
            return
        self._use(
            replace(
                changed,
                capacity=told,
                used_tokens=None,
                max_tokens=None,
                compact_threshold=None,
                selected_at=sequence,
            )
        )

    def report(self, event: UsageReported, sequence: int) -> None:
        """Take a provider's telemetry, unless it is of another selection or older than what is known."""
        known = self._by_id.get(event.conversation_id)
        # No report describes what is still to come: it would shut out all that do.
        described = sequence if event.described_at is None else min(sequence, event.described_at)
        if known is None or described < max(known.selected_at, known.reported_at):
            return
        model = known.model if event.model is None else event.model
        options = known.options if event.options is None else event.options
        if selection_key(known.provider, model, options) != known.selection:
            return
        measured = positive(event.max_tokens)
        self._remember(known, measured=measured)
        # A figure that is unknown now was known for this selection before, and still is.
        self._by_id[event.conversation_id] = replace(
            known,
            used_tokens=event.used_tokens,
            max_tokens=measured or known.max_tokens,
            compact_threshold=positive(event.compact_threshold) or known.compact_threshold,
            reported_at=described,
        )

    def compact(self, event: ConversationCompacted, sequence: int) -> None:
        """Count anew from a compaction; usage reported before it describes what is gone."""
        known = self._by_id.get(event.conversation_id)
        if known is None:
            return
        self._by_id[event.conversation_id] = replace(
            known,
            used_tokens=None,
            estimated_tokens=event.used_tokens or 0,
            reported_at=sequence,
        )
        if known.conversation_id == self._current_id:
            self._count_anew()

    def deliver(self, event: HandoffDelivered, through: int, items: int) -> None:
        """Count a handoff into the conversation that was given it, which has seen so much of the thread.

        Args:
            event: what was delivered.
            through: sequence up to which the conversation has the thread by it.
            items: items of the thread up to there.
        """
        size = ASSUMED_DELIVERY if event.tokens is None else event.tokens
        self._grow(event.conversation_id, size)
        self._see(event.conversation_id, through, items)

    def hold(self, position: int, size: int, *, is_request: bool) -> None:
        """Count an item into the conversation that carries the thread, a repeated record once."""
        earlier = self._recent.pop(position, 0)
        self._recent[position] = size
        if len(self._recent) > RECENT_ITEMS:
            del self._recent[next(iter(self._recent))]
        self._grow(self._current_id, size - earlier)
        pending = self._pending_request + size - earlier if is_request else 0
        self._pending_request = _tokens(pending)

    def see(self, sequence: int, before: int, items: int) -> None:
        """Take what is recorded as seen by the conversation that carries the thread: it wrote it.

        Only if it has all that was recorded before. One that began, or came back, without a delivered
        handoff has a gap, which a later handoff must not take for seen.

        Args:
            sequence: of what is recorded.
            before: sequence of what was recorded before it.
            items: items of the thread now.
        """
        known = self._by_id.get(self._current_id or "")
        if known is not None and known.seen >= before:
            self._see(known.conversation_id, sequence, items)

    def _see(self, conversation_id: str | None, sequence: int, items: int) -> None:
        known = self._by_id.get(conversation_id or "")
        if known is not None and sequence > known.seen:
            seen = replace(known, seen=sequence, seen_items=items)
            self._by_id[known.conversation_id] = seen

    def roll_back(self, to: int, items: int) -> None:
        """Take what was recorded after `to` as unseen, since it is gone; `items` are left."""
        self._pending_request = 0
        for known in list(self._by_id.values()):
            if known.seen > to:
                self._by_id[known.conversation_id] = replace(known, seen=to, seen_items=items)

    def note(self, event: QuotaReported | TurnEnded) -> None:
        """Take what tells whether the provider goes on."""
        if isinstance(event, TurnEnded):
            self._end_turn(event)
        else:
            self._report_quota(event)

    def _end_turn(self, event: TurnEnded) -> None:
        # What was asked is part of the conversation from here on.
        self._pending_request = 0
        carrier = self._current_id
        if carrier is not None and event.status in {TurnStatus.COMPLETED, TurnStatus.LIMITED}:
            limit = None if event.limit is None else replace(event.limit, message=None)
            self._outcome = Outcome(carrier, event.status, event.time, limit)

    def _report_quota(self, event: QuotaReported) -> None:
        known = self._by_id.get(event.conversation_id)
        if known is None:
            return
        window = fullest(event)
        quota = None if window is None else Quota(window.used_percent, window.resets_at)
        self._by_id[event.conversation_id] = replace(known, quota=quota)

    def _count_anew(self) -> None:
        """Forget which items are counted: the estimate of the conversation holds none of them singly."""
        self._recent.clear()
        self._pending_request = 0

    @property
    def _current_id(self) -> str | None:
        return next(reversed(self._by_id), None)

    def _grow(self, conversation_id: str | None, size: int) -> None:
        known = self._by_id.get(conversation_id or "")
        if known is not None:
            grown = replace(known, estimated_tokens=_tokens(known.estimated_tokens + size))
            self._by_id[known.conversation_id] = grown

    def _use(self, conversation: Conversation) -> None:
        self._by_id.pop(conversation.conversation_id, None)
        self._by_id[conversation.conversation_id] = conversation
        while len(self._by_id) > MAX_CONVERSATIONS:
            del self._by_id[next(iter(self._by_id))]

    def _remember(
        self,
        selected: ConversationStarted | Conversation,
        *,
        told: int | None = None,
        measured: int | None = None,
    ) -> None:
        """Keep what is learnt of a selection's window, for conversations to come (R17)."""
        if told is None and measured is None:
            return
        key = selection_key(selected.provider, selected.model, selected.options)
        known = self._windows.pop(key, KnownWindow())
        self._windows[key] = KnownWindow(told or known.told, measured or known.measured)
        while len(self._windows) > MAX_WINDOWS:
            del self._windows[next(iter(self._windows))]


def _tokens(count: int) -> int:
    """Return a count of tokens as the wire can carry it."""
    return max(0, min(MAX_TOKENS, count))
