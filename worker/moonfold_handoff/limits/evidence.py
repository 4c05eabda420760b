"""What a limit is recognised from, and safe readings of JSON of unknown shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a provider, or the agent that talks to it, itself marked as an error or as telemetry.

    Attributes:
        body: JSON: the response's body, a stream's event, or the agent's own record.
        status: The HTTP status.
        headers: The HTTP headers; names are compared without case.
        text: The sentence, where the caller took it out. Never prose, and never a command's output.
        now: When it was written, with a zone; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """

    body: Any = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    now: datetime | None = None
    zone: tzinfo | None = None


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def array(value: Any) -> list[Any]:
    """Return `value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def string(value: Any) -> str:
    """Return `value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """Return `value` if it is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: Any) -> int | None:
    """Return `value` if it is an integer, such as an HTTP status."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parts_text(value: Any) -> str:
    """Return the text of a message's content: a string, or blocks that have a `text`."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else [value]
    texts = (block if isinstance(block, str) else mapping(block).get("text") for block in blocks)
    return "\n\n".join(text for text in texts if isinstance(text, str))
