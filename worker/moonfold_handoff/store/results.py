"""Where a result is published: once, under its request, and told to the session that waits."""

from __future__ import annotations

from redis.asyncio import Redis

from moonfold_handoff.store import keys, tokens
from moonfold_handoff.store.scripts import Argument, producer_script
from moonfold_handoff.store.tokens import Access
from moonfold_schemas import HandoffResult, decode_result, encode

SESSION_RESULTS = 1_000  # entries kept in a session's stream, about

_publish = producer_script("publish")


async def publish(
    redis: Redis, result: HandoffResult, *, ttl: int, access: Access | None = None
) -> bool:
    """Store `result` for `ttl` seconds and tell its session; False if the request has one already.

    Args:
        redis: the server of queues and results.
        result: the answer.
        ttl: its lifetime, in seconds.
        access: the token that the result names; it opens what it grants only if this is published.
    """
    tag = str(result.__struct_config__.tag)
    published_keys = [keys.result(result.request_id), keys.results(result.session_id)]
    arguments: list[Argument] = [
        encode(result),
        result.request_id,
        tag,
        ttl * 1000,
        SESSION_RESULTS,
    ]
    if access is not None:
        published_keys.append(tokens.key_of(access.token))
        arguments += [tokens.encoded(access.grant), access.ttl * 1000]
    return bool(await _publish(redis, published_keys, arguments))


async def get(redis: Redis, request_id: str) -> HandoffResult | None:
    """Return the result of a request, or None while there is none (or no more)."""
    raw = await redis.get(keys.result(request_id))
    return None if raw is None else decode_result(raw)
