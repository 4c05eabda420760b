from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from chaos.producers import Ledger
from chaos.run import TROUBLES, Chaos
from chaos.verdict import judged
from helpers.asking import THREAD, append, conversation
from redis.asyncio import Redis

from moonfold_handoff.store import keys, results
from moonfold_schemas.results import HandoffWaiting

SEED = 20_261_130


@pytest.mark.timeout(180)
async def test_whatever_is_killed_every_accepted_request_is_answered_once() -> None:
    verdict = await Chaos(workers=2, fsync="always", seed=SEED).run(1, producers=3)
    assert verdict.stands, verdict
    assert verdict.kills.keys() == TROUBLES.keys()
    assert verdict.requests > 20


async def test_what_is_lost_or_doubled_is_noticed(redis: Redis, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text('{"event": "job_crashed"}\n{"event": "handoff_ready"}\n{"event": "job_cra')
    ledger = Ledger(accepted=dict.fromkeys(("good", "lost", "twice"), 1.0), sessions={"s"})
    for request_id in ("good", "twice"):
        result = HandoffWaiting(request_id=request_id, session_id="s", retry_after=1)
        await results.publish(redis, result, ttl=60)
    await redis.xadd(keys.results("s"), {"request_id": "twice", "type": "handoff.waiting"})
    await append(redis, conversation())
    ledger.threads[THREAD] = 10
    await redis.set("arq:in-progress:good", "token", ex=60)
    verdict = await judged(redis, ledger, Counter({"server, SIGKILL": 1}), [log])
    assert (verdict.requests, verdict.lost, verdict.doubled) == (3, 1, 1)
    assert (verdict.events_lost, verdict.left, verdict.faults) == (2, 1, 1)
    assert verdict.answers == {"handoff.waiting": 2}
    assert not verdict.stands


async def test_a_run_without_requests_shows_nothing(redis: Redis) -> None:
    assert not (await judged(redis, Ledger(), Counter(), [])).stands
