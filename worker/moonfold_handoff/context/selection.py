"""Where an item is chosen: a budgeted selection of the conversation, never a summary (R10).

Everything goes if it fits (R1). Otherwise the newest request, the newest answer and the original
request come first, then whatever is recent, messages whole and long outputs abridged (R2, R3). The
same selection serves both deliveries (R6), so it must fit both: the attributed text within the
allowance, the serialised native items within the ceiling (R15).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from moonfold_handoff.context.budget import CEILING
from moonfold_handoff.context.preamble import Preamble, plan_preamble
from moonfold_handoff.context.state import ABRIDGED_BYTES, ItemRef, ThreadState
from moonfold_handoff.errors import ReferencesDoNotFitError
from moonfold_schemas.results import Coverage, PositionRange

# Bytes of a Responses API message around its text, comma included; the longest role's.
ENVELOPE_BYTES = len(
    ',{"type":"message","role":"developer","content":[{"type":"output_text","text":""}]}'
)
ACTIVITY_SHARE = 8  # one activity takes at most this part of the allowance when room is short


class Reason(StrEnum):
    """Why an item is in or out."""

    EVERYTHING_FITS = "everything fits"
    NEWEST_REQUEST = "newest request"
    NEWEST_ANSWER = "newest answer"
    ORIGINAL_REQUEST = "original request"
    RECENT = "recent"
    NO_ROOM = "no room left"
    TOO_LONG = "longer than all the room there was"


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen item; `limit` is the bytes its body may take where it is abridged, else None."""

    ref: ItemRef
    reason: Reason
    limit: int | None = None

    @property
    def cost(self) -> int:
        """Bytes reserved for it in the attributed text."""
        return self.ref.cost if self.limit is None else self.ref.frame + self.limit

    @property
    def items_cost(self) -> int:
        """Bytes reserved for it in the serialised native items; a message goes without attribution."""
        bare = self.ref.kind.is_message and self.ref.body
        return ENVELOPE_BYTES + (self.ref.body if bare else self.cost)


class Omission(NamedTuple):
    """An item that stays behind, and why."""

    ref: ItemRef
    reason: Reason


@dataclass(frozen=True, slots=True)
class Selection:
    """What travels and what does not, in the conversation's order."""

    choices: tuple[Choice, ...]
    omissions: tuple[Omission, ...]
    coverage: Coverage
    preamble: Preamble | None


def select(state: ThreadState, thread_id: str, allowance: int) -> Selection:
    """Choose what of `state` travels within `allowance` bytes.

    Raises:
        ReferencesDoNotFitError: not even the one-line pointer to the history fits (R12).
    """
    if not state.items:
        return Selection((), (), _coverage(state, ()), None)
    preamble = plan_preamble(thread_id, state.through, state.items, allowance)
    if preamble.reserve > allowance:
        raise ReferencesDoNotFitError(
            f"Not even the reference to the earlier conversation fits: it needs {preamble.reserve} "
            f"bytes and {allowance} are left. Compact the target conversation, or pick a model with "
            "a larger context window.",
            needed=preamble.reserve,
            available=allowance,
        )
    room = _Room(text=allowance - preamble.reserve, items=CEILING - preamble.items_reserve)
    choices = _everything(state, room) or _by_priority(state, room, allowance)
    ordered = tuple(sorted(choices, key=lambda choice: choice.ref.position))
    omissions = tuple(_omitted(state, ordered, allowance - preamble.reserve))
    return Selection(ordered, omissions, _coverage(state, ordered), preamble)


@dataclass(slots=True)
class _Room:
    """Bytes left in each of the two deliveries."""

    text: int
    items: int

    def fits(self, choice: Choice) -> bool:
        return choice.cost <= self.text and choice.items_cost <= self.items

    def take(self, choice: Choice) -> None:
        self.text -= choice.cost
        self.items -= choice.items_cost

    @property
    def largest(self) -> int:
        return min(self.text, self.items - ENVELOPE_BYTES)


def _everything(state: ThreadState, room: _Room) -> tuple[Choice, ...]:
    """Return all items if all are kept and fit, else nothing."""
    if len(state.window) != state.items or sum(ref.body for ref in state.window) > room.text:
        return ()
    choices = tuple(Choice(ref, Reason.EVERYTHING_FITS) for ref in state.window)
    text = sum(choice.cost for choice in choices)
    items = sum(choice.items_cost for choice in choices)
    return choices if text <= room.text and items <= room.items else ()


def _by_priority(state: ThreadState, room: _Room, allowance: int) -> list[Choice]:
    choices: list[Choice] = []
    taken: set[int] = set()
    for ref, reason in (
        (state.last_request, Reason.NEWEST_REQUEST),
        (state.last_answer, Reason.NEWEST_ANSWER),
        (state.first_request, Reason.ORIGINAL_REQUEST),
    ):
        if ref is None or ref.position in taken:
            continue
        choice = Choice(ref, reason)
        if room.fits(choice):
            room.take(choice)
            taken.add(ref.position)
            choices.append(choice)
    share = max(ABRIDGED_BYTES, allowance // ACTIVITY_SHARE)
    for ref in reversed(state.window):
        if ref.position in taken or ref.least > room.text:
            continue
        fitted = _fit(ref, room, share)
        if fitted is not None:
            room.take(fitted)
            choices.append(fitted)
    return [_widen(choice, room) for choice in choices]


def _widen(choice: Choice, room: _Room) -> Choice:
    """Give an abridged item what room is left over, the newest item first."""
    if choice.limit is None:
        return choice
    extra = min(room.text, room.items, choice.ref.body - choice.limit)
    if extra <= 0:
        return choice
    room.text -= extra
    room.items -= extra
    limit = choice.limit + extra
    return replace(choice, limit=limit if limit < choice.ref.body else None)


def _fit(ref: ItemRef, room: _Room, share: int) -> Choice | None:
    """Return how `ref` travels in the room that is left, or None."""
    if ref.kind.is_message or ref.cost <= share:
        whole = Choice(ref, Reason.RECENT)
        if room.fits(whole):
            return whole
        if ref.kind.is_message:
            return None
    if min(ref.cost, share, room.largest) < ABRIDGED_BYTES:
        return None
    return Choice(ref, Reason.RECENT, limit=min(share, room.largest) - ref.frame)


def _omitted(state: ThreadState, choices: tuple[Choice, ...], available: int) -> Iterator[Omission]:
    chosen = {choice.ref.position for choice in choices}
    for ref in state.kept:
        if ref.position not in chosen:
            reason = Reason.TOO_LONG if ref.least > available else Reason.NO_ROOM
            yield Omission(ref, reason)


def _coverage(state: ThreadState, choices: tuple[Choice, ...]) -> Coverage:
    """Return the ranges of positions that travel and those that do not."""
    chosen = {choice.ref.position for choice in choices}
    selected, omitted = _runs(_segments(state, chosen))
    return Coverage(
        through=state.through,
        selected_items=len(chosen),
        omitted_items=state.items - len(chosen),
        selected=selected,
        omitted=omitted,
        abridged=tuple(choice.ref.position for choice in choices if choice.limit is not None),
    )


def _runs(
    segments: Iterable[tuple[int, int, bool]],
) -> tuple[tuple[PositionRange, ...], tuple[PositionRange, ...]]:
    """Return maximal runs of what is chosen, and of what is not, as position ranges."""
    runs: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    previous: bool | None = None
    for first, last, chosen in segments:
        same = runs[chosen]
        if chosen is previous:
            same[-1] = (same[-1][0], last)
        else:
            same.append((first, last))
        previous = chosen
    selected, omitted = (
        tuple(PositionRange(first=first, last=last) for first, last in runs[chosen])
        for chosen in (True, False)
    )
    return selected, omitted


def _segments(state: ThreadState, chosen: set[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield (first, last, chosen) for each kept item, and for each stretch that is kept no more."""
    beside = [ref for ref in state.kept if ref.position <= state.evicted]
    unknown = state.items - len(beside) - len(state.window)
    start = state.first_position
    for ref in beside:
        if unknown and start < ref.position:
            yield start, ref.position - 1, False
        yield ref.position, ref.position, ref.position in chosen
        start = ref.position + 1
    if unknown and start <= state.evicted:
        yield start, state.evicted, False
    for ref in state.window:
        yield ref.position, ref.position, ref.position in chosen
