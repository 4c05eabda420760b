"""`moonfold providers`."""

from __future__ import annotations

import asyncio
from datetime import datetime

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moonfold_handoff.context.availability import Instance
from moonfold_handoff.context.candidates import clock
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import providers as store
from moonfold_handoff.store.providers import Known
from moonfold_schemas import utc_now

NAME = "moonfold-providers"  # in the server's client list


class _Line(msgspec.Struct):
    """One instance, as `--json` prints it."""

    provider: str
    instance: str | None
    available: bool
    kind: str | None
    until: datetime | None
    assumed: bool
    noticed: datetime | None
    succeeded: datetime | None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
@click.option(
    "--clear",
    metavar="PROVIDER[/INSTANCE]",
    help="Take it as available again, because credits were bought or the notice was wrong.",
)
@click.pass_obj
def providers(settings: Settings, *, as_json: bool, clear: str | None) -> None:
    """Show which providers are used up, and until when.

    Only those are known that reached a limit, or completed a turn within the hour.
    """
    cleared = None if clear is None else Instance.parse(clear)
    if clear is not None and cleared is None:
        raise click.BadParameter("not PROVIDER or PROVIDER/INSTANCE", param_hint="--clear")
    known = asyncio.run(_providers(settings, cleared))
    if as_json:
        click.echo(msgspec.json.encode([_line(one) for one in known]))
    elif known:
        Console(emoji=False).print(_table(known))
    else:
        click.echo("No provider is known to be used up.")


async def _providers(settings: Settings, cleared: Instance | None) -> list[Known]:
    async with open_services(settings, name=NAME) as services:
        now = utc_now()
        if cleared is not None and not await store.clear(services.redis, cleared, now=now):
            click.echo(f"{cleared.name} was not known to be used up.", err=True)
        return await store.listed(services.redis, now=now)


def _table(known: list[Known]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("provider", style="cyan", overflow="fold")
    for heading in ("state", "limit", "until", "noticed", "last success"):
        table.add_column(heading)
    for line in map(_line, known):
        table.add_row(
            Text(line.provider if line.instance is None else f"{line.provider}/{line.instance}"),
            "available" if line.available else "used up",
            line.kind or "",
            _clock(line.until) + (", assumed" if line.assumed else ""),
            _clock(line.noticed),
            _clock(line.succeeded),
        )
    return table


def _line(known: Known) -> _Line:
    notice = known.notice
    return _Line(
        provider=known.instance.provider,
        instance=known.instance.instance,
        available=notice is None,
        kind=None if notice is None else notice.kind.value,
        until=None if notice is None else notice.until,
        assumed=notice is not None and notice.assumed,
        noticed=None if notice is None else notice.noticed,
        succeeded=known.succeeded,
    )


def _clock(time: datetime | None) -> str:
    return "" if time is None else clock(time)
