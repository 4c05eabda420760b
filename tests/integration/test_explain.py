from __future__ import annotations

import asyncio
import re

import pytest
from click.testing import CliRunner, Result
from helpers.asking import CODEX, SESSION, append, events, restart, switch
from helpers.building import assistant, command, reasoning, started, usage, user
from helpers.servers import RedisServer

from moonfold_handoff.catalogue import load_catalogue
from moonfold_handoff.cli import main
from moonfold_handoff.context.accounting import text_bytes
from moonfold_handoff.context.portable import body
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.services import open_services
from moonfold_handoff.settings import SETTINGS, Settings
from moonfold_handoff.store import results
from moonfold_schemas import HandoffRequest, encode
from moonfold_schemas.events import ItemRecorded, ThreadEvent, ThreadStarted, TurnEnded, TurnStatus
from moonfold_schemas.items import ItemStatus
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import (
    HandoffFailed,
    HandoffPrepared,
    HandoffReady,
    HandoffResult,
    HandoffWaiting,
)

SECRET = "quokka"

LONG = events(
    ThreadStarted(),
    started("c", model="gpt-6-sol"),
    user(f"{SECRET} original {'q' * 200}"),
    command(f"make {SECRET}", f"{SECRET}\n" * 900, exit_code=2, status=ItemStatus.FAILED),
    reasoning(f"{SECRET} thought"),
    assistant(f"{SECRET} {'a' * 3_000}"),
    user(f"{SECRET} newest"),
    assistant(f"{SECRET} answer", status=ItemStatus.INTERRUPTED),
    TurnEnded(turn_id="turn", status=TurnStatus.LIMITED),
)

HELD = sum(
    text_bytes(body(event.item)) for event in LONG if isinstance(event, ItemRecorded)
)  # in conversation c


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("MOONFOLD_REDIS_URL", server.url)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def _logging(restored_logging: None) -> None:
    """Put logging back after a command has configured it."""


def answered(
    server: RedisServer, request: HandoffRequest, history: list[ThreadEvent]
) -> HandoffResult:
    """Append a history and answer a request for it, as a worker does."""

    async def answer() -> HandoffResult | None:
        settings = Settings(redis_url=server.url)
        async with open_services(settings, name="test", catalogue=load_catalogue()) as services:
            await append(services.redis, history)
            await build_handoff(services, request.request_id, encode(request))
            return await results.get(services.redis, request.request_id)

    result = asyncio.run(answer())
    assert result is not None
    return result


def publish(server: RedisServer, result: HandoffResult) -> None:
    async def store() -> None:
        async with open_services(Settings(redis_url=server.url), name="test") as services:
            await results.publish(services.redis, result, ttl=60)

    asyncio.run(store())


def forget(server: RedisServer, thread_id: str) -> None:
    async def delete() -> None:
        async with open_services(Settings(redis_url=server.url), name="test") as services:
            for part in ("log", "state", "items"):
                await services.redis.delete(f"moonfold:{{{thread_id}}}:{part}")

    asyncio.run(delete())


def explain(request_id: str) -> Result:
    return CliRunner().invoke(main, ["explain", request_id])


def explained(request_id: str) -> str:
    done = explain(request_id)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def row(output: str, name: str) -> list[str]:
    """Return the cells of the line that begins with a name."""
    [line] = [line for line in output.splitlines() if re.match(rf"\s*{re.escape(name)}\s", line)]
    return re.split(r"\s{2,}", line.strip())


def test_a_handoff_is_explained_input_by_input(server: RedisServer) -> None:
    target = Target(provider="codex", version="0.171.0", model="gpt-6-sol", conversation_id="c")
    request = switch(target=target, through=10, token_cap=2_000, request=NewRequest(text="go on"))
    history = [*LONG, usage(1_234)]
    result = answered(server, request, history)
    assert isinstance(result, HandoffReady)
    output = explained(request.request_id)
    assert "codex, delivered as items, thread thread up to #10" in output
    assert row(output, "window") == ["window", "258,400", "catalogue"]
    assert row(output, "existing") == ["existing", "1,234", "telemetry"]
    assert row(output, "request") == ["request", "7", "request"]
    assert row(output, "attachments") == ["attachments", "0", "request"]
    assert row(output, "reserve") == ["reserve", "64,600", "rule"]
    assert row(output, "cap") == ["cap", "2,000", "request"]
    assert row(output, "ceiling") == ["ceiling", "64,000", "rule"]
    assert row(output, "allowance") == ["allowance", "2,000", "limited by cap"]
    assert row(output, "cost")[:2] == ["cost", f"{result.budget.cost:,}"]


@pytest.mark.parametrize(
    ("target", "window", "existing"),
    [
        (CODEX, ["128,000", "assumed"], ["0", "fresh"]),
        (
            Target(provider="codex", capacity=100_000),
            ["100,000", "request"],
            ["0", "fresh"],
        ),
        (
            Target(provider="codex", model="m", options={"model_context_window": 90_000}),
            ["90,000", "option"],
            ["0", "fresh"],
        ),
        (
            Target(provider="codex", model="gpt-6-sol", conversation_id="c"),
            ["258,400", "catalogue"],
            [f"{HELD:,}", "estimated"],
        ),
    ],
    ids=["assumed", "request", "option", "estimated"],
)
def test_each_origin_is_told(
    server: RedisServer, target: Target, window: list[str], existing: list[str]
) -> None:
    request = switch(target=target, through=9)
    answered(server, request, LONG)
    output = explained(request.request_id)
    assert row(output, "window")[1:] == window
    assert row(output, "existing")[1:] == existing
    assert row(output, "cap")[1:] == ["16,000", "default"]


def test_a_restart_is_fresh_whatever_conversation_it_names(server: RedisServer) -> None:
    target = Target(provider="codex", model="gpt-6-sol", conversation_id="c")
    request = restart(target=target, through=9)
    answered(server, request, LONG)
    output = explained(request.request_id)
    assert row(output, "window")[1:] == ["258,400", "catalogue"]
    assert row(output, "existing")[1:] == ["0", "fresh"]


def test_every_item_is_told_with_its_reason(server: RedisServer) -> None:
    request = switch(through=9, token_cap=1_024)
    result = answered(server, request, LONG)
    assert isinstance(result, HandoffReady)
    output = explained(request.request_id)
    items = output.partition("Items")[2]
    assert row(items, "3")[:2] == ["3", "user"]
    assert row(items, "3")[3:] == ["whole", "original request"]
    what, size, went, why = row(items, "4")[1:]
    assert (what, went, why) == ("command, exit 2", "part", "a failure that matters now")
    assert int(size.replace(",", "")) > result.budget.cost
    assert row(items, "6")[1:] == [
        "assistant",
        row(items, "6")[2],
        "no",
        "longer than all the room there was",
    ]
    assert row(items, "7")[3:] == ["whole", "newest request"]
    assert row(items, "8")[1] == "assistant, interrupted"
    assert row(items, "8")[3:] == ["whole", "newest answer"]
    told = re.findall(r"^\s*(\d+)\s", items, re.MULTILINE)
    assert told == ["3", "4", "6", "7", "8"]


def test_a_short_conversation_fits_whole(server: RedisServer) -> None:
    request = switch(through=3)
    answered(server, request, events(started(), user("question"), assistant("answer")))
    items = explained(request.request_id).partition("Items")[2]
    assert row(items, "2")[3:] == row(items, "3")[3:] == ["whole", "everything fits"]


def test_items_too_far_back_are_counted(server: RedisServer) -> None:
    history = events(user("original"), *(user(f"request {n}") for n in range(1_100)))
    request = switch(through=1_101)
    answered(server, request, history)
    items = explained(request.request_id).partition("Items")[2]
    assert "588 older items" in items
    assert "too far back to be candidates" in items


def test_what_went_because_the_request_mentioned_it_is_told_so(server: RedisServer) -> None:
    history = events(
        user("look around"),
        command("cat notes", "the flag is frobnicate_widgets"),
        *(command(f"make target_{n}", f"built target_{n} in /srv/{n}/out.log") for n in range(150)),
        user("and now?"),
        assistant("done"),
    )
    text = NewRequest(text="rename frobnicate_widgets")
    request = switch(through=len(history), token_cap=2_000, request=text)
    result = answered(server, request, history)
    assert isinstance(result, HandoffReady)
    items = explained(request.request_id).partition("Items")[2]
    assert row(items, "2")[3:] == ["whole", "the new request mentions it"]
    told = {}
    for line in items.splitlines():
        if match := re.match(r"\s*(\d+)\s+\S.*\s(whole|part|no)\s", line):
            told[int(match[1])] = match[2]
    went = {n for span in result.coverage.selected for n in range(span.first, span.last + 1)}
    assert {n for n, how in told.items() if how != "no"} == went
    assert {n for n, how in told.items() if how == "part"} == set(result.coverage.abridged)
    assert len(told) == len(history)


def test_no_text_of_the_conversation_is_printed(server: RedisServer) -> None:
    request = switch(through=9, token_cap=1_024, request=NewRequest(text=f"{SECRET} again"))
    result = answered(server, request, LONG)
    assert isinstance(result, HandoffReady)
    assert SECRET in result.text
    assert SECRET not in explained(request.request_id)


def test_a_handoff_without_room_says_what_it_needed_and_what_was_left(
    server: RedisServer,
) -> None:
    target = Target(provider="claude-code", model="m", capacity=16_050)
    request = switch(through=9, target=target, request=NewRequest(text="go on"))
    result = answered(server, request, LONG)
    assert isinstance(result, HandoffFailed)
    assert (result.available, result.retryable) == (43, False)
    output = " ".join(explained(request.request_id).split())
    assert output == (
        f"handoff.failed (references_do_not_fit): {result.message} "
        f"Needed {result.needed} bytes, left 43."
    )
    assert "Compact the target conversation" in output


def test_a_failure_of_another_kind_says_whether_to_try_again(server: RedisServer) -> None:
    request = switch(through=99)
    result = answered(server, request, LONG)
    assert isinstance(result, HandoffFailed)
    output = " ".join(explained(request.request_id).split())
    assert output.startswith(f"handoff.failed (history_incomplete): {result.message}")
    assert ("The same request can succeed later." in output) is result.retryable
    assert "Needed" not in output


def test_a_throttle_is_told_as_what_it_is(server: RedisServer) -> None:
    publish(server, HandoffWaiting(request_id="r", session_id=SESSION, retry_after=1.0))
    assert explained("r").startswith("handoff.waiting")


def test_a_preparation_is_told_as_what_it_is(server: RedisServer) -> None:
    request = switch(through=9)
    ready = answered(server, request, LONG)
    assert isinstance(ready, HandoffReady)
    prepared = HandoffPrepared(
        request_id="r",
        session_id=SESSION,
        target=ready.target,
        coverage=ready.coverage,
        budget=ready.budget,
    )
    publish(server, prepared)
    assert explained("r") == "handoff.prepared\n"


def test_a_thread_that_is_gone_leaves_the_budget(server: RedisServer) -> None:
    request = switch(through=9)
    answered(server, request, LONG)
    forget(server, request.thread_id)
    output = explained(request.request_id)
    assert row(output, "allowance")[1] == "16,000"
    assert "The items cannot be explained any more: There is no log of thread thread." in output


def test_an_unknown_request_is_one_sentence(server: RedisServer) -> None:
    done = explain("nobody-asked")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "Error: There is no result for request nobody-asked.\n"


def test_what_is_no_identifier_is_refused(server: RedisServer) -> None:
    done = explain("no identifier")
    assert done.exit_code == 2
    assert "Invalid value for REQUEST_ID: not an identifier" in done.stderr
