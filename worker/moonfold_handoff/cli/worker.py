"""`moonfold worker`."""

from __future__ import annotations

import asyncio
import signal

import click
import structlog

from moonfold_handoff import worker as workers
from moonfold_handoff.settings import Settings


@click.command()
@click.pass_obj
def worker(settings: Settings) -> None:
    """Build handoffs until stopped, from both queues.

    SIGTERM and Ctrl-C stop it cleanly: running jobs are finished, or given back to the queue.
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    for warning in settings.warnings:
        structlog.get_logger().warning("setting_ignored", reason=warning)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await workers.run(settings, stop)
