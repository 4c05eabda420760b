"""From a session's file to its thread's log: every event once, in order, whoever is killed meanwhile.

Reading goes on where it stopped, which is kept beside the log. The place is saved after the events: if the
process dies in between, the same events come again, and an append of the same bytes changes nothing.

Where the file no longer begins with what is recorded (it was replaced or cut, the person went back to an
earlier message), the log keeps the part that is still true, takes back the rest and goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from msgspec.structs import replace

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.continuing import own
from moonfold_handoff.store import log, sources
from moonfold_handoff.store.log import (
    EventTooLargeError,
    SequenceConflictError,
    SequenceGapError,
)
from moonfold_handoff.store.sources import Place
from moonfold_handoff.transcripts import Session, Step
from moonfold_handoff.transcripts.base import Facts
from moonfold_schemas import ThreadEvent, encode
from moonfold_schemas.events import OpaqueEvent, QuotaReported, TurnsRolledBack

COMPARED = 500  # events of the log looked at in one round trip
ATTEMPTS = 100  # at one append; each comes to terms with one thing that stood in its way

logger = structlog.get_logger()

_encode_facts = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode


class FollowError(Exception):
    """A session cannot be recorded; the message says why in one sentence."""


class _LogLostError(Exception):
    """The log ends before what was recorded in it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a session is recorded.

    Attributes:
        through: Sequence of its last event in the thread's log.
        added: Events that were read this time.
        facts: What is known of the session.
        quota: The quota telemetry that was read last this time.
    """

    through: int
    added: int
    facts: Facts
    quota: QuotaReported | None


class Follower:
    """Records one session; one call at a time. Another process may do the same.

    Args:
        client: the connection to the service.
        session: what is recorded.
    """

    def __init__(self, client: HandoffClient, session: Session) -> None:
        self.session = session
        self._client = client
        self._place: Place | None = None
        self._added = 0
        self._quota: QuotaReported | None = None

    async def catch_up(self, *, to_the_end: bool = False) -> Followed:
        """Record what the session has added since the last time, by this process or another one.

        Args:
            to_the_end: record, too, what a session tells by just ending; for one that is read as a whole.

        Raises:
            TranscriptError: the file cannot be read.
            FollowError: others write to the thread without end.
        """
        self._added, self._quota = 0, None
        if self._place is None:
            self._place = await self._kept()
        try:
            place = await self._go_on(self._place)
        except _LogLostError:
            logger.warning("log_lost", thread_id=self.session.thread_id)
            place = await self._go_on(self._place.anew())
        through = place.sequence(place.count)
        facts = _decode_facts(place.facts) if place.facts else Facts()
        if to_the_end and place.cursor is not None:
            words = await asyncio.to_thread(self.session.last_words, place.cursor)
            # They are no part of the place: the session may grow all the same.
            ending = _Recorder(self._client, self.session.thread_id, place)
            await ending.record(words)
            through = ending.place.sequence(ending.place.count)
            facts = facts.at_the_end(words, ending.place.count)
        return Followed(through, self._added, facts, self._quota)

    async def _go_on(self, place: Place) -> Place:
        recorder = _Recorder(self._client, self.session.thread_id, place)
        steps = self.session.steps(place.cursor)
        while (step := await asyncio.to_thread(_next, steps)) is not None:
            if step.anew:
                recorder.begin_anew()
            await recorder.record(step.events)
            self._added += len(step.events)
            self._quota = next(
                (e for e in reversed(step.events) if isinstance(e, QuotaReported)), self._quota
            )
            recorder.place = replace(
                recorder.place, cursor=step.cursor, facts=_encode_facts(step.facts)
            )
            await self._save(recorder.place)
        if await recorder.finish():
            await self._save(recorder.place)
        return recorder.place

    async def _kept(self) -> Place:
        redis = self._client.services.threads
        return await sources.load(redis, self.session.thread_id) or Place()

    async def _save(self, place: Place) -> None:
        self._place = place
        services = self._client.services
        ttl = services.settings.thread_ttl
        await sources.save(services.threads, self.session.thread_id, place, ttl=ttl)


class _Recorder:
    """Appends a session's events where they belong in the log."""

    def __init__(self, client: HandoffClient, thread_id: str, place: Place) -> None:
        self.place = place
        self._client = client
        self._redis = client.services.threads
        self._thread_id = thread_id
        self._before: Place | None = None  # what was recorded, while it is compared with the file

    def begin_anew(self) -> None:
        """Compare what comes with what is recorded, from the start."""
        self._before = self.place
        self.place = self.place.anew()

    async def record(self, events: Sequence[ThreadEvent]) -> None:
        """Append the session's next events, but for those that the log has."""
        events = self._own(events)
        if self._before is not None:
            events = await self._new_of(events)
        if events:
            await self._append(list(events))

    def _own(self, events: Sequence[ThreadEvent]) -> Sequence[ThreadEvent]:
        """Leave out what the session was given, where it goes on with a handoff."""
        if self.place.given is None:
            return events
        given, kept = self.place.given, []
        for event in events:
            its, given = own(event, given)
            kept.append(its)
        self.place = replace(self.place, given=given)
        return kept

    async def finish(self) -> bool:
        """Take back what the session no longer has at its end; tell whether there was any."""
        before, self._before = self._before, None
        if before is None or before.count <= self.place.count:
            return False
        await self._take_back()
        return True

    async def _new_of(self, events: Sequence[ThreadEvent]) -> Sequence[ThreadEvent]:
        """Return those of the session's next events from where they are others than the log's."""
        for first in range(0, len(events), COMPARED):
            some = events[first : first + COMPARED]
            recorded = await log.raw(
                self._redis,
                self._thread_id,
                after=self.place.sequence(self.place.count),
                count=len(some),
            )
            same = 0
            while same < len(recorded) and self._encoded(some[same]) == recorded[same]:
                same += 1
            self.place = replace(self.place, count=self.place.count + same)
            if same < len(some):
                self._before = None
                if same < len(recorded):
                    await self._take_back()
                return events[first + same :]
        return ()

    async def _take_back(self) -> None:
        """Take back what follows the place in the log; the session goes on after that."""
        to = self.place.sequence(self.place.count)
        last = await log.last(self._redis, self._thread_id)
        logger.info("session_changed", thread_id=self._thread_id, kept=to, taken_back=last - to)
        await self._client.append(self._thread_id, last, [TurnsRolledBack(to=to)])
        self.place = self.place.going_on_after(last + 1)

    async def _append(self, events: list[ThreadEvent]) -> None:
        for _ in range(ATTEMPTS):
            after = self.place.sequence(self.place.count + 1) - 1
            try:
                translated = [self._translated(event) for event in events]
                await self._client.append(self._thread_id, after, translated)
            except EventTooLargeError as error:
                at = error.sequence - after - 1
                events[at] = OpaqueEvent(original_type="item.recorded", size=error.size)
            except SequenceConflictError as error:
                done = error.sequence - after - 1
                self.place = replace(self.place, count=self.place.count + done)
                del events[:done]
                await self._make_way(error.sequence, self._encoded(events[0]))
            except SequenceGapError:
                raise _LogLostError from None
            else:
                self.place = replace(self.place, count=self.place.count + len(events))
                return
        raise FollowError(f"Others write to thread {self._thread_id} all the time.")

    async def _make_way(self, taken: int, mine: bytes) -> None:
        """Go on behind what others wrote at sequence `taken` and after it."""
        after = taken - 1
        while entries := await log.raw(self._redis, self._thread_id, after=after, count=COMPARED):
            # Another process that follows the session may have recorded its next event already.
            if mine in entries:
                after += entries.index(mine)
                break
            after += len(entries)
        self.place = self.place.going_on_after(after)

    def _encoded(self, event: ThreadEvent) -> bytes:
        return encode(self._translated(event))

    def _translated(self, event: ThreadEvent) -> ThreadEvent:
        """Return an event as the log has it, which numbers what is taken back in its own way."""
        if isinstance(event, TurnsRolledBack):
            return replace(event, to=self.place.sequence(event.to))
        return event


def _next(steps: Iterator[Step]) -> Step | None:
    return next(steps, None)
