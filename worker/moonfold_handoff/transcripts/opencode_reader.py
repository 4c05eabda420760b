"""OpenCode's messages to thread events, whichever way they are kept.

A message is taken once with all its parts, or several times while it is written, each time with the parts
that changed. What was told already is not told again: the reader keeps a mark of what it recorded last.
"""

from __future__ import annotations

import re
import zlib
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from moonfold_handoff.limits import Evidence, recognise
from moonfold_handoff.transcripts.base import STOPS, safe_id
from moonfold_handoff.transcripts.conversing import ConversationReader
from moonfold_handoff.transcripts.lines import dictionary, string, to_json
from moonfold_handoff.transcripts.opencode_items import is_refused, part_items
from moonfold_handoff.transcripts.opencode_records import Message, Part, at, parse_message
from moonfold_schemas.events import (
    ConversationCompacted,
    Limit,
    TurnEnded,
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

PROVIDER = "opencode"

MESSAGES_KEPT = 64  # that may still change; an older one only changes its items
ITEMS_KEPT = 256  # whose content is known; an older one that changes is recorded again

_UNTITLED = re.compile(r"New session - \d{4}-\d{2}-\d{2}T[\d:.]+Z")
# With these the loop goes on (1.18.33, and the loop's own condition).
_GOES_ON = frozenset({"tool-calls", "unknown"})
_OF_MODEL = frozenset({"reasoning", "step-start", "text"})
_ABORTED = "MessageAbortedError"


class Told(msgspec.Struct):
    """What was told of a message.

    Attributes:
        turn: The turn that it belongs to; empty while that is not known.
        asked: Whether it is the person's, and began its turn.
        own: Whether OpenCode wrote it, to compact or as a copy of the request before.
        end: A mark of how it ended; 0: it did not yet.
        used: The usage that was reported.
        streamed: Whether the model wrote it; a command that the person runs is an answer, too.
        called: Whether it called a tool.
        refused: Whether the person refused a call.
    """

    turn: str = ""
    asked: bool = False
    own: bool = False
    end: int = 0
    used: int = 0
    streamed: bool = False
    called: bool = False
    refused: bool = False


class OpenCodeReader(ConversationReader):
    """Turns messages into events.

    Attributes:
        told: What was told of the newest messages, by their id.
        marks: Marks of the items that were recorded last, by their id.
        open: Items in progress.
        cut: The text that an interruption would have cut short.
        request: A mark of the newest request.
        overflowed: Whether a compaction is to ask the newest request once more.
    """

    provider = PROVIDER

    title: str | None = None
    told: dict[str, Told] = msgspec.field(default_factory=dict)
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    open: dict[str, Item] = msgspec.field(default_factory=dict)
    cut: AssistantMessage | None = None
    request: int = 0
    overflowed: bool = False

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:  # noqa: ARG002
        """Add what one message, `{info, parts}`, tells."""
        self.take_message(document)

    def take_message(self, document: Any, *, again: bool = False) -> None:
        """Add what one message, `{info, parts}`, tells.

        Args:
            document: The message, with all its parts; one that was taken before, of an answer only with
                those that changed.
            again: Whether it was taken before.
        """
        message = parse_message(document, self.skipped)
        if message is None:
            return
        if message.role == "user":
            self._user(message, again=again)
        else:
            self._answer(message, again=again)

    # The person

    def _user(self, message: Message, *, again: bool) -> None:
        told = self.told.get(message.id)
        if told is None:
            told = Told()
            if again:
                told = Told(turn=_turn_id(message.id), asked=True)
            self._keep(message, told)
        if told.own:
            return
        if (compaction := message.find("compaction")) is not None:
            told.own, self.overflowed = True, compaction.data.get("overflow") is True
            return
        texts, attachments = message.asked()
        if not texts and not attachments:
            return
        if not told.asked:
            mark = zlib.crc32(to_json(texts[:1]).encode())
            if self.overflowed and mark == self.request:
                # What did not fit is asked once more, after the compaction that makes room for it.
                told.own, self.overflowed = True, False
                return
            self.request, self.overflowed = mark, False
            self.select(message.model, message.created)
            self._begin_turn(message, _turn_id(message.id))
            told.turn, told.asked = self.turn, True
        item = UserMessage(
            item_id=safe_id(message.id),
            turn_id=told.turn,
            text="\n\n".join(texts),
            attachments=attachments,
        )
        self._record(item, message.created)

    # The agent

    def _answer(self, message: Message, *, again: bool) -> None:
        told = self.told.get(message.id)
        if told is None:
            told = self._first_seen(message, again=again)
        if not message.is_summary:
            for part in message.parts:
                self._part(message, told, part)
            if (used := message.used) is not None and used != told.used:
                told.used = used
                self._report_usage(message, used)
        self._end(message, told)

    def _first_seen(self, message: Message, *, again: bool) -> Told:
        asked = self.told.get(message.parent, Told())
        if again:
            # It left the memory, and its end was told: only its items can still change.
            turn = asked.turn or _turn_id(message.parent or message.id)
            told = Told(turn=turn, end=_end_mark(message), used=message.used or 0)
        else:
            told = Told(turn=asked.turn or self.turn)
            if not message.is_summary:
                self.select(message.model, message.created)
                if not told.turn:
                    self._begin_turn(message, _turn_id(message.id))
                    told.turn = self.turn
                if told.turn == self.turn:
                    self.outcome = None
                self.cut = None
        self._keep(message, told)
        return told

    def _part(self, message: Message, told: Told, part: Part) -> None:
        cwd = string(dictionary(message.info.get("path")).get("cwd")) or self.cwd
        items = part_items(
            part, turn_id=told.turn, cwd=cwd, completed=message.completed is not None
        )
        told.streamed = told.streamed or part.type in _OF_MODEL
        if part.type == "tool":
            told.called = True
            told.refused = told.refused or is_refused(part)
            self.cut = None
        time = at(part.clock.get("start")) or message.created
        for item in items:
            if not self._record(item, time):
                continue
            if told.streamed and not told.end:
                self.limit = None
            if isinstance(item, AssistantMessage) and not told.called:
                self.cut = item

    def _record(self, item: Item, time: datetime | None) -> bool:
        """Record an item if it is new or changed; tell whether it was."""
        mark = zlib.crc32(msgspec.msgpack.encode(item))
        known = self.marks.pop(item.item_id, None)
        is_empty = isinstance(item, AssistantMessage) and not item.text.strip()
        if is_empty and known is None and item.status is not ItemStatus.IN_PROGRESS:
            return False
        self.marks[item.item_id] = mark
        if len(self.marks) > ITEMS_KEPT:
            del self.marks[next(iter(self.marks))]
        if known == mark:
            return False
        self.journal.record(item, time)
        self.open.pop(item.item_id, None)
        if item.status is ItemStatus.IN_PROGRESS:
            self.open[item.item_id] = item
        return True

    def _report_usage(self, message: Message, used: int) -> None:
        self.journal.add(
            UsageReported(
                time=message.created,
                conversation_id=self.conversation_id,
                used_tokens=used,
            )
        )

    # Ends

    def _end(self, message: Message, told: Told) -> None:
        """Say what a message that is completed means for its turn, once."""
        mark = _end_mark(message)
        if mark in {0, told.end}:
            return
        told.end = mark
        self._give_up(told.turn, message)
        if message.error is not None:
            self._error(message, told)
        elif message.is_summary:
            self._compacted(message)
        elif told.refused:
            self._end_turn(message, told, TurnStatus.INTERRUPTED)
        elif message.finish is None:
            # The person ran a command; a model's answer without a reason did not fit and is tried again.
            if not told.streamed:
                self._end_turn(message, told, TurnStatus.COMPLETED)
        elif message.finish not in _GOES_ON:
            self._end_turn(message, told, TurnStatus.COMPLETED)

    def _give_up(self, turn: str, message: Message) -> None:
        """Record as interrupted the texts that a completed message left open."""
        for item in list(self.open.values()):
            if isinstance(item, AssistantMessage | Reasoning) and item.turn_id == turn:
                if self.cut == item:
                    self.cut = None
                given_up = msgspec.structs.replace(item, status=ItemStatus.INTERRUPTED)
                self._record(given_up, message.completed)

    def _compacted(self, message: Message) -> None:
        self.begin(message.created, title=self._named())
        self.journal.add(
            ConversationCompacted(time=message.completed, conversation_id=self.conversation_id)
        )

    def _error(self, message: Message, told: Told) -> None:
        error = message.error or {}
        time = message.completed or message.created
        if not told.turn:
            self._begin_turn(message, _turn_id(message.id))
            told.turn = self.turn
        item_id = safe_id(f"{message.id}:error")
        text = string(dictionary(error.get("data")).get("message")) or ""
        if error.get("name") == _ABORTED:
            if self.cut is not None and self.cut.turn_id == told.turn:
                self.journal.interrupt(self.cut, time)
            self._record(Interruption(item_id=item_id, turn_id=told.turn, message=text), time)
            self._end_turn(message, told, TurnStatus.INTERRUPTED)
            return
        limit = recognise(PROVIDER, Evidence(body=error, text=text, now=time))
        if limit is None:
            words = text or string(error.get("name")) or ""
            self._record(Error(item_id=item_id, turn_id=told.turn, message=words), time)
        is_stop = limit is not None and limit.kind in STOPS
        status = TurnStatus.LIMITED if is_stop else TurnStatus.FAILED
        number = self._end_turn(message, told, status, limit)
        if is_stop:
            self.limit, self.limited_at = limit, number

    def _end_turn(
        self, message: Message, told: Told, status: TurnStatus, limit: Limit | None = None
    ) -> int:
        """Say how a turn ended, as far as one can tell by now; if it goes on it ends once more."""
        if told.turn == self.turn:
            self.outcome = status
        return self._add_end(message.completed or message.created, told.turn, status, limit)

    def _add_end(
        self, time: datetime | None, turn: str, status: TurnStatus, limit: Limit | None
    ) -> int:
        if status is not TurnStatus.COMPLETED:
            for item in [item for item in self.open.values() if item.turn_id == turn]:
                del self.open[item.item_id]
                self.journal.interrupt(item, time)
        return self.journal.add(TurnEnded(time=time, turn_id=turn, status=status, limit=limit))

    # Beginnings

    def _named(self) -> str | None:
        """Return the title, unless it is only the time at which the session began."""
        return self.title if self.title and not _UNTITLED.fullmatch(self.title) else None

    def _begin_turn(self, message: Message, turn: str) -> None:
        self.begin(message.created, title=self._named())
        if self.turn and self.outcome is None:
            # A turn that the next request finds unfinished never will be, or is steered elsewhere.
            self._add_end(message.created, self.turn, TurnStatus.INTERRUPTED, None)
        self.open = {}
        self.cut = None
        self.outcome = None
        self.turn = turn
        self.journal.add(TurnStarted(time=message.created, turn_id=turn))

    def _keep(self, message: Message, told: Told) -> None:
        self.told[message.id] = told
        if len(self.told) > MESSAGES_KEPT:
            del self.told[next(iter(self.told))]


def _turn_id(message: str) -> str:
    return safe_id(f"turn:{message}")


def _end_mark(message: Message) -> int:
    """Return a mark of how a message ended, and 0 for one that is still being written."""
    if message.completed is None and message.error is None:
        return 0
    ended = [message.finish, message.error, message.is_summary]
    return zlib.crc32(to_json(ended).encode()) or 1
