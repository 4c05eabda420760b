"""`moonfold rejected list|show|retry|drop`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from helpers.asking import document
from helpers.servers import RedisServer

import redis as sync_redis
from moonfold_handoff.cli import main
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, queue, rejected

pytestmark = pytest.mark.usefixtures("at_the_server")

SECRET = "private words"


@pytest.fixture
def ids(server: RedisServer) -> list[str]:
    """Two dead letters, the later one without what it would need."""

    async def reject() -> list[str]:
        async with open_services(Settings(redis_url=server.url), name="test") as services:
            for argument in (
                document(request_id="good", request={"text": SECRET}),
                document(request_id="bad\x1b[2J", type="unheard.of"),
            ):
                await rejected.reject(
                    services.redis,
                    job_id=argument["request_id"],
                    function=queue.BUILD_HANDOFF,
                    reason=f"why {argument['type']}",
                    argument=json.dumps(argument).encode(),
                )
            return [raw.decode() for raw, _ in await services.redis.xrange(keys.REJECTED)]

    return asyncio.run(reject())


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, ("rejected", *arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert SECRET not in done.output
    return done


def listed(*options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("list", "--json", *options).stdout)
    return found


def test_they_are_listed_the_latest_first(ids: list[str]) -> None:
    done = run("list")
    assert (done.exit_code, done.stderr) == (0, "")
    _, latest, earlier = done.stdout.splitlines()
    assert latest.startswith(ids[1])
    assert earlier.startswith(ids[0])
    assert "why provider.switch_requested" in earlier
    assert "\x1b" not in done.stdout
    assert [one["id"] for one in listed("--limit", "1")] == [ids[1]]


def test_where_nothing_was_rejected_that_is_said() -> None:
    assert run("list").stdout == "Nothing was rejected.\n"
    assert listed() == []


def test_one_is_shown_with_what_was_kept(ids: list[str]) -> None:
    done = run("show", ids[0])
    assert done.exit_code == 0
    assert '"json_bytes": 15' in done.stdout
    assert "reason    why provider.switch_requested" in done.stdout
    assert "\x1b" not in run("show", ids[1]).stdout


def test_what_is_not_there_is_said(ids: list[str]) -> None:
    done = run("show", "1-1")
    assert done.exit_code == 1
    assert done.stderr == "Error: 1-1 is not there (any more).\n"
    assert run("retry", "1-1").stdout == "1-1 is not there (any more).\n"
    assert run("drop", "1-1").stdout == "Dropped 0.\n"


def test_what_is_complete_is_queued_again_once(ids: list[str], server: RedisServer) -> None:
    done = run("retry", ids[0])
    assert (done.exit_code, done.stdout) == (0, f"{ids[0]} is queued again.\n")
    again = run("retry", ids[0])
    assert (again.exit_code, again.stdout) == (0, f"{ids[0]} is not there (any more).\n")
    with sync_redis.Redis.from_url(server.url) as redis:
        assert redis.zrange(keys.HANDOFFS, 0, -1) == [b"good"]


def test_what_is_not_is_refused_in_a_sentence_and_the_rest_goes_on(ids: list[str]) -> None:
    done = run("retry", "--all")
    assert done.exit_code == 1
    assert done.stdout == f"{ids[0]} is queued again.\n"
    assert done.stderr == (
        f"{ids[1]} cannot be tried again. What was kept of it is no valid request.\n"
    )
    assert [one["id"] for one in listed()] == [ids[1]]


def test_what_is_dropped_is_gone(ids: list[str]) -> None:
    assert run("drop", ids[0]).stdout == "Dropped 1.\n"
    assert run("drop", *ids).stdout == "Dropped 1.\n"
    assert listed() == []
    assert run("drop", "--all").stdout == "Dropped 0.\n"


@pytest.mark.parametrize(
    "arguments", [["drop"], ["retry"], ["drop", "--all", "1-1"], ["retry", "x"]]
)
def test_what_is_meant_has_to_be_named(arguments: list[str], ids: list[str]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert len(listed()) == 2
