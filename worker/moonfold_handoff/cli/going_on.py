"""`moonfold continue`, and how `moonfold watch --run` starts an agent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import click

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.continuing import link
from moonfold_handoff.delivery.start import GO_ON, Start, prepare_start
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import log, results, threads
from moonfold_schemas import is_id
from moonfold_schemas.events import ThreadStarted
from moonfold_schemas.results import HandoffReady


@click.command("continue")
@click.argument("request_id")
@click.option("--request", "text", default=GO_ON, show_default=True, help="What you want next.")
@click.option("--show", is_flag=True, help="Say what would be started, and start nothing.")
@click.pass_obj
def go_on(settings: Settings, *, request_id: str, text: str, show: bool) -> None:
    """Start the agent that a handoff was made for, with its history.

    REQUEST_ID is the handoff's, as `moonfold watch` prints it. The agent starts where the conversation
    worked. Codex gets the history as messages of a new thread, every other agent as its first prompt.
    """
    if not is_id(request_id):
        raise click.BadParameter("not an identifier", param_hint="REQUEST_ID")
    sys.exit(asyncio.run(_go_on(settings, request_id, text, show=show)))


async def _go_on(settings: Settings, request_id: str, text: str, *, show: bool) -> int:
    async with HandoffClient(f"continue:{uuid.uuid4()}", settings) as client:
        services = client.services
        result = await results.get(services.redis, request_id)
        if result is None:
            raise click.ClickException(f"There is no result for request {request_id}.")
        if not isinstance(result, HandoffReady):
            message = getattr(result, "message", "") or "It is no handoff."
            raise click.ClickException(f"Request {request_id} gave no handoff: {message}")
        cwd = await worked_in(services, result)
        if show:
            where = f" in {cwd}" if cwd else ""
            click.echo(f"{result.target.provider}{where}, {result.budget.cost:,} bytes of history")
            return 0
        start = await begin(client, result, text, cwd)
    with _interrupts_are_the_agents():
        return await run(start)


async def begin(client: HandoffClient, result: HandoffReady, text: str, cwd: str | None) -> Start:
    """Make ready to start an agent: its thread is a fork of the one it goes on with.

    Raises:
        NotStartedError: the agent cannot be started.
    """
    start = await prepare_start(result, text, cwd=cwd)
    if start.conversation_id is not None and result.target.conversation_id is None:
        await link(client, result, start.conversation_id)
    return start


async def worked_in(services: Services, result: HandoffReady) -> str | None:
    """Return the folder that a handoff's conversation worked in, where that is known."""
    thread_id = result.thread_id or ""
    state = await threads.load(services.threads, thread_id, result.coverage.through)
    [begins] = await log.fetch(services.threads, [(state.holder(thread_id, 1), 1)])
    return begins.cwd if isinstance(begins, ThreadStarted) else None


async def run(start: Start) -> int:
    """Run an agent at this terminal to its end, and return its exit status."""
    if start.trouble is not None:
        click.echo(f"Warning: {start.trouble} The history goes as text.", err=True)
    if start.reader.trouble is not None:
        click.echo(f"Warning: what was left out cannot be read. {start.reader.trouble}", err=True)
    process = await asyncio.create_subprocess_exec(
        *start.arguments, cwd=start.cwd, env={**os.environ, **start.reader.environment}
    )
    return await process.wait()


@contextmanager
def _interrupts_are_the_agents() -> Iterator[None]:
    """Leave Ctrl-C to the agent, which has the terminal."""
    # Not SIG_IGN, which the agent would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
