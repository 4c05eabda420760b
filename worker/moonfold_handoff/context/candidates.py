"""With whom a thread goes on: the first candidate that is available and has the room, and why not others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.context.planning import Plan
from moonfold_handoff.errors import NoTargetYetError, ReferencesDoNotFitError
from moonfold_schemas.requests import Target
from moonfold_schemas.results import PassedOver, PassedOverReason


@dataclass(frozen=True, slots=True)
class Decision:
    """What a thread goes on with, and the candidates before it with the reasons."""

    plan: Plan
    passed_over: tuple[PassedOver, ...]


def decide(
    candidates: Iterable[Target],
    offer: Callable[[Target], Plan],
    *,
    left: Instance | None,
    notices: Mapping[Instance, Notice],
) -> Decision:
    """Return the first candidate that is available and whose allowance holds the must-haves.

    Where none holds them, the first that holds the references: a message longer than every allowance
    must not stop the thread.

    Args:
        candidates: where the thread may go on, the first choice first.
        offer: what the handoff to a target would be; it may raise `ReferencesDoNotFitError`.
        left: the instance that the thread leaves, which cannot be where it goes on.
        notices: what is known of used-up instances.

    Raises:
        NoTargetYetError: none is left, and a limit is among the reasons.
        ReferencesDoNotFitError: none is left, for want of room alone.
    """
    passed_over: list[PassedOver] = []
    scant: Decision | None = None
    no_room: ReferencesDoNotFitError | None = None
    for target in candidates:
        refusal = _at_its_limit(target, left, notices.get(Instance.of(target)))
        if refusal is None:
            try:
                plan = offer(target)
            except ReferencesDoNotFitError as error:
                no_room = error
                refusal = _without_room(target, str(error), error.needed, error.available)
            else:
                decision = Decision(plan, tuple(passed_over))
                lacking = plan.lacking
                if lacking is None:
                    return decision
                scant = scant or decision
                refusal = _without_must_haves(plan, lacking)
        passed_over.append(refusal)
    if scant is not None:
        return scant
    raise _none_left(passed_over, no_room)


def _at_its_limit(
    target: Target, left: Instance | None, notice: Notice | None
) -> PassedOver | None:
    """Return why a target is not available, or None if it is."""
    until = None if notice is None else notice.resets_at
    if Instance.of(target) == left:
        message = "The thread leaves it: its limit is reached, or near."
    elif notice is None:
        return None
    elif until is None:
        message = f"It is at its limit ({notice.kind}); nobody knows until when."
    else:
        message = f"It is at its limit ({notice.kind}) until {clock(until)}."
    return PassedOver(
        target=target, reason=PassedOverReason.AT_ITS_LIMIT, message=message, until=until
    )


def _without_must_haves(plan: Plan, needed: int) -> PassedOver:
    available = plan.budget.allowance
    message = (
        "There is no room for the newest request, the newest answer, the original request and what is "
        f"not answered yet: they need {needed} bytes and {available} are left."
    )
    return _without_room(plan.target, message, needed, available)


def _without_room(
    target: Target, message: str, needed: int | None, available: int | None
) -> PassedOver:
    return PassedOver(
        target=target,
        reason=PassedOverReason.NO_ROOM,
        message=message,
        needed=needed,
        available=available,
    )


def _none_left(
    passed_over: list[PassedOver], no_room: ReferencesDoNotFitError | None
) -> NoTargetYetError | ReferencesDoNotFitError:
    """Return why there is no target: room, which no time will make, or limits, which end."""
    limited = [one for one in passed_over if one.reason is PassedOverReason.AT_ITS_LIMIT]
    if no_room is not None and not limited:
        return ReferencesDoNotFitError(
            str(no_room),
            needed=no_room.needed,
            available=no_room.available,
            passed_over=tuple(passed_over),
        )
    resets = [one.until for one in limited if one.until is not None]
    resets_at = min(resets, default=None)
    known = (
        f"the first is available again at {clock(resets_at)}" if resets_at else "nobody knows when"
    )
    return NoTargetYetError(
        f"None of {len(passed_over)} candidates can take the thread now; {known}.",
        resets_at=resets_at,
        passed_over=tuple(passed_over),
    )


def clock(time: datetime) -> str:
    """Return a time as messages say it, in UTC and to the minute."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
