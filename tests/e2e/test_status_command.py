"""`moonfold status` and `moonfold top`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result
from conftest import do
from helpers.servers import RedisServer
from helpers.waiting import until_sync

import redis as sync_redis
from moonfold_handoff.cli import main, standing
from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.ops import workers
from moonfold_handoff.ops.metrics import Recent
from moonfold_handoff.ops.workers import Beat, Slots
from moonfold_handoff.store import keys, providers, rejected
from moonfold_schemas import utc_now
from moonfold_schemas.events import LimitKind

pytestmark = pytest.mark.usefixtures("at_the_server")


@pytest.fixture
def living(server: RedisServer) -> None:
    """A worker that lives and has answered."""
    now = utc_now()
    beat = Beat(
        token="t",
        version="1.2.3",
        host="machine",
        pid=42,
        started_at=now - timedelta(hours=5),
        metrics="127.0.0.1:9464",
        queues={"handoffs": Slots(1, 32), "background": Slots(0, 2)},
        answered=1_234,
        p50_ms=2.5,
        p99_ms=9.75,
        recent=(
            Recent(now - timedelta(minutes=1), "fork.requested", "prepared", "codex", 1.5),
            Recent(now, "restart.requested", "no_target_available", None, 0.5, 2.0),
        ),
    )
    do(server, lambda services: workers.beat(services.redis, beat))


@pytest.fixture
def away(at_the_server: None, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONFOLD_REDIS_URL", server.url + "-nobody")


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def shown(done: Result) -> list[str]:
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_all_is_well(living: None) -> None:
    done = run("status")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = shown(done)
    assert lines[0] == "healthy"
    assert "handoffs 0 0 0 0 s" in lines
    assert "rejected: 0" in lines
    row = "machine:42 1.2.3 5 h ago handoffs 1/32, background 0/2 1,234 2.5 ms 9.8 ms"
    assert f"{row} 127.0.0.1:9464" in lines


def test_no_worker_is_degraded() -> None:
    done = run("status")
    assert done.exit_code == 1
    assert shown(done)[:2] == [
        "degraded",
        "No worker lives; start one with `moonfold worker`.",
    ]


@pytest.mark.parametrize(
    ("queue", "age", "options", "status"),
    [
        (keys.HANDOFFS, 55, [], 0),
        (keys.HANDOFFS, 65, [], 1),
        (keys.HANDOFFS, 65, ["--max-age", "120"], 0),
        (keys.HANDOFFS, 12, ["--max-age", "10"], 1),
        (keys.BACKGROUND, 65, [], 0),
        (keys.BACKGROUND, 905, [], 1),
    ],
)
@pytest.mark.usefixtures("living")
def test_a_backlog_is_degraded_from_an_age_on(
    server: RedisServer, queue: str, age: int, options: list[str], status: int
) -> None:
    with sync_redis.Redis.from_url(server.url) as redis:
        redis.zadd(queue, {"job": (time.time() - age) * 1000})
    done = run("status", *options)
    assert done.exit_code == status
    assert ("should be" in done.stdout) is bool(status)


def test_a_rejection_is_degraded_for_an_hour(living: None, server: RedisServer) -> None:
    with sync_redis.Redis.from_url(server.url) as redis:
        redis.xadd(keys.REJECTED, {"job_id": "old"}, id=f"{int(time.time() - 3_700) * 1000}-0")
        redis.expire(keys.REJECTED, 60)
        assert run("status").exit_code == 0
        redis.xadd(keys.REJECTED, {"job_id": "new"}, id=f"{int(time.time() - 125) * 1000}-0")
    done = run("status")
    assert done.exit_code == 1
    assert "A job was rejected 2 min ago; see `moonfold rejected list`." in shown(done)
    assert "rejected: 2, the latest 2 min ago" in shown(done)


def test_a_server_that_is_nearly_full_is_degraded(living: None, server: RedisServer) -> None:
    with sync_redis.Redis.from_url(server.url) as redis:
        used = redis.info("memory")["used_memory"]
        redis.config_set("maxmemory", used * 4)
        assert run("status").exit_code == 0
        redis.config_set("maxmemory", used + 10_000)
        done = run("status")
        redis.config_set("maxmemory", 0)
    assert done.exit_code == 1
    assert "of its memory; a full one takes no data." in done.stdout


def test_json_is_all_that_is_printed(living: None, server: RedisServer) -> None:
    until = (utc_now() + timedelta(hours=2)).replace(microsecond=0)
    spent = Notice(LimitKind.CREDITS, None, until)
    do(
        server,
        lambda services: providers.limited(
            services.redis, Instance("codex", "work"), spent, now=utc_now()
        ),
    )
    done = run("status", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["status"], found["problems"]) == ("healthy", [])
    assert found["queues"]["handoffs"] == {
        "depth": 0,
        "in_progress": 0,
        "deferred": 0,
        "oldest_seconds": 0.0,
    }
    assert (found["rejected"], found["rejected_at"]) == (0, None)
    assert found["workers"][0]["metrics"] == "127.0.0.1:9464"
    assert found["providers"] == [
        {"name": "codex/work", "available": False, "until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
    ]
    assert found["server"]["memory_bytes"] > 100_000
    assert "codex/work used up, credits" in " ".join(shown(run("status")))


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("command", ["status", "top"])
def test_a_server_that_is_away_is_unreachable(command: str) -> None:
    done = run(command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("The server cannot be used: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("away")
def test_json_says_so_too() -> None:
    done = run("status", "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert found["status"] == "unreachable"
    assert len(found["problems"]) == 1


def test_no_server_at_all_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONFOLD_REDIS_URL", "http://host")
    assert run("status").exit_code == 2
    assert "not a Redis URL" in run("status").stderr


def test_the_exit_statuses_are_documented() -> None:
    text = " ".join(run("status", "--help").stdout.split())
    assert "exit status is 0 where all is well; 1 where it is degraded" in text
    assert "2 where the server cannot be used" in text


# top


@pytest.mark.parametrize("options", [["--once"], []])
def test_top_shows_the_latest_handoffs_of_all_workers(living: None, options: list[str]) -> None:
    done = run("top", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = shown(done)
    assert lines[0] == "healthy"
    later = next(i for i, line in enumerate(lines) if "restart.requested" in line)
    earlier = next(i for i, line in enumerate(lines) if "fork.requested" in line)
    assert later < earlier
    assert lines[later].endswith("restart.requested no_target_available 0.5 ms 2.0 ms 0 0")
    assert "\x1b" not in done.stdout


def test_top_without_handoffs_is_a_glance(server: RedisServer) -> None:
    do(
        server,
        lambda services: rejected.reject(
            services.redis, job_id="j", function="f", reason="r", argument=b"{}"
        ),
    )
    lines = shown(run("top"))
    assert any(line.startswith("rejected: 1, the latest") for line in lines)
    assert "asked for by" not in " ".join(lines)


def test_top_is_live_on_a_terminal_until_it_is_interrupted(
    living: None, server: RedisServer
) -> None:
    mine, its = pty.openpty()
    seen = bytearray()
    environment = {
        **os.environ,
        "MOONFOLD_REDIS_URL": server.url,
        "TERM": "xterm",
        "COLUMNS": "160",
        "LINES": "50",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "moonfold_handoff", "top", "--interval", "0.1"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(its)
        os.set_blocking(mine, False)

        def sees(word: bytes) -> Callable[[], bool]:
            def look() -> bool:
                with suppress(OSError):  # nothing yet, or the other side has closed
                    seen.extend(os.read(mine, 65_536))
                return word in seen

            return look

        try:
            until_sync(sees(b"healthy"))
            with sync_redis.Redis.from_url(server.url) as redis:
                redis.zadd(keys.HANDOFFS, {"job": (time.time() - 7_300) * 1000})
            until_sync(sees(b"degraded"))
            process.send_signal(signal.SIGINT)
            process.wait(10)
            sees(b"")()
        finally:
            process.kill()
            os.close(mine)
    assert process.returncode == 0
    assert b"Traceback" not in seen


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (9.96, "10.0 s"),
        (59, "59 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_a_duration_is_said_in_its_largest_unit(seconds: float, said: str) -> None:
    assert standing.duration(seconds) == said
