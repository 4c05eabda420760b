from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import pytest
from helpers.building import (
    THREAD,
    Log,
    assistant,
    chosen,
    command,
    contents,
    error,
    file_change,
    interruption,
    json_bytes,
    meant,
    opaque_item,
    plan,
    reasoning,
    rebuilt,
    spans,
    started,
    tool_call,
    usage,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from moonfold_handoff.context import conversations
from moonfold_handoff.context import fold as folding
from moonfold_handoff.context.accounting import (
    literal_bytes,
    longest_prefix,
    longest_suffix,
    text_bytes,
)
from moonfold_handoff.context.fold import Entry, RebuildNeededError, fold
from moonfold_handoff.context.portable import body, kind_of, label
from moonfold_handoff.context.preamble import plan_preamble
from moonfold_handoff.context.rendering import cut, render
from moonfold_handoff.context.selection import select
from moonfold_handoff.context.state import ItemRef, Kind, Progress, ThreadState
from moonfold_handoff.errors import ReferencesDoNotFitError
from moonfold_schemas.events import (
    ConversationCompacted,
    HandoffDelivered,
    ModelSelected,
    OpaqueEvent,
    ThreadEvent,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import FileChangeKind, Item, ItemStatus
from moonfold_schemas.results import Delivery

# Histories, as what happens in turn. Long texts are short ones repeated, to be quick.


@dataclass(frozen=True)
class Again:
    """An item recorded before, picked from those still meant, gets more text."""

    pick: int
    more: str


@dataclass(frozen=True)
class RollBack:
    """So many events are taken back."""

    events: int


Step = Item | ThreadEvent | Again | RollBack

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
texts = st.builds(lambda text, times: text * times, words, st.sampled_from([1, 1, 1, 9, 90, 900]))
statuses = st.sampled_from(list(ItemStatus))
counts = st.integers(0, 2)
exit_codes = st.none() | st.integers(-(2**31), 2**31)
changes = st.sampled_from(list(FileChangeKind))
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(user, texts, images=counts, files=counts, status=statuses),
    st.builds(assistant, texts, status=statuses),
    st.builds(command, words, texts, exit_codes, status=statuses),
    st.builds(file_change, words, changes, st.none() | texts, status=statuses),
    st.builds(plan, texts),
    st.builds(error, texts, status=statuses),
    st.builds(interruption, words),
    st.builds(reasoning, texts),
    st.builds(tool_call, words, words, texts),
    st.builds(opaque_item, st.integers(0, 9_999)),
)
names = st.sampled_from(["a", "b", "c", "d", "e"])
models = st.sampled_from(["large", "small"])
bounds = st.none() | st.integers(-1, 200_000)
sizes = st.none() | st.integers(0, 64_000)
events: st.SearchStrategy[ThreadEvent] = st.one_of(
    st.just(TurnStarted(turn_id="turn")),
    st.builds(started, names, model=models, capacity=bounds),
    st.builds(ModelSelected, conversation_id=names, model=models, capacity=bounds),
    st.builds(usage, st.integers(0, 200_000), names, max_tokens=bounds, compact_threshold=bounds),
    st.builds(usage, st.just(5), names, described_at=st.integers(0, 40), model=models),
    st.builds(ConversationCompacted, conversation_id=names, used_tokens=st.none() | st.just(77)),
    st.builds(HandoffDelivered, conversation_id=names, through=st.just(1), tokens=sizes),
    st.just(TurnEnded(turn_id="turn", status=TurnStatus.COMPLETED)),
    st.builds(OpaqueEvent, size=st.integers(0, 9_999)),
)
again = st.builds(Again, st.integers(0, 99), words.filter(bool))
steps: st.SearchStrategy[Step] = st.one_of(
    items, items, items, events, again, st.builds(RollBack, st.integers(0, 12))
)


def grown(item: Item, more: str) -> Item:
    name = next(n for n in ("output", "text", "message", "diff", "size") if hasattr(item, n))
    before: Any = getattr(item, name)
    after = before + len(more) if name == "size" else (before or "") + more
    changed: Item = msgspec.structs.replace(item, **{name: after})
    return changed


def written(what: list[Step]) -> Log:
    history = Log()
    alive: list[tuple[int, Item]] = []
    for number, step in enumerate(what):
        if isinstance(step, RollBack):
            to = max(0, history.through - step.events)
            alive = [(sequence, item) for sequence, item in alive if sequence <= to]
            history.add(TurnsRolledBack(to=to))
        elif isinstance(step, ThreadEvent):
            history.add(step)
        elif not isinstance(step, Again):
            item: Item = msgspec.structs.replace(step, item_id=f"item-{number}")
            history.add(item)
            alive.append((history.through, item))
        elif alive:
            item = grown(alive[step.pick % len(alive)][1], step.more)
            history.add(item)
            alive.append((history.through, item))
    return history


# Left to itself, Hypothesis draws short lists most of the time.
lengths = st.sampled_from([0, 1, 5, 15, 25, 35])
histories = lengths.flatmap(lambda least: st.lists(steps, min_size=least, max_size=40)).map(written)
allowances = st.integers(0, 300) | st.integers(300, 2_500) | st.integers(2_500, 64_000)

thorough = settings(max_examples=250, deadline=None)


@contextmanager
def small_windows() -> Iterator[None]:
    with (
        mock.patch.multiple(folding, WINDOW_ITEMS=6, WINDOW_BYTES=3_000),
        mock.patch.multiple(conversations, MAX_CONVERSATIONS=3, MAX_WINDOWS=2, RECENT_ITEMS=3),
    ):
        yield


def in_pieces(entries: list[Entry], ends: list[int]) -> ThreadState:
    """Fold up to each end in turn, as workers do, from the start where a rollback asks for it."""
    state = ThreadState()
    for end in ends:
        try:
            state = fold(state, entries[state.through : end])
        except RebuildNeededError:
            state = rebuilt(entries[:end])
        assert state.through == end
        state = msgspec.json.decode(msgspec.json.encode(state), type=ThreadState)
    return state


def reference(entry: Entry, item: Item) -> ItemRef:
    kind = kind_of(item)
    assert kind is not None
    return ItemRef(
        position=entry.position,
        record=entry.sequence,
        kind=kind,
        progress=Progress[item.status.name],
        body=json_bytes(body(item)) - 2,
        label=len(label(item)),
        exit_code=getattr(item, "exit_code", None),
    )


@thorough
@given(histories, st.data())
def test_folding_in_pieces_is_folding_in_one_go(history: Log, data: st.DataObject) -> None:
    length = history.through
    ends = data.draw(st.lists(st.integers(0, length), max_size=8).map(sorted))
    with small_windows():
        assert in_pieces(history.entries, [*ends, length]) == in_pieces(history.entries, [length])


@thorough
@given(histories)
def test_the_state_is_what_the_log_means(history: Log) -> None:
    with small_windows():
        state = in_pieces(history.entries, [history.through])
    refs = [reference(entry, item) for entry, item in meant(history.entries)]
    requests = [ref for ref in refs if ref.kind is Kind.USER]
    answers = [ref for ref in refs if ref.kind is Kind.ASSISTANT and ref.body]
    assert state.items == len(refs)
    assert list(state.window) == [ref for ref in refs if ref.position > state.evicted]
    assert state.first_position == (refs[0].position if refs else 0)
    assert state.first_request == (requests[0] if requests else None)
    assert state.last_request == (requests[-1] if requests else None)
    assert state.last_answer == (answers[-1] if answers else None)
    assert len(state.window) <= 6
    assert len(state.conversations) <= 3
    assert len(state.windows) <= 2
    assert len(state.recent) <= 3


@thorough
@given(histories)
def test_a_rebuilt_state_is_the_folded_one(history: Log) -> None:
    with small_windows():
        try:
            state = fold(ThreadState(), history.entries)
        except RebuildNeededError:
            return
        assert rebuilt(history.entries) == state


@thorough
@given(histories, allowances, st.binary(max_size=8), st.booleans())
def test_a_handoff_keeps_every_promise(
    history: Log, allowance: int, seed: bytes, small: bool
) -> None:
    if small:
        with small_windows():
            state = in_pieces(history.entries, [history.through])
    else:
        state = in_pieces(history.entries, [history.through])
    if state.items and plan_preamble(THREAD, state.through, state.items, 0).reserve > allowance:
        with pytest.raises(ReferencesDoNotFitError):
            select(state, THREAD, allowance)
        return
    selection = select(state, THREAD, allowance)
    carried = contents(history.entries, selection)
    rendering = render(selection, carried, seed)

    # It stays within its bounds, and says exactly what it takes.
    if state.items:
        assert rendering.cost(Delivery.TEXT) <= allowance
    assert rendering.cost(Delivery.ITEMS) <= rendering.cost(Delivery.TEXT) == rendering.text_bytes
    assert rendering.text_bytes == json_bytes(rendering.text) <= 64_000
    assert rendering.items_bytes == json_bytes(msgspec.to_builtins(rendering.items)) <= 64_000

    # It is a selection of what the log means, in order.
    meaning = {entry.position: item for entry, item in meant(history.entries)}
    positions = chosen(selection)
    assert all(first < second for first, second in itertools.pairwise(positions))
    assert {position: meaning[position] for position in positions} == carried
    coverage = selection.coverage
    assert coverage.selected_items + coverage.omitted_items == len(meaning) == state.items
    for position in meaning:
        inside = [a <= position <= b for a, b in spans(coverage.selected)]
        outside = [a <= position <= b for a, b in spans(coverage.omitted)]
        assert sum(inside) + sum(outside) == 1
        assert any(inside) is (position in positions)

    # Messages are whole, under their own roles, and nothing carried contains the mark.
    mark = rendering.text[1:5]
    for choice, message in zip(selection.choices, rendering.items[1:], strict=True):
        item = carried[choice.ref.position]
        assert choice.ref.kind.is_message <= (choice.limit is None)
        if choice.limit is not None:
            continue
        text, line = body(item), f"[{mark} #{choice.ref.position} {label(item)}]"
        assert mark not in text
        assert f"\n{line}\n{text}\n[{mark} " in rendering.text
        [part] = message.content
        assert part.text == ((text or line) if choice.ref.kind.is_message else f"{line}\n{text}")
        assert message.role == ("user" if choice.ref.kind is Kind.USER else "assistant")

    assert render(select(state, THREAD, allowance), carried, seed) == rendering


@given(texts)
def test_text_costs_what_the_standard_library_writes(text: str) -> None:
    assert literal_bytes(text) == json_bytes(text) == text_bytes(text) + 2


@given(texts, st.integers(-3, 400))
def test_prefixes_and_suffixes_cannot_be_longer(text: str, limit: int) -> None:
    head = longest_prefix(text, limit)
    tail = longest_suffix(text, limit)
    if limit >= 0:
        assert text_bytes(text[:head]) <= limit
        assert text_bytes(text[len(text) - tail :]) <= limit
    assert head == len(text) or text_bytes(text[: head + 1]) > limit
    assert tail == len(text) or text_bytes(text[len(text) - tail - 1 :]) > limit


@given(texts, st.integers(200, 3_000), st.integers(1, 2**53 - 1))
def test_an_abridged_text_fits_and_can_be_completed(text: str, limit: int, position: int) -> None:
    made = cut(text, limit, position)
    shown = made.apply(text, "kkkk", position)
    assert text_bytes(shown) <= limit
    assert shown.startswith(text[: made.head])
    assert shown.endswith(text[made.tail :])
    assert made.head <= made.tail
