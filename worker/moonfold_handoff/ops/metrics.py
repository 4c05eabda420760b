"""What one worker process measures of its own work, for Prometheus.

What is the same for all workers, such as the depth of a queue, is read when it is asked for: see
`exposition`. Labels come from bounded sets: no thread, session or request is ever named.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from datetime import datetime
from importlib.metadata import version

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from moonfold_handoff.context.availability import Instance
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.store.queue import BUILD_HANDOFF, FOLD_THREAD
from moonfold_schemas import utc_now
from moonfold_schemas.results import (
    FailureCode,
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
    LimitingInput,
)

VERSION = version("moonfold-handoff")
RECENT = 20  # latest handoffs that are told of
WINDOW = 512  # latest latencies that a median is made of
UNREADABLE = "unreadable"  # in place of the type of a request that has none

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TRIP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10)
TOKENS = (0, 1_024, 2_048, 4_096, 8_192, 12_288, 16_000, 24_000, 32_000, 48_000, 64_000)
EVENTS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000)


class Recent(Struct, frozen=True):
    """One of the latest handoffs, without whose it was.

    Attributes:
        at: when it was published.
        reason: the request's type.
        outcome: `ready`, `prepared`, `waiting` or the failure's code.
        provider: where the thread goes on, `provider` or `provider/instance`; None where nowhere.
        build_ms: milliseconds that the worker took, None if it never began.
        whole_ms: milliseconds from the request to its answer, None where the producer has no clock.
        carried_bytes: of the conversation's own text that travel.
        omitted_items: items left behind.
    """

    at: datetime
    reason: str
    outcome: str
    provider: str | None = None
    build_ms: float | None = None
    whole_ms: float | None = None
    carried_bytes: int = 0
    omitted_items: int = 0


class Metrics:
    """Counters and histograms of one process, in a registry of their own.

    Attributes:
        registry: what they are exported from.
        recent: the latest handoffs, the oldest first.
        answers: requests that were answered.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.answers = 0
        self.recent: deque[Recent] = deque(maxlen=RECENT)
        self._latencies: deque[float] = deque(maxlen=WINDOW)
        self._build = Histogram(
            "moonfold_handoff_build_seconds",
            "Time that the worker took for a request, by the request's type and what came of it.",
            ("reason", "outcome"),
            buckets=SECONDS,
            registry=registry,
        )
        self._publication = Histogram(
            "moonfold_handoff_publication_seconds",
            "Time from a request to the publication of its answer, by the request's type.",
            ("reason",),
            buckets=SECONDS,
            registry=registry,
        )
        self._carried_bytes = Counter(
            "moonfold_handoff_carried_bytes",
            "Bytes of conversations' own text that handoffs carried.",
            registry=registry,
        )
        self._omitted_bytes = Counter(
            "moonfold_handoff_omitted_bytes",
            "Bytes of recent items that handoffs left behind, as far back as a thread's state reaches.",
            registry=registry,
        )
        self._carried_items = Counter(
            "moonfold_handoff_carried_items", "Items that handoffs carried.", registry=registry
        )
        self._omitted_items = Counter(
            "moonfold_handoff_omitted_items", "Items that handoffs left behind.", registry=registry
        )
        self._allowance = Histogram(
            "moonfold_handoff_allowance_tokens",
            "Allowance of handoffs; a token is a byte.",
            buckets=TOKENS,
            registry=registry,
        )
        self._limited = Counter(
            "moonfold_handoff_allowance_limited",
            "Handoffs by the bound that their allowance met first: cap, ceiling or room.",
            ("input",),
            registry=registry,
        )
        self._retries = Counter(
            "moonfold_job_retries",
            "Attempts at jobs that failed and are made again.",
            ("function",),
            registry=registry,
        )
        self._rejected = Counter(
            "moonfold_jobs_rejected",
            "Jobs that could not be done and are kept as dead letters, by the failure's code.",
            ("function", "code"),
            registry=registry,
        )
        self._lag = Histogram(
            "moonfold_fold_lag_events",
            "Events that a thread's state was behind its log when a job read it.",
            ("function",),
            buckets=EVENTS,
            registry=registry,
        )
        self._folded = Counter(
            "moonfold_folded_events",
            "Events of thread logs that workers have folded in; its rate is that of appends.",
            registry=registry,
        )
        self._fold_delay = Histogram(
            "moonfold_fold_delay_seconds",
            "Time from asking for a thread to be folded until it is.",
            buckets=SECONDS,
            registry=registry,
        )
        self._round_trip = Histogram(
            "moonfold_redis_round_trip_seconds",
            "Time that one PING takes, by what the server is for: queues or threads.",
            ("server",),
            buckets=TRIP_SECONDS,
            registry=registry,
        )
        self.running = Gauge(
            "moonfold_worker_jobs_in_progress",
            "Jobs that this worker is running.",
            ("queue",),
            registry=registry,
        )
        self.slots = Gauge(
            "moonfold_worker_slots",
            "Jobs that this worker runs at once at most.",
            ("queue",),
            registry=registry,
        )
        self.ready = Gauge(
            "moonfold_worker_ready",
            "Whether this worker can take jobs and answer them: 1 or 0.",
            registry=registry,
        )
        build = Info("moonfold_build", "What is running.", registry=registry)
        build.info({"version": VERSION, "python": platform.python_version()})
        ProcessCollector(registry=registry)
        self._begin()

    def _begin(self) -> None:
        """Begin small sets of series at 0: of one that appears at 1 no rate sees the first."""
        for bound in LimitingInput:
            self._limited.labels(bound.value)
        for function in (BUILD_HANDOFF, FOLD_THREAD):
            self._retries.labels(function)
            self._lag.labels(function)
            for code in FailureCode:
                self._rejected.labels(function, code.value)

    def answered(
        self,
        reason: str,
        result: HandoffResult,
        *,
        build_seconds: float | None = None,
        enqueued: datetime | None = None,
    ) -> None:
        """Take an answer that was published.

        Args:
            reason: the request's type.
            result: the answer.
            build_seconds: what the worker took; None if it never began.
            enqueued: when it was asked for; None where the producer has no clock.
        """
        self.answers += 1
        outcome = outcome_of(result)
        whole = None if enqueued is None else max(0.0, time.time() - enqueued.timestamp())
        if build_seconds is not None:
            self._build.labels(reason, outcome).observe(build_seconds)
        if whole is not None:
            self._publication.labels(reason).observe(whole)
            self._latencies.append(whole)
        ready = result if isinstance(result, HandoffReady | HandoffPrepared) else None
        self.recent.append(
            Recent(
                at=utc_now(),
                reason=reason,
                outcome=outcome,
                provider=None if ready is None else Instance.of(ready.target).name,
                build_ms=_milliseconds(build_seconds),
                whole_ms=_milliseconds(whole),
                carried_bytes=0 if ready is None else ready.budget.own_text_bytes,
                omitted_items=0 if ready is None else ready.coverage.omitted_items,
            )
        )

    def built(self, ready: HandoffReady, omitted_bytes: int) -> None:
        """Take what a handoff carries and what it leaves behind, prepared ones included."""
        budget, coverage = ready.budget, ready.coverage
        self._carried_bytes.inc(budget.own_text_bytes)
        self._omitted_bytes.inc(omitted_bytes)
        self._carried_items.inc(coverage.selected_items)
        self._omitted_items.inc(coverage.omitted_items)
        self._allowance.observe(budget.allowance)
        self._limited.labels(budget.limited_by.value).inc()

    def retried(self, function: str) -> None:
        """Take an attempt that is made again."""
        self._retries.labels(function).inc()

    def rejected(self, function: str, error: HandoffError) -> None:
        """Take a job that is kept as a dead letter."""
        self._rejected.labels(function, error.code.value).inc()

    def behind(self, function: str, events: int) -> None:
        """Take how many events a state was behind its log, which are then folded in."""
        self._lag.labels(function).observe(events)
        self._folded.inc(events)

    def folded(self, enqueued: datetime | None) -> None:
        """Take a fold that is done; `enqueued` is when it was asked for, None where nobody knows."""
        if enqueued is not None:
            self._fold_delay.observe(max(0.0, time.time() - enqueued.timestamp()))

    def round_trip(self, server: str, seconds: float) -> None:
        """Take the time of one PING."""
        self._round_trip.labels(server).observe(seconds)

    def latency_ms(self, share: float) -> float | None:
        """Return the latency that `share` of the latest handoffs stayed below, None before the first."""
        ordered = sorted(self._latencies)
        if not ordered:
            return None
        return _milliseconds(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def outcome_of(result: HandoffResult) -> str:
    """Return what came of a request in one word: the result's type, or why it failed."""
    if isinstance(result, HandoffFailed):
        return result.code.value
    return str(result.__struct_config__.tag).removeprefix("handoff.")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
