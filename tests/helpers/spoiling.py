"""Making a server take no data, and taking that back."""

from __future__ import annotations

from redis.asyncio import Redis


async def full(redis: Redis) -> None:
    await redis.config_set("maxmemory", 1)


async def not_full(redis: Redis) -> None:
    await redis.config_set("maxmemory", 0)


async def read_only(redis: Redis) -> None:
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]


async def writable(redis: Redis) -> None:
    await redis.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
