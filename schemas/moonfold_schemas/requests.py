"""Requests: what asks a worker for a handoff, tagged by `type`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from moonfold_schemas.base import (
    Bound,
    Id,
    ModelName,
    Options,
    Sequence,
    Tokens,
    Traceparent,
    Tracestate,
    Wire,
)
from moonfold_schemas.events import Limit
from moonfold_schemas.items import AttachmentKind


class NativeAbilities(Wire, frozen=True, kw_only=True):
    """What the target can do by itself; null means infer it from the version (R5)."""

    inject_items: bool | None = None
    resume: bool | None = None
    fork: bool | None = None


class Target(Wire, frozen=True, kw_only=True):
    """Where the thread goes on.

    `provider` is for example `codex`, `claude-code`, `gemini-cli`, `opencode`; `instance` tells accounts
    apart. `capacity` is the model's context window in tokens where the session knows it. Without
    `conversation_id` the conversation is fresh.
    """

    provider: Id
    instance: Id | None = None
    model: ModelName | None = None
    options: Options = field(default_factory=dict)
    capacity: Bound | None = None
    version: str | None = None
    conversation_id: Id | None = None
    native: NativeAbilities = field(default_factory=NativeAbilities)


class NewRequest(Wire, frozen=True, kw_only=True):
    """What the person wants next: separate from history, never shortened (R4).

    Either the `text`, or only `json_bytes`, its length in bytes as a JSON string literal (quotes
    included). The text is read for its length and the identifiers it mentions, and goes nowhere else.
    `attachments` lists their kinds, which is all that the reserve depends on (R21).
    """

    text: str | None = None
    json_bytes: Tokens | None = None
    attachments: tuple[AttachmentKind, ...] = ()


class RequestBase(Wire, tag_field="type", frozen=True, kw_only=True):
    """Fields of every request.

    `through` is the sequence of the last event that the session wrote: the handoff is made from exactly
    that much history. `token_cap` lowers or raises the operator's cap for this handoff, within the same
    clamp (R13). `native_failed` says that the target tried to go on by itself and could not, so the
    handoff has to be portable.

    `traceparent` and `tracestate` are the trace context of the span that sent the request (W3C Trace
    Context). A worker takes one that is malformed as none.
    """

    request_id: Id
    session_id: Id
    thread_id: Id
    through: Sequence
    request: NewRequest | None = None
    token_cap: Tokens | None = None
    native_failed: bool = False
    traceparent: Traceparent | None = None
    tracestate: Tracestate | None = None


Candidates = Annotated[tuple[Target, ...], Meta(max_length=32)]
"""Where a thread may go on, the first choice first; none: the operator's policy says."""


class ProviderLimitReached(RequestBase, tag="provider.limit_reached", frozen=True, kw_only=True):
    """A provider will not go on: continue on the first of `candidates` that can.

    The provider is `provider` and `instance` where they are given, else that of `conversation_id`, else
    that of the conversation which carries the thread. `limit` is what it said.
    """

    candidates: Candidates = ()
    conversation_id: Id | None = None
    provider: Id | None = None
    instance: Id | None = None
    limit: Limit | None = None


class ProviderLimitNear(RequestBase, tag="provider.limit_near", frozen=True, kw_only=True):
    """A provider's quota is nearly used up: prepare the handoff that its end would ask for.

    Done in the background and answered with `handoff.prepared`. The fields are those of
    `provider.limit_reached`.
    """

    candidates: Candidates = ()
    conversation_id: Id | None = None
    provider: Id | None = None
    instance: Id | None = None


class ProviderSwitchRequested(
    RequestBase, tag="provider.switch_requested", frozen=True, kw_only=True
):
    """The person picked another provider."""

    target: Target


class RestartRequested(RequestBase, tag="restart.requested", frozen=True, kw_only=True):
    """The same thread in a fresh conversation, on the same or another provider."""

    target: Target


class ForkRequested(RequestBase, tag="fork.requested", frozen=True, kw_only=True):
    """A new thread `fork_thread_id` whose history is `thread_id` up to a point.

    The point is `through`, or, not after that, the end of the turn `turn_id`, or of the latest turn that
    had ended (`settled`). Without `request` the handoff is prepared in the background.
    """

    target: Target
    fork_thread_id: Id
    turn_id: Id | None = None
    settled: bool = False


HandoffRequest = (
    ProviderLimitReached
    | ProviderLimitNear
    | ProviderSwitchRequested
    | RestartRequested
    | ForkRequested
)
"""Any request, discriminated by `type`."""
