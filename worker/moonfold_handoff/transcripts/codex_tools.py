"""Codex's tool calls to items, recorded again whenever a record tells more of their end."""

from __future__ import annotations

import zlib
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
from moonfold_handoff.transcripts.journal import Journal
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


_KEPT = 64  # calls whose end is not wholly known; what goes on longest is given up first
_OVER_KEPT = 1_024  # calls that are over, of which another record can tell
_MOST_READ = 262_144  # characters of a command's output that later calls add to

_LEFT_OUT = "\n[output left out]\n"


class Call(msgspec.Struct):
    """A call whose end is not wholly known.

    Attributes:
        items: Its items, as the call has them.
        at: How many events there were before it.
        is_open: Whether the turn that it was made in goes on.
        seen: What the agent saw of its end.
        told: What Codex wrote down about its end.
        session: The process that it left running.
        continues: The running process that it writes to.
    """

    items: list[Item]
    at: int
    is_open: bool = True
    seen: Outcome | None = None
    told: Outcome | None = None
    session: str | None = None
    continues: str | None = None

    @property
    def turn_id(self) -> str:
        """The turn that it was made in."""
        return self.items[0].turn_id

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as is known."""
        return merge(self.seen, self.told)

    @property
    def changes_files(self) -> bool:
        """Whether its items are changes of files."""
        return isinstance(self.items[0], FileChange)

    @property
    def is_over(self) -> bool:
        """Whether no other record can change it."""
        if self.seen is None or self.outcome.status is ItemStatus.IN_PROGRESS:
            return False
        has_code = self.seen.exit_code is not None
        return has_code or self.told is not None or isinstance(self.items[0], ToolCall | Plan)

    def now(self) -> list[Item]:
        """Return its items with what is known of its end."""
        outcome = self.outcome
        items: list[Item] = []
        for item in self.items:
            changes: Json = {"status": outcome.status}
            if isinstance(item, Command):
                changes |= {"exit_code": outcome.exit_code, "output": outcome.text}
            elif isinstance(item, ToolCall):
                changes["output"] = outcome.text
            elif isinstance(item, FileChange) and not self._was_applied(outcome):
                changes["status"] = ItemStatus.FAILED
            items.append(msgspec.structs.replace(item, **changes))
        return items

    def _was_applied(self, outcome: Outcome) -> bool:
        """Tell whether a patch is not known to have failed: without a code its text has to say so."""
        if outcome.status is not ItemStatus.COMPLETED or self.told is not None:
            return True
        return outcome.exit_code is not None or outcome.text.startswith(("Success.", "Done"))


class Calls(msgspec.Struct):
    """The calls of a rollout.

    Attributes:
        known: Calls whose end is not wholly known, by their id.
        over: Marks of the other ones, the last of them, and whether they changed files.
    """

    known: dict[str, Call] = msgspec.field(default_factory=dict)
    over: dict[int, bool] = msgspec.field(default_factory=dict)

    def begin(self, journal: Journal, record: Record, turn_id: str, cwd: str | None) -> None:
        """Record the items of a call."""
        payload = record.payload
        id_ = string(payload.get("call_id")) or record.name
        call = Call(_items(payload, turn_id, cwd), journal.count)
        if record.kind in _AT_ONCE:
            failed = payload.get("status") == "failed"
            call.seen = Outcome(ItemStatus.FAILED if failed else ItemStatus.COMPLETED)
        elif payload.get("name") == "write_stdin":
            session = _arguments(payload).get("session_id")
            call.continues = None if session is None else str(session)
        self._add(journal, id_, call, record.time)

    def end(self, journal: Journal, record: Record) -> bool:
        """Take what the agent saw of a call's end; tell whether the call is known."""
        id_ = string(record.payload.get("call_id")) or ""
        call = self.known.get(id_)
        if call is None:
            return _mark(id_) in self.over
        output = record.payload.get("output")
        if record.kind == "tool_search_output":
            output = to_json(record.payload.get("tools"))
        seen = seen_outcome(output)
        if call.continues is None:
            call.session = seen.session
        else:
            self._continue(journal, call.continues, seen, record.time)
            if seen.status is ItemStatus.IN_PROGRESS:  # the process is, which another call began
                seen = msgspec.structs.replace(seen, status=ItemStatus.COMPLETED)
        self._learn(journal, id_, record.time, seen=seen)
        return True

    def turn_of(self, item: Json) -> str | None:
        """Return the turn of the call that a record names, if its end is not wholly known."""
        call = self.known.get(_id(item) or "")
        return call.turn_id if call else None

    def is_over(self, item: Json, *, changes_files: bool = False) -> bool:
        """Tell whether nothing new can be told of the call that a record names."""
        changed = self.over.get(_mark(_id(item) or ""))
        return changed is not None and (changed or not changes_files)

    def command_ended(
        self, journal: Journal, record: Record, item: Json, turn_id: str, cwd: str | None
    ) -> None:
        """Take what Codex wrote down about a command's end; the person's own has only that."""
        id_ = _id(item) or record.name
        told = told_outcome(item)
        if id_ in self.known:
            self._learn(journal, id_, record.time, told=told)
            return
        argv = [a for a in entries(item.get("command")) if isinstance(a, str)]
        command = join(argv) if argv else string(item.get("command")) or ""
        cwd = located(item.get("cwd"), cwd)
        items: list[Item] = [Command(item_id="-", turn_id=turn_id, command=command, cwd=cwd)]
        self._add(journal, id_, Call(items, journal.count, seen=told, told=told), record.time)

    def patch_ended(self, journal: Journal, record: Record, item: Json, turn_id: str) -> None:
        """Take what Codex wrote down about a patch's end."""
        id_ = _id(item) or record.name
        status = ItemStatus.COMPLETED
        if item.get("status") == "declined":
            status = ItemStatus.INTERRUPTED
        elif item.get("status") == "failed" or item.get("success") is False:
            status = ItemStatus.FAILED
        # A code, so that it has the last word over the text that the agent saw.
        told = Outcome(status, exit_code=int(status is not ItemStatus.COMPLETED))
        call = self.known.get(id_)
        if call is not None and call.changes_files:
            self._learn(journal, id_, record.time, told=told)
            return
        # The patch is inside a script, or the call is not in the file.
        name = f"{id_}:patch" if call or _mark(id_) in self.over else id_
        items: list[Item] = [_file_change(c, turn_id) for c in told_changes(item.get("changes"))]
        if items:
            call = Call(items, journal.count, seen=told, told=told)
            self._add(journal, name, call, record.time)

    def end_turn(self, journal: Journal, time: datetime | None, *, interrupted: bool) -> None:
        """Interrupt what the turn left unfinished; a process may run on unless it was interrupted."""
        for id_, call in list(self.known.items()):
            if not call.is_open:
                continue
            call.is_open = False
            is_known = call.seen is not None or call.told is not None
            if call.outcome.status is ItemStatus.IN_PROGRESS and (interrupted or not is_known):
                seen = Outcome(ItemStatus.INTERRUPTED, call.outcome.text)
                self._learn(journal, id_, time, seen=seen)

    def roll_back(self, to: int) -> None:
        """Forget the calls after so many events, of which records may still tell."""
        for id_ in [id_ for id_, call in self.known.items() if call.at >= to]:
            self._give_up(id_)

    @property
    def are_pending(self) -> bool:
        """Whether a call of the open turn has not come back."""
        return any(c.is_open and c.seen is None and c.told is None for c in self.known.values())

    def _add(self, journal: Journal, name: str, call: Call, time: datetime | None) -> None:
        several = len(call.items) > 1
        call.items = [
            msgspec.structs.replace(
                item, item_id=journal.unique(f"{name}:{index}" if several else name)
            )
            for index, item in enumerate(call.items)
        ]
        for item in call.now():
            journal.record(item, time)
        self.known.pop(name, None)
        self.known[name] = call
        if call.is_over:
            self._give_up(name)
        elif len(self.known) > _KEPT:
            self._give_up(next(iter(self.known)))

    def _learn(
        self,
        journal: Journal,
        id_: str,
        time: datetime | None,
        *,
        seen: Outcome | None = None,
        told: Outcome | None = None,
    ) -> None:
        """Record what is new about a call."""
        call = self.known[id_]
        before = call.now()
        call.seen = seen or call.seen
        call.told = told or call.told
        for was, item in zip(before, call.now(), strict=True):
            if item != was:
                journal.record(item, time)
        if call.is_over:
            self._give_up(id_)

    def _continue(
        self, journal: Journal, session: str, outcome: Outcome, time: datetime | None
    ) -> None:
        """Add to a running command what a later call saw of it."""
        running = (id_ for id_, c in reversed(self.known.items()) if c.session == session)
        id_ = next(running, None)
        if id_ is None or (outcome.session is None and outcome.exit_code is None):
            return
        seen = self.known[id_].seen
        text = _shortened((seen.text if seen else "") + outcome.text)
        added = Outcome(outcome.status, text, outcome.exit_code, outcome.session)
        self._learn(journal, id_, time, seen=added)

    def _give_up(self, id_: str) -> None:
        """Keep of a call only that it was recorded."""
        mark = _mark(id_)
        self.over.pop(mark, None)
        self.over[mark] = self.known.pop(id_).changes_files
        if len(self.over) > _OVER_KEPT:
            del self.over[next(iter(self.over))]


def _id(item: Json) -> str | None:
    """Return the call that a completed item, or an event about one, names."""
    return string(item.get("id")) or string(item.get("call_id"))


def _mark(id_: str) -> int:
    return zlib.crc32(id_.encode())


def _shortened(text: str) -> str:
    """Return an output that keeps growing, with its middle left out where it is too long."""
    if len(text) <= _MOST_READ:
        return text
    half = _MOST_READ // 2
    return f"{text[:half]}{_LEFT_OUT}{text[-half:]}"


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
