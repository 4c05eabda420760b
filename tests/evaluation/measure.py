"""The measure: of what the next items speak of and was known before, how much a handoff carries."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from moonfold_handoff.context.fold import fold
from moonfold_handoff.context.state import ThreadState

from .sessions import Session
from .systems import Carried, Moment, System

FIRST_CUT = 10  # items before the first cut
AHEAD = 12  # items after a cut that say what is needed
MAX_CUTS = 40
CAPS = (1_024, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)


@dataclass(slots=True)
class Measured:
    """One session under one system at one cap: the means over its cuts.

    Attributes:
        recall: share of the needed identifiers that is carried.
        used: share of the cap that is charged.
        misses: what lacks to a recall of 1, by the kind of the newest item that has the identifier and
            what became of that item.
        ages: the same by how many items ago that was.
    """

    recall: float = 0.0
    used: float = 0.0
    misses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ages: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True)
class SessionResult:
    session: Session
    cuts: int
    needed: float
    measured: dict[tuple[str, int], Measured]


@dataclass(frozen=True, slots=True)
class Result:
    """Every cut counts once, so a session counts by its length."""

    sessions: tuple[SessionResult, ...]
    systems: tuple[System, ...]
    caps: tuple[int, ...]

    @property
    def cuts(self) -> int:
        return sum(one.cuts for one in self.sessions)

    def recall(self, system: str, cap: int) -> float:
        return self._mean(lambda one: one.measured[system, cap].recall)

    def recall_of_sessions(self, system: str, cap: int) -> float:
        """Return the recall with every session counted once, however long it is."""
        return statistics.fmean(one.measured[system, cap].recall for one in self.sessions)

    def used(self, system: str, cap: int) -> float:
        return self._mean(lambda one: one.measured[system, cap].used)

    def breakdown(self, which: str, system: str, cap: int) -> dict[str, float]:
        """Return the mean `misses` or `ages`."""
        total: dict[str, float] = defaultdict(float)
        for one in self.sessions:
            parts: dict[str, float] = getattr(one.measured[system, cap], which)
            for name, share in parts.items():
                total[name] += share * one.cuts / self.cuts
        return total

    def _mean(self, figure: Callable[[SessionResult], float]) -> float:
        return sum(figure(one) * one.cuts for one in self.sessions) / self.cuts


def cut_points(items: int, most: int = MAX_CUTS) -> list[int]:
    """Return after how many items to cut: evenly spaced, with enough before and ahead."""
    last = items - AHEAD
    count = min(most, last - FIRST_CUT + 1)
    if count <= 0:
        return []
    if count == 1:
        return [last]
    return [FIRST_CUT + step * (last - FIRST_CUT) // (count - 1) for step in range(count)]


def moments(session: Session, cuts: Sequence[int]) -> Iterator[Moment]:
    """Yield what is known at each cut, folding the log piece by piece as a worker would."""
    state, folded = ThreadState(), 0
    for cut in cuts:
        through = session.items[cut].position - 1
        state = fold(state, session.entries[folded:through])
        folded = through
        before, ahead = session.items[:cut], session.items[cut : cut + AHEAD]
        known = frozenset[str]().union(*(item.identifiers for item in before))
        needed = frozenset[str]().union(*(item.identifiers for item in ahead)) & known
        yield Moment(session.thread_id, before, state, needed)


def measure_session(
    session: Session,
    systems: Sequence[System],
    caps: Sequence[int],
    cuts: Sequence[int],
    advance: Callable[[], None],
) -> SessionResult | None:
    """Return the session's figures, or None if nothing is needed at any cut."""
    measured = {(system.name, cap): Measured() for system in systems for cap in caps}
    counted = needed = 0
    for moment in moments(session, cuts):
        advance()
        if not moment.needed:
            continue
        counted += 1
        needed += len(moment.needed)
        latest = {name: item for item in moment.items for name in item.identifiers & moment.needed}
        ages = {item.position: age for age, item in enumerate(reversed(moment.items), start=1)}
        for system in systems:
            for cap in caps:
                carried = system.carry(moment, cap)
                figures = measured[system.name, cap]
                missing = moment.needed - carried.identifiers
                share = 1 / len(moment.needed)
                figures.recall += 1 - len(missing) * share
                figures.used += carried.cost / cap
                for name in sorted(missing):
                    kind, fate = latest[name].ref.kind, _fate(carried, latest[name].position)
                    figures.misses[f"{kind.name.lower()}, {fate}"] += share
                    figures.ages[_age(ages[latest[name].position])] += share
    if not counted:
        return None
    for figures in measured.values():
        figures.recall /= counted
        figures.used /= counted
        for parts in (figures.misses, figures.ages):
            for key in parts:
                parts[key] /= counted
    return SessionResult(session, counted, needed / counted, measured)


def _fate(carried: Carried, position: int) -> str:
    if position in carried.abridged:
        return "abridged"
    return "without its text" if position in carried.positions else "left out"


def _age(items: int) -> str:
    for first, last in ((1, 6), (7, 12), (13, 24), (25, 48)):
        if items <= last:
            return f"{first}–{last} items ago"
    return "more than 48 items ago"
