"""`moonfold token`: the tokens that open threads to agents."""

from __future__ import annotations

import asyncio

import click

from moonfold_handoff.errors import ThreadNotFoundError
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings, seconds
from moonfold_handoff.store import log, tokens
from moonfold_schemas import is_id

NAME = "moonfold-token"  # in the server's client list


@click.group()
def token() -> None:
    """Manage the tokens that open threads to agents."""


@token.command()
@click.argument("thread_id")
@click.option("--through", type=click.IntRange(min=1), help="Up to here; the end by default.")
@click.option("--ttl", help="How long, such as 12h; MOONFOLD_READER_TTL by default.")
@click.pass_obj
def issue(settings: Settings, *, thread_id: str, through: int | None, ttl: str | None) -> None:
    """Print a new token that opens THREAD_ID, as each handoff brings one.

    It reads what is recorded now, and nothing that comes later.
    """
    if not is_id(thread_id):
        raise click.BadParameter("not an identifier", param_hint="THREAD_ID")
    try:
        lifetime = settings.reader_ttl if ttl is None else seconds(ttl)
    except ValueError as expected:
        raise click.BadParameter(f"not {expected}", param_hint="--ttl") from None
    if not lifetime:
        raise click.UsageError("MOONFOLD_READER_TTL is off; say how long with --ttl.")
    click.echo(asyncio.run(_issue(settings, thread_id, through, lifetime)))


@token.command()
@click.argument("token")
@click.pass_obj
def revoke(settings: Settings, token: str) -> None:
    """Let TOKEN open nothing any more."""
    if not asyncio.run(_revoke(settings, token)):
        raise click.ClickException("This token opens nothing; it may have expired.")
    click.echo("Revoked.")


async def _issue(settings: Settings, thread_id: str, through: int | None, ttl: int) -> str:
    async with open_services(settings, name=NAME) as services:
        last = await log.last(services.threads, thread_id)
        if not last:
            raise ThreadNotFoundError(f"There is no log of thread {thread_id}.")
        grant = tokens.granted(thread_id, min(through or last, last), ttl=ttl)
        return await tokens.issue(services.redis, grant, ttl)


async def _revoke(settings: Settings, token: str) -> bool:
    async with open_services(settings, name=NAME) as services:
        return await tokens.revoke(services.redis, token)
