"""Providers that are used up, and failovers done without a worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from redis.asyncio import Redis

from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.services import Services
from moonfold_handoff.store import providers, results
from moonfold_schemas import HandoffRequest, HandoffResult, encode, utc_now
from moonfold_schemas.events import Limit, LimitKind
from moonfold_schemas.requests import Target
from moonfold_schemas.results import HandoffFailed, HandoffReady

GEMINI, OPENCODE = Target(provider="gemini-cli"), Target(provider="opencode")
WORK = Target(provider="codex", instance="work")
HOUR = timedelta(hours=1)
SECRET = "a-very-private-sentence"

POLICY = """
[[candidate]]
provider = "codex"
version = "0.150.0"

[[candidate]]
provider = "claude-code"
instance = "team"
from = ["codex"]

[[candidate]]
provider = "gemini-cli"
from = ["claude-code"]
"""


def later(hours: float) -> datetime:
    return utc_now().replace(microsecond=0) + hours * HOUR


def quota(hours: float | None = 3, **changes: Any) -> Limit:
    resets_at = None if hours is None else later(hours)
    return Limit(**{"kind": LimitKind.QUOTA, "resets_at": resets_at, "message": SECRET, **changes})


async def use_up(redis: Redis, target: Target, hours: float, *, assumed: bool = False) -> datetime:
    """Make a provider used up for so many hours, and return until when."""
    notice = Notice(LimitKind.QUOTA, utc_now(), later(hours), assumed)
    await providers.limited(redis, Instance.of(target), notice, now=utc_now())
    return notice.until


async def used_up(redis: Redis) -> dict[str, Notice]:
    listed = await providers.listed(redis, now=utc_now())
    return {one.instance.name: one.notice for one in listed if one.notice is not None}


async def answered(services: Services, request: HandoffRequest) -> HandoffResult:
    """Do a request's job as a worker does, and return what it published."""
    await build_handoff(services, request.request_id, encode(request))
    result = await results.get(services.redis, request.request_id)
    assert result is not None
    return result


async def refused(services: Services, request: HandoffRequest) -> HandoffFailed:
    result = await answered(services, request)
    assert isinstance(result, HandoffFailed), result
    return result


async def taken(services: Services, request: HandoffRequest) -> HandoffReady:
    result = await answered(services, request)
    assert isinstance(result, HandoffReady), result
    return result
