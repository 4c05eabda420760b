"""Codex's rollouts (`~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<session>.jsonl`) to thread events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import tzinfo

import msgspec

from moonfold_handoff.transcripts.base import Transcript, TranscriptError, safe_id
from moonfold_handoff.transcripts.codex_limits import read_rate_limits, recognise
from moonfold_handoff.transcripts.codex_messages import (
    Words,
    item_words,
    person_words,
    reasoning_text,
    typed_words,
)
from moonfold_handoff.transcripts.codex_opening import Opening, selection_of
from moonfold_handoff.transcripts.codex_records import (
    IGNORED,
    WITH_KINDS,
    Record,
    parse_records,
    recognises,
)
from moonfold_handoff.transcripts.codex_tools import CALLS, OUTPUTS, Calls
from moonfold_handoff.transcripts.codex_turns import Turns
from moonfold_handoff.transcripts.codex_usage import Usage
from moonfold_handoff.transcripts.event_list import EventList
from moonfold_handoff.transcripts.lines import MALFORMED, Json, dictionary, integer, label, string
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    ItemRecorded,
    ModelSelected,
    ThreadStarted,
    UsageReported,
)
from moonfold_schemas.items import (
    AssistantMessage,
    Error,
    Interruption,
    Plan,
    Reasoning,
    UserMessage,
)

__all__ = ["PROVIDER", "read", "recognises"]

PROVIDER = "codex"

_SESSION = re.compile(r"rollout-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-(.+)")


_Handler = Callable[[Record, Json], None]


def read(
    lines: Iterable[bytes], *, session_id: str | None = None, zone: tzinfo | None = None
) -> Transcript:
    """Read a rollout.

    The same bytes give the same events. Broken lines and unknown records are skipped and counted; what
    Codex wrote down twice is one item, and what it added to the conversation itself is none.

    Args:
        lines: The file's lines.
        session_id: Names the session where its records do not, as the file name does.
        zone: Zone of a limit notice, which names none; None is the machine's.

    Raises:
        TranscriptError: There is no conversation in the file.
    """
    skipped: Counter[str] = Counter()
    records = parse_records(lines, skipped)
    opening = Opening.of(records)
    session = opening.session or _named_by_file(session_id) or "session"
    reader = _Reader(opening, safe_id(session), skipped, zone)
    for record in records:
        reader.take(record)
    reader.turns.finish()
    events = reader.list.events
    if not any(isinstance(event, ItemRecorded) for event in events):
        raise TranscriptError("The session file has no conversation.")
    return Transcript(
        provider=PROVIDER,
        session_id=session,
        thread_id=safe_id(f"{PROVIDER}:{session}"),
        conversation_id=safe_id(session),
        cwd=opening.cwd,
        model=reader.turns.selection.model,
        version=opening.version,
        events=tuple(events),
        limit=reader.turns.limit,
        skipped=dict(sorted(skipped.items())),
    )


def _named_by_file(stem: str | None) -> str | None:
    found = _SESSION.fullmatch(stem) if stem else None
    return found[1] if found else stem


class _Reader:
    """Turns records into events, in one pass."""

    def __init__(
        self, opening: Opening, conversation_id: str, skipped: Counter[str], zone: tzinfo | None
    ) -> None:
        self.list = EventList()
        self._calls = Calls(self.list)
        self.turns = Turns(self.list, self._calls, opening)
        self._opening = opening
        self._conversation_id = conversation_id
        self._skipped = skipped
        self._zone = zone
        self._usage = Usage()
        self._cwd = opening.cwd
        self._compactions: set[str] = set()  # the records that told of the last compaction
        self._handlers = self._handlers_of_each_kind()
        self.list.add(ThreadStarted(time=opening.time, cwd=opening.cwd))
        self.list.add(
            ConversationStarted(
                time=opening.time,
                conversation_id=conversation_id,
                provider=PROVIDER,
                model=opening.selection.model,
                options=opening.selection.options,
                capacity=opening.window,
            )
        )

    def take(self, record: Record) -> None:
        """Add what one record tells."""
        key, payload = record.kind, record.payload
        if key == "item_completed":
            payload = dictionary(payload.get("item"))
            key = f"item {string(payload.get('type')) or ''}"
        handler = self._handlers.get((record.type, key)) or self._handlers.get((record.type, None))
        if handler is not None:
            handler(record, payload)
        elif key == "item ":
            self._skipped[MALFORMED] += 1
        elif record.type in WITH_KINDS and key.removeprefix("item ") not in IGNORED:
            kind = "event" if record.type == "event_msg" and key == record.kind else "item"
            self._skipped[f"unknown {kind}: {label(key.removeprefix('item '))}"] += 1
        self.turns.time = record.time or self.turns.time

    def _handlers_of_each_kind(self) -> dict[tuple[str, str | None], _Handler]:
        """Return what takes each kind of payload; None stands for a record of one kind."""
        events: dict[str, _Handler] = {
            "agent_message": self._said_event,
            "agent_reasoning": self._reasoning_event,
            "context_compacted": self._compacted,
            "error": self._error,
            "exec_command_end": self._command_ended,
            "patch_apply_end": self._patch_ended,
            "task_complete": self._task_complete,
            "task_started": self._task_started,
            "thread_rolled_back": self._rolled_back,
            "token_count": self._token_count,
            "turn_aborted": self._turn_aborted,
            "turn_complete": self._task_complete,
            "turn_started": self._task_started,
            "user_message": self._typed_event,
            "item AgentMessage": self._said_item,
            "item CommandExecution": self._command_ended,
            "item ContextCompaction": self._compacted,
            "item FileChange": self._patch_ended,
            "item Plan": self._plan,
            "item Reasoning": self._reasoning_event,
            "item UserMessage": self._typed_item,
        }
        items: dict[str, _Handler] = {
            "message": self._message,
            "reasoning": self._reasoning,
            **dict.fromkeys(CALLS, self._call),
            **dict.fromkeys(OUTPUTS, self._output),
        }
        return {
            ("compacted", None): self._compacted,
            ("token_usage_record", None): lambda _, payload: self._usage.measured(payload),
            ("turn_context", None): self._context,
            **{("event_msg", kind): handler for kind, handler in events.items()},
            **{("response_item", kind): handler for kind, handler in items.items()},
        }

    # Messages

    def _message(self, record: Record, payload: Json) -> None:
        role = string(payload.get("role"))
        if role == "user":
            words = person_words(payload)
            if not self._opening.is_summary(words.text):
                self._person(record, record.name, words)
        elif role == "assistant":
            self._answer(record, payload, item_words(payload).text)
        elif role not in {"developer", "system"}:
            self._skipped[MALFORMED] += 1

    def _typed_event(self, record: Record, payload: Json) -> None:
        self._person(record, record.name, typed_words(payload))

    def _typed_item(self, record: Record, item: Json) -> None:
        self._person(record, string(item.get("id")) or record.name, item_words(item))

    def _said_event(self, record: Record, payload: Json) -> None:
        self._answer(record, payload, string(payload.get("message")) or "")

    def _said_item(self, record: Record, item: Json) -> None:
        self._answer(record, item, item_words(item).text)

    def _person(self, record: Record, id_: str, words: Words) -> None:
        if words.is_empty:
            return
        source = record.kind
        place = self.turns.users.again(source, id_, words.text)
        if place is not None:
            self._heard_again(place, words, as_typed=record.type == "event_msg")
            return
        if not self.turns.given:
            self.turns.begin(record, f"turn:{id_}")
        self._compactions.clear()
        self.turns.ask()
        message = UserMessage(
            item_id=self.list.unique(id_),
            turn_id=self.turns.id,
            text=words.text,
            attachments=words.attachments,
        )
        self.turns.users.add(self.list.record(message, record.time), source, id_, words.text)

    def _heard_again(self, place: int, words: Words, *, as_typed: bool) -> None:
        item = self.list.item(place)
        if isinstance(item, UserMessage):
            # The event has the text as it was typed, and the names of files.
            text = words.text if as_typed else item.text
            named, other = words.attachments, item.attachments
            if not as_typed:
                named, other = other, named
            changed = msgspec.structs.replace(item, text=text, attachments=named or other)
            self.list.replace(place, changed)

    def _answer(self, record: Record, fields: Json, text: str) -> None:
        id_ = string(fields.get("id")) or record.name
        if not text.strip() or self._opening.is_summary(text):
            return
        if self.turns.answers.again(record.kind, id_, text) is not None:
            return
        turn = self.turns.ensure(record)
        self._compactions.clear()
        self.turns.answered(finally_=fields.get("phase") != "commentary")
        message = AssistantMessage(item_id=self.list.unique(id_), turn_id=turn, text=text)
        place = self.list.record(message, record.time)
        self.turns.answers.add(place, record.kind, id_, text)

    def _reasoning(self, record: Record, payload: Json) -> None:
        turn = self.turns.ensure(record)
        id_ = self.list.unique(record.name)
        item = Reasoning(item_id=id_, turn_id=turn, text=reasoning_text(payload))
        self.list.record(item, record.time)

    def _reasoning_event(self, record: Record, payload: Json) -> None:
        if not self._opening.has_reasoning_items:
            self._reasoning(record, payload)

    # Work

    def _call(self, record: Record, _: Json) -> None:
        turn = self.turns.ensure(record)
        self._compactions.clear()
        self.turns.outcome = None
        self._calls.begin(record, turn, self._cwd)

    def _output(self, record: Record, _: Json) -> None:
        if not self._calls.end(record):
            self._skipped["output without a call"] += 1

    def _command_ended(self, record: Record, item: Json) -> None:
        turn = self.turns.id if self._calls.knows(item) else self.turns.ensure(record)
        self._calls.command_ended(record, item, turn, self._cwd)

    def _patch_ended(self, record: Record, item: Json) -> None:
        turn = self.turns.id if self._calls.knows(item) else self.turns.ensure(record)
        self._calls.patch_ended(record, item, turn)

    def _plan(self, record: Record, item: Json) -> None:
        if text := string(item.get("text")):
            turn = self.turns.ensure(record)
            id_ = self.list.unique(string(item.get("id")) or record.name)
            self.list.record(Plan(item_id=id_, turn_id=turn, text=text), record.time)

    # The conversation

    def _context(self, record: Record, payload: Json) -> None:
        self._cwd = string(payload.get("cwd")) or self._cwd
        selection = selection_of(payload)
        if selection is None or selection == self.turns.selection:
            return
        self.turns.selection = selection
        self._usage.forget()
        self.list.add(
            ModelSelected(
                time=record.time,
                conversation_id=self._conversation_id,
                model=selection.model,
                options=selection.options,
                capacity=self.turns.window,
            )
        )

    def _token_count(self, record: Record, payload: Json) -> None:
        if isinstance(payload.get("rate_limits"), dict):
            now = record.time or self.turns.time
            self.turns.rates = read_rate_limits(payload["rate_limits"], now)
        if (report := self._usage.reported(payload.get("info"))) is not None:
            used, maximum = report
            self.list.add(
                UsageReported(
                    time=record.time,
                    conversation_id=self._conversation_id,
                    used_tokens=used,
                    max_tokens=maximum,
                )
            )

    def _compacted(self, record: Record, _: Json) -> None:
        # Up to three records tell of one compaction, with nothing of the conversation in between.
        source = f"{record.type} {record.kind}"
        if not self._compactions or source in self._compactions:
            self._compactions.clear()
            self._usage.forget()
            conversation = self._conversation_id
            self.list.add(ConversationCompacted(time=record.time, conversation_id=conversation))
        self._compactions.add(source)

    # Turns

    def _task_started(self, record: Record, _: Json) -> None:
        self.turns.begin_task(record)
        self._compactions.clear()

    def _task_complete(self, record: Record, payload: Json) -> None:
        if self.turns.names_open(record):
            if isinstance(payload.get("error"), dict):
                self._error(record, payload["error"])
            self.turns.complete(record)

    def _turn_aborted(self, record: Record, payload: Json) -> None:
        if self.turns.names_open(record):
            if string(payload.get("reason")) in {"interrupted", None}:
                id_ = self.list.unique(f"interruption:line-{record.line}")
                item = Interruption(item_id=id_, turn_id=self.turns.id)
                self.list.record(item, record.time)
            self.turns.abort(record)

    def _rolled_back(self, record: Record, payload: Json) -> None:
        count = integer(payload.get("num_turns"))
        if count is None:
            self._skipped[MALFORMED] += 1
        elif self.turns.roll_back(count, record.time):
            self._usage.forget()

    def _error(self, record: Record, error: Json) -> None:
        turn = self.turns.ensure(record)
        limit = recognise(error, self.turns.rates, record.time or self.turns.time, self._zone)
        message = string(error.get("message")) or ""
        if self.turns.fail(limit, message):
            id_ = self.list.unique(f"error:line-{record.line}")
            item = Error(item_id=id_, turn_id=turn, message=message)
            self.list.record(item, record.time)
