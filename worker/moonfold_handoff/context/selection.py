"""Where an item is chosen: a budgeted selection of the conversation, never a summary (R10).

Everything goes if it fits (R1); otherwise `choosing` decides (R2, R3). The same selection serves both
deliveries (R6), so it fits both: the attributed text within the allowance, the serialised native items
within the ceiling (R15).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moonfold_handoff.context.budget import CEILING
from moonfold_handoff.context.choices import Choice, Omission, Reason, Room, items_cost, whole
from moonfold_handoff.context.choosing import choose, must_haves
from moonfold_handoff.context.pieces import least_cost
from moonfold_handoff.context.preamble import Preamble, plan_preamble
from moonfold_handoff.context.ranking import replaced
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import ReferencesDoNotFitError
from moonfold_schemas.results import Coverage, PositionRange


@dataclass(frozen=True, slots=True)
class Selection:
    """What travels, in the conversation's order.

    Attributes:
        choices: the items that go.
        coverage: which part of the history that is.
        preamble: what is said before it; None where the thread has nothing that can travel.
        available: bytes that there were for items.
    """

    choices: tuple[Choice, ...]
    coverage: Coverage
    preamble: Preamble | None
    available: int = 0


NOTHING = Selection((), Coverage(through=0, selected_items=0, omitted_items=0), None)
"""What travels where nothing has to."""


def select(
    state: ThreadState,
    thread_id: str,
    allowance: int,
    asked: str | None = None,
    tool: str | None = None,
) -> Selection:
    """Choose what of `state` travels within `allowance` bytes.

    Args:
        state: the thread.
        thread_id: how the preamble names it.
        allowance: bytes that the handoff may cost.
        asked: the text of the new request, read for the identifiers it mentions (R4: it stays apart).
        tool: what the target calls the tool that reads the rest; None where it is offered none.

    Raises:
        ReferencesDoNotFitError: not even the one-line pointer to the history fits (R12).
    """
    if not state.items:
        return Selection((), _coverage(state, ()), None)
    preamble = plan_preamble(thread_id, state.through, state.items, allowance, tool)
    if preamble.reserve > allowance:
        raise ReferencesDoNotFitError(
            f"Not even the reference to the earlier conversation fits: it needs {preamble.reserve} "
            f"bytes and {allowance} are left. Compact the target conversation, or pick a model with "
            "a larger context window.",
            needed=preamble.reserve,
            available=allowance,
        )
    room = Room(text=allowance - preamble.reserve, items=CEILING - preamble.items_reserve)
    available = room.text
    choices = _everything(state, room) or choose(state, room, allowance, asked)
    ordered = tuple(sorted(choices, key=lambda choice: choice.ref.position))
    return Selection(ordered, _coverage(state, ordered), preamble, available)


def needed_for_must_haves(state: ThreadState, selection: Selection) -> int | None:
    """Return the bytes that the preamble and all must-haves take, or None if they all travel.

    Must-haves are the newest request, requests that are not answered, the newest answer and the original
    request.

    Args:
        state: what the selection was made of.
        selection: what travels; it has a preamble unless it leaves nothing out.
    """
    if selection.preamble is None or not selection.coverage.omitted_items:
        return None
    chosen = {choice.ref.position for choice in selection.choices}
    costs = {ref.position: ref.cost for ref, _ in must_haves(state)}
    if costs.keys() <= chosen:
        return None
    return selection.preamble.reserve + sum(costs.values())


def omissions(state: ThreadState, selection: Selection) -> list[Omission]:
    """Return what stays behind of the items that were candidates, each with the reason."""
    chosen = {choice.ref.position for choice in selection.choices}
    earlier = replaced(state.window)
    left_out = []
    for ref in state.kept:
        if ref.position in chosen:
            continue
        reason = Reason.TOO_LONG if least_cost(ref) > selection.available else Reason.NO_ROOM
        if ref.position in earlier:
            reason = Reason.SUPERSEDED
        left_out.append(Omission(ref, reason))
    return left_out


def _everything(state: ThreadState, room: Room) -> list[Choice]:
    """Return all items if all are kept and fit, else nothing."""
    window = state.window
    if len(window) != state.items or sum(ref.body for ref in window) > room.text:
        return []
    if not room.take(sum(ref.cost for ref in window), sum(map(items_cost, window))):
        return []
    return [whole(ref, Reason.EVERYTHING_FITS) for ref in window]


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
        abridged=tuple(choice.ref.position for choice in choices if choice.spans),
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
