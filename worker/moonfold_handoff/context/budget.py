"""How much history may travel: the allowance and every input that led to it (R11-R23).

These are estimates: the provider may still refuse (R24).
"""

from __future__ import annotations

from collections.abc import Iterable

from moonfold_handoff.context.accounting import literal_bytes
from moonfold_handoff.context.capacity import NOTHING_KNOWN, Catalogue, Selection, positive
from moonfold_handoff.context.state import Conversation, KnownWindow, ThreadState
from moonfold_schemas.items import AttachmentKind
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import Budget, Figure, LimitingInput, Origin

DEFAULT_CAP = 16_000  # tokens (R13)
MIN_CAP = 1_024  # tokens (R13)
MAX_CAP = 64_000  # tokens (R13)
CEILING = 64_000  # bytes of imported history (R15)
ASSUMED_WINDOW = 128_000  # tokens, where no capacity is known (R19)
MIN_RESERVE = 16_000  # tokens for instructions, tools and later work (R20)
RESERVE_SHARE = 4  # the reserve is a quarter of the window, where that is larger (R20)
ATTACHMENT_TOKENS = {AttachmentKind.IMAGE: 8_192, AttachmentKind.FILE: 4_096}  # (R21)


def clamp_cap(tokens: int) -> int:
    """Return `tokens` within the bounds of the cap (R13)."""
    return max(MIN_CAP, min(MAX_CAP, tokens))


def request_bytes(request: NewRequest | None) -> int:
    """Return the length of the request's text as a JSON string literal; 0 without a request."""
    if request is None:
        return 0
    if request.text is not None:
        return literal_bytes(request.text)
    return request.json_bytes or 0


def attachment_tokens(kinds: Iterable[AttachmentKind]) -> int:
    """Return what attachments reserve, whatever the size of their files (R21)."""
    return sum(ATTACHMENT_TOKENS[kind] for kind in kinds)


def reserve_tokens(window: int) -> int:
    """Return what is kept free for instructions, tools and later work (R20)."""
    return max(MIN_RESERVE, window // RESERVE_SHARE)


def compute_budget(
    state: ThreadState,
    target: Target,
    request: NewRequest | None,
    cap: Figure,
    catalogue: Catalogue = NOTHING_KNOWN,
) -> Budget:
    """Return the allowance for a handoff to `target`, with each input and its origin.

    Args:
        state: what is known of the thread's conversations.
        target: where the thread goes on.
        request: the new request, which has its own room (R4); None when only preparing.
        cap: the operator's or the request's cap, already clamped.
        catalogue: windows of models that neither the request nor the thread tells of.
    """
    conversation = state.conversation(target.conversation_id)
    window = _window(state, target, conversation, catalogue)
    existing = _existing(state, target, conversation, request)
    text = request_bytes(request)
    attachments = attachment_tokens(request.attachments if request else ())
    reserve = reserve_tokens(window.value)
    room = window.value - existing.value - text - attachments - reserve
    bounds = {
        LimitingInput.ROOM: room,
        LimitingInput.CAP: cap.value,
        LimitingInput.CEILING: CEILING,
    }
    limited_by = min(bounds, key=bounds.__getitem__)
    return Budget(
        cap=cap,
        ceiling=Figure(value=CEILING, origin=Origin.RULE),
        window=window,
        existing=existing,
        request=Figure(value=text, origin=Origin.REQUEST),
        attachments=Figure(value=attachments, origin=Origin.REQUEST),
        reserve=Figure(value=reserve, origin=Origin.RULE),
        allowance=max(0, bounds[limited_by]),
        limited_by=limited_by,
    )


def _window(
    state: ThreadState,
    target: Target,
    conversation: Conversation | None,
    catalogue: Catalogue,
) -> Figure:
    """Return the smallest known bound of the target's context, else the assumed window (R16-R19, R23)."""
    selection = _selection(target, conversation)
    known = state.windows.get(selection.key, KnownWindow())
    told = positive(target.capacity)
    bounds = [_capacity(told, conversation, known, selection, catalogue)]
    # What was measured under the same selection in an earlier conversation still constrains a fresh one.
    bounds.append((known.measured, Origin.TELEMETRY))
    if conversation is not None and conversation.selection == selection.key:
        bounds.append((conversation.max_tokens, Origin.TELEMETRY))
        bounds.append((conversation.compact_threshold, Origin.COMPACT_THRESHOLD))
    figures = [
        Figure(value=tokens, origin=origin)
        for tokens, origin in bounds
        if tokens is not None and tokens > 0
    ]
    if not figures:
        return Figure(value=ASSUMED_WINDOW, origin=Origin.ASSUMED)
    return min(figures, key=lambda figure: figure.value)


def _capacity(
    told: int | None,
    conversation: Conversation | None,
    known: KnownWindow,
    selection: Selection,
    catalogue: Catalogue,
) -> tuple[int | None, Origin]:
    """Return the known capacity: the request's, else the session's, else the catalogue's."""
    if told is not None:
        return told, Origin.REQUEST
    if (
        conversation is not None
        and conversation.selection == selection.key
        and conversation.capacity
    ):
        return conversation.capacity, Origin.KNOWN_CAPACITY
    if known.told is not None:
        return known.told, Origin.KNOWN_CAPACITY
    listed = catalogue.window(selection.provider, selection.model, selection.options)
    return (None, Origin.ASSUMED) if listed is None else (listed.tokens, listed.origin)


def _selection(target: Target, conversation: Conversation | None) -> Selection:
    """Return provider, model and options that go on: what the request leaves out stays as it was."""
    if conversation is None or conversation.provider != target.provider:
        return Selection(target.provider, target.model, target.options)
    return Selection(
        target.provider,
        target.model or conversation.model,
        {**conversation.options, **target.options},
    )


def _existing(
    state: ThreadState,
    target: Target,
    conversation: Conversation | None,
    request: NewRequest | None,
) -> Figure:
    """Return what the target's conversation already holds (R16-R18, R22)."""
    if target.conversation_id is None:
        return Figure(value=0, origin=Origin.FRESH)
    if conversation is None:
        return Figure(value=0, origin=Origin.ASSUMED)
    same = conversation.selection == _selection(target, conversation).key
    if same and conversation.used_tokens is not None:
        return Figure(value=conversation.used_tokens, origin=Origin.TELEMETRY)
    # A request that its session recorded before it asked would count here and as the request.
    carries = state.conversations[-1] is conversation
    asked_twice = state.pending_request if request is not None and carries else 0
    estimate = max(0, conversation.estimated_tokens - asked_twice)
    return Figure(value=estimate, origin=Origin.ESTIMATED)
