"""What a benchmark yields: figures, some with a bar, and the table they are shown in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

Advance = Callable[[float], None]
"""Told the share of a benchmark that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. With a bar, it is to be at most or at least so much."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bar(self) -> str:
        if self.at_most is not None:
            return f"≤ {_number(self.at_most)} {self.unit}".rstrip()
        if self.at_least is not None:
            return f"≥ {_number(self.at_least)} {self.unit}".rstrip()
        return ""


@dataclass(frozen=True, slots=True)
class Series:
    """The same figure of every run of a benchmark."""

    benchmark: str
    first: Figure
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the bar; None without one."""
        if self.first.at_most is not None:
            return self.median <= self.first.at_most
        if self.first.at_least is not None:
            return self.median >= self.first.at_least
        return None

    def document(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "name": self.first.name,
            "unit": self.first.unit,
            "median": self.median,
            "values": self.values,
            "at_most": self.first.at_most,
            "at_least": self.first.at_least,
            "met": self.met,
        }


def combine(benchmark: str, runs: Sequence[Sequence[Figure]]) -> list[Series]:
    return [
        Series(benchmark, figures[0], tuple(figure.value for figure in figures))
        for figures in zip(*runs, strict=True)
    ]


def table(series: Sequence[Series], runs: int) -> Table:
    shown = Table("benchmark", "figure")
    shown.add_column("median" if runs > 1 else "measured", justify="right")
    if runs > 1:
        shown.add_column("least – most", justify="right")
    shown.add_column("bar", justify="right")
    shown.add_column("met")
    previous = None
    for one in series:
        if previous not in {None, one.benchmark}:
            shown.add_section()
        spread = [f"{_number(min(one.values))} – {_number(max(one.values))}"] if runs > 1 else []
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[one.met]
        shown.add_row(
            one.benchmark if one.benchmark != previous else "",
            one.first.name,
            f"{_number(one.median)} {one.first.unit}".rstrip(),
            *spread,
            one.first.bar,
            met,
        )
        previous = one.benchmark
    return shown


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}"
