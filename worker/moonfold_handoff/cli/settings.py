"""`moonfold settings`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from moonfold_handoff.settings import SETTINGS, Settings, shown
from moonfold_handoff.store.connection import without_password


@click.command()
@click.pass_obj
def settings(settings: Settings) -> None:
    """List every setting with its value, default and origin."""
    table = Table(box=None, pad_edge=False)
    for heading in ("variable", "value", "default", "origin", "what it is"):
        table.add_column(heading, overflow="fold")
    for name, setting in SETTINGS.items():
        value = getattr(settings, name)
        shown = without_password(value) if setting.secret and value else value
        origin = "environment" if name in settings.given else "default"
        table.add_row(setting.variable, _cell(shown), _cell(setting.default), origin, setting.help)
    Console().print(table)


def _cell(value: object) -> str:
    return "(unset)" if value is None else shown(value)
