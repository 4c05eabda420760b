"""The command line: `moonfold`."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from moonfold_handoff import logs
from moonfold_handoff.catalogue import CatalogueError
from moonfold_handoff.cli.acl import acl
from moonfold_handoff.cli.demo import demo
from moonfold_handoff.cli.explain import explain
from moonfold_handoff.cli.fork import fork
from moonfold_handoff.cli.going_on import go_on
from moonfold_handoff.cli.handoff import handoff
from moonfold_handoff.cli.mcp import mcp
from moonfold_handoff.cli.providers import providers
from moonfold_handoff.cli.read import read
from moonfold_handoff.cli.rejected import rejected
from moonfold_handoff.cli.settings import settings
from moonfold_handoff.cli.status import status
from moonfold_handoff.cli.threads import thread, threads
from moonfold_handoff.cli.token import token
from moonfold_handoff.cli.top import top
from moonfold_handoff.cli.watch import watch
from moonfold_handoff.cli.worker import worker
from moonfold_handoff.delivery.programs import NotStartedError
from moonfold_handoff.embedded import EmbeddedServerError
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.following import FollowError
from moonfold_handoff.ops import tracing
from moonfold_handoff.policy import PolicyError
from moonfold_handoff.reading.access import AccessDeniedError
from moonfold_handoff.reading.answers import ReadingError
from moonfold_handoff.settings import SecretFileError, Settings
from moonfold_handoff.store.connection import InvalidRedisUrlError, RedisError
from moonfold_handoff.store.log import AppendError
from moonfold_handoff.transcripts import TranscriptError
from moonfold_handoff.transfer import NoWorkerError
from moonfold_schemas import WireError

EXPECTED = (
    AccessDeniedError,
    AppendError,
    CatalogueError,
    EmbeddedServerError,
    FollowError,
    HandoffError,
    InvalidRedisUrlError,
    NoWorkerError,
    NotStartedError,
    PolicyError,
    ReadingError,
    SecretFileError,
    TranscriptError,
    WireError,
)
"""Errors whose message is a sentence for the person."""


class _Group(click.Group):
    """A group of commands whose expected errors are one sentence and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            raise click.ClickException(str(error)) from error
        except RedisError as error:
            raise click.ClickException(f"The server cannot be used: {error}") from error
        except BrokenPipeError:
            raise  # whoever read the output has enough; click ends quietly
        except OSError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="moonfold-handoff", message="moonfold %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Move a coding-agent conversation from one provider to another.

    A handoff is a budgeted selection of the conversation, never a summary: the next agent goes on as
    if it had been there. Start with `moonfold demo`.
    """
    known = Settings.from_environment()
    serving = ctx.invoked_subcommand in {"worker", "mcp"}
    # A server's lines are its output; beside another command's output they are noise: what went wrong
    # is in the result, and so in the sentence that ends the command.
    quiet = not serving and "log_level" not in known.given
    logs.configure(format_=known.log_format, level="error" if quiet else known.log_level)
    tracing.set_up()
    for warning in () if serving else known.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # On a terminal that is not UTF-8, a question mark is better than no output.
        sys.stdout.reconfigure(errors="replace")
    ctx.obj = known


for command in (
    acl,
    demo,
    explain,
    fork,
    go_on,
    handoff,
    mcp,
    providers,
    read,
    rejected,
    settings,
    status,
    thread,
    threads,
    token,
    top,
    watch,
    worker,
):
    main.add_command(command)
