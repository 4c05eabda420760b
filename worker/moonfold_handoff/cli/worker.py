"""`moonfold worker`."""

from __future__ import annotations

import asyncio
import gc
import signal

import click
import structlog

from moonfold_handoff import worker as workers
from moonfold_handoff.settings import Settings

GARBAGE_THRESHOLD = 10_000  # new objects between two collections; a handoff makes a few thousand


@click.command()
@click.pass_obj
def worker(settings: Settings) -> None:
    """Build handoffs until stopped, from both queues.

    SIGTERM and Ctrl-C stop it cleanly: running jobs are finished, or given back to the queue.
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    # What was loaded until now stays; looking through it again and again would delay handoffs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    for warning in settings.warnings:
        structlog.get_logger().warning("setting_ignored", reason=warning)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await workers.run(settings, stop)
