"""Lua scripts by their hash, loaded when the server does not know them (yet, or any more)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from moonfold_schemas.redis import script_source

Argument = str | bytes | int

PRODUCER_SCRIPTS = ("append", "enqueue", "publish")

_LUA = resources.files("moonfold_handoff.store") / "lua"


class Script:
    """A Lua script and its SHA-1. Calling it costs one round trip."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self, redis: Redis, keys: Sequence[str], arguments: Sequence[Argument]
    ) -> Any:
        """Run the script. A server that restarted or failed over has forgotten it; it is sent again."""
        try:
            return await redis.evalsha(self.sha, len(keys), *keys, *arguments)  # type: ignore[arg-type,misc]
        except NoScriptError:
            return await redis.eval(self._source, len(keys), *keys, *arguments)  # type: ignore[arg-type,misc]

    async def load(self, redis: Redis) -> None:
        """Let the server know the script."""
        await redis.script_load(self._source)


def producer_script(name: str) -> Script:
    """Return one of the three scripts of the producer protocol."""
    return Script(script_source(name))


def worker_script(name: str) -> Script:
    """Return a script that only workers run."""
    return Script((_LUA / f"{name}.lua").read_text(encoding="utf-8"))


def everything() -> list[Script]:
    """Return all scripts that a worker runs."""
    names = [entry.name.removesuffix(".lua") for entry in _LUA.iterdir()]
    return [*map(worker_script, names), *map(producer_script, PRODUCER_SCRIPTS)]


async def load(redis: Redis, scripts: Sequence[Script]) -> None:
    """Let a server know those scripts that it does not know."""
    known = await redis.script_exists(*(script.sha for script in scripts))
    for script, is_known in zip(scripts, known, strict=True):
        if not is_known:
            await script.load(redis)
