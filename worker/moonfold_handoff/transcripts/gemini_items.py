"""Tool calls of Gemini CLI to items: commands, file changes, plans, and all the others.

The forms of results are those of `@google/gemini-cli-core` 0.61 (`tools/shell.js`, `tools/edit.js`,
`tools/write-file.js`); older ones of the shell tool begin with the command and name every field.
"""

from __future__ import annotations

import re
from typing import Any

from moonfold_handoff.transcripts.gemini_words import parts_of
from moonfold_handoff.transcripts.lines import (
    Json,
    checklist,
    dictionary,
    integer,
    string,
    to_json,
)
from moonfold_schemas.items import (
    Command,
    FileChange,
    FileChangeKind,
    Item,
    ItemStatus,
    Plan,
    ToolCall,
)

_STATUSES = {
    "success": ItemStatus.COMPLETED,
    "error": ItemStatus.FAILED,
    "cancelled": ItemStatus.INTERRUPTED,
}
_FILE_TOOLS = frozenset({"edit", "replace", "write_file"})
_CREATED = ("Successfully created", "Created new file")

_UNTRUSTED = re.compile(
    r"\s*<untrusted_context[^>]*>\n?(?P<text>.*?)\n?</untrusted_context>\s*", re.DOTALL
)
_HEAD = re.compile(r"(?:Command: .*?\n)?(?:Directory: [^\n]*\n)?(?=(?:Output|Stdout): )", re.DOTALL)
_OUTPUT = re.compile(r"(?:Output|Stdout): ")
_FIELD = re.compile(
    r"\n(?P<name>Exit Code|Signal|Background PIDs|Process Group PGID): (?P<value>[^\n]*)\Z"
)
_NONE = "(none)"
_NO_ERROR = "\nError: (none)"
_NO_STDERR = "\nStderr: (empty)"


def call_status(call: Json) -> ItemStatus:
    """Return how far a tool call got; the CLI has several words for one that still runs."""
    return _STATUSES.get(string(call.get("status")) or "", ItemStatus.IN_PROGRESS)


def tool_item(call: Json, *, item_id: str, turn_id: str) -> Item:
    """Return the item of a tool call, which has a `name`.

    Args:
        call: An entry of a message's `toolCalls`.
        item_id: The item's id.
        turn_id: The turn's id.
    """
    name = call["name"]
    arguments = dictionary(call.get("args"))
    display = call.get("resultDisplay")
    status = call_status(call)
    result = _result(call.get("result"))
    if not result and status is not ItemStatus.IN_PROGRESS:
        result = string(display) or ""
    item: Item | None = None
    if name == "run_shell_command":
        item = _command(arguments, display, result, status, item_id=item_id, turn_id=turn_id)
    elif name in _FILE_TOOLS or "fileDiff" in dictionary(display):
        item = _file_change(
            arguments, dictionary(display), result, status, item_id=item_id, turn_id=turn_id
        )
    elif name == "write_todos":
        text = checklist(arguments.get("todos"), text="description")
        item = Plan(item_id=item_id, turn_id=turn_id, status=status, text=text)
    return item or ToolCall(
        item_id=item_id,
        turn_id=turn_id,
        status=status,
        name=name,
        input=to_json(arguments),
        output=result,
    )


def _result(result: Any) -> str:
    """Return what a tool gave the model, as text."""
    texts = []
    for part in parts_of(result):
        response = dictionary(dictionary(part.get("functionResponse")).get("response"))
        texts.append(
            string(response.get("output"))
            or string(response.get("error"))
            or string(part.get("text"))
            or (to_json(response) if response else "")
        )
    return "\n".join(text for text in texts if text)


def _command(
    arguments: Json, display: Any, result: str, status: ItemStatus, *, item_id: str, turn_id: str
) -> Item | None:
    command = string(arguments.get("command"))
    if command is None:
        return None
    output, fields = _shell_result(result, string(display) or "")
    exit_code = None
    if fields is not None and status is ItemStatus.COMPLETED:
        killed = fields.get("Signal", _NONE) != _NONE
        # The tool leaves out an exit code of 0.
        exit_code = _number(fields.get("Exit Code", _NONE if killed else "0"))
        status = ItemStatus.FAILED if killed or exit_code else status
    folder = string(arguments.get("dir_path")) or string(arguments.get("directory"))
    return Command(
        item_id=item_id,
        turn_id=turn_id,
        status=status,
        command=command,
        exit_code=exit_code,
        output=output,
        cwd=folder or None,
    )


def _shell_result(result: str, display: str) -> tuple[str, dict[str, str] | None]:
    """Return a command's own output and what else the shell tool says of it, by name.

    A text of another form, as of a command that went to the background, is the output as it is.
    """
    if wrapped := _UNTRUSTED.fullmatch(result):
        result = wrapped["text"]
    head = _HEAD.match(result)
    start = _OUTPUT.match(result, head.end() if head else 0)
    if start is None:
        return result, None
    text = result[start.end() :]
    # What the person was shown is the output alone, in which a line can look like a field.
    least = len(display) if text.startswith(display) else 0
    fields: dict[str, str] = {}
    while (field := _FIELD.search(text, least)) and field["name"] not in fields:
        fields[field["name"]] = field["value"]
        text = text[: field.start()]
    text = text.removesuffix(_NO_ERROR).removesuffix(_NO_STDERR)
    return ("" if text == "(empty)" else text), fields


def _number(text: str) -> int | None:
    try:
        return integer(int(text))
    except ValueError:
        return None


def _file_change(
    arguments: Json, display: Json, result: str, status: ItemStatus, *, item_id: str, turn_id: str
) -> Item | None:
    path = string(arguments.get("file_path")) or string(display.get("filePath"))
    if not path:
        return None
    created = display.get("isNewFile") is True or result.startswith(_CREATED)
    change = FileChangeKind.ADD if created else FileChangeKind.UPDATE
    diff = string(display.get("fileDiff")) or ""
    _, mark, hunks = diff.partition("\n@@ ")
    if mark:
        hunks = hunks if hunks.endswith("\n") else f"{hunks}\n"
        source = "/dev/null" if created else path
        diff = f"--- {source}\n+++ {path}\n@@ {hunks}"
    return FileChange(
        item_id=item_id,
        turn_id=turn_id,
        status=status,
        path=path,
        change=change,
        diff=diff if mark else None,
    )
