"""Handoffs per second of one worker process, with the clients in processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings

from .content import conversation, hand_off, record, switch
from .figures import Advance, Figure
from .servers import cpu_seconds, server

ITEMS = 200
THREADS = 20
PREPARATION_SECONDS = 2.5  # for clients to start, and to warm up the worker


def measure(advance: Advance, *, seconds: float, clients: int, in_flight: int) -> list[Figure]:
    """Keep `in_flight` requests under way for `seconds`, and count what comes back meanwhile.

    The processor shares tell what the limit was: only where the worker's is near 100 % is the figure
    the worker's own.
    """
    with server() as own, own.worker() as worker:
        thread_ids = asyncio.run(_prepare(own.settings))
        start = time.monotonic() + PREPARATION_SECONDS
        with ProcessPoolExecutor(clients, multiprocessing.get_context("spawn")) as processes:
            driven = [
                processes.submit(
                    _drive,
                    own.settings.redis_url or "",
                    thread_ids,
                    in_flight // clients,
                    start,
                    seconds,
                )
                for _ in range(clients)
            ]
            _sleep_until(start)
            before = (cpu_seconds(worker), cpu_seconds(own.pid))
            _watch(driven, start, seconds, advance)
            after = (cpu_seconds(worker), cpu_seconds(own.pid))
            done = [one.result() for one in driven]
    rate = sum(received for received, _ in done) / seconds
    used = [(b - a) / seconds * 100 for a, b in zip(before, after, strict=True)]
    return [
        Figure("handoffs", rate, "per second", at_least=400),
        Figure("handoffs of the worker's processor time", rate / used[0] * 100, "per second"),
        Figure("worker's processor share", used[0], "%"),
        Figure("server's processor share", used[1], "%"),
        Figure("busiest client's processor share", max(share for _, share in done), "%"),
    ]


async def _prepare(settings: Settings) -> list[str]:
    """Record the threads, and have each folded by its first handoff."""
    async with HandoffClient("preparation", settings) as client:
        thread_ids = [await record(client, conversation(ITEMS)) for _ in range(THREADS)]
        for thread_id in thread_ids:
            await hand_off(client, switch(client, thread_id, ITEMS))
    return thread_ids


def _watch(
    driven: list[Future[tuple[int, float]]], start: float, seconds: float, advance: Advance
) -> None:
    while (passed := time.monotonic() - start) < seconds:
        if any(one.done() for one in driven):
            return  # it failed, and its result says why
        advance(passed / seconds)
        time.sleep(min(0.1, seconds - passed))


def _drive(
    url: str, thread_ids: list[str], in_flight: int, start: float, seconds: float
) -> tuple[int, float]:
    """Be one client; return handoffs received within the measured time, and processor share in it."""
    return asyncio.run(_requests(url, thread_ids, in_flight, start, seconds))


async def _requests(
    url: str, thread_ids: list[str], in_flight: int, start: float, seconds: float
) -> tuple[int, float]:
    loads = itertools.cycle(thread_ids)
    received = 0

    async def one_after_another(client: HandoffClient) -> None:
        nonlocal received
        while time.monotonic() < start + seconds:
            await hand_off(client, switch(client, next(loads), ITEMS))
            received += start <= time.monotonic() < start + seconds

    async with HandoffClient(f"benchmark:{time.monotonic_ns()}", Settings(redis_url=url)) as client:
        if time.monotonic() > start:
            raise TimeoutError("the clients took too long to start")
        running = [asyncio.create_task(one_after_another(client)) for _ in range(in_flight)]
        await asyncio.sleep(start - time.monotonic())
        used = time.process_time()
        await asyncio.sleep(start + seconds - time.monotonic())
        used = time.process_time() - used
        await asyncio.gather(*running)
    return received, used / seconds * 100


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
