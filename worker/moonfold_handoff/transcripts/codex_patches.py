"""Codex's patches to file changes, one for each file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from moonfold_handoff.transcripts.codex_commands import command_line, located
from moonfold_handoff.transcripts.lines import Json, dictionary, string
from moonfold_schemas.items import FileChangeKind

_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_KINDS = {
    "add": FileChangeKind.ADD,
    "update": FileChangeKind.UPDATE,
    "delete": FileChangeKind.DELETE,
}
_PROGRAMS = frozenset({"apply_patch", "applypatch"})
_BEGIN = "*** Begin Patch"
# Only a script that does nothing but patch: anything else in it is a command of its own.
_HEREDOC = re.compile(
    r"\s*(?:cd\s+(?P<cd>'[^']*'|\"[^\"]*\"|[^\s;&|]+)\s*&&\s*)?apply_?patch\s*<<-?\s*"
    r"(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)\s*\n(?P<patch>.*?)\n(?P=end)\s*",
    re.DOTALL,
)
_ARGUMENT = re.compile(
    r"\s*apply_?patch\s+(['\"])(?P<patch>\s*\*\*\* Begin Patch.*)\1\s*", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a patch does to one file. `path` is where the file is afterwards."""

    path: str
    kind: FileChangeKind
    diff: str | None


def patch_of(arguments: Json) -> tuple[str, str | None] | None:
    """Return the patch that a shell tool's arguments apply, if that is all they do, and its `cd`."""
    argv = arguments.get("command")
    if isinstance(argv, list) and len(argv) == 2 and string(argv[0]) in _PROGRAMS:
        return (argv[1], None) if isinstance(argv[1], str) else None
    command = command_line(arguments) or ""
    if (found := _HEREDOC.fullmatch(command)) is not None:
        directory = found["cd"].strip("'\"") if found["cd"] else None
        return (found["patch"], directory) if _BEGIN in found["patch"] else None
    found = _ARGUMENT.fullmatch(command)
    return (found["patch"], None) if found else None


def parse_patch(patch: str, base: str | None) -> list[Change]:
    """Return the changes in a patch of the `apply_patch` tool, with paths seen from `base`."""
    changes: list[Change] = []
    heading: tuple[str, str] | None = None
    moved: str | None = None
    body: list[str] = []
    for line in [*patch.split("\n"), "*** End Patch"]:
        found = _FILE.fullmatch(line)
        if found or line.startswith("*** End Patch"):
            if heading is not None:
                changes.append(_change(*heading, moved, body))
            heading = (found[1].lower(), _path(found[2], base)) if found else None
            moved, body = None, []
        elif heading is not None and not body and (move := _MOVE.fullmatch(line)):
            moved = _path(move[1], base)
        elif heading is not None and line != "*** End of File":
            body.append(line)
    return changes


def told_changes(changes: object) -> list[Change]:
    """Return the changes that Codex itself wrote down, by path."""
    told = []
    for path, change in dictionary(changes).items():
        fields = dictionary(change)
        kind = string(fields.get("type")) or next((k for k in _KINDS if k in fields), "update")
        fields = dictionary(fields.get(kind)) or fields
        if kind not in _KINDS:
            continue
        moved = string(fields.get("move_path"))
        told.append(_change(kind, path, moved, _body(kind, fields)))
    return told


def _path(written: str, base: str | None) -> str:
    return located(written.strip(), base) or written


def _body(kind: str, fields: Json) -> list[str]:
    if (diff := string(fields.get("unified_diff"))) is not None:
        return diff.removesuffix("\n").split("\n") if diff else []
    content = string(fields.get("content"))
    if not content:
        return []
    mark = "-" if kind == "delete" else "+"
    return [f"{mark}{line}" for line in content.removesuffix("\n").split("\n")]


def _change(kind: str, path: str, moved: str | None, body: list[str]) -> Change:
    change = FileChangeKind.RENAME if moved else _KINDS[kind]
    target = moved or path
    if body and kind == "add":
        body = [f"@@ -0,0 +1,{len(body)} @@", *body]
    elif body and kind == "delete":
        body = [f"@@ -1,{len(body)} +0,0 @@", *body]
    if not body and change is not FileChangeKind.RENAME:
        return Change(target, change, None)
    old = "/dev/null" if kind == "add" else path
    new = "/dev/null" if kind == "delete" else target
    return Change(target, change, "\n".join((f"--- {old}", f"+++ {new}", *body)) + "\n")
