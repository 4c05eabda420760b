from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import Logged, RunningWorker
from helpers.asking import THREAD, append, conversation, events, ready, switch
from helpers.building import assistant, command, reasoning, started, user
from helpers.mcp_clients import (
    MODES,
    Connect,
    answer_of,
    http_reader,
    over_http,
    over_stdio,
    text_of,
)
from helpers.servers import RedisServer
from mcp import Client
from redis.asyncio import Redis

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.preamble import reading_tool
from moonfold_handoff.delivery.programs import PROGRAMS
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.reading import server as reader_server
from moonfold_handoff.reading.configuration import setup
from moonfold_handoff.reading.serving import MAX_REQUEST_BYTES
from moonfold_handoff.services import Services, open_services
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import results, tokens
from moonfold_schemas import Target, encode
from moonfold_schemas.events import ThreadStarted
from moonfold_schemas.results import HandoffReady

LARGE = "".join(f"line {n}: 👩‍👩‍👧 été\n" for n in range(150_000))
FORGED = "mfr_" + "A" * 43


async def issued(redis: Redis, *, through: int = 8, thread_id: str = THREAD) -> str:
    return await tokens.issue(redis, tokens.granted(thread_id, through, ttl=60), 60)


@pytest.fixture
async def token(redis: Redis, recorded: None) -> str:
    return await issued(redis)


@pytest.fixture
async def url(services: Services) -> AsyncIterator[str]:
    async with http_reader(services) as url:
        yield url


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> Connect:
    if request.param == "stdio":
        return lambda token: over_stdio(server.url, token, tmp_path / "errors")
    url = request.getfixturevalue("url")
    return lambda token: over_http(url, token)


async def read(client: Client, **arguments: Any) -> dict[str, Any]:
    return answer_of(await client.call_tool("thread_read", arguments))


async def refusal(client: Client, tool: str = "thread_read", **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is None
    return text_of(result)


# What an agent is told.


async def test_an_agent_lists_two_tools_that_only_read(connect: Connect, token: str) -> None:
    async with connect(token) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["thread_read", "thread_search"]
    for tool in tools:
        hints = tool.annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.idempotent_hint) == (True, True)
        assert (hints.open_world_hint, hints.destructive_hint) == (False, False)
        assert "#12" in (tool.description or "")
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None
            assert schema["type"] == "object"
            assert "$ref" not in json.dumps(schema)


async def test_an_agent_reads_what_was_said(url: str, token: str) -> None:
    async with over_http(url, token) as client:
        page = await read(client, position=3)
        result = await client.call_tool("thread_read", {"after": 3, "view": "activity", "limit": 1})
    assert [entry["text"] for entry in page["items"]] == ["question 0"]
    text = text_of(result)
    assert "#4 command, exit 0]\n$ make step-0\ndone" in text
    assert answer_of(result)["next_after"] == 4
    assert "after=4" in text


async def test_a_command_output_of_3_mb_is_put_together_again(
    connect: Connect, redis: Redis
) -> None:
    assert len(LARGE.encode()) > 3_000_000
    what = events(ThreadStarted(), started(), command("make", LARGE))
    await append(redis, what, thread_id="large", max_event_bytes=8_000_000)
    token = await issued(redis, thread_id="large", through=3)
    pieces: list[str] = []
    offset: int | None = 0
    async with connect(token) as client:
        while offset is not None:
            page = await read(client, position=3, offset=offset, characters=60_000)
            [entry] = page["items"]
            assert entry["offset"] == offset
            pieces.append(entry["text"])
            offset = entry["next_offset"]
    assert "".join(pieces) == f"$ make\n{LARGE}"


async def test_an_agent_searches_and_opens_what_it_found(connect: Connect, token: str) -> None:
    async with connect(token) as client:
        found = answer_of(await client.call_tool("thread_search", {"query": "ANSWER 1"}))
        [hit] = found["hits"]
        page = await read(client, position=hit["position"])
    assert page["items"][0]["text"] == "answer 1"


# What an agent may read.


async def test_an_agent_reads_no_further_than_its_token(
    url: str, redis: Redis, recorded: None
) -> None:
    async with over_http(url, await issued(redis, through=5)) as client:
        page = await read(client, view="activity")
        assert [entry["position"] for entry in page["items"]] == [3, 4, 5]
        assert "no such item" in await refusal(client, position=6)


async def test_reasoning_is_not_read(url: str, redis: Redis) -> None:
    secret = "the insides"
    what = events(ThreadStarted(), started(), user("q"), reasoning(secret), assistant("a"))
    await append(redis, what, thread_id="thinking")
    async with over_http(url, await issued(redis, thread_id="thinking", through=5)) as client:
        shown = await client.call_tool("thread_read", {"view": "activity"})
        assert secret not in text_of(shown) + str(shown.structured_content)
        await refusal(client, position=4)
        assert not answer_of(await client.call_tool("thread_search", {"query": secret}))["hits"]


async def test_what_a_token_does_not_open_is_refused_alike_whether_it_exists_or_not(
    connect: Connect, redis: Redis, token: str
) -> None:
    await append(redis, conversation(1), thread_id="other")
    async with connect(token) as client:
        assert (await read(client, thread_id=THREAD))["items"]
        refusals = {
            await refusal(client, thread_id="other"),
            await refusal(client, thread_id="nowhere"),
            await refusal(client, "thread_search", query="x", thread_id="other"),
        }
    assert refusals == {reader_server.REFUSED}


async def test_a_revoked_token_opens_nothing_from_the_next_call_on(
    redis: Redis, token: str, server: RedisServer, tmp_path: Path
) -> None:
    async with over_stdio(server.url, token, tmp_path / "errors") as client:
        await read(client)
        await tokens.revoke(redis, token)
        assert await refusal(client) == reader_server.REFUSED
        assert await refusal(client, "thread_search", query="x") == reader_server.REFUSED
    logged = (tmp_path / "errors").read_text()
    assert "reading_refused" in logged
    assert token not in logged


@pytest.mark.parametrize("token", ["", FORGED], ids=["none", "forged"])
async def test_over_stdio_a_token_that_opens_nothing_is_told_at_each_call(
    server: RedisServer, token: str, tmp_path: Path
) -> None:
    async with over_stdio(server.url, token, tmp_path / "errors") as client:
        assert len((await client.list_tools()).tools) == 2
        assert await refusal(client) == reader_server.REFUSED


# HTTP.


def call(tool: str = "thread_read") -> dict[str, Any]:
    params = {"name": tool, "arguments": {}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def headers(token: str | None, **more: str) -> dict[str, str]:
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {"Accept": "application/json, text/event-stream", **authorization, **more}


async def post(url: str, token: str | None, **more: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.post(url, json=call(), headers=headers(token, **more))


async def test_a_request_needs_nothing_but_its_token(url: str, token: str) -> None:
    response = await post(url, token)
    assert response.status_code == 200
    assert response.json()["result"]["structuredContent"]["items"]


async def test_requests_without_access_are_turned_away_alike(
    url: str, redis: Redis, token: str, logged: Logged
) -> None:
    await tokens.revoke(redis, token)
    expired = await tokens.issue(redis, tokens.granted(THREAD, 8, ttl=-1), 60)
    responses = [await post(url, one) for one in (None, "x", FORGED, token, expired)]
    assert {(r.status_code, r.text) for r in responses} == {(401, responses[0].text)}
    for response in responses:
        assert response.headers["WWW-Authenticate"].startswith("Bearer ")
    refusals = logged.events("reading_refused")
    assert len(refusals) == len(responses)
    for secret in (token, expired, FORGED):
        assert secret not in logged.text


async def test_each_request_is_answered_for_its_own_token(
    url: str, redis: Redis, recorded: None
) -> None:
    await append(redis, events(ThreadStarted(), started(), user("elsewhere")), thread_id="other")
    first, second = await issued(redis), await issued(redis, thread_id="other", through=3)
    answers = [(await post(url, one)).text for one in (first, second, first)]
    assert ["elsewhere" in answer for answer in answers] == [False, True, False]


async def test_only_calls_are_answered(url: str, token: str) -> None:
    async with httpx2.AsyncClient(headers=headers(token)) as http:
        for method in ("GET", "DELETE"):
            response = await http.request(method, url)
            assert (response.status_code, response.headers["Allow"]) == (405, "POST")


async def test_another_name_for_the_server_is_refused(url: str, token: str) -> None:
    assert (await post(url, token, Host="evil.example")).status_code == 421
    assert (await post(url, token, Origin="http://evil.example")).status_code == 403


async def test_the_name_that_agents_elsewhere_use_is_known(services: Services, token: str) -> None:
    async with http_reader(services, "https://reader.example/moonfold") as url:
        origin = "https://reader.example"
        assert (await post(url, token, Host="reader.example", Origin=origin)).status_code == 200
        assert (await post(url, token, Host="other.example")).status_code == 421


async def test_a_request_is_bounded(url: str, token: str) -> None:
    body = json.dumps(call() | {"padding": "x" * MAX_REQUEST_BYTES})
    given = headers(token, **{"Content-Type": "application/json"})
    async with httpx2.AsyncClient() as http:
        response = await http.post(url, content=body, headers=given)
    assert response.status_code == 413


# What goes wrong.


@pytest.mark.parametrize("mode", MODES)
async def test_both_protocols_are_spoken(url: str, token: str, mode: str) -> None:
    async with over_http(url, token, mode=mode) as client:
        assert (await read(client, position=3))["items"]


@pytest.mark.parametrize(
    "arguments",
    [{"position": "#12"}, {"position": [3]}, {"view": "everything"}, {"offset": 1.5}, {"at": 1}],
    ids=str,
)
async def test_arguments_that_cannot_be_used_are_told(
    url: str, token: str, arguments: dict[str, Any]
) -> None:
    async with over_http(url, token) as client:
        assert "These arguments cannot be used" in await refusal(client, **arguments)
        assert "cannot be used" in await refusal(client, "thread_search")
        assert "thread_read or thread_search" in await refusal(client, "thread_write")


async def test_arguments_are_read_generously(url: str, token: str) -> None:
    async with over_http(url, token) as client:
        page = await read(client, position="3", item_id=None, view=None)
    assert page["items"][0]["text"] == "question 0"


async def test_a_thread_that_is_gone_is_told(
    url: str, redis: Redis, token: str, logged: Logged
) -> None:
    await redis.flushall()
    gone = await issued(redis)
    async with over_http(url, gone) as client:
        assert await refusal(client) == reader_server.GONE
    assert logged.events("reader_finds_no_thread")


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_that_is_away_is_a_tool_error_until_it_is_back(
    own_server: RedisServer, tmp_path: Path, transport: str
) -> None:
    settings = Settings(redis_url=own_server.url)
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(open_services(settings, name="test"))
        await append(services.redis, conversation())
        token = await issued(services.redis)
        if transport == "stdio":
            connection = over_stdio(own_server.url, token, tmp_path / "errors")
        else:
            url = await stack.enter_async_context(http_reader(services))
            connection = over_http(url, token)
        client = await stack.enter_async_context(connection)
        await read(client)
        own_server.kill()
        assert await refusal(client) == reader_server.AWAY
        own_server.start()
        assert (await read(client))["items"]


@pytest.mark.parametrize("provider", PROGRAMS)
async def test_a_handoff_brings_what_its_preamble_speaks_of(
    client: HandoffClient,
    recorded: None,
    running_worker: RunningWorker,
    url: str,
    provider: str,
) -> None:
    handoff = await ready(client, switch(target=Target(provider=provider)))
    access = handoff.reader
    assert access is not None
    assert access.setup == setup(provider, access.token, None)
    first_line = handoff.text.partition("\n")[0]
    assert reading_tool(provider) in first_line
    async with over_http(url, access.token) as agent:
        page = await read(agent, thread_id=handoff.thread_id)
    assert [entry["text"] for entry in page["items"]][:2] == ["question 0", "answer 0"]


async def test_without_tokens_a_handoff_speaks_of_no_tool(
    services: Services, recorded: None
) -> None:
    request = switch()
    off = dataclasses.replace(services.settings, reader_ttl=0)
    without = dataclasses.replace(services, settings=off)
    await build_handoff(without, request.request_id, encode(request))
    result = await results.get(services.redis, request.request_id)
    assert isinstance(result, HandoffReady)
    assert result.reader is None
    assert "thread_read" not in result.text
