"""Lines of a JSON Lines session to documents, and the small readings that every importer needs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from moonfold_schemas import codec

Json = dict[str, Any]

MALFORMED = "malformed record"

_MAX_NUMBER = 2**53 - 1
_MARKS = {"completed": "[x]", "in_progress": "[~]"}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")


def count(skipped: dict[str, int], reason: str) -> None:
    """Count one more line or record that was left out."""
    skipped[reason] = skipped.get(reason, 0) + 1


def decode(raw: bytes) -> Any:
    """Return the JSON document in `raw`, with lone surrogates replaced.

    Raises:
        ValueError: `raw` is not JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return codec.parse(raw)


def string(value: Any) -> str | None:
    """Return `value` if it is a string."""
    return value if isinstance(value, str) else None


def dictionary(value: Any) -> Json:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Any]:
    """Return `value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def integer(value: Any) -> int | None:
    """Return `value` if it is an integer that the wire can hold."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER:
        return value
    return None


def tokens(value: Any) -> int | None:
    """Return `value` if it can be a count of tokens."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def parse_time(value: Any) -> datetime | None:
    """Return an ISO 8601 time in UTC, else None; a time without a zone is taken for UTC."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def label(name: str) -> str:
    """Return a name from the file as it may stand in a count's reason."""
    return _NOT_IN_A_NAME.sub("-", name)[:60]


def to_json(value: Any) -> str:
    """Return `value` as compact JSON, or nothing where it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""


def checklist(steps: Any, *, text: str) -> str:
    """Return a to-do list as lines that begin with a mark; `text` names the field of a step's words."""
    lines = []
    for step in entries(steps):
        entry = step if isinstance(step, dict) else {text: step}
        if words := string(entry.get(text)):
            status = string(entry.get("status")) or ""
            lines.append(f"{_MARKS.get(status, '[ ]')} {words}")
    return "\n".join(lines)
