"""The agents' programs: how each is found, asked for its version, and started with a first prompt."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

VERSION_SECONDS = 5  # an agent that does not tell its version in this time is taken as unknown
MOST_ARGUMENT_BYTES = 131_071  # of one argument: what Linux takes, without the byte that ends it


class NotStartedError(Exception):
    """An agent cannot be started; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Program:
    """How a person starts an agent.

    Attributes:
        provider: The provider's name on the wire.
        name: The program, as it is found on the PATH.
        begin: Arguments that start a conversation with a first prompt.
        resume: Arguments that go on with a conversation; None where the agent takes no prompt then.
        takes_id: Option that names the new conversation, where the agent has one.
    """

    provider: str
    name: str
    begin: Callable[[str], list[str]]
    resume: Callable[[str, str], list[str]] | None = None
    takes_id: str | None = None

    def path(self) -> str:
        """Return where the program is.

        Raises:
            NotStartedError: It is not installed.
        """
        found = shutil.which(self.name)
        if found is None:
            raise NotStartedError(f"{self.name} is not installed, or not on your PATH.")
        return found

    def version(self) -> str | None:
        """Ask the installed agent for its version; whether it takes native items depends on it (R5).

        It blocks for `VERSION_SECONDS` at most. None where the agent is not installed or does not tell.
        """
        program = shutil.which(self.name)
        if program is None:
            return None
        try:
            answer = subprocess.run(  # noqa: S603 - the agent that the person chose, from their PATH
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VERSION_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip()[:100] or None


PROGRAMS = {
    program.provider: program
    for program in (
        Program(
            "codex",
            "codex",
            begin=lambda prompt: ["--", prompt],
            resume=lambda conversation, prompt: ["resume", conversation, "--", prompt],
        ),
        Program(
            "claude-code",
            "claude",
            begin=lambda prompt: ["--", prompt],
            resume=lambda conversation, prompt: ["--resume", conversation, "--", prompt],
            takes_id="--session-id",
        ),
        Program(
            "gemini-cli",
            "gemini",
            begin=lambda prompt: [f"--prompt-interactive={prompt}"],
            takes_id="--session-id",
        ),
        Program("opencode", "opencode", begin=lambda prompt: [f"--prompt={prompt}"]),
    )
}
"""Providers a conversation can go to, and the program that runs each."""
