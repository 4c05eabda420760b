"""Claude Code's tool calls to items, each with its final content.

A command's output is the text that the agent saw: it has what the harness cut, merged or replaced, and
the conversation only makes sense with that. The recorded stdout and stderr are used where the result has
no text of its own. No exit code is recorded: a failure names it in its first line, a success has none
and counts as 0, except where the harness itself interpreted the code or put the command in the
background; there it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from moonfold_handoff.transcripts.claude_records import TOOL_USES, Record
from moonfold_handoff.transcripts.diffs import file_diff, hunks
from moonfold_handoff.transcripts.lines import Json, checklist, string, to_json
from moonfold_schemas.items import (
    Command,
    FileChange,
    FileChangeKind,
    Item,
    ItemStatus,
    Plan,
    ToolCall,
)

_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,10})(?:\n|$)")
_STOPPED = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action right now",
    "[Request interrupted by user",
)
_SHELLS = frozenset({"Bash", "PowerShell"})
_EDITORS = frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write"})


@dataclass(frozen=True, slots=True)
class Result:
    """What came back from a tool: the text that the agent saw and the harness's own account."""

    text: str
    is_error: bool
    details: Json

    @property
    def was_stopped(self) -> bool:
        """Whether the person stopped or refused the call."""
        return self.details.get("interrupted") is True or (
            self.is_error and self.text.startswith(_STOPPED)
        )


def results_of(record: Record) -> dict[str, Result]:
    """Return the tool results in a record, by the id of their call."""
    results = {}
    blocks = [b for b in record.blocks if b["type"].endswith("tool_result")]
    details = record.data.get("toolUseResult")
    for block in blocks:
        # The account belongs to the record: with several results it is not known whose it is.
        own = details if isinstance(details, dict) and len(blocks) == 1 else {}
        text = _content_text(block.get("content"))
        results[block["tool_use_id"]] = Result(text, block.get("is_error") is True, own)
    return results


def tool_item(
    block: Json, result: Result | None, *, item_id: str, turn_id: str, cwd: str | None
) -> Item:
    """Return the item of a tool call; without a result it is still in progress."""
    name: str = block["name"]
    arguments = block["input"] if isinstance(block.get("input"), dict) else {}
    ids = {"item_id": item_id, "turn_id": turn_id}
    status = _status(result)
    if block["type"] in TOOL_USES:
        if name in _SHELLS and isinstance(arguments.get("command"), str):
            return _command(arguments["command"], result, ids, cwd)
        if name in _EDITORS and (path := _path(arguments)):
            return _file_change(name, path, arguments, result, ids)
        if name == "ExitPlanMode" and isinstance(arguments.get("plan"), str):
            return Plan(**ids, status=status, text=arguments["plan"])
        if name == "TodoWrite" and (text := checklist(arguments.get("todos"), text="content")):
            return Plan(**ids, status=status, text=text)
    output = result.text if result else ""
    return ToolCall(
        **ids, status=status, name=name, input=to_json(block.get("input")), output=output
    )


def _status(result: Result | None) -> ItemStatus:
    if result is None:
        return ItemStatus.IN_PROGRESS
    if result.was_stopped:
        return ItemStatus.INTERRUPTED
    return ItemStatus.FAILED if result.is_error else ItemStatus.COMPLETED


def _command(command: str, result: Result | None, ids: dict[str, str], cwd: str | None) -> Command:
    status = _status(result)
    output = _output(result) if result else ""
    exit_code: int | None = None
    if result and status is not ItemStatus.INTERRUPTED:
        if result.is_error:
            if stated := _EXIT_CODE.match(output):
                exit_code = int(stated[1])
                output = output[stated.end() :]
                status = ItemStatus.FAILED if exit_code else ItemStatus.COMPLETED
        elif not any(
            result.details.get(n) for n in ("backgroundTaskId", "returnCodeInterpretation")
        ):
            exit_code = 0
    return Command(
        **ids, status=status, command=command, exit_code=exit_code, output=output, cwd=cwd
    )


def _output(result: Result) -> str:
    if result.text:
        return result.text
    streams = (string(result.details.get(name)) for name in ("stdout", "stderr"))
    return "\n".join(s for s in streams if s)


def _file_change(
    tool: str, path: str, arguments: Json, result: Result | None, ids: dict[str, str]
) -> FileChange:
    details = result.details if result else {}
    edits = _edits(tool, arguments)
    original = string(details.get("originalFile"))
    created = details.get("type") == "create" or (
        tool == "Write"
        and result is not None
        and "type" not in details
        and result.text.startswith("File created successfully")
    )
    # An edit of nothing is how the edit tools create a file.
    if tool in {"Edit", "MultiEdit"} and edits and edits[0][0] == "":
        created = not original
    lines = _patch_lines(details.get("structuredPatch"))
    if not lines:
        if tool == "Write" and original:
            edits = [(original, edits[0][1])] if edits else []
        lines = [line for old, new in edits for line in hunks(old, new)]
    change = FileChangeKind.ADD if created else FileChangeKind.UPDATE
    diff = file_diff("/dev/null" if created else path, path, lines)
    return FileChange(**ids, status=_status(result), path=path, change=change, diff=diff)


def _path(arguments: Json) -> str | None:
    return string(arguments.get("file_path")) or string(arguments.get("notebook_path"))


def _edits(tool: str, arguments: Json) -> list[tuple[str, str]]:
    """Return the replaced and the new passages that a call asks for."""
    pairs: list[tuple[Any, Any]]
    if tool == "Write":
        pairs = [("", arguments.get("content"))]
    elif tool == "NotebookEdit":
        pairs = [("", arguments.get("new_source"))]
    elif tool == "MultiEdit":
        edits = arguments.get("edits")
        edits = edits if isinstance(edits, list) else []
        pairs = [(e.get("old_string"), e.get("new_string")) for e in edits if isinstance(e, dict)]
    else:
        pairs = [(arguments.get("old_string"), arguments.get("new_string"))]
    return [(o, n) for o, n in pairs if isinstance(o, str) and isinstance(n, str)]


def _patch_lines(patch: Any) -> list[str]:
    lines: list[str] = []
    for hunk in patch if isinstance(patch, list) else ():
        body = hunk.get("lines") if isinstance(hunk, dict) else None
        if not isinstance(body, list):
            continue
        numbers = (hunk.get(n) for n in ("oldStart", "oldLines", "newStart", "newLines"))
        start, count, new_start, new_count = (int(n) if isinstance(n, int) else 0 for n in numbers)
        lines.append(f"@@ -{start},{count} +{new_start},{new_count} @@")
        lines.extend(line for line in body if isinstance(line, str))
    return lines


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    texts = (string(b.get("text")) for b in blocks if isinstance(b, dict))
    return "\n".join(t for t in texts if t is not None)
