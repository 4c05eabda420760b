"""Turns of a rollout: where they begin and how they end, also in files that do not say."""

from __future__ import annotations

from datetime import datetime

import msgspec

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.codex_limits import RateLimits, limit_without_error
from moonfold_handoff.transcripts.codex_messages import Said, digest
from moonfold_handoff.transcripts.codex_opening import Selection
from moonfold_handoff.transcripts.codex_tools import Calls
from moonfold_handoff.transcripts.journal import Journal
from moonfold_schemas.events import Limit, TurnEnded, TurnsRolledBack, TurnStarted, TurnStatus

_REQUESTS_KEPT = 1_024  # that can be rolled back
_SELECTIONS_KEPT = 256
_ERRORS_KEPT = 16


class Turns(msgspec.Struct):
    """The open turn, and the requests that can be rolled back.

    A turn is told of when something happens in it. After an error it stays open, and its end is told once
    more where it goes on.

    Attributes:
        id: The open turn; empty where none is.
        given: The open turn's id in the file; empty where the file did not begin it.
        began: When the open turn began.
        told: Whether its beginning was told.
        at: How many events there were before it.
        window: The context window that the open turn began with, in tokens.
        asked: Whether the person said something in it.
        outcome: How it would end now; None while the agent still has something to do.
        limit: Why the provider would not go on in it.
        ended: The end that was told.
        errors: The errors since it went on last, as digests.
        users: The person's messages in it.
        answers: The agent's messages in it.
        thoughts: The agent's reasoning in it.
        calls: The tool calls, also of earlier turns.
        last_limit: The quota or credit limit that has the last word in the session.
        limited_at: Number of the event that told of it.
        rates: The rate limits that were written down last.
        time: The time of the last record.
        says_ends: Whether the file says where turns begin and end.
        requests: How many events there were before each turn with a request that was not rolled back.
        selections: The models and options, each with the number of the event that told of it.
    """

    id: str = ""
    given: str = ""
    began: datetime | None = None
    told: bool = False
    at: int = 0
    window: int | None = None
    asked: bool = False
    outcome: TurnStatus | None = None
    limit: Limit | None = None
    ended: tuple[TurnStatus, Limit | None] | None = None
    errors: list[str] = msgspec.field(default_factory=list)
    users: Said = msgspec.field(default_factory=lambda: Said(wrapped=True))
    answers: Said = msgspec.field(default_factory=Said)
    thoughts: Said = msgspec.field(default_factory=Said)
    calls: Calls = msgspec.field(default_factory=Calls)
    last_limit: Limit | None = None
    limited_at: int = 0
    rates: RateLimits = msgspec.field(default_factory=RateLimits)
    time: datetime | None = None
    says_ends: bool = False
    requests: list[int] = msgspec.field(default_factory=list)
    selections: list[tuple[int, Selection]] = msgspec.field(default_factory=list)

    @property
    def selection(self) -> Selection:
        """The model and options in force."""
        return self.selections[-1][1] if self.selections else Selection()

    def select(self, number: int, selection: Selection) -> None:
        """Note another selection, told by the event of that number; 0: it is not told yet."""
        if not number:
            self.selections.clear()
        self.selections.append((number, selection))
        del self.selections[:-_SELECTIONS_KEPT]

    def begin(self, journal: Journal, name: str, time: datetime | None, *, given: str = "") -> None:
        """Begin a turn, and end the one before it."""
        if self.id and self.told:
            self.end(journal, self._status_without_end() or TurnStatus.INTERRUPTED, self.time)
        self.id, self.given = journal.unique(name), given
        self.began, self.told = time, False
        self.window = None
        self.asked = False
        self.outcome = self.limit = self.ended = None
        self.errors = []
        self.rates = self.rates.dated()
        self._forget_words()

    def begin_given(
        self, journal: Journal, given: str, time: datetime | None, window: int | None
    ) -> None:
        """Begin a turn that the file begins."""
        self.says_ends = True
        if given != self.given:
            self.begin(journal, given, time, given=given)
        self.window = window

    def tell(self, journal: Journal) -> None:
        """Tell of the open turn, before the first event in it."""
        if self.id and not self.told:
            self.told = True
            self.at = journal.count
            journal.add(TurnStarted(time=self.began, turn_id=self.id))

    def ask(self) -> None:
        """Note that the person said something."""
        if not self.asked:
            self.requests.append(self.at)
            del self.requests[:-_REQUESTS_KEPT]
        self.asked = True
        self.go_on()

    def go_on(self) -> None:
        """Note that there is something to do in the turn, also after an error that ended it."""
        self.outcome = self.ended = None
        self.errors = []

    def answered(self, *, finally_: bool) -> None:
        """Note that the agent said something, which clears a limit."""
        self.go_on()
        self.last_limit = self.limit = None
        self.outcome = TurnStatus.COMPLETED if finally_ else None

    def is_new(self, error: str) -> bool:
        """Note an error; tell whether it is the first such one since the turn went on."""
        mark = digest(error)
        if mark in self.errors:
            return False
        self.errors.append(mark)
        del self.errors[:-_ERRORS_KEPT]
        return True

    def fail(self, journal: Journal, limit: Limit | None, time: datetime | None) -> None:
        """Tell that an error ended the turn, which the file may say once more."""
        self.limit = limit or self.limit
        is_stop = self.limit is not None and self.limit.kind in STOPS
        self.outcome = TurnStatus.LIMITED if is_stop else TurnStatus.FAILED
        self._tell_end(journal, self.outcome, time)

    def names_open(self, named: str | None) -> bool:
        """Tell whether a record is about the open turn, by the turn that it names."""
        return bool(self.id) and (not named or not self.given or named == self.given)

    def complete(self, journal: Journal, time: datetime | None, *, answered: bool) -> None:
        """End a turn that the file ends; `answered`: it says so that there was an answer."""
        status = self.outcome
        if status is None and not answered:
            status = self._limited_without_error(time)
        self.end(journal, status or TurnStatus.COMPLETED, time)

    def abort(self, journal: Journal, time: datetime | None) -> None:
        """End a turn that was stopped."""
        self.limit = None
        self.end(journal, TurnStatus.INTERRUPTED, time)

    def finish(self, journal: Journal) -> None:
        """End the last turn of a file that does not grow, unless the file ends in the middle of it."""
        if self.told and not self.given and (status := self._status_without_end()) is not None:
            self.end(journal, status, self.time)

    def end(self, journal: Journal, status: TurnStatus, time: datetime | None) -> None:
        """End the open turn."""
        self._tell_end(journal, status, time)
        self.id = self.given = ""
        self.told = False
        self.outcome = self.limit = self.ended = None

    def roll_back(self, journal: Journal, count: int, time: datetime | None) -> bool:
        """Take back the last turns with a request; tell whether there were any."""
        if self.told:
            self.end(journal, self.outcome or TurnStatus.INTERRUPTED, self.time)
        if count <= 0 or not self.requests:
            return False
        first = max(len(self.requests) - count, 0)
        to = self.requests[first]
        del self.requests[first:]
        # A selection within what is taken back is taken back too.
        self.selections = [s for s in self.selections if s[0] <= to]
        self.calls.roll_back(to)
        self._forget_words()
        journal.add(TurnsRolledBack(time=time, to=to))
        return True

    def _forget_words(self) -> None:
        self.users, self.answers, self.thoughts = Said(wrapped=True), Said(), Said()

    def _tell_end(self, journal: Journal, status: TurnStatus, time: datetime | None) -> None:
        self.calls.end_turn(journal, time, interrupted=status is TurnStatus.INTERRUPTED)
        if self.ended == (status, self.limit):
            return
        self.ended = status, self.limit
        number = journal.add(TurnEnded(time=time, turn_id=self.id, status=status, limit=self.limit))
        if status is TurnStatus.LIMITED:
            self.last_limit, self.limited_at = self.limit, number

    def _status_without_end(self) -> TurnStatus | None:
        """Return how a turn ended that the file has no end of, or None if it did not."""
        if self.outcome is not None or self.calls.are_pending:
            return self.outcome
        if (limited := self._limited_without_error(self.time)) is not None:
            return limited
        # Where the file has the ends of turns, what is outside of them was added, and is complete.
        is_added = self.says_ends and not self.given
        return TurnStatus.COMPLETED if is_added else None

    def _limited_without_error(self, now: datetime | None) -> TurnStatus | None:
        limit = limit_without_error(self.rates, now or self.time) if self.asked else None
        if limit is None:
            return None
        self.limit = limit
        return TurnStatus.LIMITED
