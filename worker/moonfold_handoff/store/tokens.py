"""Tokens that open one thread's history up to a point, read-only, for a while.

A token is 256 random bits. Only its SHA-256 is kept, so who can read the store cannot read with it, and
it is found by that hash: no secret is ever compared, and timing tells nothing of one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis

from moonfold_handoff.store import keys
from moonfold_schemas import utc_now
from moonfold_schemas.base import Id, Sequence, Timestamp

PREFIX = "mfr_"
BYTES = 32  # of randomness
SHOWN = 8  # digits of the hash that may be logged

_TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


class Grant(msgspec.Struct, frozen=True):
    """What a token opens.

    Attributes:
        thread_id: the thread, with its ancestors as far as they are its own.
        through: the last sequence that may be read.
        expires_at: when it ends.
    """

    thread_id: Id
    through: Sequence
    expires_at: Timestamp


class Access(NamedTuple):
    """A token, what it opens, and for how many seconds."""

    token: str
    grant: Grant
    ttl: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Grant).decode


def granted(thread_id: str, through: int, *, ttl: int) -> Grant:
    """Return a grant that ends in `ttl` seconds."""
    return Grant(thread_id, through, utc_now() + timedelta(seconds=ttl))


def new_token() -> str:
    """Return a token that opens nothing yet."""
    return PREFIX + secrets.token_urlsafe(BYTES)


def is_token(text: str) -> bool:
    """Return whether `text` has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def name_of(token: str) -> str:
    """Return what a token may be called in logs: the beginning of its hash."""
    return _hash(token)[:SHOWN]


def key_of(token: str) -> str:
    """Return the key under which a token's grant is kept."""
    return keys.token(_hash(token))


def encoded(grant: Grant) -> bytes:
    """Return a grant as it is kept."""
    return _encode(grant)


async def issue(redis: Redis, grant: Grant, ttl: int) -> str:
    """Return a new token for `grant`, kept for `ttl` seconds on the server of queues.

    A handoff's token is kept by `results.publish`, together with the result that names it.
    """
    token = new_token()
    await redis.set(key_of(token), encoded(grant), ex=ttl)
    return token


async def resolve(redis: Redis, token: str) -> Grant | None:
    """Return what a token opens, or None if it is forged, has expired or was revoked."""
    raw = await redis.get(key_of(token)) if is_token(token) else None
    if raw is None:
        return None
    try:
        grant = _decode(raw)
    except msgspec.DecodeError:
        return None  # whatever it is, it opens nothing
    return grant if grant.expires_at > utc_now() else None


async def revoke(redis: Redis, token: str) -> bool:
    """Let a token open nothing any more; False if it opened nothing before."""
    return bool(await redis.delete(key_of(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
