"""How far a session's file was read, and where in the thread's log that is."""

from __future__ import annotations

from typing import Self

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.store import keys


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The history that a session was begun with, which its thread has from its parent.

    Attributes:
        characters: Length of the attributed text that stands before the first request.
        text: Mark of that text.
        messages: Marks of the messages that were injected in its place, in order.
        met: How many of them the session's file was found to hold so far; None: it is past them all.
    """

    characters: int
    text: bytes
    messages: tuple[bytes, ...]
    met: int | None = 0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where recording a session stands.

    A session numbers its events from 1. As long as nobody else writes to the thread and nothing is taken
    back, that is the log's numbering; otherwise `shifts` tells how far it is off from which event on.

    Attributes:
        base: Sequence before the session's first event: 0, but where the thread is a fork.
        given: What the session was begun with, for a fork.
        cursor: Where reading goes on; None: at the start.
        facts: What was known there, as the one who reads encoded it.
        count: Events of the session that are recorded.
        shifts: Pairs of an event's number and what is added to it and those after it.
    """

    base: int = 0
    given: Given | None = None
    cursor: bytes | None = None
    facts: bytes = b""
    count: int = 0
    shifts: tuple[tuple[int, int], ...] = ()

    def sequence(self, number: int) -> int:
        """Return the sequence of the session's event of that number; that before its first of none."""
        shift = next((by for first, by in reversed(self.shifts) if first <= number), 0)
        return self.base + number + shift

    def going_on_after(self, sequence: int) -> Self:
        """Return the place with the next event, and those after it, behind `sequence`."""
        by = sequence - self.base - self.count
        kept = tuple(pair for pair in self.shifts if pair[0] <= self.count)
        return msgspec.structs.replace(self, shifts=(*kept, (self.count + 1, by)))

    def anew(self) -> Self:
        """Return the place before the session's first event."""
        given = None if self.given is None else msgspec.structs.replace(self.given, met=0)
        return type(self)(base=self.base, given=given)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Place).decode


async def save(redis: Redis, thread_id: str, place: Place, *, ttl: int) -> None:
    """Keep `place` for `ttl` seconds. An older one is harmless: what is read twice is recorded once."""
    await redis.set(keys.source(thread_id), _encode(place), ex=ttl)


async def load(redis: Redis, thread_id: str) -> Place | None:
    """Return what is kept, or None where nothing is that can be read."""
    raw = await redis.get(keys.source(thread_id))
    try:
        return None if raw is None else _decode(raw)
    except msgspec.DecodeError:
        return None
