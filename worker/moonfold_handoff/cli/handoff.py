"""`moonfold handoff`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from moonfold_handoff.cli import show
from moonfold_handoff.delivery.programs import PROGRAMS
from moonfold_handoff.settings import Settings
from moonfold_handoff.transcripts import sessions_in
from moonfold_handoff.transfer import Transfer, transfer
from moonfold_schemas import NewRequest, Target, encode
from moonfold_schemas.results import HandoffFailed, HandoffReady

MOST = 1_000_000_000  # tokens that a figure on the command line may name


@click.command()
@click.argument(
    "file", metavar="SESSION", type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("--to", "provider", type=click.Choice(list(PROGRAMS)), required=True)
@click.option("--request", "text", help="What you want next; it stays separate from the history.")
@click.option("--cap", type=click.IntRange(1, MOST), help="Most tokens of history (1,024-64,000).")
@click.option("--model", help="The model that goes on.")
@click.option("--capacity", type=click.IntRange(1, MOST), help="Its context window in tokens.")
@click.option("--agent-version", help="Version of the agent that goes on; asked of it by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, nothing else.")
@click.option("--text", "as_text", is_flag=True, help="Print the history as text, nothing else.")
@click.pass_obj
def handoff(
    settings: Settings,
    *,
    file: Path,
    provider: str,
    text: str | None,
    cap: int | None,
    model: str | None,
    capacity: int | None,
    agent_version: str | None,
    as_json: bool,
    as_text: bool,
) -> None:
    """Build the handoff of a SESSION file for another provider.

    SESSION is a session file of Claude Code (~/.claude/projects/…/….jsonl). The handoff goes through
    the queue: with the embedded server this command runs a worker of its own, with
    MOONFOLD_REDIS_URL the workers there build it.
    """
    if as_json and as_text:
        raise click.UsageError("--json and --text exclude each other.")
    session = sessions_in(file)[0]
    target = Target(
        provider=provider,
        model=model,
        capacity=capacity,
        version=agent_version or PROGRAMS[provider].version(),
    )
    with show.progress("Reading the session") as progress:
        outcome = asyncio.run(
            transfer(
                settings,
                session,
                target,
                request=None if text is None else NewRequest(text=text),
                token_cap=cap,
                progress=progress,
            )
        )
    result = outcome.result
    if as_json:
        click.echo(encode(result))
    elif as_text and isinstance(result, HandoffReady):
        click.echo(result.text.encode())  # UTF-8 whatever the terminal: another program reads it
    elif isinstance(result, HandoffReady):
        show.ready(outcome, result)
    exit_unless_ready(outcome, silent=as_json)


def exit_unless_ready(outcome: Transfer, *, silent: bool = False) -> None:
    """End with status 1 and the reason where there is no handoff."""
    if isinstance(outcome.result, HandoffReady):
        return
    if not silent:
        message = getattr(outcome.result, "message", "The handoff is not ready.")
        code = outcome.result.code if isinstance(outcome.result, HandoffFailed) else "waiting"
        click.echo(f"Error: {message} ({code})", err=True)
    sys.exit(1)
