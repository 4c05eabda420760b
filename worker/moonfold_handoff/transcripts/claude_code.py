"""Claude Code's session files (`~/.claude/projects/<directory>/<session>.jsonl`) to thread events.

Abandoned branches, subagents and the harness's own messages are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from moonfold_handoff.limits import Evidence, recognise
from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.claude_branch import active_branch
from moonfold_handoff.transcripts.claude_human import (
    human_message,
    is_interruption,
    is_of_the_harness,
)
from moonfold_handoff.transcripts.claude_items import Result, results_of, tool_item
from moonfold_handoff.transcripts.claude_links import Links, talks
from moonfold_handoff.transcripts.claude_records import (
    CONVERSATION,
    TOOL_USES,
    Record,
    parse_content,
    parse_record,
)
from moonfold_handoff.transcripts.conversing import ConversationReader
from moonfold_handoff.transcripts.journal import Journal
from moonfold_handoff.transcripts.json_lines import (
    JsonLinesAgent,
    Order,
    StartOverError,
)
from moonfold_handoff.transcripts.lines import Json, decode, string, to_json, tokens
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
    Attachment,
    Error,
    Interruption,
    Item,
    Reasoning,
    UserMessage,
)

PROVIDER = "claude-code"

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_SYNTHETIC = "<synthetic>"
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_USAGE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class _Call(msgspec.Struct):
    """A tool call without a result; `block` is its JSON, since it may hold any number."""

    block: str
    item_id: str
    turn_id: str
    cwd: str | None
    interrupted: bool = False

    def item(self, result: Result | None) -> Item:
        """Return the call's item; without a result it is in progress."""
        return tool_item(
            decode(self.block.encode()),
            result,
            item_id=self.item_id,
            turn_id=self.turn_id,
            cwd=self.cwd,
        )

    def interrupt(self, journal: Journal, time: datetime | None) -> None:
        """Record the call as interrupted, once; its result may come yet."""
        if not self.interrupted:
            journal.interrupt(self.item(None), time)
        self.interrupted = True


class ClaudeReader(ConversationReader):
    """Turns records into events.

    Attributes:
        calls: Tool calls without a result, by their id.
        cut: Texts that an interruption would have cut short.
        usage: The message whose usage was reported last, and the usage.
        links: The end of the chain of records.
    """

    provider = PROVIDER

    turn_limit: Limit | None = None
    calls: dict[str, _Call] = msgspec.field(default_factory=dict)
    cut: list[AssistantMessage] = msgspec.field(default_factory=list)
    usage: tuple[str, int] | None = None
    time: datetime | None = None
    links: Links = msgspec.field(default_factory=Links)

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:
        """Add what one record tells; broken chains and abandoned branches need a survey."""
        record = parse_record(number, document, self.skipped)
        if record is None or record.sidechain or self.links.repeats(record):
            return
        if talks(record) and not self.links.extends(record):
            raise StartOverError
        self.links.add(record)
        self._add(record, zone)

    def take_in_order(
        self, number: int, document: Any, zone: tzinfo | None, *, counts: bool
    ) -> None:
        """Add what one record tells, if it is on the active branch."""
        record = parse_record(number, document, self.skipped)
        if record is None or record.sidechain:
            return
        if counts:
            self.links.add(record)
            self._add(record, zone)
        elif not talks(record) and self.links.hangs_on(record):
            self.links.add(record)

    def capacity(self) -> int | None:
        """Return the window that the model's name states; the transcript has it nowhere else."""
        return 1_000_000 if self.model and self.model.endswith("[1m]") else None

    def _add(self, record: Record, zone: tzinfo | None) -> None:
        self.cwd = self.cwd or _field(record, "cwd")
        self.version = _field(record, "version") or self.version
        self.time = record.time or self.time
        if record.is_boundary:
            self._compacted(record)
        elif record.queued is not None:
            self._queued(record, record.queued)
        elif record.type == "user":
            self._user(record)
        elif _is_answer(record):
            self._answer(record)
        elif _is_error(record):
            self._error(record, zone)

    # The person

    def _user(self, record: Record) -> None:
        answers_tool = any(b["type"] == "tool_result" for b in record.blocks)
        if answers_tool:
            self.cut = []
            if self.outcome is TurnStatus.COMPLETED:
                self.outcome = None
            self._results(record)
        if is_of_the_harness(record):
            return
        for index, block in enumerate(record.blocks):
            if block["type"] == "text" and is_interruption(block["text"]):
                self._interruption(record, index, block["text"])
        message = human_message(record.blocks, with_files_only=not answers_tool)
        if message is not None:
            if not answers_tool or not self.turn or self.outcome is not None:
                self._begin_turn(record)
            self._human_message(record, *message)

    def _queued(self, record: Record, attachment: Json) -> None:
        mode = attachment.get("commandMode")
        by_harness = is_of_the_harness(record) or attachment.get("isMeta") is True
        if by_harness or (mode is not None and mode != "prompt"):
            return
        # What is malformed in a queued prompt is not worth a count of its own.
        blocks = parse_content(attachment.get("prompt"), {})
        if (message := human_message(blocks, with_files_only=True)) is not None:
            self._ensure_turn(record)
            self._human_message(record, *message)

    def _human_message(
        self, record: Record, text: str, attachments: tuple[Attachment, ...]
    ) -> None:
        self.outcome = None
        self.cut = []
        message = UserMessage(
            item_id=self.journal.unique(record.name),
            turn_id=self.turn,
            text=text,
            attachments=attachments,
        )
        self.journal.record(message, record.time)

    def _interruption(self, record: Record, index: int, text: str) -> None:
        self._ensure_turn(record)
        for message in self.cut:
            self.journal.interrupt(message, record.time)
        self.cut = []
        item = Interruption(item_id=self._block_id(record, index), turn_id=self.turn, message=text)
        self.journal.record(item, record.time)
        self._end_turn(record, TurnStatus.INTERRUPTED)

    # The agent

    def _answer(self, record: Record) -> None:
        if not record.blocks:
            return
        self.limit = self.turn_limit = None
        self.select(record.model, record.time)
        self._ensure_turn(record)
        self.outcome = None
        self.cut = []
        for index, block in enumerate(record.blocks):
            self._block(record, index, block)
        self._report_usage(record)
        if _is_end(record):
            self._end_turn(record, TurnStatus.COMPLETED)

    def _block(self, record: Record, index: int, block: Json) -> None:
        kind: str = block["type"]
        if kind == "text":
            # A message without words is written as this placeholder.
            if block["text"].strip() not in {"", "(no content)"}:
                id_ = self._block_id(record, index)
                item = AssistantMessage(item_id=id_, turn_id=self.turn, text=block["text"])
                self.journal.record(item, record.time)
                if record.message.get("stop_reason") is None:
                    self.cut.append(item)
        elif kind in _THOUGHTS:
            id_ = self._block_id(record, index)
            text = string(block.get("thinking")) or ""
            self.journal.record(Reasoning(item_id=id_, turn_id=self.turn, text=text), record.time)
        elif kind in TOOL_USES:
            self.cut = []
            call = _Call(
                to_json(block), self._block_id(record, index), self.turn, _field(record, "cwd")
            )
            self.calls[block["id"]] = call
            self.journal.record(call.item(None), record.time)

    def _results(self, record: Record) -> None:
        for id_, result in results_of(record).items():
            if (call := self.calls.pop(id_, None)) is not None:
                self.journal.record(call.item(result), record.time)

    def _report_usage(self, record: Record) -> None:
        """Report the usage of an API message, which is repeated on each of its lines, when it is new."""
        used = _used(record.message.get("usage"))
        if used is None:
            return
        usage = (" ".join(filter(None, record.message_key or (record.name,))), used)
        if usage != self.usage:
            self.usage = usage
            self.journal.add(
                UsageReported(
                    time=record.time, conversation_id=self.conversation_id, used_tokens=used
                )
            )

    def _error(self, record: Record, zone: tzinfo | None) -> None:
        self._ensure_turn(record)
        text = "\n\n".join(record.texts())
        evidence = Evidence(body=record.data, text=text, now=record.time, zone=zone)
        limit = recognise(PROVIDER, evidence)
        self.turn_limit = limit
        status = TurnStatus.FAILED
        if limit is None:
            id_ = self.journal.unique(record.name)
            self.journal.record(Error(item_id=id_, turn_id=self.turn, message=text), record.time)
        elif limit.kind in STOPS:
            self.limit = limit
            status = TurnStatus.LIMITED
        self._end_turn(record, status)

    def _compacted(self, record: Record) -> None:
        self.begin(record.time)
        metadata = record.data.get("compactMetadata")
        after = tokens(metadata.get("postTokens")) if isinstance(metadata, dict) else None
        self.journal.add(
            ConversationCompacted(
                time=record.time, conversation_id=self.conversation_id, used_tokens=after
            )
        )

    # Turns

    def _ensure_turn(self, record: Record) -> None:
        """Begin a turn where the agent works without a message of the person, as for a command."""
        if not self.turn:
            self._begin_turn(record)

    def _begin_turn(self, record: Record) -> None:
        self.begin(record.time)
        if self.turn and self.outcome is None:
            # A turn that the next message finds unfinished never will be: it was stopped there.
            self._end_turn(record, TurnStatus.INTERRUPTED)
        self.calls = {}
        self.cut = []
        self.turn_limit = None
        self.turn = self.journal.unique(f"turn:{record.name}")
        self.journal.add(TurnStarted(time=record.time, turn_id=self.turn))

    def _end_turn(self, record: Record, status: TurnStatus) -> None:
        """Say how the turn ended, as far as one can tell by now; if it goes on it ends once more."""
        self.outcome = status
        if status is not TurnStatus.COMPLETED:
            for call in self.calls.values():
                call.interrupt(self.journal, record.time)
        number = self.journal.add(
            TurnEnded(time=record.time, turn_id=self.turn, status=status, limit=self.turn_limit)
        )
        if status is TurnStatus.LIMITED:
            self.limited_at = number

    def _block_id(self, record: Record, index: int) -> str:
        several = len(record.blocks) > 1
        return self.journal.unique(f"{record.name}:{index}" if several else record.name)


def _field(record: Record, name: str) -> str | None:
    return string(record.data.get(name)) or None


def _is_error(record: Record) -> bool:
    """Tell whether Claude Code marked the record as an error, or wrote one before it had the mark."""
    if record.type != "assistant":
        return False
    if record.data.get("isApiErrorMessage") is True or record.data.get("error"):
        return True
    text = "\n\n".join(record.texts())
    return record.model == _SYNTHETIC and (
        text.startswith("API Error")
        or recognise(PROVIDER, Evidence(body=record.data, text=text)) is not None
    )


def _is_answer(record: Record) -> bool:
    """Tell whether the record is the model's own; other synthetic ones are notices of the harness."""
    return record.type == "assistant" and record.model != _SYNTHETIC and not _is_error(record)


def _is_end(record: Record) -> bool:
    """Tell whether the agent is done after this record; files that lack the reason end on a text."""
    reason = record.message.get("stop_reason")
    last = record.blocks[-1]["type"]
    if isinstance(reason, str):
        return reason not in {"tool_use", "pause_turn"} and last not in _THOUGHTS
    return bool(last == "text")


def _used(usage: Any) -> int | None:
    """Return the tokens in the context after a message; a usage of zeros is no usage."""
    counts: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
    return tokens(sum(tokens(counts.get(name)) or 0 for name in _USAGE)) or None


class ClaudeCode(JsonLinesAgent):
    """Claude Code, which keeps a session as `projects/<directory>/<session>.jsonl`."""

    provider = PROVIDER
    title = "Claude Code"
    reader = ClaudeReader

    def roots(self, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        """Return its folder of projects."""
        folder = environment.get("CLAUDE_CONFIG_DIR")
        return ((Path(folder) if folder else home / ".claude") / "projects",)

    def holds_sessions(self, path: Path) -> bool:
        """Tell a person's sessions from those of subagents, which lie deeper."""
        return path.suffix == self.suffix and not path.stem.startswith("agent-")

    def recognises(self, document: Any) -> bool:
        """Tell whether a document is a conversation record of Claude Code."""
        if not isinstance(document, dict) or string(document.get("type")) not in CONVERSATION:
            return False
        return isinstance(document.get("message"), dict) or "parentUuid" in document

    def session_id(self, head: Iterable[Any], stem: str) -> str | None:
        """Return what the file is named for, which its resume takes; else what its records say."""
        if _UUID.fullmatch(stem):
            return stem
        records = (d for d in head if self.recognises(d))
        return next((s for d in records if (s := string(d.get("sessionId")))), None) or stem

    def survey(self, documents: Iterable[tuple[int, Any]]) -> Order:
        """Return the lines of the active branch."""
        records = (parse_record(number, document, {}) for number, document in documents)
        return active_branch([r.outline() for r in records if r is not None])


AGENT = ClaudeCode()
