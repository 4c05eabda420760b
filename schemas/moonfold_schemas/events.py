"""Thread events: what is appended to a thread's log, tagged by `type`.

An event's sequence is its place in the log, not a field: the producer states the last sequence it
knows and the log numbers what follows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from moonfold_schemas.base import Bound, Id, ModelName, Options, Sequence, Timestamp, Tokens, Wire
from moonfold_schemas.items import Item


class TurnStatus(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LIMITED = "limited"


class LimitKind(StrEnum):
    """Why a provider would not go on. Only the first two call for another provider."""

    QUOTA = "quota"
    CREDITS = "credits"
    THROTTLE = "throttle"
    CONTEXT = "context"
    AUTHENTICATION = "authentication"


class Limit(Wire, frozen=True, kw_only=True):
    """A provider's limit notice, as it was recognised.

    `resets_at` is when the window opens again, `retry_after` the provider's own delay in seconds; each
    is null where the provider did not say. `message` is the provider's sentence.
    """

    kind: LimitKind
    resets_at: Timestamp | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None
    message: str | None = None


class EventBase(Wire, tag_field="type", frozen=True, kw_only=True):
    """Fields of every thread event. `time` is when it happened, where the producer knows."""

    time: Timestamp | None = None


class ThreadStarted(EventBase, tag="thread.started", frozen=True, kw_only=True):
    """A thread begins."""

    title: str | None = None
    cwd: str | None = None


class TurnStarted(EventBase, tag="turn.started", frozen=True, kw_only=True):
    """The agent starts to work on a request."""

    turn_id: Id


class ItemRecorded(EventBase, tag="item.recorded", frozen=True, kw_only=True):
    """An item appears, or the item of the same id gets its new content."""

    item: Item


class TurnEnded(EventBase, tag="turn.ended", frozen=True, kw_only=True):
    """A turn ends; `limit` says why where the status is `limited`."""

    turn_id: Id
    status: TurnStatus
    limit: Limit | None = None


class ConversationStarted(EventBase, tag="conversation.started", frozen=True, kw_only=True):
    """A provider conversation begins to carry the thread (R17: usage starts from nothing).

    `capacity` is the context window in tokens where it is known; `continues` names the conversation
    whose history the provider itself took over (a native resume or fork). `instance` tells accounts
    apart: a limit is one account's.
    """

    conversation_id: Id
    provider: Id
    instance: Id | None = None
    model: ModelName | None = None
    options: Options = field(default_factory=dict)
    capacity: Bound | None = None
    continues: Id | None = None


class ModelSelected(EventBase, tag="model.selected", frozen=True, kw_only=True):
    """Another model, or other options, from here on (R18)."""

    conversation_id: Id
    model: ModelName | None = None
    options: Options = field(default_factory=dict)
    capacity: Bound | None = None


class UsageReported(EventBase, tag="usage.reported", frozen=True, kw_only=True):
    """Telemetry of a provider: tokens in its context, its maximum, its compaction threshold.

    A maximum or threshold of zero or less means unknown. A report that comes late says by
    `described_at` which sequence it describes (its own by default), and by `model` and `options` which
    selection it was measured under (the one in force by default).
    """

    conversation_id: Id
    used_tokens: Tokens
    max_tokens: Bound | None = None
    compact_threshold: Bound | None = None
    described_at: Sequence | None = None
    model: ModelName | None = None
    options: Options | None = None


class QuotaWindow(Wire, frozen=True, kw_only=True):
    """A provider's quota window: how much of it is used, in percent, and when it opens again.

    `name` is the provider's own, such as `five_hour`, or `primary`; `minutes` is how long the window is.
    """

    name: Annotated[str, Meta(max_length=100)]
    used_percent: Annotated[float, Meta(ge=0)]
    resets_at: Timestamp | None = None
    minutes: Tokens | None = None


class QuotaReported(EventBase, tag="quota.reported", frozen=True, kw_only=True):
    """Telemetry of a provider: how far the account's quota windows are used up.

    `has_credits` says that the provider goes on beyond a used-up window.
    """

    conversation_id: Id
    windows: Annotated[tuple[QuotaWindow, ...], Meta(max_length=32)]
    has_credits: bool = False


class ConversationCompacted(EventBase, tag="conversation.compacted", frozen=True, kw_only=True):
    """The provider compacted its context, to `used_tokens` where that is known."""

    conversation_id: Id
    used_tokens: Tokens | None = None


class TurnsRolledBack(EventBase, tag="turns.rolled_back", frozen=True, kw_only=True):
    """Everything recorded after sequence `to` is taken back."""

    to: Sequence


class ThreadForked(EventBase, tag="thread.forked", frozen=True, kw_only=True):
    """First event of a fork, at sequence `through` + 1: its history is the parent's up to `through`."""

    parent_thread_id: Id
    through: Sequence


class HandoffDelivered(EventBase, tag="handoff.delivered", frozen=True, kw_only=True):
    """A conversation was given the thread's history up to `through`, charged at `tokens`."""

    conversation_id: Id
    through: Sequence
    request_id: Id | None = None
    tokens: Tokens | None = None


class OpaqueEvent(EventBase, tag="opaque", frozen=True, kw_only=True):
    """An event of a type this version does not know; `size` is its length in bytes."""

    original_type: Annotated[str, Meta(max_length=200)] = ""
    size: Tokens = 0


ThreadEvent = (
    ThreadStarted
    | TurnStarted
    | ItemRecorded
    | TurnEnded
    | ConversationStarted
    | ModelSelected
    | UsageReported
    | QuotaReported
    | ConversationCompacted
    | TurnsRolledBack
    | ThreadForked
    | HandoffDelivered
    | OpaqueEvent
)
"""Any thread event, discriminated by `type`."""
