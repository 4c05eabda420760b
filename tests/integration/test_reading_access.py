from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import re
from datetime import timedelta
from typing import Any

import pytest
from conftest import Logged, RunningWorker
from helpers.asking import (
    THREAD,
    append,
    conversation,
    events,
    fork,
    limited,
    prepared,
    ready,
    switch,
)
from helpers.building import user
from msgspec.structs import replace
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.reading.access import AccessDeniedError, open_reader
from moonfold_handoff.services import Services
from moonfold_handoff.settings import DAY
from moonfold_handoff.store import results, tokens
from moonfold_handoff.store.tokens import Grant
from moonfold_schemas import encode, utc_now
from moonfold_schemas.events import ThreadStarted
from moonfold_schemas.requests import ProviderSwitchRequested
from moonfold_schemas.results import HandoffReady

FORGED = "mfr_" + "A" * 43


def grant(thread_id: str = THREAD, through: int = 8, *, ttl: int = 60) -> Grant:
    return tokens.granted(thread_id, through, ttl=ttl)


async def handed_off(services: Services, request: ProviderSwitchRequested) -> HandoffReady:
    await build_handoff(services, request.request_id, encode(request))
    result = await results.get(services.redis, request.request_id)
    assert isinstance(result, HandoffReady), result
    return result


def with_settings(services: Services, **changes: Any) -> Services:
    return dataclasses.replace(services, settings=dataclasses.replace(services.settings, **changes))


async def kept(redis: Redis) -> list[bytes]:
    return [key async for key in redis.scan_iter(match="moonfold:token:*")]


# Tokens.


async def test_a_token_opens_what_it_was_issued_for(redis: Redis) -> None:
    given = grant()
    token = await tokens.issue(redis, given, 60)
    assert re.fullmatch(r"mfr_[A-Za-z0-9_-]{43}", token)
    assert await tokens.resolve(redis, token) == given
    assert await tokens.issue(redis, given, 60) != token


async def test_a_token_is_kept_by_its_hash_only_and_ends_by_itself(redis: Redis) -> None:
    token = await tokens.issue(redis, grant(), 60)
    [key] = await kept(redis)
    assert key == f"moonfold:token:{hashlib.sha256(token.encode()).hexdigest()}".encode()
    assert token.encode() not in await redis.get(key)
    assert 50_000 < await redis.pttl(key) <= 60_000


async def test_a_revoked_token_opens_nothing(redis: Redis) -> None:
    token, other = await tokens.issue(redis, grant(), 60), await tokens.issue(redis, grant(), 60)
    assert await tokens.revoke(redis, token)
    assert await tokens.resolve(redis, token) is None
    assert not await tokens.revoke(redis, token)
    assert await tokens.resolve(redis, other) is not None


async def test_an_expired_token_opens_nothing_even_if_it_is_kept_still(redis: Redis) -> None:
    past = replace(grant(), expires_at=utc_now() - timedelta(seconds=1))
    assert await tokens.resolve(redis, await tokens.issue(redis, past, 60)) is None


@pytest.mark.parametrize(
    "token", [FORGED, "", "mfr_", THREAD, FORGED + "A", FORGED + "\n", "mfr_" + "é" * 43, "\ud800"]
)
async def test_a_forged_token_opens_nothing(redis: Redis, token: str) -> None:
    await tokens.issue(redis, grant(), 60)
    assert await tokens.resolve(redis, token) is None
    assert not await tokens.revoke(redis, token)


async def test_what_is_no_grant_opens_nothing(redis: Redis) -> None:
    for spoilt in (b"", b"{}", b"\xff", b'{"thread_id":"a b","through":1}'):
        await redis.set(tokens.key_of(FORGED), spoilt, ex=60)
        assert await tokens.resolve(redis, FORGED) is None


# Readers.


async def test_a_token_brings_the_reader_of_its_thread_up_to_its_point(services: Services) -> None:
    await append(services.threads, conversation(3))
    token = await tokens.issue(services.redis, grant(through=5), 60)
    for thread_id in (None, THREAD):
        page = await (await open_reader(services, token, thread_id=thread_id)).read()
        assert [entry.text for entry in page.items] == ["question 0", "answer 0"]


async def test_a_refusal_does_not_tell_why_or_whether_a_thread_exists(
    services: Services, logged: Logged
) -> None:
    await append(services.threads, conversation())
    await append(services.threads, conversation(), thread_id="other")
    token = await tokens.issue(services.redis, grant(), 60)
    refusals = set()
    for presented, asked in ((FORGED, None), (token, "other"), (token, "nowhere"), ("", THREAD)):
        with pytest.raises(AccessDeniedError) as refusal:
            await open_reader(services, presented, thread_id=asked)
        refusals.add(str(refusal.value))
    assert len(refusals) == 1
    refused = [(line["reason"], line["token"]) for line in logged.events("reading_refused")]
    name = hashlib.sha256(token.encode()).hexdigest()[:8]
    assert [reason for reason, _ in refused] == [
        "unknown_token",
        *["another_thread"] * 2,
        "unknown_token",
    ]
    assert [shown for _, shown in refused][1:3] == [name] * 2
    assert token not in logged.text
    assert FORGED not in logged.text


# Handoffs.


async def test_a_handoff_brings_a_token_that_reads_its_thread(
    services: Services, recorded: None, logged: Logged
) -> None:
    result = await handed_off(services, switch(through=8))
    assert result.reader is not None
    assert (result.reader.through, result.reader.url) == (8, None)
    left = result.reader.expires_at - utc_now()
    assert timedelta(days=6, hours=23) < left <= timedelta(days=7)
    assert result.reader.token not in logged.text
    [key] = await kept(services.redis)
    assert 6 * DAY * 1000 < await services.redis.pttl(key) <= 7 * DAY * 1000
    # What is recorded after the handoff is not the reader's to see.
    await append(services.threads, events(user("later")), after=8)
    page = await (await open_reader(services, result.reader.token)).read()
    assert [entry.text for entry in page.items] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]
    assert page.through == result.coverage.through


async def test_a_request_that_is_built_twice_has_one_token(
    services: Services, recorded: None
) -> None:
    request = switch()
    first = await handed_off(services, request)
    assert await handed_off(services, request) == first
    assert first.reader is not None
    assert await kept(services.redis) == [tokens.key_of(first.reader.token).encode()]


async def test_a_handoff_names_where_its_reader_is_served(
    services: Services, recorded: None
) -> None:
    served = with_settings(services, reader_url="https://reader.example/mcp", reader_ttl=90)
    result = await handed_off(served, switch())
    assert result.reader is not None
    assert result.reader.url == "https://reader.example/mcp"
    assert result.reader.expires_at <= utc_now() + timedelta(seconds=90)


async def test_without_a_lifetime_there_are_no_tokens(services: Services, recorded: None) -> None:
    result = await handed_off(with_settings(services, reader_ttl=0), switch())
    assert result.reader is None
    assert not await kept(services.redis)


async def test_a_handoff_of_nothing_brings_no_token(services: Services) -> None:
    await append(services.threads, events(ThreadStarted()))
    result = await handed_off(services, switch(through=1))
    assert result.reader is None
    assert not await kept(services.redis)


async def test_failovers_and_forks_bring_a_token_and_preparations_do_not(
    client: HandoffClient, running_worker: RunningWorker, recorded: None, services: Services
) -> None:
    failover = await ready(client, limited())
    assert failover.reader is not None
    assert (await tokens.resolve(services.redis, failover.reader.token) or grant()).through == 8
    await prepared(client, fork(fork_thread_id="later", request=None))
    assert len(await kept(services.redis)) == 1
    forked = await ready(client, fork(fork_thread_id="fork"))
    assert forked.reader is not None
    opened = await tokens.resolve(services.redis, forked.reader.token)
    assert opened is not None
    assert (opened.thread_id, opened.through) == ("fork", forked.coverage.through)
    page = await (await open_reader(services, forked.reader.token)).read(limit=1)
    assert [entry.text for entry in page.items] == ["question 0"]


async def test_a_token_opens_its_thread_as_soon_as_its_result_is_there(
    client: HandoffClient, running_worker: RunningWorker, recorded: None, services: Services
) -> None:
    async def check() -> None:
        result = await ready(client, switch())
        assert result.reader is not None
        assert await tokens.resolve(services.redis, result.reader.token) is not None

    await asyncio.gather(*(check() for _ in range(20)))
