"""Chaos: `python -m tests.chaos --seconds 60 --seed 1`, from the repository's root.

Workers and the server are killed under load. Every request that was accepted has to get one result,
published once; if not, the exit status is 1.
"""

from __future__ import annotations

import asyncio
import random

import click
from rich.console import Console

from .run import Chaos


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seconds", default=30.0, type=click.FloatRange(1, 3_600), help="of trouble, about")
@click.option("--seed", type=int, help="of what happens when; random if not given")
@click.option("--workers", default=3, type=click.IntRange(1, 16), help="worker processes")
@click.option("--producers", default=8, type=click.IntRange(1, 64), help="sessions at once")
@click.option(
    "--fsync",
    default="always",
    type=click.Choice(["always", "everysec", "no"]),
    help="appendfsync of the server",
)
def main(seconds: float, seed: int | None, workers: int, producers: int, fsync: str) -> None:
    """Kill workers and the server under load, and count what was lost or published twice."""
    chosen = random.randrange(10**6) if seed is None else seed
    console = Console()
    console.print(f"seed {chosen}, {seconds:g} s, {workers} workers, appendfsync {fsync}")
    chaos = Chaos(workers=workers, fsync=fsync, seed=chosen)
    verdict = asyncio.run(chaos.run(seconds, producers))
    console.print(verdict.table())
    raise SystemExit(0 if verdict.stands else 1)


if __name__ == "__main__":
    main()
