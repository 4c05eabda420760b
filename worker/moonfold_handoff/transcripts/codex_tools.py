"""Codex's tool calls to items, each with its final content however many records tell of its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from moonfold_handoff.transcripts.codex_commands import (
    SHELL_TOOLS,
    Outcome,
    command_line,
    join,
    located,
    merge,
    seen_outcome,
    told_outcome,
)
from moonfold_handoff.transcripts.codex_patches import Change, parse_patch, patch_of, told_changes
from moonfold_handoff.transcripts.codex_records import Record
from moonfold_handoff.transcripts.event_list import EventList
from moonfold_handoff.transcripts.lines import (
    Json,
    checklist,
    decode,
    dictionary,
    entries,
    string,
    to_json,
)
from moonfold_schemas.items import Command, FileChange, Item, ItemStatus, Plan, ToolCall

CALLS = frozenset(
    {
        "custom_tool_call",
        "function_call",
        "image_generation_call",
        "local_shell_call",
        "tool_search_call",
        "web_search_call",
    }
)
OUTPUTS = frozenset({"custom_tool_call_output", "function_call_output", "tool_search_output"})

_WORKDIRS = ("workdir", "working_directory", "cwd")
# The provider runs these itself: their record is their end.
_AT_ONCE = frozenset({"image_generation_call", "web_search_call"})


@dataclass(slots=True)
class _Call:
    places: list[int]
    seen: Outcome | None = None
    told: Outcome | None = None
    continues: str | None = None  # the running process that this call writes to


class Calls:
    """The calls of a rollout by their id."""

    def __init__(self, events: EventList) -> None:
        self._events = events
        self._calls: dict[str, _Call] = {}
        self._open: list[_Call] = []
        self._sessions: dict[str, _Call] = {}

    def begin(self, record: Record, turn_id: str, cwd: str | None) -> None:
        """Record the items of a call."""
        payload = record.payload
        id_ = string(payload.get("call_id")) or record.name
        call = self._add(id_, _items(payload, turn_id, cwd), record.time)
        if record.kind in _AT_ONCE:
            failed = payload.get("status") == "failed"
            call.seen = Outcome(ItemStatus.FAILED if failed else ItemStatus.COMPLETED)
            self._settle(call)
        elif payload.get("name") == "write_stdin":
            session = _arguments(payload).get("session_id")
            call.continues = None if session is None else str(session)

    def end(self, record: Record) -> bool:
        """Take what the agent saw of a call's end; tell whether the call is known."""
        call = self._calls.get(string(record.payload.get("call_id")) or "")
        if call is None:
            return False
        output = record.payload.get("output")
        if record.kind == "tool_search_output":
            output = to_json(record.payload.get("tools"))
        call.seen = seen_outcome(output)
        self._settle(call)
        if call.seen.session:
            self._sessions[call.seen.session] = call
        self._continue(call, call.seen)
        return True

    def knows(self, item: Json) -> bool:
        """Tell whether the call that a record names was recorded."""
        return (string(item.get("id")) or string(item.get("call_id"))) in self._calls

    def command_ended(self, record: Record, item: Json, turn_id: str, cwd: str | None) -> None:
        """Take what Codex wrote down about a command's end; the person's own has only that."""
        id_ = string(item.get("id")) or string(item.get("call_id")) or record.name
        call = self._calls.get(id_)
        cwd = located(item.get("cwd"), cwd)
        if call is None:
            argv = [a for a in entries(item.get("command")) if isinstance(a, str)]
            command = join(argv) if argv else string(item.get("command")) or ""
            items: list[Item] = [Command(item_id="-", turn_id=turn_id, command=command, cwd=cwd)]
            call = self._add(id_, items, record.time)
        call.told = told_outcome(item)
        self._settle(call)

    def patch_ended(self, record: Record, item: Json, turn_id: str) -> None:
        """Take what Codex wrote down about a patch's end."""
        id_ = string(item.get("id")) or string(item.get("call_id")) or record.name
        call = self._calls.get(id_)
        if call is None or not any(self._is_change(place) for place in call.places):
            # The patch is inside a script, or the call is not in the file.
            changes = told_changes(item.get("changes"))
            name = id_ if call is None else f"{id_}:patch"
            call = self._add(name, [_file_change(c, turn_id) for c in changes], record.time)
        status = ItemStatus.COMPLETED
        if item.get("status") == "declined":
            status = ItemStatus.INTERRUPTED
        elif item.get("status") == "failed" or item.get("success") is False:
            status = ItemStatus.FAILED
        # A code, so that it has the last word over the text that the agent saw.
        call.told = Outcome(status, exit_code=int(status is not ItemStatus.COMPLETED))
        self._settle(call)

    def end_turn(self, *, interrupted: bool) -> None:
        """Interrupt what the turn left unfinished; a process may run on unless it was interrupted."""
        for call in self._open:
            outcome = merge(call.seen, call.told)
            is_known = call.seen is not None or call.told is not None
            if outcome.status is ItemStatus.IN_PROGRESS and (interrupted or not is_known):
                call.seen = Outcome(ItemStatus.INTERRUPTED, outcome.text)
                self._settle(call)
        self._open = []

    @property
    def are_pending(self) -> bool:
        """Whether a call of the open turn has not come back."""
        return any(call.seen is None and call.told is None for call in self._open)

    def _add(self, name: str, items: list[Item], time: datetime | None) -> _Call:
        call = _Call([])
        for index, item in enumerate(items):
            id_ = self._events.unique(f"{name}:{index}" if len(items) > 1 else name)
            call.places.append(
                self._events.record(msgspec.structs.replace(item, item_id=id_), time)
            )
        self._calls[name] = call
        self._open.append(call)
        return call

    def _continue(self, call: _Call, outcome: Outcome) -> None:
        """Add to a running command what a later call saw of it."""
        running = self._sessions.get(call.continues) if call.continues else None
        known = outcome.session is not None or outcome.exit_code is not None
        if running is None or running.seen is None or not known:
            return
        text = running.seen.text + outcome.text
        running.seen = Outcome(outcome.status, text, outcome.exit_code, outcome.session)
        self._settle(running)

    def _settle(self, call: _Call) -> None:
        outcome = merge(call.seen, call.told)
        for place in call.places:
            item = self._events.item(place)
            changes: Json = {"status": outcome.status}
            if isinstance(item, Command):
                changes |= {"exit_code": outcome.exit_code, "output": outcome.text}
            elif isinstance(item, ToolCall):
                changes["output"] = outcome.text
            elif isinstance(item, FileChange) and not _was_applied(call, outcome):
                changes["status"] = ItemStatus.FAILED
            if item is not None:
                self._events.replace(place, msgspec.structs.replace(item, **changes))

    def _is_change(self, place: int) -> bool:
        return isinstance(self._events.item(place), FileChange)


def _was_applied(call: _Call, outcome: Outcome) -> bool:
    """Tell whether a patch is not known to have failed: without a code its text has to say so."""
    if outcome.status is not ItemStatus.COMPLETED or call.told is not None:
        return True
    return outcome.exit_code is not None or outcome.text.startswith(("Success.", "Done"))


def _items(payload: Json, turn_id: str, cwd: str | None) -> list[Item]:
    """Return the items of a call, still without their ids."""
    ids: Json = {"item_id": "-", "turn_id": turn_id, "status": ItemStatus.IN_PROGRESS}
    kind = payload.get("type")
    arguments = _arguments(payload)
    name = string(payload.get("name")) or (string(kind) or "").removesuffix("_call")
    if namespace := string(payload.get("namespace")):
        # A tool of some server, whatever its name.
        name = f"{namespace}.{name}"
    if kind == "local_shell_call":
        name = "local_shell"
        arguments = dictionary(payload.get("action"))
    given = payload.get("input", payload.get("arguments", payload.get("action")))
    items: list[Item] = []
    if name == "apply_patch":
        patch = string(given) if kind == "custom_tool_call" else string(arguments.get("input"))
        items.extend(_file_change(c, turn_id) for c in parse_patch(patch or "", cwd))
    elif name in SHELL_TOOLS:
        items.extend(_shell_items(arguments, ids, cwd))
    elif name == "update_plan" and (text := checklist(arguments.get("plan"), text="step")):
        items.append(Plan(**ids, text=text))
    given = given if isinstance(given, str) else to_json(given)
    return items or [ToolCall(**ids, name=name, input=given)]


def _shell_items(arguments: Json, ids: Json, cwd: str | None) -> list[Item]:
    workdir = next((w for n in _WORKDIRS if (w := string(arguments.get(n)))), None)
    cwd = located(workdir, cwd)
    if (patched := patch_of(arguments)) is not None:
        patch, directory = patched
        if changes := parse_patch(patch, located(directory, cwd)):
            return [_file_change(c, ids["turn_id"]) for c in changes]
    command = command_line(arguments)
    return [] if command is None else [Command(**ids, command=command, cwd=cwd)]


def _file_change(change: Change, turn_id: str) -> FileChange:
    return FileChange(
        item_id="-",
        turn_id=turn_id,
        status=ItemStatus.IN_PROGRESS,
        path=change.path,
        change=change.kind,
        diff=change.diff,
    )


def _arguments(payload: Json) -> Json:
    arguments = payload.get("arguments")
    if not isinstance(arguments, str):
        return dictionary(arguments)
    try:
        return dictionary(decode(arguments.encode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        return {}
