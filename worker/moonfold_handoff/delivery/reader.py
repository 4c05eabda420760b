"""How an agent that is started here gets the thread reader: what the handoff left out is a call away."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from moonfold_handoff.reading.configuration import INSTALL, OPENCODE, SERVER, is_installed, setup
from moonfold_schemas.results import HandoffReady, ReaderSetup

# The interpreter that runs this, whatever is on the agent's PATH. With -P the folder in which the agent
# works, where anyone's files are, is not searched for modules.
COMMAND = (sys.executable, "-P", "-m", "moonfold_handoff", "mcp")


@dataclass(frozen=True, slots=True)
class Offer:
    """What to add to an agent's start so that it has the reader.

    Attributes:
        arguments: they go right after the program's name.
        environment: what is added to its environment; the token is nowhere else.
        trouble: one sentence on why it does not have the reader, where it could have.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    trouble: str | None = None


NOTHING = Offer()
"""What an agent is offered whose handoff leaves nothing to read."""


def offer(result: HandoffReady) -> Offer:
    """Return what gives the agent of a handoff its reader; nothing where the handoff brings no token."""
    access = result.reader
    if access is None:
        return NOTHING
    if access.url is None and not is_installed():
        return Offer(trouble=INSTALL)
    made = setup(result.target.provider, access.token, access.url, COMMAND)
    if made is None:
        return NOTHING
    environment = dict(made.environment)
    if OPENCODE in environment:
        try:
            environment[OPENCODE] = _merged(os.environ.get(OPENCODE, ""), environment[OPENCODE])
        except msgspec.DecodeError:
            return Offer(trouble=f"{OPENCODE} is set to what is not JSON, and is left as it is.")
    return Offer(made.arguments, environment, _once(made))


def _merged(own: str, ours: str) -> str:
    """Return the person's own configuration of OpenCode with the reader added."""
    content = msgspec.json.decode(own, type=dict) if own.strip() else {}
    added = msgspec.json.decode(ours, type=dict)
    content["mcp"] = {**content.get("mcp", {}), **added["mcp"]}
    return msgspec.json.encode(content).decode()


def _once(made: ReaderSetup) -> str | None:
    """Return what the person has to do once, if they seem not to have done it."""
    if not made.once or f'"{SERVER}"' in _gemini_settings():
        return None
    return f"Gemini CLI takes it from its settings only; run this once: {shlex.join(made.once)}"


def _gemini_settings() -> str:
    home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home())
    try:
        return (home / ".gemini" / "settings.json").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # there are none, or Gemini CLI cannot read them either
