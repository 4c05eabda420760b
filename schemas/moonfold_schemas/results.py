"""Results: what a worker publishes for the switching session, tagged by `type`.

Unlike events, results write their defaults out, so that a reader in any language finds every field.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from moonfold_schemas.base import (
    Id,
    Sequence,
    Timestamp,
    Tokens,
    Traceparent,
    Tracestate,
    Wire,
)
from moonfold_schemas.requests import Target


class Delivery(StrEnum):
    """Which of the two deliveries a target takes; `native` where it goes on by itself and needs none."""

    ITEMS = "items"
    TEXT = "text"
    NATIVE = "native"


class Origin(StrEnum):
    """Where a figure of the budget came from."""

    REQUEST = "request"
    SETTING = "setting"
    DEFAULT = "default"
    TELEMETRY = "telemetry"
    COMPACT_THRESHOLD = "compact_threshold"
    KNOWN_CAPACITY = "known_capacity"
    OPTION = "option"
    OPERATOR = "operator"
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    ESTIMATED = "estimated"
    FRESH = "fresh"
    RULE = "rule"


class LimitingInput(StrEnum):
    """Which bound of the allowance was the smallest."""

    CAP = "cap"
    CEILING = "ceiling"
    ROOM = "room"


class FailureCode(StrEnum):
    """Why no handoff was made."""

    REFERENCES_DO_NOT_FIT = "references_do_not_fit"
    HISTORY_INCOMPLETE = "history_incomplete"
    THREAD_NOT_FOUND = "thread_not_found"
    NO_TARGET_AVAILABLE = "no_target_available"
    SUPERSEDED = "superseded"
    INVALID_REQUEST = "invalid_request"
    HISTORY_CORRUPT = "history_corrupt"
    INTERNAL = "internal"


class InputText(Wire, tag_field="type", tag="input_text", frozen=True, kw_only=True):
    """Text spoken to the model."""

    text: str


class OutputText(Wire, tag_field="type", tag="output_text", frozen=True, kw_only=True):
    """Text spoken by the model."""

    text: str


class ResponseMessage(Wire, tag_field="type", tag="message", frozen=True, kw_only=True):
    """A message item of the Responses API, ready for Codex `thread/inject_items` (R5).

    A message keeps its role and its raw text; activity is an attributed `assistant` message; the
    preamble speaks as `developer`.
    """

    role: Literal["user", "assistant", "developer"]
    content: tuple[InputText | OutputText, ...]


class PositionRange(Wire, frozen=True, kw_only=True):
    """Positions `first` to `last`, both included."""

    first: Sequence
    last: Sequence


class Coverage(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Which part of the history travels.

    `abridged` lists positions whose output travels as head and tail.
    """

    through: Sequence
    selected_items: Tokens
    omitted_items: Tokens
    selected: tuple[PositionRange, ...] = ()
    omitted: tuple[PositionRange, ...] = ()
    abridged: tuple[Sequence, ...] = ()


class Figure(Wire, frozen=True, kw_only=True):
    """One input of the budget, in tokens (one a byte), and where it came from."""

    value: Tokens
    origin: Origin


class Budget(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Why the handoff is as large as it is (R11-R23).

    allowance = max(0, min(cap, ceiling, window - existing - request - attachments - reserve)).

    `cost` is what the delivery that this target takes is charged: the bytes of its texts, each as a
    JSON string literal (R14). For `text` that is the literal's length; for `items`, the sum over all
    texts in them. `text_bytes` is the length of `text` as a JSON string literal, `items_bytes` the length
    of the serialised `items` array, whose envelopes are transport and not charged; neither exceeds the
    ceiling (R15). `own_text_bytes` is the UTF-8 length of the carried conversation itself.
    """

    cap: Figure
    ceiling: Figure
    window: Figure
    existing: Figure
    request: Figure
    attachments: Figure
    reserve: Figure
    allowance: Tokens
    limited_by: LimitingInput
    cost: Tokens = 0
    text_bytes: Tokens = 0
    items_bytes: Tokens = 0
    own_text_bytes: Tokens = 0


class PassedOverReason(StrEnum):
    """Why a thread does not go on with a candidate."""

    AT_ITS_LIMIT = "at_its_limit"
    NO_ROOM = "no_room"


class PassedOver(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A candidate that was not taken, and why.

    `until` is when its limit ends, where that is known. `needed` and `available` are bytes where room
    was the reason.
    """

    target: Target
    reason: PassedOverReason
    message: str
    until: Timestamp | None = None
    needed: Tokens | None = None
    available: Tokens | None = None


class ReaderSetup(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How the target's agent is started with the thread reader as an MCP server, for one session.

    `arguments` go right after the program's name, `environment` is added to its own; the token is in
    `environment` alone, since others see arguments. `once` is the command that a person runs once
    where the agent takes MCP servers from its settings only; it holds no token.
    """

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    once: tuple[str, ...] = ()


class ReaderAccess(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What opens the thread's history up to `through` to the thread reader, until `expires_at` (R8, R9).

    `token` is a secret: whoever has it reads the conversation. `url` is where the reader is served for
    agents on other machines, where the operator says so; agents on this one start it themselves.
    `setup` is null for agents that are not known: they get `moonfold mcp` with the token as
    `MOONFOLD_READER_TOKEN`, or `url` with the token as bearer token, in their own way.
    """

    token: str
    expires_at: Timestamp
    through: Sequence
    url: str | None = None
    setup: ReaderSetup | None = None


class ResultBase(Wire, tag_field="type", frozen=True, kw_only=True, omit_defaults=False):
    """Fields of every result. `duration_ms` is the time the worker spent on it.

    `traceparent` and `tracestate` are the trace context of the span that published it; from a worker that
    does not trace, they are the request's.
    """

    request_id: Id
    session_id: Id
    thread_id: Id | None = None
    created_at: Timestamp | None = None
    duration_ms: Annotated[float, Meta(ge=0)] | None = None
    traceparent: Traceparent | None = None
    tracestate: Tracestate | None = None


class HandoffReady(ResultBase, tag="handoff.ready", frozen=True, kw_only=True):
    """The handoff: one selection in two deliveries (R5, R6); `delivery` names this target's.

    A thread without items that can travel has nothing to deliver: `items` and `text` are empty.
    `passed_over` holds the candidates before this target. `reader` is null where there is nothing to
    read, or tokens are switched off.
    """

    target: Target
    coverage: Coverage
    budget: Budget
    delivery: Delivery
    items: tuple[ResponseMessage, ...] = ()
    text: str = ""
    passed_over: tuple[PassedOver, ...] = ()
    reader: ReaderAccess | None = None


class HandoffPrepared(ResultBase, tag="handoff.prepared", frozen=True, kw_only=True):
    """A handoff is kept ready for a request that is still to come."""

    target: Target
    coverage: Coverage
    budget: Budget
    passed_over: tuple[PassedOver, ...] = ()


class HandoffWaiting(ResultBase, tag="handoff.waiting", frozen=True, kw_only=True):
    """A throttle, not a limit: the same provider goes on after `retry_after` seconds."""

    retry_after: Annotated[float, Meta(ge=0)]
    message: str = ""


class HandoffFailed(ResultBase, tag="handoff.failed", frozen=True, kw_only=True):
    """No handoff, and why. `needed` and `available` are bytes where room was the reason (R12).

    `retryable` says whether the same request can succeed later, unchanged. Where no target was available,
    `passed_over` says why, and `resets_at` is the earliest time at which one is known to be so again.
    """

    code: FailureCode
    message: str
    retryable: bool = False
    needed: Tokens | None = None
    available: Tokens | None = None
    resets_at: Timestamp | None = None
    passed_over: tuple[PassedOver, ...] = ()


HandoffResult = HandoffReady | HandoffPrepared | HandoffWaiting | HandoffFailed
"""Any result, discriminated by `type`."""
