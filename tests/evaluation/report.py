"""What is printed of a result, and the bars that the project has set itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.table import Table

from .measure import Result

RATIO_BARS = {4_000: 2.8, 16_000: 1.2, 64_000: 1.08}  # at a cap, times the first baseline
WORST_POINTS = 2  # no session may be further below the first baseline at any cap
WORST_SHOWN = 12
PARTS_SHOWN = 9


class Bar(NamedTuple):
    """A bar for a policy; `met` is None where it was not measured."""

    policy: str
    name: str
    measured: str
    met: bool | None


class Difference(NamedTuple):
    """How many points of recall a policy is from the first baseline in one session."""

    policy: str
    session: str
    cap: int
    baseline: float
    recall: float

    @property
    def points(self) -> float:
        return (self.recall - self.baseline) * 100


def ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def differences(result: Result) -> list[Difference]:
    """Return the policies' differences from the first baseline, the worst first."""
    baseline = result.systems[0].name
    found = [
        Difference(
            system.name,
            one.session.name,
            cap,
            one.measured[baseline, cap].recall,
            one.measured[system.name, cap].recall,
        )
        for system in result.systems
        if system.is_policy
        for one in result.sessions
        for cap in result.caps
    ]
    return sorted(found, key=lambda difference: difference.points)


def bars(result: Result) -> Iterator[Bar]:
    baseline, gaps = result.systems[0].name, differences(result)
    for system in result.systems:
        if not system.is_policy:
            continue
        for cap, least in RATIO_BARS.items():
            name = f"at {cap:,}: ≥ {least} × {baseline}"
            if cap not in result.caps:
                yield Bar(system.name, name, "not measured", None)
                continue
            reached = ratio(result.recall(system.name, cap), result.recall(baseline, cap))
            of_sessions = ratio(
                result.recall_of_sessions(system.name, cap),
                result.recall_of_sessions(baseline, cap),
            )
            shown = f"{_times(reached)} ({_times(of_sessions)} with every session counted once)"
            yield Bar(system.name, name, shown, reached is None or reached >= least)
        worst = next(gap for gap in gaps if gap.policy == system.name)
        yield Bar(
            system.name,
            f"no session more than {WORST_POINTS} points below it at any cap",
            f"{worst.points:+.1f} at {worst.cap:,}, {worst.session}",
            worst.points >= -WORST_POINTS,
        )


def _times(reached: float | None) -> str:
    return "∞" if reached is None else f"{reached:.2f} ×"


def recall_table(result: Result) -> Table:
    table = Table(title="Recall of what is needed next", title_justify="left")
    table.add_column("cap", justify="right")
    baseline = result.systems[0].name
    for system in result.systems:
        table.add_column(system.name, justify="right")
        if system.name != baseline:
            table.add_column("×", justify="right")
        if system.is_policy:
            table.add_column("used", justify="right")
    for cap in result.caps:
        row = [f"{cap:,}"]
        base = result.recall(baseline, cap)
        for system in result.systems:
            value = result.recall(system.name, cap)
            row.append(f"{value:.3f}")
            if system.name != baseline:
                reached = ratio(value, base)
                row.append("∞" if reached is None else f"{reached:.2f}")
            if system.is_policy:
                row.append(f"{result.used(system.name, cap):.0%}")
        table.add_row(*row)
    return table


def session_table(result: Result) -> Table:
    """Return each session's recall: the first baseline's and each policy's."""
    shown = [s.name for s in result.systems if s.is_policy or s is result.systems[0]]
    table = Table(title=f"By session: {' / '.join(shown)}", title_justify="left")
    table.add_column("session", overflow="fold")
    for name in ("items", "cuts", "needed"):
        table.add_column(name, justify="right")
    for cap in result.caps:
        table.add_column(f"{cap:,}", justify="right")
    for one in result.sessions:
        recalls = (
            " / ".join(f"{one.measured[name, cap].recall * 100:.0f}" for name in shown)
            for cap in result.caps
        )
        table.add_row(
            one.session.name,
            str(len(one.session.items)),
            str(one.cuts),
            f"{one.needed:.0f}",
            *recalls,
        )
    return table


def worst_table(result: Result) -> Table:
    baseline = result.systems[0].name
    table = Table(title=f"Worst differences from {baseline}, in points", title_justify="left")
    table.add_column("policy")
    table.add_column("session", overflow="fold")
    for name in ("cap", baseline, "policy's", "points"):
        table.add_column(name, justify="right")
    for gap in differences(result)[:WORST_SHOWN]:
        table.add_row(
            gap.policy,
            gap.session,
            f"{gap.cap:,}",
            f"{gap.baseline:.3f}",
            f"{gap.recall:.3f}",
            f"[{'red' if gap.points < -WORST_POINTS else 'default'}]{gap.points:+.1f}[/]",
        )
    return table


def missing_table(result: Result, which: str, policy: str) -> Table:
    """Return where what is missing was last mentioned, in points of recall."""
    columns = [result.breakdown(which, policy, cap) for cap in result.caps]
    names = sorted({name for parts in columns for name in parts})
    names.sort(key=lambda name: -sum(parts.get(name, 0.0) for parts in columns))
    about = {"misses": "newest mention, what became of it", "ages": "newest mention"}[which]
    table = Table(title=f"Recall that {policy} misses, in points", title_justify="left")
    table.add_column(about)
    for cap in result.caps:
        table.add_column(f"{cap:,}", justify="right")
    for name in names[:PARTS_SHOWN]:
        points = (parts.get(name, 0.0) * 100 for parts in columns)
        table.add_row(name, *(f"{value:.1f}" if value >= 0.05 else "" for value in points))
    return table


def bar_table(result: Result) -> Table:
    table = Table(title="Bars", title_justify="left")
    for name in ("policy", "bar", "measured", "met"):
        table.add_column(name, overflow="fold")
    shown = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}
    for bar in bars(result):
        table.add_row(bar.policy, bar.name, bar.measured, shown[bar.met])
    return table


def document(result: Result) -> dict[str, Any]:
    """Return everything as JSON has it."""
    return {
        "caps": result.caps,
        "systems": [
            {
                "name": system.name,
                "recall": {str(cap): result.recall(system.name, cap) for cap in result.caps},
                "recall_of_sessions": {
                    str(cap): result.recall_of_sessions(system.name, cap) for cap in result.caps
                },
                "used": {str(cap): result.used(system.name, cap) for cap in result.caps},
                "misses": {
                    str(cap): result.breakdown("misses", system.name, cap) for cap in result.caps
                },
                "ages": {
                    str(cap): result.breakdown("ages", system.name, cap) for cap in result.caps
                },
            }
            for system in result.systems
        ],
        "sessions": [
            {
                "name": one.session.name,
                "items": len(one.session.items),
                "cuts": one.cuts,
                "needed": one.needed,
                "recall": {
                    system.name: {
                        str(cap): one.measured[system.name, cap].recall for cap in result.caps
                    }
                    for system in result.systems
                },
            }
            for one in result.sessions
        ],
        "bars": [bar._asdict() for bar in bars(result)],
    }
