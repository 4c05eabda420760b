"""`moonfold fork`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import click

from moonfold_handoff.cli import show
from moonfold_handoff.cli.handoff import MOST
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.delivery.programs import PROGRAMS
from moonfold_handoff.settings import Settings
from moonfold_handoff.transfer import WAIT_SECONDS, NoWorkerError, worker_if_embedded
from moonfold_schemas import HandoffResult, NewRequest, Target, encode
from moonfold_schemas.requests import ForkRequested
from moonfold_schemas.results import HandoffFailed, HandoffPrepared, HandoffReady


@click.command()
@click.argument("thread_id")
@click.option("--to", "provider", type=click.Choice(list(PROGRAMS)), required=True)
@click.option("--at", type=click.IntRange(1, MOST), help="Sequence to fork at; the end by default.")
@click.option("--turn", "turn_id", help="Fork at the end of this turn.")
@click.option("--settled", is_flag=True, help="Fork at the end of the latest turn that has ended.")
@click.option("--id", "fork_id", help="Id of the new thread; made up by default.")
@click.option("--request", "text", help="What you want next; without it the fork is prepared.")
@click.option("--cap", type=click.IntRange(1, MOST), help="Most tokens of history.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, nothing else.")
@click.pass_obj
def fork(
    settings: Settings,
    *,
    thread_id: str,
    provider: str,
    at: int | None,
    turn_id: str | None,
    settled: bool,
    fork_id: str | None,
    text: str | None,
    cap: int | None,
    as_json: bool,
) -> None:
    """Fork THREAD_ID into a new thread for another provider.

    Nothing is copied: the new thread has its parent's history up to the point, whatever becomes of the
    parent. `moonfold threads` lists the threads there are.
    """
    result = asyncio.run(
        _fork(
            settings,
            thread_id,
            at,
            lambda session_id, through: ForkRequested(
                request_id=str(uuid.uuid4()),
                session_id=session_id,
                thread_id=thread_id,
                through=through,
                fork_thread_id=fork_id or str(uuid.uuid4()),
                turn_id=turn_id,
                settled=settled,
                target=Target(provider=provider),
                request=None if text is None else NewRequest(text=text),
                token_cap=cap,
            ),
        )
    )
    if as_json:
        click.echo(encode(result))
    elif isinstance(result, HandoffReady | HandoffPrepared):
        show.forked(result)
    if isinstance(result, HandoffFailed):
        raise click.ClickException(f"{result.message} ({result.code})")


async def _fork(
    settings: Settings, thread_id: str, at: int | None, make: Callable[[str, int], ForkRequested]
) -> HandoffResult:
    async with (
        worker_if_embedded(settings),
        HandoffClient(f"cli:{uuid.uuid4()}", settings) as client,
    ):
        through = at or await client.last(thread_id)
        request = make(client.session_id, through)
        await client.request(request)
        try:
            return await client.wait(request.request_id, WAIT_SECONDS)
        except TimeoutError:
            raise NoWorkerError.after(WAIT_SECONDS) from None
