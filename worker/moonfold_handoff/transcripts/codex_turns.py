"""Turns of a rollout: where they begin and how they end, also in files that do not say."""

from __future__ import annotations

from datetime import datetime

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.codex_limits import RateLimits, limit_without_error
from moonfold_handoff.transcripts.codex_messages import Said
from moonfold_handoff.transcripts.codex_opening import Opening, Selection
from moonfold_handoff.transcripts.codex_records import Record
from moonfold_handoff.transcripts.codex_tools import Calls
from moonfold_handoff.transcripts.event_list import EventList
from moonfold_handoff.transcripts.lines import integer, string
from moonfold_schemas.events import Limit, TurnEnded, TurnsRolledBack, TurnStarted, TurnStatus


class Turns:
    """The open turn, and the requests that can be rolled back.

    Attributes:
        id: The open turn; empty where none is.
        given: The open turn's id in the file; empty where the file did not begin it.
        window: The context window that the open turn began with.
        outcome: How the open turn would end now; None while the agent still has something to do.
        limit: The quota or credit limit that has the last word.
        rates: The rate limits that were written down last.
        time: The time of the last record.
        selection: The model and options in force.
        users: The person's messages of the turn.
        answers: The agent's messages of the turn.
    """

    def __init__(self, events: EventList, calls: Calls, opening: Opening) -> None:
        self.id = ""
        self.given = ""
        self.window: int | None = None
        self.outcome: TurnStatus | None = None
        self.limit: Limit | None = None
        self.rates = RateLimits()
        self.time = opening.time
        self.selection = opening.selection
        self.users, self.answers = Said(wrapped=True), Said()
        self._events = events
        self._calls = calls
        self._says_ends = opening.has_turns
        self._limit: Limit | None = None  # the open turn's
        self._asked = False  # whether the person said something in the open turn
        self._errors: set[str] = set()
        self._begun = (0, self.selection)
        # Where the turns with a request begin, as far as they were not rolled back.
        self._requests: list[tuple[int, Selection]] = []

    def begin(self, record: Record, name: str, *, given: str = "") -> None:
        """Begin a turn, and end the one before it."""
        if self.id:
            self.end(self._status_without_end() or TurnStatus.INTERRUPTED, self.time)
        self._begun = (len(self._events), self.selection)
        self.id = self._events.unique(name)
        self.given = given
        self.window = None
        self.outcome = None
        self.rates = self.rates.dated()
        self.users, self.answers = Said(wrapped=True), Said()
        self._asked = False
        self._errors = set()
        self._events.add(TurnStarted(time=record.time, turn_id=self.id))

    def begin_task(self, record: Record) -> None:
        """Begin a turn that the file begins."""
        given = string(record.payload.get("turn_id")) or f"turn:line-{record.line}"
        if given != self.given:
            self.begin(record, given, given=given)
        self.window = integer(record.payload.get("model_context_window"))

    def ensure(self, record: Record) -> str:
        """Return the open turn; what a client added outside of all turns gets one."""
        if not self.id:
            self.begin(record, f"turn:line-{record.line}")
        return self.id

    def ask(self) -> None:
        """Note that the person said something."""
        if not self._asked:
            self._requests.append(self._begun)
        self._asked = True
        self.outcome = None

    def answered(self, *, finally_: bool) -> None:
        """Note that the agent said something, which clears a limit."""
        self.limit = self._limit = None
        self.outcome = TurnStatus.COMPLETED if finally_ else None

    def fail(self, limit: Limit | None, message: str) -> bool:
        """Note an error; tell whether it has to be recorded."""
        self._limit = limit or self._limit
        is_stop = self._limit is not None and self._limit.kind in STOPS
        self.outcome = TurnStatus.LIMITED if is_stop else TurnStatus.FAILED
        is_new = self._limit is None and message not in self._errors
        self._errors.add(message)
        return is_new

    def names_open(self, record: Record) -> bool:
        """Tell whether a record is about the open turn."""
        named = string(record.payload.get("turn_id"))
        return bool(self.id) and (not named or not self.given or named == self.given)

    def complete(self, record: Record) -> None:
        """End a turn that the file ends."""
        status = self.outcome
        if status is None and not isinstance(record.payload.get("last_agent_message"), str):
            status = self._limited_without_error(record.time)
        self.end(status or TurnStatus.COMPLETED, record.time)

    def abort(self, record: Record) -> None:
        """End a turn that was stopped."""
        self._limit = None
        self.end(TurnStatus.INTERRUPTED, record.time)

    def finish(self) -> None:
        """End the last turn, unless the file ends in the middle of it."""
        if self.id and not self.given:
            status = self._status_without_end()
        else:
            status = self.outcome if self.outcome is not TurnStatus.COMPLETED else None
        if self.id and status is not None:
            self.end(status, self.time)

    def end(self, status: TurnStatus, time: datetime | None) -> None:
        """End the open turn."""
        self._calls.end_turn(interrupted=status is TurnStatus.INTERRUPTED)
        if status is TurnStatus.LIMITED:
            self.limit = self._limit
        self._events.add(TurnEnded(time=time, turn_id=self.id, status=status, limit=self._limit))
        self.id = self.given = ""
        self.outcome = self._limit = None

    def roll_back(self, count: int, time: datetime | None) -> bool:
        """Take back the last turns with a request; tell whether there were any."""
        if self.id:
            self.end(self.outcome or TurnStatus.INTERRUPTED, self.time)
        if count <= 0 or not self._requests:
            return False
        first = max(len(self._requests) - count, 0)
        # A selection within what is taken back is taken back too.
        to, self.selection = self._requests[first]
        del self._requests[first:]
        self.users, self.answers = Said(wrapped=True), Said()
        self._events.add(TurnsRolledBack(time=time, to=to))
        return True

    def _status_without_end(self) -> TurnStatus | None:
        """Return how a turn ended that the file has no end of, or None if it did not."""
        if self.outcome is not None or self._calls.are_pending:
            return self.outcome
        if (limited := self._limited_without_error(self.time)) is not None:
            return limited
        # Where the file has the ends of turns, what is outside of them was added, and is complete.
        is_added = self._says_ends and not self.given
        return TurnStatus.COMPLETED if is_added else None

    def _limited_without_error(self, now: datetime | None) -> TurnStatus | None:
        limit = limit_without_error(self.rates, now or self.time) if self._asked else None
        if limit is None:
            return None
        self._limit = limit
        return TurnStatus.LIMITED
