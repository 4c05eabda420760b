"""Where a result is published: once, under its request, and told to the session that waits."""

from __future__ import annotations

from redis.asyncio import Redis

from moonfold_handoff.store import keys
from moonfold_handoff.store.scripts import producer_script
from moonfold_schemas import HandoffResult, decode_result, encode

SESSION_RESULTS = 1_000  # entries kept in a session's stream, about

_publish = producer_script("publish")


async def publish(redis: Redis, result: HandoffResult, *, ttl: int) -> bool:
    """Store `result` for `ttl` seconds and tell its session; False if the request has one already."""
    tag = str(result.__struct_config__.tag)
    published = await _publish(
        redis,
        (keys.result(result.request_id), keys.results(result.session_id)),
        (encode(result), result.request_id, tag, ttl * 1000, SESSION_RESULTS),
    )
    return bool(published)


async def get(redis: Redis, request_id: str) -> HandoffResult | None:
    """Return the result of a request, or None while there is none (or no more)."""
    raw = await redis.get(keys.result(request_id))
    return None if raw is None else decode_result(raw)
