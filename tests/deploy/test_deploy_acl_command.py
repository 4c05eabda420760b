from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from helpers.asking import conversation
from helpers.servers import KINDS, RedisServer, binary_of

from moonfold_handoff.cli import main
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.settings import Settings

URL = "redis://valkey:6379/0"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["acl", *map(str, arguments)])


def users(content: str) -> list[str]:
    return [line.split()[1] for line in content.splitlines()]


def test_the_users_are_printed_and_nobody_can_log_in_as_one_yet() -> None:
    result = run("--producer", "alice", "--producer", "bob")
    assert result.exit_code == 0
    assert users(result.output) == [
        "default",
        "admin",
        "worker",
        "reader",
        "monitor",
        "alice",
        "bob",
    ]
    assert "#" not in result.output
    assert ">" not in result.output
    assert "nopass" not in result.output


def test_the_users_of_the_example_are_those_of_the_command() -> None:
    example = Path(__file__).parents[2] / "deploy" / "redis" / "users.acl.example"
    assert example.read_text(encoding="utf-8") == run("--producer", "alice").output


def test_only_the_owner_gets_at_the_passwords(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    assert run("--into", directory, "--url", URL).exit_code == 0
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_second_call_keeps_the_passwords_and_the_producers(tmp_path: Path) -> None:
    run("--into", tmp_path, "--url", URL, "--producer", "alice")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    run("--into", tmp_path, "--url", "rediss://elsewhere:6380/0", "--producer", "bob")
    assert users((tmp_path / "users.acl").read_text()) == [
        *users(before["users.acl"])[:-1],
        "bob",
        "alice",
    ]
    for name in ("worker.url", "alice.url"):
        moved = (
            before[name].replace("redis://", "rediss://").replace("valkey:6379", "elsewhere:6380")
        )
        assert (tmp_path / name).read_text() == moved
    (tmp_path / "worker.url").unlink()
    run("--into", tmp_path, "--url", URL)
    assert (tmp_path / "worker.url").read_text() != before["worker.url"]
    assert (tmp_path / "alice.url").read_text() == before["alice.url"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--producer", "a.b"),
        ("--producer", "worker"),
        ("--url", "valkey:6379"),
        ("--url", "redis://worker:word@valkey:6379"),
        (),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    url = () if "--url" in arguments or not arguments else ("--url", URL)
    result = run("--into", tmp_path / "secrets", *arguments, *url)
    assert result.exit_code == 2
    assert "Error: Invalid value" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_takes_the_file_and_the_urls_let_their_users_in(
    kind: str, tmp_path: Path
) -> None:
    binary = binary_of(kind)
    if binary is None:
        pytest.skip("redis-server is not installed")
    file = tmp_path / "users.acl"
    server = RedisServer(binary, "--aclfile", str(file))
    run("--into", tmp_path, "--url", server.url, "--producer", "alice")
    with server:
        for user in ("alice", "worker", "admin"):
            environment = {"MOONFOLD_REDIS_URL_FILE": str(tmp_path / f"{user}.url")}
            settings = Settings.from_environment(environment)
            async with HandoffClient("alice.session", settings) as client:
                assert await client.append(f"alice.{user}", 0, conversation()) == 8
