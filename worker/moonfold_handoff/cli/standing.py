"""How queues, workers, providers and the latest handoffs look at a terminal."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moonfold_handoff.context.candidates import clock
from moonfold_handoff.ops.metrics import Recent
from moonfold_handoff.ops.queues import QueueFigures
from moonfold_handoff.ops.status import Status
from moonfold_handoff.ops.workers import Beat
from moonfold_handoff.store.providers import Known
from moonfold_schemas import utc_now

LATEST = 10  # handoffs shown

MINUTE = 60  # seconds
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def glance(status: Status) -> RenderableType:
    """Return how it stands: the verdict, the queues, the workers, and who is used up."""
    parts = [_verdict(status), Text(), _queues(status.figures.queues), Text(), _rest(status)]
    if status.workers:
        parts += [Text(), _workers(status.workers)]
    if status.providers:
        parts += [Text(), _providers(status.providers)]
    return Group(*parts)


def everything(status: Status) -> RenderableType:
    """Return the same, and the latest handoffs of all workers."""
    recent = sorted(chain.from_iterable(one.recent for one in status.workers), key=lambda r: r.at)
    if not recent:
        return glance(status)
    return Group(glance(status), Text(), _handoffs(recent[: -LATEST - 1 : -1]))


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, as a person says it."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f} s"


def _verdict(status: Status) -> RenderableType:
    if status.is_healthy:
        return Text("healthy", style="bold green")
    lines = [Text("degraded", style="bold yellow"), *map(Text, status.problems)]
    return Group(*lines)


def _rest(status: Status) -> Text:
    figures, server = status.figures, status.server
    latest = "" if figures.rejected_at is None else f", the latest {_ago(figures.rejected_at)}"
    of = f" of {_mebibytes(server.memory_limit_bytes)}" if server.memory_limit_bytes else ""
    return Text(
        f"rejected: {figures.rejected:,}{latest}\n"
        f"server: one round trip {server.round_trip_ms:.1f} ms, "
        f"memory {_mebibytes(server.memory_bytes)}{of}"
    )


def _table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(headings[0], style="cyan", overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def _queues(queues: tuple[QueueFigures, ...]) -> Table:
    numbers = ("waiting", "in progress", "deferred", "oldest")
    table = _table("queue", *numbers, right=numbers)
    for queue in queues:
        table.add_row(
            queue.queue,
            f"{queue.depth:,}",
            f"{queue.in_progress:,}",
            f"{queue.deferred:,}",
            duration(queue.oldest_seconds),
        )
    return table


def _workers(workers: list[Beat]) -> Table:
    numbers = ("answered", "p50", "p99")
    table = _table("worker", "version", "since", "busy", *numbers, "metrics", right=numbers)
    for one in workers:
        busy = (f"{name} {slots.running}/{slots.slots}" for name, slots in one.queues.items())
        table.add_row(
            Text(f"{one.host}:{one.pid}"),
            one.version,
            _ago(one.started_at),
            ", ".join(busy),
            f"{one.answered:,}",
            _milliseconds(one.p50_ms),
            _milliseconds(one.p99_ms),
            one.metrics or "off",
        )
    return table


def _providers(known: list[Known]) -> Table:
    table = _table("provider", "state", "until")
    for one in known:
        notice = one.notice
        state = "available" if notice is None else f"used up, {notice.kind.value}"
        table.add_row(Text(one.instance.name), state, "" if notice is None else clock(notice.until))
    return table


def _handoffs(recent: list[Recent]) -> Table:
    numbers = ("built in", "answered in", "bytes", "left out")
    table = _table("handoff", "asked for by", "outcome", "to", *numbers, right=numbers)
    for one in recent:
        table.add_row(
            f"{one.at:%H:%M:%S}",
            one.reason,
            one.outcome,
            Text(one.provider or ""),
            _milliseconds(one.build_ms),
            _milliseconds(one.whole_ms),
            f"{one.carried_bytes:,}",
            f"{one.omitted_items:,}",
        )
    return table


def _ago(time: datetime) -> str:
    return f"{duration(max(0.0, (utc_now() - time).total_seconds()))} ago"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


def _mebibytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB"
