"""What Gemini CLI's records tell, as thread events.

The forms are those of `@google/gemini-cli-core` 0.61 (`services/chatRecordingService.js`), and of the one
JSON document that versions before it wrote. A message is written again whenever something of it is known,
under its id. A checkpoint replaces what the *provider* is sent, after a compaction, a failed request or a
cut output; the thread keeps what happened, so a checkpoint takes nothing back and changes no message. Nor
can a tool call that a newer version of a message lacks be taken back.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from moonfold_handoff.limits import Evidence, recognise
from moonfold_handoff.transcripts.base import STOPS, safe_id
from moonfold_handoff.transcripts.conversing import ConversationReader
from moonfold_handoff.transcripts.gemini_items import call_status, tool_item
from moonfold_handoff.transcripts.gemini_words import (
    CANCELLED,
    api_error,
    compaction,
    human_message,
    words,
    workspace,
)
from moonfold_handoff.transcripts.json_lines import StartOverError
from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    count,
    dictionary,
    entries,
    label,
    parse_time,
    string,
    tokens,
)
from moonfold_schemas.events import (
    ConversationCompacted,
    Limit,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
    UsageReported,
)
from moonfold_schemas.items import (
    AssistantMessage,
    Error,
    Interruption,
    Item,
    ItemStatus,
    Reasoning,
    UserMessage,
)

PROVIDER = "gemini-cli"
MESSAGES_KEPT = 128  # of the last ones: may change, or be gone back to, without reading anew
ITEMS_KEPT = 256  # of a message: compared when it is written again

_OPENING_EVENTS = 2  # a thread and its conversation begin; no going back takes that back
_MESSAGES = frozenset({"user", "gemini", "info", "warning", "error"})


class _Seen(msgspec.Struct, array_like=True):
    """A message that was read.

    Attributes:
        number: The session's last event before it.
        before: The turn that was open before it.
        outcome: How that turn had ended.
        turn: The turn that its items belong to.
        items: Marks of its items' contents, by marks of their ids.
    """

    number: int
    before: str
    outcome: TurnStatus | None
    turn: str
    items: dict[int, int]


class GeminiReader(ConversationReader):
    """Turns records into events.

    Attributes:
        seen: The last messages, by marks of their ids.
        request: Mark of the message that the open turn began with; None where no checkpoint tells of it.
        summary: Mark of the message that sums up what was compacted last.
        calls: Tool calls that still run, by their item's id.
    """

    provider = PROVIDER

    turn_limit: Limit | None = None
    request: int | None = None
    summary: int | None = None
    calls: dict[str, Item] = msgspec.field(default_factory=dict)
    seen: dict[int, _Seen] = msgspec.field(default_factory=dict)
    usage: tuple[int, int] | None = None
    time: datetime | None = None

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:  # noqa: ARG002
        """Add what one record tells; going back far needs a survey."""
        if not isinstance(document, dict):
            count(self.skipped, "not a record")
        elif (target := string(document.get("$rewindTo"))) is not None:
            self._go_back(target)
        elif string(document.get("id")) is not None:
            self._message(document)
        elif isinstance(patch := document.get("$set"), dict):
            self._checkpoint(patch.get("messages"))
        elif is_metadata(document):
            self._checkpoint(document.get("messages"))
        else:
            count(self.skipped, "unknown record")

    def take_in_order(
        self, number: int, document: Any, zone: tzinfo | None, *, counts: bool
    ) -> None:
        """Add what one record tells, if the person did not go back to before it."""
        if counts:
            self.take(number, document, zone)

    # The file

    def _go_back(self, target: str) -> None:
        """Take back a message and all after it; the CLI offers its own messages for it, too."""
        mark = _mark(target)
        seen = self.seen.get(mark)
        if seen is None:
            raise StartOverError
        later = list(self.seen)
        for name in later[later.index(mark) :]:
            del self.seen[name]
        if seen.number < self.journal.count:
            self.journal.add(TurnsRolledBack(time=self.time, to=seen.number))
        self.turn, self.outcome = seen.before, seen.outcome
        self.turn_limit = None
        self.request = None
        self.calls = {}

    def _checkpoint(self, messages: Any) -> None:
        records = [m for m in entries(messages) if isinstance(m, dict)]
        if not self.journal.count:
            for record in records:
                self._message(record)
            return
        ids = [_mark(string(record.get("id")) or "") for record in records]
        summary = compaction(records)
        if summary is not None and _mark(summary) not in {self.summary, *self.seen}:
            self.summary = _mark(summary)
            self.request = None
            self.journal.add(
                ConversationCompacted(time=self.time, conversation_id=self.conversation_id)
            )
        elif ids and self.outcome is None and self.request not in {None, *ids}:
            # The CLI forgets a request that failed. Where it shows errors it writes down the error next.
            self._end_turn(TurnStatus.FAILED)

    def _message(self, record: Json) -> None:
        id_, kind = string(record.get("id")), string(record.get("type"))
        if not id_ or kind not in _MESSAGES:
            count(self.skipped, f"unknown message: {label(kind)}" if kind else MALFORMED)
            return
        mark = _mark(id_)
        if mark not in self.seen:
            number = max(self.journal.count, _OPENING_EVENTS)
            self.seen[mark] = _Seen(number, self.turn, self.outcome, "", {})
            if len(self.seen) > MESSAGES_KEPT:
                del self.seen[next(iter(self.seen))]
            self.time = parse_time(record.get("timestamp")) or self.time
        seen = self.seen[mark]
        if kind == "gemini":
            self._answer(record, id_, seen)
        elif kind == "user":
            self._user(record, id_, seen)
        elif not seen.turn:
            self._notice(kind, id_, words(record.get("content")))
            seen.turn = self.turn

    def _record(self, seen: _Seen, item: Item) -> None:
        """Record an item of a message, if it is new or changed."""
        name, content = _mark(item.item_id), zlib.crc32(msgspec.msgpack.encode(item))
        if seen.items.get(name) != content:
            self.journal.record(item, self.time)
        if name in seen.items or len(seen.items) < ITEMS_KEPT:
            seen.items[name] = content

    # The person

    def _user(self, record: Json, id_: str, seen: _Seen) -> None:
        self.cwd = self.cwd or workspace(record)
        message = human_message(record)
        if message is None:
            return
        if not seen.turn:
            self._begin_turn(id_)
            self.request = _mark(id_)
            seen.turn = self.turn
        text, attachments = message
        item = UserMessage(
            item_id=safe_id(id_), turn_id=seen.turn, text=text, attachments=attachments
        )
        self._record(seen, item)

    def _notice(self, kind: str, id_: str, text: str) -> None:
        if kind == "error":
            self._error(id_, text)
        # The CLI notes an interruption twice when a command was running.
        elif text == CANCELLED and self.turn and self.outcome is not TurnStatus.INTERRUPTED:
            item = Interruption(item_id=safe_id(id_), turn_id=self.turn, message=text)
            self.journal.record(item, self.time)
            self._end_turn(TurnStatus.INTERRUPTED)

    # The agent

    def _answer(self, record: Json, id_: str, seen: _Seen) -> None:
        text = words(record.get("content"))
        thoughts = "\n\n".join(_thoughts(record))
        calls = list(self._calls(record))
        used = _used(record.get("tokens"))
        if not (text or thoughts or calls or used):
            return
        current = seen.turn in {"", self.turn}
        if current:
            self.select(string(record.get("model")), self.time)
        # Calls that the person gave up are written down after the interruption.
        late = not text and _given_up(calls) and self.outcome is TurnStatus.INTERRUPTED
        if not seen.turn:
            self._join_turn(id_, seen, goes_on=not late)
        if thoughts:
            item_id = safe_id(f"{id_}:thoughts")
            self._record(seen, Reasoning(item_id=item_id, turn_id=seen.turn, text=thoughts))
        if text:
            answer = AssistantMessage(item_id=safe_id(id_), turn_id=seen.turn, text=text)
            self._record(seen, answer)
        for name, call in calls:
            self._call(call, safe_id(f"{id_}:{name}"), seen)
        if not current:
            return
        self._report_usage(_mark(id_), used)
        if calls and not late:
            self.outcome = None
        elif text and self.outcome is None:
            # It may go on still: tool calls are written down when they are done.
            self._end_turn(TurnStatus.COMPLETED)

    def _join_turn(self, id_: str, seen: _Seen, *, goes_on: bool) -> None:
        if not self.turn:
            self._begin_turn(id_)
        seen.turn = self.turn
        if goes_on:
            self.limit = self.turn_limit = None
            self.outcome = None

    def _calls(self, record: Json) -> Iterator[tuple[str, Json]]:
        """Yield a message's tool calls, each with a name that it keeps."""
        for index, call in enumerate(entries(record.get("toolCalls"))):
            if isinstance(call, dict) and string(call.get("name")):
                yield string(call.get("id")) or str(index), call
            else:
                count(self.skipped, MALFORMED)

    def _call(self, call: Json, item_id: str, seen: _Seen) -> None:
        self.time = parse_time(call.get("timestamp")) or self.time
        item = tool_item(call, item_id=item_id, turn_id=seen.turn)
        self._record(seen, item)
        if item.status is not ItemStatus.IN_PROGRESS:
            self.calls.pop(item_id, None)
        elif seen.turn == self.turn:
            self.calls[item_id] = item

    def _report_usage(self, mark: int, used: int | None) -> None:
        if used is not None and self.usage != (mark, used):
            self.usage = (mark, used)
            self.journal.add(
                UsageReported(
                    time=self.time, conversation_id=self.conversation_id, used_tokens=used
                )
            )

    def _error(self, id_: str, text: str) -> None:
        """End the turn by an error; one of a command of the CLI, between turns, is none of the agent."""
        if not text or (api_error(text) is None and (not self.turn or self.outcome is not None)):
            return
        if not self.turn:
            self._begin_turn(id_)
        said = api_error(text)
        limit = None
        if said is not None:
            body = {"type": "error", "content": said}
            limit = recognise(PROVIDER, Evidence(body=body, now=self.time))
        self.turn_limit = limit
        status = TurnStatus.FAILED
        if limit is None:
            item = Error(item_id=safe_id(id_), turn_id=self.turn, message=text)
            self.journal.record(item, self.time)
        elif limit.kind in STOPS:
            self.limit = limit
            status = TurnStatus.LIMITED
        self._end_turn(status)

    # Turns

    def _begin_turn(self, id_: str) -> None:
        self.begin(self.time)
        if self.turn and self.outcome is None:
            # A turn that the next message finds unfinished never will be: it was stopped there.
            self._end_turn(TurnStatus.INTERRUPTED)
        self.calls = {}
        self.turn_limit = None
        self.outcome = None
        self.request = None
        self.turn = safe_id(f"turn:{id_}")
        self.journal.add(TurnStarted(time=self.time, turn_id=self.turn))

    def _end_turn(self, status: TurnStatus) -> None:
        """Say how the turn ended, as far as one can tell by now; if it goes on it ends once more."""
        self.outcome = status
        if status is not TurnStatus.COMPLETED:
            for call in self.calls.values():
                self.journal.interrupt(call, self.time)
            self.calls = {}
        number = self.journal.add(
            TurnEnded(time=self.time, turn_id=self.turn, status=status, limit=self.turn_limit)
        )
        if status is TurnStatus.LIMITED:
            self.limited_at = number


def is_metadata(document: Json) -> bool:
    """Tell whether a record is what a session begins with."""
    return isinstance(document.get("sessionId"), str) and isinstance(
        document.get("projectHash"), str
    )


def _mark(id_: str) -> int:
    return zlib.crc32(id_.encode())


def _given_up(calls: list[tuple[str, Json]]) -> bool:
    return bool(calls) and all(call_status(c) is ItemStatus.INTERRUPTED for _, c in calls)


def _thoughts(record: Json) -> Iterator[str]:
    for thought in entries(record.get("thoughts")):
        fields = dictionary(thought)
        both = (string(fields.get("subject")), string(fields.get("description")))
        if text := "\n".join(filter(None, both)):
            yield text


def _used(usage: Any) -> int | None:
    """Return the tokens in the context after a message; a usage of zeros is no usage."""
    counts = dictionary(usage)
    total = tokens(counts.get("total"))
    parts = (tokens(counts.get("input")) or 0) + (tokens(counts.get("output")) or 0)
    return total or tokens(parts) or None
