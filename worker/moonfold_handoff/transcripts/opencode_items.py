"""The parts of OpenCode's answers to items, each with what is known of it by now."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moonfold_handoff.transcripts.base import safe_id
from moonfold_handoff.transcripts.codex_patches import parse_patch
from moonfold_handoff.transcripts.diffs import file_diff, hunks
from moonfold_handoff.transcripts.lines import (
    Json,
    checklist,
    dictionary,
    entries,
    integer,
    string,
    to_json,
)
from moonfold_handoff.transcripts.opencode_records import Part
from moonfold_schemas.items import (
    AssistantMessage,
    Command,
    FileChange,
    FileChangeKind,
    Item,
    ItemStatus,
    Plan,
    Reasoning,
    ToolCall,
)

_EDITORS = frozenset({"edit", "multiedit", "write"})
_PATCHERS = frozenset({"apply_patch", "patch"})
_STATUS = {
    "pending": ItemStatus.IN_PROGRESS,
    "running": ItemStatus.IN_PROGRESS,
    "completed": ItemStatus.COMPLETED,
    "error": ItemStatus.FAILED,
}
# What stands before the first file of a diff, such as a heading of the `diff` package.
_HEADING = re.compile(r"\A.*?^(?=--- )", re.DOTALL | re.MULTILINE)
_STOPPED = re.compile(r"User aborted the command\s*</\w*metadata>\s*\Z")
_ABORTED = "Tool execution aborted"
_REFUSED = frozenset(
    {
        "The user dismissed this question",
        "The user rejected permission to use this specific tool call.",
    }
)


def is_refused(part: Part) -> bool:
    """Tell whether the person refused a tool's call, after which OpenCode stops."""
    error = string(part.state.get("error")) or ""
    return part.type == "tool" and error.removeprefix("Error: ") in _REFUSED


def part_items(part: Part, *, turn_id: str, cwd: str | None, completed: bool) -> list[Item]:
    """Return the items of one part of an answer; most have one, a patch has one for each file.

    Args:
        part: The part.
        turn_id: The turn that it belongs to.
        cwd: Where its message's agent works.
        completed: Whether its message is completed: what is still open then was given up.
    """
    ids = {"item_id": safe_id(part.id), "turn_id": turn_id}
    if part.type == "tool":
        return list(_tool_items(part, ids, cwd))
    if part.type not in {"text", "reasoning"} or part.is_of_opencode:
        return []
    status = ItemStatus.COMPLETED
    if part.is_open:
        status = ItemStatus.INTERRUPTED if completed else ItemStatus.IN_PROGRESS
    text: str = part.data["text"]
    if part.type == "reasoning":
        return [Reasoning(**ids, status=status, text=text)]
    return [AssistantMessage(**ids, status=status, text=text)]


def _tool_items(part: Part, ids: dict[str, str], cwd: str | None) -> Iterator[Item]:
    tool: str = part.data["tool"]
    state = part.state
    arguments = dictionary(state.get("input"))
    if state.get("status") == "pending" and not arguments:
        return  # what it is called with is still on its way
    status = _status(part)
    if tool in _EDITORS and string(arguments.get("filePath")):
        yield _edit(tool, state, status, ids)
        return
    if tool in _PATCHERS and (changes := list(_patch(state, status, ids, cwd))):
        yield from changes
        return
    output = _output(state)
    if tool == "bash" and isinstance(arguments.get("command"), str):
        yield _command(state, status, ids, cwd)
    elif tool == "todowrite" and (text := checklist(arguments.get("todos"), text="content")):
        yield Plan(**ids, status=status, text=text)
    else:
        yield ToolCall(
            **ids, status=status, name=tool, input=to_json(state.get("input")), output=output
        )


def _status(part: Part) -> ItemStatus:
    state = part.state
    status = _STATUS.get(string(state.get("status")) or "", ItemStatus.IN_PROGRESS)
    if status is ItemStatus.FAILED:
        aborted = (string(state.get("error")) or "").startswith(_ABORTED)
        interrupted = dictionary(state.get("metadata")).get("interrupted") is True
        if aborted or interrupted or is_refused(part):
            return ItemStatus.INTERRUPTED
    return status


def _output(state: Json) -> str:
    """Return what the agent saw, or while the tool runs what it has said so far."""
    seen = state.get("error") if state.get("status") == "error" else state.get("output")
    return string(seen) or string(dictionary(state.get("metadata")).get("output")) or ""


def _command(state: Json, status: ItemStatus, ids: dict[str, str], cwd: str | None) -> Command:
    arguments, metadata = dictionary(state.get("input")), dictionary(state.get("metadata"))
    output, exit_code = _output(state), integer(metadata.get("exit"))
    if status is ItemStatus.COMPLETED and exit_code != 0:
        if _STOPPED.search(output):
            status = ItemStatus.INTERRUPTED
        elif "exit" in metadata:
            # A command that was ended for taking too long has no code.
            status = ItemStatus.FAILED
    return Command(
        **ids,
        status=status,
        command=arguments["command"],
        exit_code=exit_code,
        output=output,
        cwd=string(arguments.get("workdir")) or cwd,
    )


def _edit(tool: str, state: Json, status: ItemStatus, ids: dict[str, str]) -> FileChange:
    arguments, metadata = dictionary(state.get("input")), dictionary(state.get("metadata"))
    path: str = arguments["filePath"]
    edits = list(_edits(tool, arguments))
    created = metadata.get("exists") is False
    if tool == "edit" and edits:
        created = not edits[0][0]  # an edit of nothing is how a file is created
    diff = _told_diff(metadata)
    if diff is None:
        lines = [line for old, new in edits for line in hunks(old, new)]
        diff = file_diff("/dev/null" if created else path, path, lines)
    change = FileChangeKind.ADD if created else FileChangeKind.UPDATE
    return FileChange(**ids, status=status, path=path, change=change, diff=diff)


def _edits(tool: str, arguments: Json) -> Iterator[tuple[str, str]]:
    """Yield the replaced and the new passages that a call asks for."""
    if tool == "write":
        pairs = [{"oldString": "", "newString": arguments.get("content")}]
    else:
        pairs = entries(arguments.get("edits")) if tool == "multiedit" else [arguments]
    for pair in map(dictionary, pairs):
        old, new = string(pair.get("oldString")), string(pair.get("newString"))
        if old is not None and new is not None:
            yield old, new


def _told_diff(metadata: Json) -> str | None:
    """Return the diff that the tool wrote down; one of several edits has one for each."""
    results = map(dictionary, entries(metadata.get("results")))
    diffs = [bare for result in (metadata, *results) if (bare := _bare(result.get("diff")))]
    return "".join(diffs) or None


def _bare(diff: object) -> str | None:
    """Return a diff without its heading, or None where there is none."""
    return _HEADING.sub("", diff) if isinstance(diff, str) and diff.strip() else None


def _patch(
    state: Json, status: ItemStatus, ids: dict[str, str], cwd: str | None
) -> Iterator[FileChange]:
    """Yield a patch's changes: the files of its text, with the diffs that the tool wrote down."""
    patch = string(dictionary(state.get("input")).get("patchText")) or ""
    changes = parse_patch(patch, cwd)
    told = [dictionary(file) for file in entries(dictionary(state.get("metadata")).get("files"))]
    for number, change in enumerate(changes):
        file = told[number] if len(told) == len(changes) else {}
        own = {**ids, "item_id": f"{ids['item_id']}:{number}"} if len(changes) > 1 else ids
        yield FileChange(
            **own,
            status=status,
            path=string(file.get("movePath")) or string(file.get("filePath")) or change.path,
            change=change.kind,
            diff=_bare(file.get("patch")) or change.diff,
        )
