"""What has to be known of a rollout before its first event is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from moonfold_handoff.transcripts.codex_messages import SUMMARY_PREFIX
from moonfold_handoff.transcripts.codex_records import Record
from moonfold_handoff.transcripts.lines import Json, dictionary, integer, string
from moonfold_schemas.base import Option

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Selection:
    """A model and its options."""

    model: str | None = None
    options: dict[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opening:
    """The session, and how its file is written."""

    session: str | None
    cwd: str | None
    version: str | None
    time: datetime | None
    selection: Selection
    window: int | None
    has_turns: bool
    has_reasoning_items: bool
    _summaries: frozenset[str]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Opening:
        """Look through the records of a file."""
        # A fork has its parent's session_meta as a second one.
        meta = next((r.payload for r in records if r.type == "session_meta"), {})
        contexts = [r for r in records if r.type == "turn_context"]
        selections = [s for r in contexts if (s := selection_of(r.payload)) is not None]
        cwds = (string(p.get("cwd")) for p in (meta, *(r.payload for r in contexts)))
        kinds = {(r.type, r.kind) for r in records}
        return cls(
            session=string(meta.get("id")) or string(meta.get("session_id")) or None,
            cwd=next((c for c in cwds if c), None),
            version=string(meta.get("cli_version")) or None,
            time=next((r.time for r in records if r.time), None),
            selection=selections[0] if selections else Selection(),
            window=_window(records, selections[0] if selections else None),
            has_turns=("event_msg", "task_started") in kinds
            or ("event_msg", "turn_started") in kinds,
            has_reasoning_items=("response_item", "reasoning") in kinds,
            _summaries=frozenset(_summaries(records)),
        )

    def is_summary(self, text: str) -> bool:
        """Tell whether a text is what a compaction put in the place of the history."""
        return text.strip() in self._summaries


def selection_of(context: Json) -> Selection | None:
    """Return the model and the options of a `turn_context`, or None if it names no model."""
    model = string(context.get("model"))
    if not model:
        return None
    settings = dictionary(dictionary(context.get("collaboration_mode")).get("settings"))
    effort = string(context.get("effort")) or string(settings.get("reasoning_effort"))
    options: dict[str, Option] = {"reasoning_effort": effort[:_LONGEST]} if effort else {}
    return Selection(model[:_LONGEST], options)


def _window(records: Sequence[Record], selection: Selection | None) -> int | None:
    """Return the context window that is first named, unless another selection was made by then."""
    for record in records:
        if record.type == "turn_context":
            if selection_of(record.payload) not in (None, selection):
                return None
            continue
        window = integer(record.payload.get("model_context_window"))
        info = dictionary(record.payload.get("info"))
        window = window or integer(info.get("model_context_window"))
        if record.type == "event_msg" and window:
            return window
    return None


def _summaries(records: Sequence[Record]) -> set[str]:
    summaries = set()
    for record in records:
        if record.type != "compacted":
            continue
        text = (string(record.payload.get("message")) or "").strip()
        summaries.add(text)
        if text.startswith(SUMMARY_PREFIX):
            summaries.add(text.partition("\n")[2].strip())
    return summaries - {""}
