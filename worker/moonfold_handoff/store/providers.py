"""Which provider instances are used up: one hash for all, written by a script, expiring by itself.

A later reset precedes an earlier one, a success after a notice ends it, and reporting the same thing again
changes nothing, so any number of workers may report in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import structlog
from redis.asyncio import Redis

from moonfold_handoff.context.availability import HOLD, Instance, Notice
from moonfold_handoff.store import keys
from moonfold_handoff.store.scripts import Argument, worker_script
from moonfold_schemas.events import LimitKind

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_report = worker_script("report")
logger = structlog.get_logger()


class Known(NamedTuple):
    """What is known of an instance: that it is used up, if it is, and when it last completed a turn."""

    instance: Instance
    notice: Notice | None
    succeeded: datetime | None


class _Standing(msgspec.Struct):
    """A field of the hash; times in milliseconds since the epoch."""

    expires: int
    kind: LimitKind | None = None
    noticed: int | None = None
    until: int | None = None
    assumed: bool = False
    succeeded: int | None = None


_decode = msgspec.json.Decoder(_Standing).decode


async def limited(redis: Redis, instance: Instance, notice: Notice, *, now: datetime) -> bool:
    """Take a notice; False if it changes nothing, being older than what is known, or over."""
    noticed = "" if notice.noticed is None else milliseconds(notice.noticed)
    until, assumed = milliseconds(notice.until), int(notice.assumed)
    return await _call(redis, instance, now, noticed, until, notice.kind.value, assumed)


async def succeeded(redis: Redis, instance: Instance, at: datetime, *, now: datetime) -> bool:
    """Take a success; True if it ends a limit."""
    return await _call(redis, instance, now, milliseconds(at), "", "", 0)


async def clear(redis: Redis, instance: Instance, *, now: datetime) -> bool:
    """Take an instance as available again, whatever was noticed; False if it was not used up."""
    raw = await redis.hget(keys.PROVIDERS, instance.name)  # type: ignore[misc]
    notice = notices([instance], [raw], now=now).get(instance)
    noticed = None if notice is None else notice.noticed
    at = max(now, noticed or now)  # another machine's clock may be ahead
    return await succeeded(redis, instance, at, now=at)


async def _call(redis: Redis, instance: Instance, now: datetime, *arguments: Argument) -> bool:
    remembered = HOLD // MILLISECOND
    call = (milliseconds(now), instance.name, *arguments, remembered)
    return bool(await _report(redis, (keys.PROVIDERS,), call))


async def listed(redis: Redis, *, now: datetime) -> list[Known]:
    """Return all that is known, by name."""
    standings: Mapping[bytes, bytes] = await redis.hgetall(keys.PROVIDERS)  # type: ignore[misc]
    known = []
    for raw_name, raw in sorted(standings.items()):
        instance = Instance.parse(raw_name.decode(errors="replace"))
        standing = _standing(raw)
        if instance is not None and standing is not None and standing.expires > milliseconds(now):
            at = standing.succeeded
            succeeded = None if at is None else _time(at)
            known.append(Known(instance, _notice(standing, now), succeeded))
    return known


def notices(
    instances: Iterable[Instance], raws: Sequence[bytes | None], *, now: datetime
) -> dict[Instance, Notice]:
    """Return which of `instances` are used up, from their fields in the hash."""
    found = {}
    for instance, raw in zip(instances, raws, strict=True):
        standing = None if raw is None else _standing(raw)
        notice = None if standing is None else _notice(standing, now)
        if notice is not None:
            found[instance] = notice
    return found


def milliseconds(time: datetime) -> int:
    """Return a time in milliseconds since the epoch."""
    return (time - EPOCH) // MILLISECOND


def _time(at: int) -> datetime:
    return EPOCH + at * MILLISECOND


def _notice(standing: _Standing, now: datetime) -> Notice | None:
    if standing.kind is None or standing.until is None or standing.until <= milliseconds(now):
        return None
    noticed = None if standing.noticed is None else _time(standing.noticed)
    return Notice(standing.kind, noticed, _time(standing.until), standing.assumed)


def _standing(raw: bytes) -> _Standing | None:
    """Return a field, or None where it is damaged: then its instance is tried, which tells."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        logger.warning("provider_standing_unreadable", bytes=len(raw))
        return None
