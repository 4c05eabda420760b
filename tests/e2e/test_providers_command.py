"""`moonfold providers`, and what `moonfold explain` says of candidates."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result
from conftest import do
from helpers.asking import CLAUDE, CODEX, append, conversation, limited
from helpers.servers import RedisServer

from moonfold_handoff.cli import main
from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.jobs import build_handoff
from moonfold_handoff.services import Services
from moonfold_handoff.store import providers
from moonfold_schemas import encode, utc_now
from moonfold_schemas.events import LimitKind

pytestmark = pytest.mark.usefixtures("at_the_server")


NOW = utc_now().replace(microsecond=0)
UNTIL = NOW + timedelta(hours=5)


@pytest.fixture
def known(server: RedisServer) -> None:
    async def tell(services: Services) -> None:
        work, team = Instance("codex", "work"), Instance("claude-code")
        told = Notice(LimitKind.QUOTA, NOW, UNTIL)
        guessed = Notice(LimitKind.CREDITS, NOW, UNTIL, assumed=True)
        await providers.limited(services.redis, work, told, now=NOW)
        await providers.limited(services.redis, Instance("opencode"), guessed, now=NOW)
        await providers.succeeded(services.redis, team, NOW, now=NOW)

    do(server, tell)


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def lines() -> list[str]:
    done = run("providers")
    assert (done.exit_code, done.stderr) == (0, "")
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_there_is_a_line_for_each_instance(known: None) -> None:
    noticed, until = f"{NOW:%Y-%m-%d %H:%M} UTC", f"{UNTIL:%Y-%m-%d %H:%M} UTC"
    _, *shown = lines()
    assert shown == [
        f"claude-code available {noticed}",
        f"codex/work used up quota {until} {noticed}",
        f"opencode used up credits {until}, assumed {noticed}",
    ]


def test_where_nothing_is_known_that_is_said() -> None:
    assert lines() == ["No provider is known to be used up."]


def test_json_is_all_that_is_printed(known: None) -> None:
    done = run("providers", "--json")
    assert done.stderr == ""
    team, work, _ = json.loads(done.stdout)
    assert work == {
        "provider": "codex",
        "instance": "work",
        "available": False,
        "kind": "quota",
        "until": f"{UNTIL:%Y-%m-%dT%H:%M:%SZ}",
        "assumed": False,
        "noticed": f"{NOW:%Y-%m-%dT%H:%M:%SZ}",
        "succeeded": None,
    }
    assert (team["available"], team["succeeded"]) == (True, work["noticed"])


def test_who_bought_credits_can_say_so(known: None) -> None:
    done = run("providers", "--clear", "opencode")
    assert (done.exit_code, done.stderr) == (0, "")
    assert any(line.startswith("opencode available") for line in lines())
    assert any(line.startswith("codex/work used up") for line in lines())
    run("providers", "--clear", "codex/work")
    assert any(line.startswith("codex/work available") for line in lines())


def test_who_was_not_used_up_is_said(known: None) -> None:
    done = run("providers", "--json", "--clear", "codex")
    assert done.exit_code == 0
    assert done.stderr == "codex was not known to be used up.\n"
    assert json.loads(done.stdout)


def test_what_is_no_name_is_refused() -> None:
    done = run("providers", "--clear", "codex/")
    assert done.exit_code == 2
    assert "PROVIDER/INSTANCE" in done.stderr


@pytest.mark.parametrize("candidates", [(CODEX, CLAUDE), (CODEX,)])
def test_an_explanation_says_who_was_passed_over(
    candidates: tuple[()], server: RedisServer
) -> None:
    request = limited(candidates=candidates)

    async def answer(services: Services) -> None:
        await append(services.redis, conversation())
        await build_handoff(services, request.request_id, encode(request))

    do(server, answer)
    done = run("explain", request.request_id)
    assert done.exit_code == 0
    assert "Passed over codex: The thread leaves it" in done.stdout
