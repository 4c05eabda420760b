from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.asking import conversation
from helpers.deployment import DEPLOY
from helpers.servers import KINDS, binary_of
from helpers.users import PASSWORD, USERS, GuardedServer
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.ops import acl

FILE = DEPLOY / "redis" / "redis.conf"


@pytest.fixture(params=KINDS)
def configured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedServer]:
    """A server with our configuration, but for where things are, and how much there is of them."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip("redis-server is not installed")
    users = tmp_path / "users.acl"
    users.write_text(acl.file({user: [PASSWORD] for user in USERS}), encoding="utf-8")
    options = ("--include", str(FILE), "--aclfile", str(users), "--maxmemory", "24mb")
    with GuardedServer(binary, *options) as server:
        yield server


async def test_a_server_takes_the_configuration_and_loses_nothing_in_silence(
    configured: GuardedServer,
) -> None:
    async with Redis.from_url(configured.url_of(acl.ADMIN), decode_responses=True) as admin:
        kept = await admin.config_get("*")
    assert kept["maxmemory-policy"] == "noeviction"
    assert kept["maxmemory"] == str(24 * 1024 * 1024)
    assert (kept["appendonly"], kept["appendfsync"], kept["save"]) == ("yes", "everysec", "")


async def test_no_conversation_is_in_the_slow_log(configured: GuardedServer) -> None:
    async with HandoffClient("alice.session", configured.settings("alice")) as alice:
        await alice.append("alice.thread", 0, conversation())
    async with Redis.from_url(configured.url_of(acl.ADMIN)) as admin:
        assert (await admin.config_get("slowlog-log-slower-than")) == {
            "slowlog-log-slower-than": "-1"
        }
        assert await admin.slowlog_len() == 0


async def test_a_full_server_refuses_and_forgets_nothing(configured: GuardedServer) -> None:
    async with (
        HandoffClient("alice.session", configured.settings("alice")) as alice,
        Redis.from_url(configured.url_of(acl.ADMIN)) as admin,
    ):
        await alice.append("alice.thread", 0, conversation())
        for size in (1024 * 1024, 16 * 1024, 1024):
            await fill(admin, size)
        with pytest.raises(OutOfMemoryError):
            await alice.append("alice.thread", 8, conversation())
        assert await alice.last("alice.thread") == 8


async def fill(redis: Redis, size: int) -> None:
    """Write pieces of `size` bytes until there is no room for another."""
    for number in range(1_000):
        try:
            await redis.set(f"filler:{size}:{number}", bytes(size))
        except OutOfMemoryError:
            return
    pytest.fail("the server has no limit")
