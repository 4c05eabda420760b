"""Claude Code's session files (`~/.claude/projects/<directory>/<session>.jsonl`) to thread events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo
from typing import Any

from moonfold_handoff.transcripts.base import STOPS, Transcript, TranscriptError, safe_id
from moonfold_handoff.transcripts.claude_branch import active_branch
from moonfold_handoff.transcripts.claude_human import (
    human_message,
    is_interruption,
    is_of_the_harness,
)
from moonfold_handoff.transcripts.claude_items import results_of, tool_item
from moonfold_handoff.transcripts.claude_limits import recognise
from moonfold_handoff.transcripts.claude_records import (
    CONVERSATION,
    TOOL_USES,
    Record,
    parse_content,
    parse_lines,
)
from moonfold_handoff.transcripts.event_list import EventList
from moonfold_handoff.transcripts.lines import Json, string, tokens
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    Limit,
    ModelSelected,
    ThreadStarted,
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

_SYNTHETIC = "<synthetic>"
_USAGE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


def recognises(document: Any) -> bool:
    """Tell whether a JSON document is a conversation record of Claude Code."""
    if not isinstance(document, dict) or string(document.get("type")) not in CONVERSATION:
        return False
    return isinstance(document.get("message"), dict) or "parentUuid" in document


def read(
    lines: Iterable[bytes], *, session_id: str | None = None, zone: tzinfo | None = None
) -> Transcript:
    """Read a session file.

    The same bytes give the same events. Broken lines and unknown records are skipped and counted;
    abandoned branches, subagents and the harness's own messages are left out.

    Args:
        lines: The file's lines.
        session_id: Names the session where its records do not, as the file name does.
        zone: Zone of a limit notice that names none; None is the machine's.

    Raises:
        TranscriptError: There is no conversation in the file.
    """
    records, skipped = parse_lines(lines)
    if not any(r.type in CONVERSATION and r.message and not r.sidechain for r in records):
        raise TranscriptError("The session file has no conversation.")
    branch = active_branch(records)
    session = next((s for r in reversed(branch) if (s := _field(r, "sessionId"))), None)
    session = session or session_id or branch[0].name
    reader = _Reader(branch, safe_id(session), zone)
    for record in branch:
        reader.take(record)
    reader.finish()
    return Transcript(
        provider=PROVIDER,
        session_id=session,
        thread_id=safe_id(f"{PROVIDER}:{session}"),
        conversation_id=safe_id(session),
        cwd=reader.cwd,
        model=reader.model,
        version=next((v for r in reversed(branch) if (v := _field(r, "version"))), None),
        events=tuple(reader.list.events),
        limit=reader.limit,
        skipped=skipped,
    )


class _Reader:
    """Turns the records of one branch into events, in one pass."""

    def __init__(self, branch: list[Record], conversation_id: str, zone: tzinfo | None) -> None:
        self.list = EventList()
        self.limit: Limit | None = None
        self.cwd = next((c for r in branch if (c := _field(r, "cwd"))), None)
        self.model = next((r.model for r in branch if _is_answer(r) and r.model), None)
        self._conversation_id = conversation_id
        self._zone = zone
        self._results = results_of(branch)
        self._usage_at = _usage_by_line(branch)
        self._turn = ""  # empty: no turn is open
        self._outcome: TurnStatus | None = None  # None: the agent still has something to do
        self._turn_limit: Limit | None = None
        self._pending: list[int] = []  # places of the turn's tool calls without a result
        self._cut: list[int] = []  # places of texts that an interruption would have cut short
        self._time: datetime | None = next((r.time for r in branch if r.time), None)
        self.list.add(ThreadStarted(time=self._time, cwd=self.cwd))
        self.list.add(
            ConversationStarted(
                time=self._time,
                conversation_id=conversation_id,
                provider=PROVIDER,
                model=self.model,
                capacity=_capacity(self.model),
            )
        )

    def take(self, record: Record) -> None:
        """Add what one record tells."""
        if record.is_boundary:
            self._compacted(record)
        elif record.queued is not None:
            self._queued(record, record.queued)
        elif record.type == "user":
            self._user(record)
        elif _is_answer(record):
            self._answer(record)
        elif _is_error(record):
            self._error(record)
        if record.type in CONVERSATION:
            self._time = record.time or self._time

    def finish(self) -> None:
        """End the last turn, unless the file ends in the middle of it."""
        if self._outcome is not None:
            self._end_turn(self._outcome)

    def _user(self, record: Record) -> None:
        answers_tool = any(b["type"] == "tool_result" for b in record.blocks)
        if answers_tool:
            self._cut = []
            if self._outcome is TurnStatus.COMPLETED:
                self._outcome = None
        if is_of_the_harness(record):
            return
        for index, block in enumerate(record.blocks):
            if block["type"] == "text" and is_interruption(block["text"]):
                self._interruption(record, index, block["text"])
        message = human_message(record.blocks, with_files_only=not answers_tool)
        if message is not None:
            if not answers_tool or not self._turn or self._outcome is not None:
                self._begin_turn(record)
            self._human_message(record, *message)

    def _queued(self, record: Record, attachment: Json) -> None:
        mode = attachment.get("commandMode")
        by_harness = is_of_the_harness(record) or attachment.get("isMeta") is True
        if by_harness or (mode is not None and mode != "prompt"):
            return
        # What is malformed in a queued prompt is not worth a count of its own.
        blocks = parse_content(attachment.get("prompt"), Counter())
        if (message := human_message(blocks, with_files_only=True)) is not None:
            self._ensure_turn(record)
            self._human_message(record, *message)

    def _human_message(
        self, record: Record, text: str, attachments: tuple[Attachment, ...]
    ) -> None:
        self._outcome = None
        self._cut = []
        id_ = self.list.unique(record.name)
        turn = self._turn
        self._item(
            record, UserMessage(item_id=id_, turn_id=turn, text=text, attachments=attachments)
        )

    def _interruption(self, record: Record, index: int, text: str) -> None:
        self._ensure_turn(record)
        for place in self._cut:
            self.list.interrupt(place)
        self._cut = []
        id_ = self._block_id(record, index)
        self._item(record, Interruption(item_id=id_, turn_id=self._turn, message=text))
        self._outcome = TurnStatus.INTERRUPTED

    def _answer(self, record: Record) -> None:
        if not record.blocks:
            return
        self.limit = None
        self._turn_limit = None
        if record.model and record.model != self.model:
            self.model = record.model
            self.list.add(
                ModelSelected(
                    time=record.time,
                    conversation_id=self._conversation_id,
                    model=self.model,
                    capacity=_capacity(self.model),
                )
            )
        self._ensure_turn(record)
        self._outcome = TurnStatus.COMPLETED if _is_end(record) else None
        self._cut = []
        for index, block in enumerate(record.blocks):
            self._block(record, index, block)
        if (used := self._usage_at.get(record.line)) is not None:
            conversation = self._conversation_id
            self.list.add(
                UsageReported(time=record.time, conversation_id=conversation, used_tokens=used)
            )

    def _block(self, record: Record, index: int, block: Json) -> None:
        kind: str = block["type"]
        turn = self._turn
        if kind == "text":
            # A message without words is written as this placeholder.
            if block["text"].strip() not in {"", "(no content)"}:
                id_ = self._block_id(record, index)
                text = block["text"]
                self._item(record, AssistantMessage(item_id=id_, turn_id=turn, text=text))
                if record.message.get("stop_reason") is None:
                    self._cut.append(len(self.list) - 1)
        elif kind in {"thinking", "redacted_thinking"}:
            id_ = self._block_id(record, index)
            text = string(block.get("thinking")) or ""
            self._item(record, Reasoning(item_id=id_, turn_id=turn, text=text))
        elif kind in TOOL_USES:
            self._cut = []
            id_ = self._block_id(record, index)
            result = self._results.get(block["id"])
            cwd = _field(record, "cwd")
            self._item(record, tool_item(block, result, item_id=id_, turn_id=turn, cwd=cwd))
            if result is None:
                self._pending.append(len(self.list) - 1)

    def _error(self, record: Record) -> None:
        self._ensure_turn(record)
        text = "\n\n".join(record.texts())
        limit = recognise(record.data, text, record.time, self._zone)
        self._turn_limit = limit
        self._outcome = TurnStatus.FAILED
        if limit is None:
            id_ = self.list.unique(record.name)
            self._item(record, Error(item_id=id_, turn_id=self._turn, message=text))
        elif limit.kind in STOPS:
            self.limit = limit
            self._outcome = TurnStatus.LIMITED

    def _compacted(self, record: Record) -> None:
        metadata = record.data.get("compactMetadata")
        after = tokens(metadata.get("postTokens")) if isinstance(metadata, dict) else None
        self.list.add(
            ConversationCompacted(
                time=record.time, conversation_id=self._conversation_id, used_tokens=after
            )
        )

    def _ensure_turn(self, record: Record) -> None:
        """Begin a turn where the agent works without a message of the person, as for a command."""
        if not self._turn:
            self._begin_turn(record)

    def _begin_turn(self, record: Record) -> None:
        # A turn that the next message finds unfinished never will be: the session was stopped there.
        self._end_turn(self._outcome or TurnStatus.INTERRUPTED)
        self._turn = self.list.unique(f"turn:{record.name}")
        self.list.add(TurnStarted(time=record.time, turn_id=self._turn))

    def _end_turn(self, status: TurnStatus) -> None:
        if not self._turn:
            return
        for place in self._pending:
            self.list.interrupt(place)
        self.list.add(
            TurnEnded(time=self._time, turn_id=self._turn, status=status, limit=self._turn_limit)
        )
        self._turn = ""
        self._outcome = self._turn_limit = None
        self._pending = []
        self._cut = []

    def _item(self, record: Record, item: Item) -> None:
        self.list.record(item, record.time)

    def _block_id(self, record: Record, index: int) -> str:
        return self.list.unique(f"{record.name}:{index}" if len(record.blocks) > 1 else record.name)


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
        text.startswith("API Error") or recognise(record.data, text, None, None) is not None
    )


def _is_answer(record: Record) -> bool:
    """Tell whether the record is the model's own; other synthetic ones are notices of the harness."""
    return record.type == "assistant" and record.model != _SYNTHETIC and not _is_error(record)


def _is_end(record: Record) -> bool:
    """Tell whether the agent is done after this record; files that lack the reason end on a text."""
    reason = record.message.get("stop_reason")
    if isinstance(reason, str):
        return reason not in {"tool_use", "pause_turn"}
    return bool(record.blocks[-1]["type"] == "text")


def _used(usage: Any) -> int | None:
    """Return the tokens in the context after a message; a usage of zeros is no usage."""
    counts: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
    return tokens(sum(tokens(counts.get(name)) or 0 for name in _USAGE)) or None


def _usage_by_line(branch: list[Record]) -> dict[int, int]:
    """Return each API message's usage, at the line of its last record: it is repeated on each."""
    lines: dict[tuple[str, str | None] | int, int] = {}
    usages: dict[tuple[str, str | None] | int, int] = {}
    for record in branch:
        if not _is_answer(record) or not record.blocks:
            continue
        key = record.message_key or record.line
        lines[key] = record.line
        if used := _used(record.message.get("usage")):
            usages[key] = used
    return {lines[key]: used for key, used in usages.items()}


def _capacity(model: str | None) -> int | None:
    """Return the window that a model's name states; the transcript has it nowhere else."""
    return 1_000_000 if model and model.endswith("[1m]") else None
