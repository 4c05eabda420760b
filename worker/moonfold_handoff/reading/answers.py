"""What the reader answers: entries, pages, hits, and how to go on. As JSON they are what their fields say."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class View(StrEnum):
    """What a range of a thread shows.

    `messages` are the words of the person and the agent; `activity` adds commands, changes of files,
    plans, errors and interruptions. Reasoning and the insides of tool calls are in neither (R7).
    """

    MESSAGES = "messages"
    ACTIVITY = "activity"


class ReadingError(Exception):
    """What was asked for cannot be read. The message says what can, and holds no text of the thread."""


class Entry(Struct, frozen=True, kw_only=True):
    """One item, or a part of it.

    Attributes:
        position: its short name, the `#12` of a handoff.
        item_id: its identifier.
        kind: what it is, as the wire has it: `user_message`, `command`.
        label: who or what it comes from, as in a handoff: `command, exit 1`.
        status: how far it got: `completed`, `failed`, `interrupted`, `in_progress`.
        text: the part from `offset` on.
        time: when it was recorded last, where the producer knew.
        offset: characters (Unicode code points) of the item before `text`.
        characters_total: characters of the whole item.
        next_offset: where the rest begins; None where there is none.
    """

    position: int
    item_id: str
    kind: str
    label: str
    status: str
    text: str
    time: datetime | None = None
    offset: int = 0
    characters_total: int = 0
    next_offset: int | None = None


class Page(Struct, frozen=True, kw_only=True):
    """A part of a thread, or one item.

    Attributes:
        items: the entries, in order.
        through: the last position that can be read; positions are also taken by what is no item.
        next_after: `after` of the page that follows; None where nothing does.
        next_before: `before` of the page that precedes, where the thread is read backwards.
        next_offset: `offset` of the page that follows, of one item.
        note: how to go on, in words.
    """

    items: tuple[Entry, ...]
    through: int
    next_after: int | None = None
    next_before: int | None = None
    next_offset: int | None = None
    note: str = ""


class Snippet(Struct, frozen=True, kw_only=True):
    """A place where the text was found: what stands there, beginning at `offset` of the item."""

    offset: int
    text: str


class Hit(Struct, frozen=True, kw_only=True):
    """An item in which the text was found `count` times, the first few of them as snippets."""

    position: int
    item_id: str
    kind: str
    label: str
    status: str
    time: datetime | None = None
    characters_total: int = 0
    count: int = 1
    snippets: tuple[Snippet, ...] = ()


class Found(Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        hits: the items, the most recent first.
        through: the last position that can be read.
        covered_from: the oldest position looked at; everything from there to `covered_to` was.
        covered_to: the newest position looked at; less than `covered_from` where there was nothing.
        next_after: `after` of the search that goes on with what is older; None where all was searched.
        note: what was covered and how to go on, in words.
    """

    hits: tuple[Hit, ...]
    through: int
    covered_from: int
    covered_to: int
    next_after: int | None = None
    note: str = ""
