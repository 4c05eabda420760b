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

from moonfold_handoff.context import conversations, window
from moonfold_handoff.context.accounting import (
    literal_bytes,
    text_bytes,
)
from moonfold_handoff.context.fold import Entry, RebuildNeededError, fold
from moonfold_handoff.context.identifiers import marks
from moonfold_handoff.context.pieces import Pieces
from moonfold_handoff.context.portable import body, key_of, kind_of, label
from moonfold_handoff.context.preamble import plan_preamble
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.rendering import Rendering, render
from moonfold_handoff.context.selection import Selection, omissions, select
from moonfold_handoff.context.sketches import TROUBLE, cut_into_pieces, sketch, split_marks
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
repeated = st.builds(
    lambda text, times: text * times, words, st.sampled_from([1, 1, 1, 9, 90, 900])
)
telling = st.builds(
    lambda text, word, lines: "".join(
        f"{text}{word} src/{word}_{i % 70}.py\n" for i in range(lines)
    ),
    words,
    st.sampled_from(["error", "ok", "E1234", "a.b", ""]),
    st.sampled_from([1, 2, 7, 30, 60, 300, 1_500]),
)
texts = repeated | telling
statuses = st.sampled_from(list(ItemStatus))
counts = st.integers(0, 2)
exit_codes = st.none() | st.integers(-(2**31), 2**31)
changes = st.sampled_from(list(FileChangeKind))
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(user, texts, images=counts, files=counts, status=statuses),
    st.builds(assistant, texts, status=statuses),
    st.builds(command, words | st.sampled_from(["make", "make lint"]), texts, exit_codes),
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
        mock.patch.multiple(window, WINDOW_ITEMS=6, WINDOW_BYTES=3_000, SKETCH_BYTES=200),
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
        key=key_of(item),
    )


def plain(ref: ItemRef | None) -> ItemRef | None:
    """Return a reference without its sketch, which depends on what came before."""
    return None if ref is None else msgspec.structs.replace(ref, sketch="", pieces=())


def check_sketch(ref: ItemRef, text: str, *, bare: bool) -> None:
    """Check that a sketch tells of its text: names it mentions, pieces that make it up."""
    if bare:
        assert (ref.sketch, ref.pieces) == ("", ())
        return
    assert bool(ref.pieces) is (not ref.kind.is_message and len(text) > 400)
    found = split_marks(ref.sketch)
    if not ref.pieces:
        looked_at = text if len(text) <= 24_000 else f"{text[:8_000]}\n{text[-16_000:]}"
        assert set(found) <= set(marks(looked_at))
        return
    at = 0
    for characters, size, count in zip(*(ref.pieces[i::3] for i in range(3)), strict=True):
        piece, text = text[:characters], text[characters:]
        assert size == text_bytes(piece)
        assert set(found[at : at + count]) <= {*marks(piece), TROUBLE}
        at += count
    assert (text, at) == ("", len(found))


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
    assert [plain(ref) for ref in state.window] == [
        ref for ref in refs if ref.position > state.evicted
    ]
    said = {entry.position: body(item) for entry, item in meant(history.entries)}
    for ref in state.window:
        check_sketch(ref, said[ref.position], bare=ref.position <= state.bare)
    assert state.first_position == (refs[0].position if refs else 0)
    assert plain(state.first_request) == (requests[0] if requests else None)
    assert plain(state.last_request) == (requests[-1] if requests else None)
    assert plain(state.last_answer) == (answers[-1] if answers else None)
    assert len(state.window) <= 6
    assert sum(ref.sketch_bytes for ref in state.window) <= 200
    assert state.ranking == ()
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


def with_gaps(text: str, spans: tuple[tuple[int, int], ...], mark: str, position: int) -> str:
    """Return an abridged text, from the spans that are shown of it."""
    assert spans[0][0] == 0
    assert all(first[1] < second[0] for first, second in itertools.pairwise(spans))
    parts = []
    for (first, end), following in itertools.zip_longest(spans, spans[1:]):
        assert first < end <= len(text)
        parts.append(text[first:end])
        at = len(text) if following is None else following[0]
        if end < at:
            parts.append(f"\n[{mark} #{position} cut {end}-{at}]\n")
    return "".join(parts)


def check_costs(
    selection: Selection, rendering: Rendering, carried: dict[int, Item], allowance: int
) -> None:
    # What was reserved for each item is what it takes, or a little more where gaps have numbers
    # shorter than was feared.
    shown = dict(zip(chosen(selection), rendering.items[1:], strict=True))
    for choice in selection.choices:
        item, position = carried[choice.ref.position], choice.ref.position
        [part] = shown[position].content
        line = f"\n[mmmm #{position} {label(item)}]\n"
        if choice.spans:
            told = text_bytes("\n" + part.text)
            digits = 2 * len(str(len(body(item)))) * (len(choice.spans) + 1)
            assert told <= choice.cost <= told + digits
        else:
            assert choice.cost == text_bytes(line + body(item))
    assert sum(choice.cost for choice in selection.choices) <= selection.available
    if selection.preamble is not None:
        reserved = selection.preamble.reserve + sum(choice.cost for choice in selection.choices)
        assert rendering.text_bytes <= reserved <= allowance


def check_messages(selection: Selection, rendering: Rendering, carried: dict[int, Item]) -> None:
    # Messages are whole, under their own roles, and nothing carried contains the mark.
    mark = rendering.text[1:5]
    for choice, message in zip(selection.choices, rendering.items[1:], strict=True):
        item = carried[choice.ref.position]
        assert choice.ref.kind.is_message <= (choice.spans == ())
        if choice.spans:
            text, [part] = body(item), message.content
            line, _, abridged = part.text.partition("\n")
            assert line == f"[{mark} #{choice.ref.position} {label(item)}]"
            assert abridged == with_gaps(text, choice.spans, mark, choice.ref.position)
            assert all(mark not in text[first:end] for first, end in choice.spans)
            assert f"\n{part.text}\n[{mark} " in rendering.text
            assert message.role == "assistant"
            continue
        text, line = body(item), f"[{mark} #{choice.ref.position} {label(item)}]"
        assert mark not in text
        assert f"\n{line}\n{text}\n[{mark} " in rendering.text
        [part] = message.content
        assert part.text == ((text or line) if choice.ref.kind.is_message else f"{line}\n{text}")
        assert message.role == ("user" if choice.ref.kind is Kind.USER else "assistant")


@thorough
@given(histories, allowances, st.binary(max_size=8), st.booleans(), st.none() | texts)
def test_a_handoff_keeps_every_promise(
    history: Log, allowance: int, seed: bytes, small: bool, asked: str | None
) -> None:
    if small:
        with small_windows():
            state = in_pieces(history.entries, [history.through])
    else:
        state = in_pieces(history.entries, [history.through])
    if state.items and plan_preamble(THREAD, state.through, state.items, 0).reserve > allowance:
        with pytest.raises(ReferencesDoNotFitError):
            select(state, THREAD, allowance, asked)
        return
    selection = select(state, THREAD, allowance, asked)
    carried = contents(history.entries, selection)
    rendering = render(selection, carried, seed)

    # It stays within its bounds, and says exactly what it takes.
    if state.items:
        assert rendering.cost(Delivery.TEXT) <= allowance
    assert rendering.cost(Delivery.ITEMS) <= rendering.cost(Delivery.TEXT) == rendering.text_bytes
    assert rendering.text_bytes == json_bytes(rendering.text) <= 64_000
    assert rendering.items_bytes == json_bytes(msgspec.to_builtins(rendering.items)) <= 64_000

    check_costs(selection, rendering, carried, allowance)

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

    check_messages(selection, rendering, carried)

    # Every other candidate has a reason to stay behind.
    left_out = [omission.ref.position for omission in omissions(state, selection)]
    assert sorted([*positions, *left_out]) == [ref.position for ref in state.kept]

    # It is the same again, and the same with the ranking that is kept with the state.
    assert render(select(state, THREAD, allowance, asked), carried, seed) == rendering
    ranked = msgspec.structs.replace(state, ranking=rank(state))
    ranked = msgspec.json.decode(msgspec.json.encode(ranked), type=ThreadState)
    assert select(ranked, THREAD, allowance, asked) == selection


@thorough
@given(histories, st.booleans())
def test_a_ranking_names_what_there_is_and_each_once(history: Log, small: bool) -> None:
    if small:
        with small_windows():
            state = in_pieces(history.entries, [history.through])
    else:
        state = in_pieces(history.entries, [history.through])
    ranking = rank(state)
    assert rank(state) == ranking
    assert len(set(ranking)) == len(ranking)
    for index, piece in ranking:
        pieces = state.window[index].pieces
        assert 0 < piece < len(pieces) // 3 if pieces else piece == 0


@given(texts)
def test_text_costs_what_the_standard_library_writes(text: str) -> None:
    assert literal_bytes(text) == json_bytes(text) == text_bytes(text) + 2


long_texts = (
    texts | st.text(st.sampled_from('ab \n"é\U0001f389'), min_size=401, max_size=900)
).filter(lambda text: len(text) > 400)


@thorough
@given(long_texts)
def test_pieces_cover_a_text_without_gaps_or_overlap(text: str) -> None:
    pieces = list(cut_into_pieces(text))
    assert pieces[0][0] == 0
    assert pieces[-1][1] == len(text)
    assert all(first[1] == second[0] for first, second in itertools.pairwise(pieces))
    assert all(start < end for start, end in pieces)
    assert len(pieces) > 1
    made = sketch(text, frozenset, whole=False)
    assert made.pieces[0::3] == tuple(end - start for start, end in pieces)
    assert made.pieces[1::3] == tuple(json_bytes(text[a:b]) - 2 for a, b in pieces)
    assert sum(made.pieces[2::3]) == len(split_marks(made.marks))


@thorough
@given(long_texts, st.integers(1, 2**53 - 1), st.data())
def test_pieces_cost_what_they_take_when_rendered(
    text: str, position: int, data: st.DataObject
) -> None:
    made = sketch(text, frozenset, whole=False)
    item = error(text)
    ref = ItemRef(
        position, position, Kind.ERROR, Progress.FAILED, text_bytes(text), 5, pieces=made.pieces
    )
    pieces = Pieces(ref)
    order = data.draw(st.permutations(range(1, pieces.last + 1)).filter(bool))
    widest = len(str(len(text)))
    for piece in order[: data.draw(st.integers(1, len(order)))]:
        before, cost = pieces.spent, pieces.cost_of(piece)
        pieces.take(piece)
        assert pieces.spent == before + cost
        spans = pieces.spans() or ((0, len(text)),)
        assert pieces.is_complete is (pieces.spans() == ())
        shown = with_gaps(text, spans, "mmmm", position)
        # Numbers of a gap are counted as long as the longest there could be.
        bounds = [*itertools.chain.from_iterable(spans), len(text)][1:]
        cuts = [n for a, b in zip(bounds[::2], bounds[1::2], strict=True) if a < b for n in (a, b)]
        longer = sum(widest - len(str(number)) for number in cuts)
        attributed = f"\n[mmmm #{position} {label(item)}]\n{shown}"
        assert pieces.spent == text_bytes(attributed) + longer
