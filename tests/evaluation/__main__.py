"""Evaluation: `python -m tests.evaluation`, from the repository's root. No model, always the same figures.

Real sessions are cut at many points. What the twelve items after a cut speak of, and the session spoke of
before, is needed next; the recall of a handoff built at the cut is the share of it that it carries.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import report
from .measure import CAPS, MAX_CUTS, Result, cut_points, measure_session
from .plot import PlotError, check_plot, write_plot
from .sessions import LeftOut, corpus_files, read_sessions
from .systems import BASELINES, OURS, BrokenError, System, load_policy, policy_system


def _caps(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        caps = sorted({int(part.replace("_", "")) for part in value.split(",")})
    except ValueError:
        raise click.BadParameter("give whole numbers, separated by commas") from None
    if caps[0] < 1:
        raise click.BadParameter("a cap is at least 1")
    return tuple(caps)


def _policies(
    _context: click.Context, _option: click.Parameter, value: tuple[str, ...]
) -> list[System]:
    systems = []
    for name, reference in [("ours", OURS), *((reference, reference) for reference in value)]:
        try:
            systems.append(policy_system(name, load_policy(reference)))
        except (ValueError, TypeError) as error:
            raise click.BadParameter(str(error)) from None
    return systems


def _plot(_context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    try:
        if value is not None:
            check_plot(value)
    except PlotError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="MODULE:FUNCTION",
    callback=_policies,
    help="another selection policy to compare, called like selection.select; repeatable",
)
@click.option(
    "--caps", default=",".join(map(str, CAPS)), callback=_caps, help="separated by commas"
)
@click.option("--cuts", default=MAX_CUTS, type=click.IntRange(1, 10_000), help="at most, a session")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="for machines"
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_plot,
    help="recall over the cap, as .svg or .png",
)
def main(
    *,
    files: tuple[Path, ...],
    policies: list[System],
    caps: tuple[int, ...],
    cuts: int,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Measure what handoffs carry of what is needed next, in FILES or the whole corpus."""
    started = time.perf_counter()
    console = Console()
    result, left_out = _measure(files, (*BASELINES, *policies), caps, cuts)
    for reason in dict.fromkeys(one.reason for one in left_out):
        names = ", ".join(one.name for one in left_out if one.reason == reason)
        console.print(f"Left out: {names}. {reason}", highlight=False, markup=False)
    if not result.sessions:
        console.print("No session is long enough to measure.")
        return
    _print(console, result)
    console.print(
        f"{len(result.sessions)} sessions, {result.cuts} cuts, {time.perf_counter() - started:.1f} s",
        highlight=False,
    )
    if json_file is not None:
        document: dict[str, Any] = {
            **report.document(result),
            "left_out": [one._asdict() for one in left_out],
        }
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if plot is not None:
        write_plot(plot, result)


def _measure(
    files: tuple[Path, ...], systems: tuple[System, ...], caps: tuple[int, ...], cuts: int
) -> tuple[Result, list[LeftOut]]:
    found, absent = (list(files), []) if files else corpus_files()
    sessions, left_out = read_sessions(found)
    points = [cut_points(len(session.items), cuts) for session in sessions]
    results = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not os.isatty(2),
        transient=True,
    )
    with progress:
        task = progress.add_task("cuts", total=sum(map(len, points)))
        for session, chosen in zip(sessions, points, strict=True):
            try:
                measured = measure_session(
                    session, systems, caps, chosen, lambda: progress.advance(task)
                )
            except BrokenError as error:
                raise click.ClickException(f"Broken: {error}") from None
            if measured is None:
                left_out.append(LeftOut(session.name, "Nothing is needed at any cut."))
            else:
                results.append(measured)
    return Result(tuple(results), systems, caps), [*absent, *left_out]


def _print(console: Console, result: Result) -> None:
    console.print(report.recall_table(result))
    console.print(report.session_table(result))
    console.print(report.worst_table(result))
    for system in result.systems:
        if system.is_policy:
            console.print(report.missing_table(result, "misses", system.name))
            console.print(report.missing_table(result, "ages", system.name))
    console.print(report.bar_table(result))


if __name__ == "__main__":
    main(prog_name="python -m tests.evaluation")
