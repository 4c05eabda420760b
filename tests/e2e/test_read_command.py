"""`moonfold read` and `moonfold token`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from conftest import do
from helpers.asking import THREAD, append, conversation, events
from helpers.building import command, user
from helpers.servers import RedisServer

from moonfold_handoff.cli import main, show
from moonfold_handoff.services import Services
from moonfold_handoff.store import tokens

LAST = 9


@pytest.fixture(autouse=True)
def _written(at_the_server: None, server: RedisServer) -> None:
    async def write(services: Services) -> None:
        await append(services.threads, [*conversation(), *events(command("make", "x" * 500))])

    do(server, write)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def said(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_person_reads_any_thread_by_its_id() -> None:
    shown = said("read", THREAD)
    assert [line for line in shown.splitlines() if not line.startswith("[")] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]
    assert " #3 user]\nquestion 0\n" in shown


def test_an_item_is_read_by_its_position_and_from_an_offset() -> None:
    answer = json.loads(said("read", THREAD, "9", "--offset=7", "--characters=10", "--json"))
    [item] = answer["items"]
    assert (item["position"], item["text"], item["next_offset"]) == (9, "x" * 10, 17)


def test_a_range_is_read_in_either_view_and_direction() -> None:
    ranged = ("--after=4", "--before=8", "--limit=2", "--json")
    answer = json.loads(said("read", THREAD, "--view=activity", *ranged))
    assert [item["label"] for item in answer["items"]] == ["assistant", "user"]
    assert answer["next_after"] == 6
    answer = json.loads(said("read", THREAD, "--before=6", "--limit=1", "--json"))
    assert (answer["items"][0]["position"], answer["next_before"]) == (5, 5)


def test_a_text_is_searched_for() -> None:
    assert " #6 user, 1 place]" in said("read", THREAD, "--search=QUESTION 1")
    answer = json.loads(said("read", THREAD, "--search=answer", "--limit=1", "--json"))
    assert (answer["hits"][0]["position"], answer["next_after"]) == (8, 8)
    rest = json.loads(said("read", THREAD, "--search=answer", "--after=8", "--json"))
    assert [hit["position"] for hit in rest["hits"]] == [5]


def test_a_token_reads_what_it_opens_until_it_is_revoked() -> None:
    token = said("token", "issue", THREAD, "--through=5").strip()
    assert json.loads(said("read", token, "--json"))["through"] == 5
    assert said("token", "revoke", token) == "Revoked.\n"
    for arguments in (("read", token), ("token", "revoke", token)):
        done = run(*arguments)
        assert done.exit_code == 1
        assert "This token" in done.stderr
        assert token not in done.output


def test_a_token_is_issued_for_what_is_recorded_and_as_long_as_is_said(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def issued(*arguments: str) -> tokens.Grant:
        token = said("token", "issue", THREAD, *arguments).strip()
        grant = do(server, lambda services: tokens.resolve(services.redis, token))
        assert isinstance(grant, tokens.Grant)
        return grant

    assert (issued().thread_id, issued("--through=1000").through) == (THREAD, LAST)
    day, week = issued("--ttl=1d").expires_at, issued().expires_at
    assert 5 < (week - day).days < 7
    monkeypatch.setenv("MOONFOLD_READER_TTL", "off")
    assert issued("--ttl=1d").through == LAST
    assert "say how long with --ttl" in run("token", "issue", THREAD).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("read", "nowhere"), "There is no log of thread nowhere."),
        (("token", "issue", "nowhere"), "There is no log of thread nowhere."),
        (("read", "a b"), "not an identifier"),
        (("token", "issue", "a b"), "not an identifier"),
        (("token", "issue", THREAD, "--ttl=soon"), "not a duration such as"),
        (("read", THREAD, "1"), "There is no such item to read."),
        (("read", THREAD, "3", "--search=a"), "A search takes no POSITION."),
        (("read", THREAD, "--search= "), "The text to search for"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code in {1, 2}
    assert message in done.stderr
    assert not done.stdout


def test_a_terminal_obeys_nothing_that_is_shown(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoken(services: Services) -> Awaitable[object]:
        return append(services.threads, events(user("a\x1b[31mb")), after=LAST)

    do(server, spoken)
    assert "a\x1b[31mb" in said("read", THREAD, "10")
    module = importlib.import_module("moonfold_handoff.cli.read")
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(module, "sys", terminal)
    assert "a�[31mb" in said("read", THREAD, "10")
    family = "👨‍👩‍👧‍👦"
    assert show.harmless(f"a\x1b[31m\tb\r\n{family}\x9b") == f"a�[31m\tb�\n{family}�"
