"""Who may read: a handoff brings a token; a token brings the reader, or one refusal that tells nothing."""

from __future__ import annotations

import structlog
from msgspec.structs import replace
from redis.asyncio import Redis

from moonfold_handoff.reading.configuration import setup
from moonfold_handoff.reading.reader import ThreadReader
from moonfold_handoff.services import Services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import tokens
from moonfold_handoff.store.tokens import Access, Grant
from moonfold_schemas.results import HandoffReady, HandoffResult, ReaderAccess

logger = structlog.get_logger()


class AccessDeniedError(Exception):
    """A token does not open what was asked for, whatever the reason, and whether or not that exists."""

    def __init__(self) -> None:
        super().__init__(
            "This token does not open that: it is unknown, has expired, was revoked, or is another "
            "conversation's. A new handoff brings a new one."
        )


def granted(settings: Settings, result: HandoffResult) -> tuple[HandoffResult, Access | None]:
    """Return a result with the token that opens its thread, where it is a handoff of anything.

    The token opens nothing before it is kept, which is done as the result is published.
    """
    if not isinstance(result, HandoffReady) or result.thread_id is None or not settings.reader_ttl:
        return result, None
    coverage = result.coverage
    if not coverage.selected_items + coverage.omitted_items:
        return result, None
    grant = tokens.granted(result.thread_id, coverage.through, ttl=settings.reader_ttl)
    token = tokens.new_token()
    reader = ReaderAccess(
        token=token,
        expires_at=grant.expires_at,
        through=grant.through,
        url=settings.reader_url,
        setup=setup(result.target.provider, token, settings.reader_url),
    )
    return replace(result, reader=reader), Access(token, grant, settings.reader_ttl)


async def authorize(redis: Redis, token: str, *, thread_id: str | None = None) -> Grant:
    """Return what a token opens.

    Args:
        redis: the server of queues, where tokens are kept.
        token: as it was presented.
        thread_id: the thread that is asked for, where that is said.

    Raises:
        AccessDeniedError: it opens nothing, or another thread.
    """
    grant = await tokens.resolve(redis, token)
    if grant is None or thread_id not in {None, grant.thread_id}:
        reason = "unknown_token" if grant is None else "another_thread"
        logger.warning("reading_refused", token=tokens.name_of(token), reason=reason)
        raise AccessDeniedError
    return grant


async def open_reader(
    services: Services, token: str, *, thread_id: str | None = None
) -> ThreadReader:
    """Return the reader of what a token opens.

    Raises:
        AccessDeniedError: it opens nothing, or another thread.
    """
    grant = await authorize(services.redis, token, thread_id=thread_id)
    return ThreadReader(services.threads, grant.thread_id, grant.through)
