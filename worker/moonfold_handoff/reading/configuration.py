"""How each agent is started with the thread reader as an MCP server, for one session.

Checked with Codex 0.171.0, Claude Code 2.1.197, Gemini CLI 0.61.0 and OpenCode 1.18.33. The token goes
through the environment, never through arguments, which everyone on a machine can see; where an agent gives
its servers only a part of its environment, it is told what else they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from moonfold_schemas.results import ReaderSetup

SERVER = "moonfold"
"""How agents are told the server is called; they name its tools after it (see `context.preamble`)."""

TOKEN = "MOONFOLD_READER_TOKEN"  # noqa: S105 - the variable's name
COMMAND = ("moonfold", "mcp")
OPENCODE = "OPENCODE_CONFIG_CONTENT"

NEEDED = (TOKEN, "MOONFOLD_REDIS_URL", "MOONFOLD_THREADS_URL", "XDG_STATE_HOME")
"""What `moonfold mcp` reads to find the servers and what it may read."""

INSTALL = "The MCP server is an extra: pip install 'moonfold-handoff[mcp]'."

_encode = msgspec.json.Encoder().encode


def is_installed() -> bool:
    """Return whether the extra is installed, so that `moonfold mcp` can serve."""
    return find_spec("mcp") is not None


def setup(
    provider: str, token: str, url: str | None, command: Sequence[str] = COMMAND
) -> ReaderSetup | None:
    """Return what to add to an agent's start; None for an agent that is not known.

    Args:
        provider: whose agent, as targets name it.
        token: what opens the thread.
        url: where the reader is served over HTTP; None: the agent starts `command`.
        command: the reader's program and its arguments.
    """
    make = _AGENTS.get(provider)
    return None if make is None else make(token, url, command)


def _codex(token: str, url: str | None, command: Sequence[str]) -> ReaderSetup:
    # It gives its servers only a few variables of its own. A JSON string is a TOML string, too.
    if url is None:
        program, *rest = command
        table = f"command={_json(program)},args={_json(rest)},env_vars={_json(NEEDED)}"
    else:
        table = f"url={_json(url)},bearer_token_env_var={_json(TOKEN)}"
    return ReaderSetup(
        arguments=("-c", f"mcp_servers.{SERVER}={{{table}}}"), environment={TOKEN: token}
    )


def _claude_code(token: str, url: str | None, command: Sequence[str]) -> ReaderSetup:
    server: dict[str, Any]
    if url is None:
        program, *rest = command
        server = {"type": "stdio", "command": program, "args": rest}
    else:
        server = {"type": "http", "url": url, "headers": _authorization(f"${{{TOKEN}}}")}
    # As one word: the option takes all words that follow it.
    option = f"--mcp-config={_json({'mcpServers': {SERVER: server}})}"
    return ReaderSetup(arguments=(option,), environment={TOKEN: token})


def _gemini_cli(token: str, url: str | None, command: Sequence[str]) -> ReaderSetup:
    # It reads servers from its settings alone, and fills in variables when it starts.
    add = ("gemini", "mcp", "add", "--scope=user")
    if url is None:
        once = (*add, f"--env={TOKEN}=${TOKEN}", SERVER, *command)
    else:
        header = f"--header=Authorization: Bearer ${TOKEN}"
        once = (*add, "--transport=http", header, SERVER, url)
    return ReaderSetup(environment={TOKEN: token}, once=once)


def _opencode(token: str, url: str | None, command: Sequence[str]) -> ReaderSetup:
    server: dict[str, Any]
    if url is None:
        server = {"type": "local", "command": command}
    else:
        headers = _authorization(f"{{env:{TOKEN}}}")
        server = {"type": "remote", "url": url, "headers": headers, "oauth": False}
    content = _json({"mcp": {SERVER: server}})
    return ReaderSetup(environment={TOKEN: token, OPENCODE: content})


_AGENTS: dict[str, Callable[[str, str | None, Sequence[str]], ReaderSetup]] = {
    "codex": _codex,
    "claude-code": _claude_code,
    "gemini-cli": _gemini_cli,
    "opencode": _opencode,
}


def _authorization(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _json(value: Any) -> str:
    return _encode(value).decode()
