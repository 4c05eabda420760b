"""How much of a budget is the conversation itself: short messages, UUIDs as ids; no server."""

from __future__ import annotations

import uuid

from moonfold_handoff.context.fold import Entry, fold
from moonfold_handoff.context.preamble import reading_tool
from moonfold_handoff.context.rendering import Rendering, render
from moonfold_handoff.context.selection import Selection, select
from moonfold_handoff.context.state import ThreadState
from moonfold_schemas.events import ItemRecorded
from moonfold_schemas.items import AssistantMessage, Item, UserMessage

from .content import new_id
from .figures import Advance, Figure

MESSAGES = 200
LENGTHS = (80, 400)  # characters, in turns
DEFAULT_CAP = 16_000
SMALLEST_CAP = 1_024


def measure(advance: Advance) -> list[Figure]:
    items = [_message(number) for number in range(MESSAGES)]
    _, rendering = _hand_off(items, DEFAULT_CAP)
    advance(0.5)
    tight, tight_rendering = _hand_off(items, SMALLEST_CAP)
    share = rendering.own_text_bytes / DEFAULT_CAP * 100
    return [
        Figure(f"own text of {DEFAULT_CAP:,}", share, "%", at_least=85),
        Figure(f"charged of {DEFAULT_CAP:,}", rendering.text_bytes, "bytes", at_most=DEFAULT_CAP),
        Figure(f"messages within {SMALLEST_CAP:,}", len(tight.choices), at_least=2),
        Figure(
            f"charged of {SMALLEST_CAP:,}",
            tight_rendering.text_bytes,
            "bytes",
            at_most=SMALLEST_CAP,
        ),
    ]


def _hand_off(items: list[Item], allowance: int) -> tuple[Selection, Rendering]:
    entries = [Entry(n, n, ItemRecorded(item=item)) for n, item in enumerate(items, start=1)]
    thread_id, tool = str(uuid.UUID(int=2**127)), reading_tool("claude-code")
    selection = select(fold(ThreadState(), entries), thread_id, allowance, tool=tool)
    contents = {c.ref.position: items[c.ref.position - 1] for c in selection.choices}
    return selection, render(selection, contents, b"seed")


def _message(number: int) -> Item:
    text = (f"Message {number} about the parser and its tests. " * 20)[: LENGTHS[number % 2]]
    if number % 2 == 0:
        return UserMessage(text=text, item_id=new_id(), turn_id=new_id())
    return AssistantMessage(text=text, item_id=new_id(), turn_id=new_id())
