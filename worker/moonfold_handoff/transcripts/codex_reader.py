"""The records of a Codex rollout to thread events.

What Codex wrote down twice is one item, and what it added to the conversation itself is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, ClassVar

import msgspec

from moonfold_handoff.limits import Evidence, recognise
from moonfold_handoff.transcripts.base import Facts
from moonfold_handoff.transcripts.codex_limits import completed, read_rate_limits
from moonfold_handoff.transcripts.codex_messages import (
    Answer,
    Words,
    digest,
    item_words,
    person_words,
    reasoning_text,
    summary_digests,
    typed_words,
)
from moonfold_handoff.transcripts.codex_opening import PROVIDER, Opening, selection_of
from moonfold_handoff.transcripts.codex_records import Record, count_unknown, parse_record
from moonfold_handoff.transcripts.codex_tools import CALLS, OUTPUTS
from moonfold_handoff.transcripts.codex_turns import Turns
from moonfold_handoff.transcripts.codex_usage import Usage
from moonfold_handoff.transcripts.json_lines import Reader
from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    count,
    dictionary,
    integer,
    string,
)
from moonfold_schemas.events import ConversationCompacted, ModelSelected, ThreadEvent
from moonfold_schemas.items import (
    AssistantMessage,
    Error,
    Interruption,
    Plan,
    Reasoning,
    UserMessage,
)

_Handler = Callable[[Any, Record, Json], None]


class CodexReader(Reader):
    """Turns records into events.

    Attributes:
        opening: The session's own facts.
        turns: The turns, and what was said and done in the open one.
        usage: The usage that was reported last.
        cwd: Where the agent works now.
        thought: Reasoning that can go on in the next record.
        held: An answer of which only the history tells: a compaction may follow whose summary it is.
        summaries: Digests of the last compaction's summary, which stands in the history for what it tells.
        compactions: The kinds of record that told of the last compaction.
    """

    opening: Opening = msgspec.field(default_factory=Opening)
    turns: Turns = msgspec.field(default_factory=Turns)
    usage: Usage = msgspec.field(default_factory=Usage)
    cwd: str | None = None
    thought: Reasoning | None = None
    held: Answer | None = None
    summaries: list[str] = msgspec.field(default_factory=list)
    compactions: list[str] = msgspec.field(default_factory=list)

    def take(self, number: int, document: Any, zone: tzinfo | None) -> None:
        """Add what one record tells."""
        record = parse_record(number, document, zone, self.skipped)
        if record is None:
            return
        self.opening.time = self.opening.time or record.time
        key, payload = record.kind, record.payload
        if key == "item_completed":
            payload = dictionary(payload.get("item"))
            key = f"item {string(payload.get('type')) or ''}"
        handlers = self._HANDLERS
        handler = handlers.get((record.type, key)) or handlers.get((record.type, None))
        if handler is not None:
            if handler not in self._ASIDE:
                self._release()
                self.thought = self.thought if key == "agent_reasoning" else None
            handler(self, record, payload)
        else:
            count_unknown(record, key, self.skipped)
        self.turns.time = record.time or self.turns.time

    def last_words(self) -> None:
        """End the last turn where the file does not say how turns end."""
        self._release()
        self.turns.finish(self.journal)

    def facts(self) -> Facts:
        """Return what is known by now."""
        limit = self.turns.last_limit
        return Facts(
            cwd=self.opening.cwd,
            model=self.turns.selection.model,
            version=self.opening.version,
            limit=limit,
            limited_at=self.turns.limited_at if limit else 0,
            skipped=dict(sorted(self.skipped.items())),
        )

    def _begin(self) -> None:
        """Write what comes before any other event: the session, and the turn that is open."""
        if not self.journal.count:
            selection, window = self.turns.selection, self.turns.window
            self.opening.write(self.journal, self.conversation_id, selection, window)
        self.turns.tell(self.journal)

    def _tell(self, event: ThreadEvent) -> int:
        """Append an event of the conversation and return its number."""
        self._begin()
        return self.journal.add(event)

    def _turn(self, source: Record | Answer) -> str:
        """Return the open turn; what a client added outside of all turns gets one."""
        if not self.turns.id:
            self.turns.begin(self.journal, f"turn:line-{source.line}", source.time)
        self._begin()
        return self.turns.id

    # Messages

    def _message(self, record: Record, payload: Json) -> None:
        role = string(payload.get("role"))
        if role == "user":
            words = person_words(payload)
            if not self._is_summary(words.text):
                self._person(record, record.name, words)
        elif role == "assistant":
            self._answer(Answer.of(record, payload, item_words(payload).text))
        elif role not in {"developer", "system"}:
            count(self.skipped, MALFORMED)

    def _typed_event(self, record: Record, payload: Json) -> None:
        self._person(record, record.name, typed_words(payload))

    def _typed_item(self, record: Record, item: Json) -> None:
        self._person(record, string(item.get("id")) or record.name, item_words(item))

    def _said_event(self, record: Record, payload: Json) -> None:
        self._answer(Answer.of(record, payload, string(payload.get("message")) or ""))

    def _said_item(self, record: Record, item: Json) -> None:
        self._answer(Answer.of(record, item, item_words(item).text))

    def _person(self, record: Record, id_: str, words: Words) -> None:
        if words.is_empty:
            return
        heard = self.turns.users.again(record.kind, id_, words.text)
        if heard is not None:
            # The event has the text as it was typed, and the names of files.
            changed = heard.merge(words, as_typed=record.type == "event_msg")
            if changed is not None:
                self.journal.record(changed, record.time)
            return
        if not self.turns.given:
            self.turns.begin(self.journal, f"turn:{id_}", record.time)
        turn = self._turn(record)
        self.compactions.clear()
        self.turns.ask()
        message = UserMessage(
            item_id=self.journal.unique(id_),
            turn_id=turn,
            text=words.text,
            attachments=words.attachments,
        )
        self.journal.record(message, record.time)
        self.turns.users.add(record.kind, id_, words.text, message)

    def _answer(self, answer: Answer) -> None:
        if not answer.text.strip() or self._is_summary(answer.text):
            return
        if self.turns.answers.again(answer.source, answer.id, answer.text) is not None:
            return
        if answer.source == "message":
            self.held = answer
        else:
            self._say(answer)

    def _release(self) -> None:
        """Record the answer that was held back."""
        if self.held is not None:
            answer, self.held = self.held, None
            self._say(answer)

    def _say(self, answer: Answer) -> None:
        turn = self._turn(answer)
        self.compactions.clear()
        self.turns.answered(finally_=answer.is_final)
        id_ = self.journal.unique(answer.id)
        message = AssistantMessage(item_id=id_, turn_id=turn, text=answer.text)
        self.journal.record(message, answer.time)
        self.turns.answers.add(answer.source, answer.id, answer.text)

    def _is_summary(self, text: str) -> bool:
        return digest(text.strip()) in self.summaries

    # Reasoning

    def _reasoning(self, record: Record, payload: Json) -> None:
        text = reasoning_text(payload)
        turn = self._turn(record)
        if self.turns.thoughts.again(record.kind, record.name, text) is not None:
            return
        if self.thought is not None:
            # Events tell of each part of what an item tells as one.
            text = f"{self.thought.text}\n\n{text}"
            item = msgspec.structs.replace(self.thought, text=text)
            self.turns.thoughts.grow(text)
        else:
            id_ = self.journal.unique(record.name)
            item = Reasoning(item_id=id_, turn_id=turn, text=text)
            self.turns.thoughts.add(record.kind, record.name, text)
        self.thought = item if record.kind == "agent_reasoning" else None
        self.journal.record(item, record.time)

    # Work

    def _call(self, record: Record, _: Json) -> None:
        turn = self._turn(record)
        self.compactions.clear()
        self.turns.go_on()
        self.turns.calls.begin(self.journal, record, turn, self.cwd or self.opening.cwd)

    def _output(self, record: Record, _: Json) -> None:
        if not self.turns.calls.end(self.journal, record):
            count(self.skipped, "output without a call")

    def _command_ended(self, record: Record, item: Json) -> None:
        calls = self.turns.calls
        if not calls.is_over(item):
            turn = calls.turn_of(item) or self._turn(record)
            calls.command_ended(self.journal, record, item, turn, self.cwd or self.opening.cwd)

    def _patch_ended(self, record: Record, item: Json) -> None:
        calls = self.turns.calls
        if not calls.is_over(item, changes_files=True):
            turn = calls.turn_of(item) or self._turn(record)
            calls.patch_ended(self.journal, record, item, turn)

    def _plan(self, record: Record, item: Json) -> None:
        if text := string(item.get("text")):
            turn = self._turn(record)
            id_ = self.journal.unique(string(item.get("id")) or record.name)
            self.journal.record(Plan(item_id=id_, turn_id=turn, text=text), record.time)

    # The conversation

    def _meta(self, _: Record, payload: Json) -> None:
        self.opening.introduce(payload)

    def _context(self, record: Record, payload: Json) -> None:
        self.cwd = string(payload.get("cwd")) or self.cwd
        self.opening.cwd = self.opening.cwd or self.cwd
        selection = selection_of(payload)
        if selection is None or selection == self.turns.selection:
            return
        number = 0
        if self.journal.count:
            self.usage.forget()
            event = ModelSelected(
                time=record.time,
                conversation_id=self.conversation_id,
                model=selection.model,
                options=selection.options,
                capacity=self.turns.window,
            )
            number = self._tell(event)
        self.turns.select(number, selection)

    def _token_count(self, record: Record, payload: Json) -> None:
        conversation = self.conversation_id
        if isinstance(payload.get("rate_limits"), dict):
            rates = read_rate_limits(payload["rate_limits"], record.time or self.turns.time)
            self.turns.rates = rates
            if (quota := self.usage.quota(rates, conversation, record.time)) is not None:
                self._tell(quota)
        usage = self.usage.reported(payload.get("info"), conversation, record.time)
        if usage is not None:
            self._tell(usage)

    def _measured(self, _: Record, payload: Json) -> None:
        self.usage.measured(payload)

    def _compacted(self, record: Record, payload: Json) -> None:
        if record.type == "compacted":
            self.summaries = summary_digests(string(payload.get("message")) or "")
            if self.held is not None and self._is_summary(self.held.text):
                self.held = None
        # Up to three records tell of one compaction, with nothing of the conversation in between.
        source = f"{record.type} {record.kind}"
        if not self.compactions or source in self.compactions:
            self.compactions.clear()
            self.usage.forget()
            conversation = self.conversation_id
            self._tell(ConversationCompacted(time=record.time, conversation_id=conversation))
        self.compactions.append(source)

    # Turns

    def _task_started(self, record: Record, payload: Json) -> None:
        given = string(payload.get("turn_id")) or f"turn:line-{record.line}"
        window = integer(payload.get("model_context_window"))
        self.turns.begin_given(self.journal, given, record.time, window)
        self.compactions.clear()
        if self.journal.count:
            self._begin()

    def _task_complete(self, record: Record, payload: Json) -> None:
        if self.turns.names_open(string(payload.get("turn_id"))):
            self._begin()
            if isinstance(payload.get("error"), dict):
                self._error(record, payload["error"])
            answered = isinstance(payload.get("last_agent_message"), str)
            self.turns.complete(self.journal, record.time, answered=answered)

    def _turn_aborted(self, record: Record, payload: Json) -> None:
        if self.turns.names_open(string(payload.get("turn_id"))):
            self._begin()
            if string(payload.get("reason")) in {"interrupted", None}:
                id_ = self.journal.unique(f"interruption:line-{record.line}")
                item = Interruption(item_id=id_, turn_id=self.turns.id)
                self.journal.record(item, record.time)
            self.turns.abort(self.journal, record.time)

    def _rolled_back(self, record: Record, payload: Json) -> None:
        number = integer(payload.get("num_turns"))
        if number is None:
            count(self.skipped, MALFORMED)
        elif self.turns.roll_back(self.journal, number, record.time):
            self.usage.forget()

    def _error(self, record: Record, error: Json) -> None:
        turn = self._turn(record)
        message = string(error.get("message")) or ""
        if not self.turns.is_new(message):
            return
        now = record.time or self.turns.time
        evidence = Evidence(body=error, text=message, now=now, zone=record.zone)
        limit = recognise(PROVIDER, evidence)
        if limit is not None:
            limit = completed(limit, self.turns.rates, now)
        elif self.turns.limit is None:
            id_ = self.journal.unique(f"error:line-{record.line}")
            item = Error(item_id=id_, turn_id=turn, message=message)
            self.journal.record(item, record.time)
        self.turns.fail(self.journal, limit, record.time)

    _ASIDE: ClassVar[frozenset[_Handler]] = frozenset({_compacted, _measured, _token_count})
    """What tells of records that can stand between an answer and the compaction whose summary it is."""

    _HANDLERS: ClassVar[Mapping[tuple[str, str | None], _Handler]] = {
        ("compacted", None): _compacted,
        ("session_meta", None): _meta,
        ("token_usage_record", None): _measured,
        ("turn_context", None): _context,
        ("event_msg", "agent_message"): _said_event,
        ("event_msg", "agent_reasoning"): _reasoning,
        ("event_msg", "context_compacted"): _compacted,
        ("event_msg", "error"): _error,
        ("event_msg", "exec_command_end"): _command_ended,
        ("event_msg", "patch_apply_end"): _patch_ended,
        ("event_msg", "task_complete"): _task_complete,
        ("event_msg", "task_started"): _task_started,
        ("event_msg", "thread_rolled_back"): _rolled_back,
        ("event_msg", "token_count"): _token_count,
        ("event_msg", "turn_aborted"): _turn_aborted,
        ("event_msg", "turn_complete"): _task_complete,
        ("event_msg", "turn_started"): _task_started,
        ("event_msg", "user_message"): _typed_event,
        ("event_msg", "item AgentMessage"): _said_item,
        ("event_msg", "item CommandExecution"): _command_ended,
        ("event_msg", "item ContextCompaction"): _compacted,
        ("event_msg", "item FileChange"): _patch_ended,
        ("event_msg", "item Plan"): _plan,
        ("event_msg", "item Reasoning"): _reasoning,
        ("event_msg", "item UserMessage"): _typed_item,
        ("response_item", "message"): _message,
        ("response_item", "reasoning"): _reasoning,
        **{
            ("response_item", kind): handler
            for kind, handler in dict.fromkeys(CALLS, _call).items()
        },
        **{
            ("response_item", kind): handler
            for kind, handler in dict.fromkeys(OUTPUTS, _output).items()
        },
    }
    """What takes each kind of payload; None stands for a record of one kind."""
