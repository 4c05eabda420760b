"""Dead letters: requests that could not be done, kept with the reason."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.context.accounting import literal_bytes
from moonfold_handoff.store import keys
from moonfold_schemas import WireError
from moonfold_schemas.codec import parse

KEPT = 10_000  # entries, about
LIFETIME = 30 * 24 * 3600  # seconds after the last rejection

_encode = msgspec.json.Encoder().encode


async def reject(redis: Redis, *, job_id: str, function: str, reason: str, argument: bytes) -> None:
    """Keep a job's argument with the reason it was not done.

    The text of a new request is private and stays out: only its length is kept.
    """
    async with redis.pipeline(transaction=True) as pipe:
        pipe.xadd(
            keys.REJECTED,
            {
                "job_id": job_id,
                "function": function,
                "reason": reason,
                "argument": without_text(argument),
            },
            maxlen=KEPT,
            approximate=True,
        )
        pipe.expire(keys.REJECTED, LIFETIME)
        await pipe.execute()


def without_text(argument: bytes) -> bytes:
    """Return a request with its text replaced by the text's length; anything else as it is."""
    try:
        document: Any = parse(argument)
    except WireError:
        return argument
    request = document.get("request") if isinstance(document, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("text"), str):
        return argument
    text = request.pop("text")
    request["json_bytes"] = literal_bytes(text)
    return _encode(document)
