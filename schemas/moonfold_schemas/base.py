"""What every wire type shares: identifiers, positions, times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, TypeGuard

from msgspec import Meta, Struct

# The look-ahead refuses a trailing newline, which `$` alone lets through in Python.
ID_PATTERN = r"^[A-Za-z0-9._:-]{1,200}(?!\n)$"

Id = Annotated[
    str,
    Meta(pattern=ID_PATTERN, description="1-200 characters of A-Z a-z 0-9 . _ : -"),
]
"""Identifier of a thread, session, request, conversation, turn or item."""


def is_id(value: object) -> TypeGuard[str]:
    """Return whether `value` is an identifier as the contract wants it."""
    return isinstance(value, str) and re.match(ID_PATTERN, value) is not None


Sequence = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""Number of an event in its thread's log, dense from 1; 0 is the empty log.

An item's *position* is the sequence of its first record. Bounded by what a Lua number holds exactly.
"""

Tokens = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""A count of tokens, or of UTF-8 bytes charged as tokens (R14: one token a byte)."""

Bound = Annotated[int, Meta(ge=-(2**53 - 1), le=2**53 - 1)]
"""A number as the provider gave it, which may be zero or negative to say "unknown"."""

TRACEPARENT_PATTERN = (
    r"^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?!\n)$"
)
Traceparent = Annotated[
    str, Meta(pattern=TRACEPARENT_PATTERN, description="W3C Trace Context: traceparent")
]
"""The span that a message was sent in: version, trace id, span id and flags in hex."""

TRACESTATE_BYTES = 512  # what every participant of a trace passes on, by W3C Trace Context
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[ -+\--<>-~]{0,255}[!-+\--<>-~]"
TRACESTATE_PATTERN = rf"^{_KEY}={_VALUE}(?:[ \t]*,[ \t]*{_KEY}={_VALUE}){{0,31}}(?!\n)$"
Tracestate = Annotated[
    str,
    Meta(
        pattern=TRACESTATE_PATTERN,
        max_length=TRACESTATE_BYTES,
        description="W3C Trace Context: tracestate",
    ),
]
"""What tracing systems add to a `traceparent`, opaque to everyone else."""

Timestamp = Annotated[datetime, Meta(tz=True, description="RFC 3339, UTC")]

ModelName = Annotated[str, Meta(max_length=200)]
"""Name of a model, as its provider has it."""

OptionName = Annotated[str, Meta(max_length=100)]

Option = Annotated[str, Meta(max_length=200)] | int | float | bool | None
"""Value of a provider's model option, such as a context-window or reasoning setting."""

Options = Annotated[dict[OptionName, Option], Meta(max_length=64)]
"""A provider's model options by name."""


class Wire(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything on the wire: immutable, keyword-only, defaults left out.

    Unknown fields are ignored, so that a newer producer can talk to an older worker.
    """


def utc_now() -> datetime:
    """Return the current time as an aware UTC time."""
    return datetime.now(UTC)
