"""Command lines and outcomes of Codex's shell tools.

A command's output is the text that the agent saw, below the header that Codex puts above it; what Codex
wrote down itself about the process fills in where the agent saw nothing of its end.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import msgspec

from moonfold_handoff.transcripts.lines import Json, decode, entries, integer, string
from moonfold_schemas.items import ItemStatus

SHELL_TOOLS = frozenset({"container.exec", "exec_command", "local_shell", "shell", "shell_command"})

_SHELLS = frozenset({"bash", "dash", "fish", "ksh", "sh", "zsh"})
_WINDOWS_SHELLS = frozenset({"cmd", "cmd.exe", "powershell", "powershell.exe", "pwsh", "pwsh.exe"})
_SCRIPT_FLAG = re.compile(r"-[il]*c|-Command|/[cC]")
_HEADER = re.compile(r"(?:Chunk ID|Wall time|Original token count|Total output lines): .*")
_EXITED = re.compile(r"(?:Process exited with code|Exit code:) (-?\d{1,10})")
_RUNNING = re.compile(r"Process running with session ID (\S+)")
_ABORTED = re.compile(r"aborted(?: by user\b.*)?|exec command rejected by user.*")
_FAILED = re.compile(
    r"apply_patch verification failed|command timed out|err(?:or)?:|exec_command failed"
    r"|execution error|failed |patch rejected|rejected|sandbox error|unsupported (?:custom tool )?call",
    re.IGNORECASE,
)


class Outcome(msgspec.Struct, frozen=True):
    """What one source tells of a call's end. `session` names a process that goes on running."""

    status: ItemStatus
    text: str = ""
    exit_code: int | None = None
    session: str | None = None


def command_line(arguments: Json) -> str | None:
    """Return the command line that a shell tool's arguments ask for."""
    for name in ("command", "cmd"):
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            return join(value)
    return None


def join(argv: list[str]) -> str:
    """Return an argument vector as a person would type it: a shell's script alone."""
    script = len(argv) > 2 and _SCRIPT_FLAG.fullmatch(argv[-2])
    program = re.split(r"[/\\]", argv[0])[-1].lower()
    if script and program in (_SHELLS | _WINDOWS_SHELLS):
        return argv[-1]
    return shlex.join(argv)


def located(value: Any, base: str | None) -> str | None:
    """Return the path that a call names, seen from the directory `base`; without one it is `base`."""
    if not isinstance(value, str) or not value:
        return base
    if value.startswith("file://"):
        return unquote(value.removeprefix("file://"))
    if base is None or PurePosixPath(value).is_absolute() or re.match(r"[A-Za-z]:[\\/]", value):
        return value
    return posixpath.normpath(posixpath.join(base, value))


def seen_outcome(output: Any) -> Outcome:
    """Return what the output of a tool call tells: a header and a text, or JSON with both."""
    success = None
    if isinstance(output, dict):
        success = output.get("success")
        output = output.get("content")
    text = _text(output)
    if (old := _old_outcome(text)) is not None:
        return old
    outcome = _read_header(text)
    if success is False and outcome.status is ItemStatus.COMPLETED:
        return Outcome(ItemStatus.FAILED, outcome.text, outcome.exit_code)
    return outcome


def told_outcome(record: Json) -> Outcome:
    """Return what Codex itself wrote down about a command's end."""
    exit_code = integer(record.get("exit_code"))
    # -1 stands for a process without an exit code: it was killed, or never began.
    exit_code = None if exit_code == -1 else exit_code
    text = string(record.get("aggregated_output")) or ""
    text = text or "".join(string(record.get(n)) or "" for n in ("stdout", "stderr"))
    if record.get("status") == "declined":
        status = ItemStatus.INTERRUPTED
    elif record.get("status") == "in_progress":
        status = ItemStatus.IN_PROGRESS
    elif exit_code is not None:
        status = ItemStatus.FAILED if exit_code else ItemStatus.COMPLETED
    else:
        failed = record.get("status") == "failed" or "exit_code" in record
        status = ItemStatus.FAILED if failed else ItemStatus.COMPLETED
    return Outcome(status, text, exit_code)


def merge(seen: Outcome | None, told: Outcome | None) -> Outcome:
    """Return the one outcome of a command from what the agent saw and what Codex wrote down."""
    if seen is None or told is None:
        return seen or told or Outcome(ItemStatus.IN_PROGRESS)
    exit_code = seen.exit_code if seen.exit_code is not None else told.exit_code
    saw_the_end = seen.status not in {ItemStatus.IN_PROGRESS, ItemStatus.INTERRUPTED}
    status = seen.status
    if seen.status is ItemStatus.IN_PROGRESS or told.exit_code is not None:
        status = told.status
    return Outcome(status, seen.text if saw_the_end else told.text or seen.text, exit_code)


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    blocks = (b for b in entries(output) if isinstance(b, dict))
    return "\n".join(t for b in blocks if (t := string(b.get("text"))) is not None)


def _old_outcome(text: str) -> Outcome | None:
    """Return the outcome in the JSON that Codex showed the agent until late 2025."""
    if not (text.startswith("{") and '"metadata"' in text):
        return None
    try:
        document = decode(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    metadata = document.get("metadata") if isinstance(document, dict) else None
    output = document.get("output") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not isinstance(output, str):
        return None
    exit_code = integer(metadata.get("exit_code"))
    return Outcome(ItemStatus.FAILED if exit_code else ItemStatus.COMPLETED, output, exit_code)


def _read_header(text: str) -> Outcome:
    exit_code: int | None = None
    session: str | None = None
    rest = text
    begun = False
    while rest:
        line, _, below = rest.partition("\n")
        if (exited := _EXITED.fullmatch(line)) and exit_code is None:
            exit_code = int(exited[1])
        elif running := _RUNNING.fullmatch(line):
            session = running[1]
        elif line == "Output:" and begun:
            rest = below
            # The patch tool puts a header of its own below the shell's.
            if exit_code is None and session is None and below.startswith("Exit code: "):
                continue
            break
        elif not _HEADER.fullmatch(line):
            break
        rest = below
        begun = True
    line, _, below = rest.partition("\n")
    if exit_code is None and _ABORTED.fullmatch(line):
        return Outcome(ItemStatus.INTERRUPTED, below)
    if session is not None:
        return Outcome(ItemStatus.IN_PROGRESS, rest, session=session)
    failed = exit_code != 0 if exit_code is not None else _FAILED.match(rest) is not None
    return Outcome(ItemStatus.FAILED if failed else ItemStatus.COMPLETED, rest, exit_code)
