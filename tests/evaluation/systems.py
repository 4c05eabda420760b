"""What is compared: two baselines that carry whole items newest first, and selection policies."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from moonfold_handoff.context.budget import CEILING
from moonfold_handoff.context.preamble import plan_preamble
from moonfold_handoff.context.rendering import render
from moonfold_handoff.context.selection import Selection
from moonfold_handoff.context.state import ThreadState
from moonfold_handoff.errors import ReferencesDoNotFitError
from moonfold_schemas.items import AssistantMessage, FileChange, UserMessage

from .identifiers import identifiers
from .sessions import Travelling

SEED = b"evaluation"
WHOLE_ATTRIBUTION = 360  # bytes that the best-known system charges an item
WHOLE_PREAMBLE = 1_134  # bytes of its preamble

OURS = "moonfold_handoff.context.selection:select"


class BrokenError(Exception):
    """A system did what it must not do."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A cut: what is known there, and what the next items speak of."""

    thread_id: str
    items: tuple[Travelling, ...]
    state: ThreadState
    needed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a handoff shows. `abridged` positions are among `positions`; `cost` is what it charges."""

    identifiers: frozenset[str] = frozenset()
    positions: frozenset[int] = frozenset()
    abridged: frozenset[int] = frozenset()
    cost: int = 0


Policy = Callable[[ThreadState, str, int], Selection]
"""Chooses from a state, for a thread id, within an allowance in bytes: like `selection.select`."""


@dataclass(frozen=True, slots=True)
class System:
    name: str
    carry: Callable[[Moment, int], Carried]
    is_policy: bool = False


def whole_360(moment: Moment, cap: int) -> Carried:
    """Carry whole items with heavy attribution; a file change is only its name."""

    def text(item: Travelling) -> str:
        return item.item.path if isinstance(item.item, FileChange) else item.text

    priced = [
        (one, text(one), WHOLE_ATTRIBUTION + _json_bytes(text(one))) for one in _by_recency(moment)
    ]
    return _whole(priced, WHOLE_PREAMBLE, cap)


def own_attribution(moment: Moment, cap: int) -> Carried:
    """Carry whole items, at what we charge for them."""
    state = moment.state
    preamble = plan_preamble(moment.thread_id, state.through, state.items, cap)
    priced = [(one, one.text, one.ref.cost) for one in _by_recency(moment)]
    return _whole(priced, preamble.reserve, cap)


def policy_system(name: str, policy: Policy) -> System:
    """Return `policy` as a system: selected from the bounded state, rendered, read as it is shown.

    Its handoffs raise `BrokenError` where they cost more than they may.
    """

    def carry(moment: Moment, cap: int) -> Carried:
        try:
            selection = policy(moment.state, moment.thread_id, cap)
        except ReferencesDoNotFitError:
            return Carried()
        contents = {item.position: item.item for item in moment.items}
        rendering = render(selection, contents, SEED)
        cost = _json_bytes(rendering.text)
        if cost > cap or rendering.items_bytes > CEILING:
            raise BrokenError(
                f"{name} costs {cost:,} of {cap:,} bytes, {rendering.items_bytes:,} as items, "
                f"after {len(moment.items)} items of {moment.thread_id}."
            )
        return Carried(
            frozenset[str]().union(*map(identifiers, _shown(rendering.text))),
            frozenset(choice.ref.position for choice in selection.choices),
            frozenset(selection.coverage.abridged),
            cost,
        )

    return System(name, carry, is_policy=True)


def load_policy(reference: str) -> Policy:
    """Return the policy that `module:function` names.

    Raises:
        ValueError: there is no such thing.
        TypeError: it cannot be called.
    """
    module, colon, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Cannot load {reference}: {error}.") from error
    if not callable(found):
        raise TypeError(f"{reference} is no function; give it as module:function.")
    policy: Policy = found
    return policy


BASELINES = (System("whole, 360", whole_360), System("own attribution", own_attribution))


def _by_recency(moment: Moment) -> list[Travelling]:
    """Return the latest request, the latest answer, then everything else, newest first."""
    newest = list(reversed(moment.items))
    request = next((one for one in newest if isinstance(one.item, UserMessage)), None)
    answer = next((o for o in newest if isinstance(o.item, AssistantMessage) and o.text), None)
    first = [one for one in (request, answer) if one is not None]
    return [*first, *(one for one in newest if one not in first)]


def _whole(priced: Iterable[tuple[Travelling, str, int]], preamble: int, cap: int) -> Carried:
    room = cap - preamble
    found: set[str] = set()
    positions: set[int] = set()
    for one, text, price in priced:
        if price <= room:
            room -= price
            found |= identifiers(text)
            positions.add(one.position)
    return Carried(frozenset(found), frozenset(positions), cost=cap - room if positions else 0)


def _shown(text: str) -> Iterator[str]:
    """Yield what a handoff shows of the conversation: without preamble and marks."""
    mark = re.match(r"\[(\w+)\]", text)
    if mark is None:
        return
    for block in text.split(f"\n[{mark[1]} ")[1:]:
        label, _, shown = block.partition("]\n")
        yield label
        yield shown


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
