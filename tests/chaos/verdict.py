"""What came of the requests: each is to have one result, published once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from redis.asyncio import Redis
from rich.table import Table

from moonfold_handoff.store import keys, log, results
from moonfold_schemas.results import HandoffFailed

from .producers import Ledger

POLL_SECONDS = 0.1
BROKEN = {"job_failed", "job_crashed"}  # lines of a worker's log that tell of a fault in it


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of one run.

    Attributes:
        requests: accepted ones.
        repeated: calls that were not acknowledged at once.
        kills: how often each kind of trouble was made.
        answers: results by type, and by code where they failed.
        lost: accepted requests without a result.
        doubled: requests that were published more than once.
        events_lost: acknowledged events that no log has.
        left: jobs and claims that remain though all is done.
        faults: errors of the workers themselves.
        delays: seconds from a request's acknowledgement to its publication, sorted.
    """

    requests: int
    repeated: int
    kills: Counter[str]
    answers: Counter[str]
    lost: int
    doubled: int
    events_lost: int
    left: int
    faults: int
    delays: list[float] = field(repr=False)

    @property
    def stands(self) -> bool:
        """Whether every accepted request got exactly one result, and nothing else went wrong."""
        wrong = self.lost, self.doubled, self.events_lost, self.left, self.faults
        return self.requests > 0 and not any(wrong)

    def table(self) -> Table:
        """Return the figures for people."""
        table = Table(box=None, show_header=False, pad_edge=False)
        rows = {
            "requests accepted": self.requests,
            "calls repeated": self.repeated,
            **{f"killed: {kind}": count for kind, count in sorted(self.kills.items())},
            **{f"answered: {answer}": count for answer, count in sorted(self.answers.items())},
            "lost": self.lost,
            "doubled": self.doubled,
            "events lost": self.events_lost,
            "jobs and claims left": self.left,
            "faults in workers": self.faults,
            "delay, median": f"{self._delay(0.5):.3f} s",
            "delay, 99 %": f"{self._delay(0.99):.3f} s",
            "delay, longest": f"{self._delay(1):.3f} s",
        }
        for name, value in rows.items():
            table.add_row(name, str(value))
        return table

    def _delay(self, share: float) -> float:
        return self.delays[round(share * (len(self.delays) - 1))] if self.delays else 0.0


async def settled(redis: Redis, ledger: Ledger, seconds: float) -> None:
    """Wait until all is answered and done, `seconds` at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        queued = await redis.exists(keys.HANDOFFS, keys.BACKGROUND)
        if not queued and not await _unanswered(redis, ledger):
            return
        await asyncio.sleep(POLL_SECONDS)


async def judged(redis: Redis, ledger: Ledger, kills: Counter[str], logs: list[Path]) -> Verdict:
    """Compare what was accepted with what is there."""
    published: Counter[str] = Counter()
    delays = []
    for session_id in ledger.sessions:
        for raw_id, fields in await redis.xrange(keys.results(session_id)):
            request_id = fields[b"request_id"].decode()
            published[request_id] += 1
            at = log.sequence_of(raw_id) / 1000
            delays.append(max(0.0, at - ledger.accepted[request_id]))
    lost = await _unanswered(redis, ledger)
    return Verdict(
        requests=len(ledger.accepted),
        repeated=ledger.repeated,
        kills=kills,
        answers=await _answers(redis, ledger),
        lost=len(lost | (ledger.accepted.keys() - published.keys())),
        doubled=sum(count > 1 for count in published.values()),
        events_lost=await _events_lost(redis, ledger),
        left=len([key async for key in redis.scan_iter("arq:*", count=1_000)]),
        faults=sum(map(_faults, logs)),
        delays=sorted(delays),
    )


async def _unanswered(redis: Redis, ledger: Ledger) -> set[str]:
    async with redis.pipeline(transaction=False) as pipe:
        for request_id in ledger.accepted:
            pipe.exists(keys.result(request_id))
        there = await pipe.execute()
    pairs = zip(ledger.accepted, there, strict=True)
    return {request_id for request_id, found in pairs if not found}


async def _answers(redis: Redis, ledger: Ledger) -> Counter[str]:
    answers: Counter[str] = Counter()
    for request_id in ledger.accepted:
        result = await results.get(redis, request_id)
        if result is not None:
            code = f" {result.code.value}" if isinstance(result, HandoffFailed) else ""
            answers[f"{result.__struct_config__.tag}{code}"] += 1
    return answers


async def _events_lost(redis: Redis, ledger: Ledger) -> int:
    lasts = [await log.last(redis, thread_id) for thread_id in ledger.threads]
    pairs = zip(ledger.threads.values(), lasts, strict=True)
    return sum(max(0, acknowledged - last) for acknowledged, last in pairs)


def _faults(path: Path) -> int:
    lines = path.read_bytes().splitlines()
    return sum(_Line.of(line).event in BROKEN for line in lines)


class _Line(msgspec.Struct):
    event: str = ""

    @classmethod
    def of(cls, raw: bytes) -> _Line:
        try:
            return _decode(raw)
        except msgspec.DecodeError:  # cut off as its writer was killed
            return cls()


_decode = msgspec.json.Decoder(_Line).decode
