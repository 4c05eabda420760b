"""Lines of a Codex rollout to records, with everything that can be wrong in them settled here.

Later steps may rely on it: a payload is a dict, and it names its own type where its record has several.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    count,
    entries,
    label,
    parse_time,
    string,
)

_WITH_KINDS = frozenset({"event_msg", "response_item"})
_PLAIN = frozenset(
    {"compacted", "session_meta", "token_usage_record", "turn_context", "world_state"}
)
_IGNORED = frozenset(
    {
        "agent_message_content_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_section_break",
        "background_event",
        "collab_agent_interaction_end",
        "collab_agent_spawn_end",
        "collab_close_end",
        "collab_resume_end",
        "collab_waiting_end",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "context_compaction",
        "deprecation_notice",
        "dynamic_tool_call_request",
        "dynamic_tool_call_response",
        "entered_review_mode",
        "exec_command_begin",
        "exited_review_mode",
        "ghost_snapshot",
        "guardian_assessment",
        "hook_completed",
        "hook_started",
        "image_generation_end",
        "item_started",
        "mcp_tool_call_begin",
        "mcp_tool_call_end",
        "model_reroute",
        "other",
        "patch_apply_begin",
        "plan_update",
        "session_configured",
        "shutdown_complete",
        "stream_error",
        "sub_agent_activity",
        "thread_goal_updated",
        "thread_name_updated",
        "thread_settings_applied",
        "turn_diff",
        "undo_completed",
        "view_image_tool_call",
        "warning",
        "web_search_begin",
        "web_search_end",
        # Completed items whose calls are in the history too.
        "CollabAgentToolCall",
        "DynamicToolCall",
        "EnteredReviewMode",
        "ExitedReviewMode",
        "HookPrompt",
        "ImageGeneration",
        "ImageView",
        "McpToolCall",
        "Sleep",
        "SubAgentActivity",
        "WebSearch",
    }
)
"""Kinds of payload that are known and say nothing more about the conversation."""

_CALLS = frozenset({"custom_tool_call", "function_call", "local_shell_call"})
_OUTPUTS = frozenset({"custom_tool_call_output", "function_call_output", "tool_search_output"})


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One line of the file.

    Attributes:
        line: Counts from 0 and stands in for an id where there is none.
        type: What it is, also where the file is one of before the envelope.
        payload: What it tells.
        time: When it was written.
        zone: Zone of a limit notice, which names none; None is the machine's.
    """

    line: int
    type: str
    payload: Json
    time: datetime | None
    zone: tzinfo | None

    @property
    def kind(self) -> str:
        """The payload's own type."""
        return string(self.payload.get("type")) or ""

    @property
    def name(self) -> str:
        """What ids of this record's items are made from."""
        return string(self.payload.get("id")) or f"line-{self.line}"


def recognises(document: Any) -> bool:
    """Tell whether a JSON document is a record of a rollout, also one of before the envelope."""
    if not isinstance(document, dict):
        return False
    if string(document.get("type")) in (_WITH_KINDS | _PLAIN):
        return isinstance(document.get("payload"), dict)
    return _bare_type(document) is not None


def parse_record(
    number: int, document: Any, zone: tzinfo | None, skipped: dict[str, int]
) -> Record | None:
    """Return the record that a line's document is, or None where it is none, which is counted."""
    if not isinstance(document, dict):
        count(skipped, "not a record")
        return None
    type_ = document.get("type")
    payload: Any = document.get("payload")
    if (bare := _bare_type(document)) is not None:
        type_, payload = bare, document
    if not isinstance(type_, str):
        # What mid-2025 files say between their items, such as {"record_type":"state"}.
        if "record_type" not in document:
            count(skipped, "record without a type")
        return None
    if type_ not in _WITH_KINDS and type_ not in _PLAIN:
        count(skipped, f"unknown record: {label(type_)}")
        return None
    if not isinstance(payload, dict) or (
        type_ in _WITH_KINDS and not isinstance(payload.get("type"), str)
    ):
        count(skipped, MALFORMED)
        return None
    return Record(number, type_, payload, parse_time(document.get("timestamp")), zone)


def count_unknown(record: Record, key: str, skipped: dict[str, int]) -> None:
    """Count a record of a kind that nothing reads, unless it is known to say nothing more.

    Args:
        record: The record.
        key: Its payload's kind; a completed item's own, after `item `.
        skipped: The counts.
    """
    kind = key.removeprefix("item ")
    if key == "item ":
        count(skipped, MALFORMED)
    elif record.type in _WITH_KINDS and kind not in _IGNORED:
        what = "event" if record.type == "event_msg" and key == record.kind else "item"
        count(skipped, f"unknown {what}: {label(kind)}")


def _bare_type(document: Json) -> str | None:
    """Return the type that a line without an envelope would have in one, or None if it has one."""
    if "payload" in document:
        return None
    kind = string(document.get("type"))
    if document.get("type") is None:
        has_session = isinstance(document.get("id"), str) and "instructions" in document
        return "session_meta" if has_session and "timestamp" in document else None
    texts = (string(b.get("type")) for b in entries(document.get("content")) if isinstance(b, dict))
    is_item = (
        (kind == "message" and any(t in {"input_text", "output_text"} for t in texts))
        or (kind == "reasoning" and isinstance(document.get("summary"), list))
        or ((kind in _CALLS or kind in _OUTPUTS) and isinstance(document.get("call_id"), str))
    )
    return "response_item" if is_item else None
