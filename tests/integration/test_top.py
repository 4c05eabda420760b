"""What `moonfold top` shows while a server comes and goes."""

from __future__ import annotations

from importlib import import_module

import pytest
from helpers.servers import RedisServer
from rich.text import Text

from moonfold_handoff.services import open_services
from moonfold_handoff.settings import Settings

top = import_module("moonfold_handoff.cli.top")  # its package gives the name to the command


async def test_a_server_that_is_away_is_said_and_waited_for(own_server: RedisServer) -> None:
    async with open_services(Settings(redis_url=own_server.url), name="test") as services:
        assert not isinstance(await top._look(services), Text)
        own_server.kill()
        assert str(await top._look(services)).startswith("The server cannot be used: ")
        own_server.start()
        assert not isinstance(await top._look(services), Text)


async def test_a_server_that_is_slow_is_not_waited_for(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "READ_SECONDS", 0.0)
    async with open_services(Settings(redis_url=own_server.url), name="test") as services:
        assert str(await top._look(services)).endswith("no answer within 0 s")
