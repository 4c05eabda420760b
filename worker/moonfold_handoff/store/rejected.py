"""Dead letters: requests that could not be done, kept with the reason."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.context.accounting import literal_bytes
from moonfold_handoff.store import keys
from moonfold_schemas import WireError, is_id
from moonfold_schemas.codec import parse
from moonfold_schemas.items import AttachmentKind

KEPT = 10_000  # entries, about
LIFETIME = 30 * 24 * 3600  # seconds after the last rejection
PRIVATE = frozenset({"request", "text", "message"})  # fields that hold what somebody wrote

_encode = msgspec.json.Encoder().encode


async def reject(redis: Redis, *, job_id: str, function: str, reason: str, argument: bytes) -> None:
    """Keep a job's argument with the reason it was not done.

    The text of a new request is private and stays out, see `without_text`; `whole` tells whether nothing
    else did.
    """
    async with redis.pipeline(transaction=True) as pipe:
        pipe.xadd(
            keys.REJECTED,
            {
                "job_id": job_id,
                "function": function,
                "reason": reason,
                "argument": without_text(argument),
                "whole": int(_is_whole(argument)),
            },
            maxlen=KEPT,
            approximate=True,
        )
        pipe.expire(keys.REJECTED, LIFETIME)
        await pipe.execute()


def without_text(argument: bytes) -> bytes:
    """Return what is not private of a job's argument: fields that are ids, names or numbers.

    Of a text only the length stays, whatever shape it came in; of what is no JSON, its size.
    """
    try:
        return _encode(_kept(parse(argument)))
    except (WireError, RecursionError):
        return _encode({"bytes": len(argument)})


def _is_whole(argument: bytes) -> bool:
    """Return whether only the text of the new request stays out, and the provider's sentence."""
    try:
        document: Any = parse(argument)
        kept: Any = _kept(document)
    except (WireError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    asked = document.pop("request", None) or {}
    told = kept.pop("request", None) or {}
    for one in (document, kept):
        if isinstance(one.get("limit"), dict):
            one["limit"].pop("message", None)
    if not isinstance(asked, dict) or not isinstance(asked.get("text"), str | None):
        return False
    return asked.get("attachments") == told.get("attachments") and kept == document


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _kept_field(name, inner) for name, inner in value.items() if is_id(name)}
    if isinstance(value, list):
        return [_kept(inner) for inner in value]
    return {"json_bytes": literal_bytes(value)} if isinstance(value, str) else value


def _kept_field(name: str, value: Any) -> Any:
    if name == "request" and isinstance(value, dict):
        return _new_request(value)
    if name in PRIVATE:
        return _kept(value) if isinstance(value, str) else None
    return value if is_id(value) else _kept(value)


def _new_request(request: dict[str, Any]) -> dict[str, Any]:
    text, size, attachments = (request.get(n) for n in ("text", "json_bytes", "attachments"))
    kept: dict[str, Any] = {}
    if isinstance(text, str):
        kept["json_bytes"] = literal_bytes(text)
    elif isinstance(size, int):
        kept["json_bytes"] = size
    if isinstance(attachments, list):
        kept["attachments"] = [kind for kind in attachments if kind in set(AttachmentKind)]
    return kept
