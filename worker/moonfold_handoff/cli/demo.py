"""`moonfold demo`."""

from __future__ import annotations

import asyncio
from importlib import resources

import click

from moonfold_handoff.cli import show
from moonfold_handoff.cli.handoff import MOST, exit_unless_ready
from moonfold_handoff.settings import Settings
from moonfold_handoff.transcripts import sessions_in
from moonfold_handoff.transfer import transfer
from moonfold_schemas import NewRequest, Target
from moonfold_schemas.results import HandoffReady

RECORDING = "recorded-2.1-slugger-limit.jsonl"
NEXT_REQUEST = "Go on: write the README section and tag v0.1.0."
CODEX_VERSION = "0.171.0"


@click.command()
@click.option("--cap", type=click.IntRange(1, MOST), help="Most tokens of history (1,024-64,000).")
@click.pass_obj
def demo(settings: Settings, cap: int | None) -> None:
    """Show a handoff: a recorded Claude Code session hits its limit, Codex goes on.

    Everything is real: the server, the queue, the worker, and the session, which was recorded with
    Claude Code 2.1 until a usage limit stopped it.
    """
    with resources.as_file(resources.files("moonfold_handoff.demo") / RECORDING) as path:
        # An account of its own, so that nothing known of the person's accounts stands against it.
        target = Target(provider="codex", instance="demo", version=CODEX_VERSION)
        with show.progress("Starting the server and a worker") as progress:
            outcome = asyncio.run(
                transfer(
                    settings,
                    sessions_in(path)[0],
                    target,
                    request=NewRequest(text=NEXT_REQUEST),
                    token_cap=cap,
                    at_its_limit=True,
                    progress=progress,
                )
            )
    if isinstance(outcome.result, HandoffReady):
        show.ready(outcome, outcome.result)
        show.next_steps()
    exit_unless_ready(outcome)
