"""Benchmarks: `python -m tests.benchmarks`, from the repository's root.

They print figures beside the bars the project has set itself, and fail only if something is broken.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import append, forks, latency, memory, own_text, reading, size, throughput, watching
from .figures import Figure, Series, combine, table
from .servers import server

BENCHMARKS: dict[str, tuple[Callable[..., list[Figure]], tuple[str, ...]]] = {
    "latency": (latency.measure, ("requests", "stock_requests")),
    "throughput": (throughput.measure, ("seconds", "clients", "in_flight")),
    "append": (append.measure, ("events", "batch")),
    "size": (size.measure, ("items", "builds")),
    "memory": (memory.measure, ("threads", "thread_items")),
    "own_text": (own_text.measure, ()),
    "forks": (forks.measure, ()),
    "reading": (reading.measure, ("items", "reads")),
    "watching": (watching.measure, ("sessions", "megabytes")),
}
"""What measures each, and which options it takes."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--runs", default=1, type=click.IntRange(1, 50), help="how often each is measured")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="for machines"
)
@click.option("--requests", default=300, type=click.IntRange(10, 20_000), help="latency: requests")
@click.option(
    "--stock-requests", default=40, type=click.IntRange(2, 2_000), help="latency: to stock arq"
)
@click.option("--seconds", default=6.0, type=click.FloatRange(1, 120), help="throughput: duration")
@click.option(
    "--clients", default=2, type=click.IntRange(1, 16), help="throughput: client processes"
)
@click.option("--in-flight", default=50, type=click.IntRange(1, 1_000), help="throughput: at once")
@click.option("--events", default=50_000, type=click.IntRange(1_000, 1_000_000), help="append")
@click.option("--batch", default=500, type=click.IntRange(1, 10_000), help="append: events a call")
@click.option(
    "--items", default=100_000, type=click.IntRange(1_000, 1_000_000), help="size, reading: long"
)
@click.option("--builds", default=200, type=click.IntRange(10, 10_000), help="size: of each thread")
@click.option("--reads", default=200, type=click.IntRange(10, 10_000), help="reading: of each kind")
@click.option("--threads", default=50, type=click.IntRange(1, 1_000), help="memory: threads")
@click.option(
    "--thread-items",
    default=1_000,
    type=click.IntRange(100, 100_000),
    help="memory: of each thread",
)
@click.option("--sessions", default=20, type=click.IntRange(1, 1_000), help="watching: sessions")
@click.option(
    "--megabytes", default=100, type=click.IntRange(1, 10_000), help="watching: large one"
)
def main(names: tuple[str, ...], runs: int, file: Path | None, **options: Any) -> None:
    """Measure NAMES, or everything: each is a figure beside its bar."""
    console, load = Console(), os.getloadavg()
    series: list[Series] = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not os.isatty(2),
    )
    with progress:
        for name, (measure, wanted) in BENCHMARKS.items():
            if names and name not in names:
                continue
            chosen = {option: options[option] for option in wanted}
            task = progress.add_task(name, total=runs)
            measured = []
            for run in range(runs):
                advance = partial(_advance, progress, task, run)
                measured.append(measure(advance, **chosen))
                progress.update(task, completed=run + 1)
            series += combine(name, measured)
    about = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "server": _server_version(),
        "runs": runs,
        "load_before": round(load[0], 2),
        "load_after": round(os.getloadavg()[0], 2),
    }
    console.print(table(series, runs))
    console.print(
        "{python}, {system}, {cpus} processors, {server}; runs: {runs}; "
        "load {load_before} before, {load_after} after".format(**about),
        highlight=False,
    )
    if file is not None:
        document = {**about, "options": options, "figures": [one.document() for one in series]}
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _advance(progress: Progress, task: Any, run: int, share: float) -> None:
    progress.update(task, completed=run + share)


def _server_version() -> str:
    with server() as own:
        return own.version


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks")
