from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from moonfold_handoff.delivery.programs import PROGRAMS
from moonfold_handoff.reading.configuration import OPENCODE, TOKEN, setup
from moonfold_schemas.results import ReaderSetup

SECRET = "mfr_secret"
URL = "https://reader.example/mcp"
COMMAND = ('/opt/a "b"/python', "-P", "mcp")


def made(provider: str, url: str | None = None) -> ReaderSetup:
    found = setup(provider, SECRET, url, COMMAND)
    assert found is not None
    return found


def codex(url: str | None) -> dict[str, Any]:
    option, value = made("codex", url).arguments
    assert option == "-c"
    server: dict[str, Any] = tomllib.loads(value)["mcp_servers"]["moonfold"]
    return server


def claude_code(url: str | None) -> dict[str, Any]:
    [argument] = made("claude-code", url).arguments
    server: dict[str, Any] = json.loads(argument.removeprefix("--mcp-config="))
    return server


def opencode(url: str | None) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(made("opencode", url).environment[OPENCODE])
    return content


@pytest.mark.parametrize("url", [None, URL], ids=["stdio", "http"])
@pytest.mark.parametrize("provider", PROGRAMS)
def test_the_token_goes_through_the_environment_alone(provider: str, url: str | None) -> None:
    found = made(provider, url)
    assert found.environment[TOKEN] == SECRET
    others = [value for name, value in found.environment.items() if name != TOKEN]
    assert SECRET not in repr([found.arguments, found.once, others])


def test_codex_starts_the_command_and_passes_on_what_it_needs() -> None:
    assert codex(None) == {
        "command": COMMAND[0],
        "args": ["-P", "mcp"],
        "env_vars": [TOKEN, "MOONFOLD_REDIS_URL", "MOONFOLD_THREADS_URL", "XDG_STATE_HOME"],
    }


def test_codex_takes_a_url_and_the_variable_of_the_token() -> None:
    assert codex(URL) == {"url": URL, "bearer_token_env_var": TOKEN}


def test_claude_code_takes_a_configuration_of_its_servers() -> None:
    server = {"type": "stdio", "command": COMMAND[0], "args": ["-P", "mcp"]}
    assert claude_code(None) == {"mcpServers": {"moonfold": server}}


def test_claude_code_fills_the_token_in_where_the_reader_has_a_url() -> None:
    headers = {"Authorization": f"Bearer ${{{TOKEN}}}"}
    server = {"type": "http", "url": URL, "headers": headers}
    assert claude_code(URL) == {"mcpServers": {"moonfold": server}}


def test_gemini_cli_is_told_once_and_gets_each_token_by_its_environment() -> None:
    found = made("gemini-cli")
    assert found.arguments == ()
    add = ("gemini", "mcp", "add", "--scope=user")
    assert found.once == (*add, f"--env={TOKEN}=${TOKEN}", "moonfold", *COMMAND)
    header = f"--header=Authorization: Bearer ${TOKEN}"
    assert made("gemini-cli", URL).once == (*add, "--transport=http", header, "moonfold", URL)


def test_opencode_takes_its_configuration_from_the_environment() -> None:
    assert made("opencode").arguments == ()
    server = {"type": "local", "command": list(COMMAND)}
    assert opencode(None) == {"mcp": {"moonfold": server}}
    headers = {"Authorization": f"Bearer {{env:{TOKEN}}}"}
    remote = {"type": "remote", "url": URL, "headers": headers, "oauth": False}
    assert opencode(URL) == {"mcp": {"moonfold": remote}}


def test_an_agent_that_is_not_known_is_left_to_its_session() -> None:
    assert setup("another", SECRET, URL) is None
