from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from helpers.building import (
    Log,
    assistant,
    command,
    json_bytes,
    opaque_item,
    plan,
    reasoning,
    rebuilt,
    started,
    tool_call,
    usage,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moonfold_handoff.context import conversations as module
from moonfold_handoff.context import window
from moonfold_handoff.context.capacity import selection_key
from moonfold_handoff.context.fold import Entry, RebuildNeededError, fold
from moonfold_handoff.context.portable import body, kind_of
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.state import WINDOW_ITEMS, Conversation, KnownWindow, ThreadState
from moonfold_schemas import decode_event, encode
from moonfold_schemas.events import (
    ConversationCompacted,
    ConversationStarted,
    HandoffDelivered,
    ItemRecorded,
    ModelSelected,
    OpaqueEvent,
    ThreadEvent,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
    UsageReported,
)
from moonfold_schemas.items import Item, OpaqueItem, UserMessage

# What a log says of conversations, the slow way: each figure by looking through the whole log.


class Chosen(NamedTuple):
    """A selection: what it takes for two to have the same window."""

    provider: str
    model: str | None
    touching: tuple[tuple[str, Any], ...]


def touching(provider: str, options: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in options.items() if name == "context_window"}
    if provider == "claude-code" and "context-1m" in options.get("betas", ""):
        found["betas"] = "context-1m"
    return found


def last_distinct(names: list[Any], most: int) -> list[Any]:
    """Return the `most` names that occur last, in the order of their last occurrence."""
    return list(dict.fromkeys(reversed(names)))[:most][::-1]


def size_of(event: ThreadEvent) -> int:
    """Return what an event adds to a conversation's context."""
    if isinstance(event, OpaqueEvent):
        return event.size
    assert isinstance(event, ItemRecorded)
    item = event.item
    return item.size if isinstance(item, OpaqueItem) else json_bytes(body(item)) - 2


@dataclass
class Reading:
    """A log, read from its start for every question; `at` is the sequence up to which it is read."""

    entries: list[Entry]

    def where(self, *types: type[ThreadEvent], after: int = 0, to: int | None = None) -> list[Any]:
        """Return the entries of these events after one sequence and up to another."""
        last = len(self.entries) if to is None else to
        return [e for e in self.entries[after:last] if isinstance(e.event, types)]

    def of(self, name: str, *types: type[ThreadEvent], after: int = 0, to: int) -> list[Any]:
        return [
            e for e in self.where(*types, after=after, to=to) if e.event.conversation_id == name
        ]

    # Which conversations are kept, and which one carries the thread.

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for entry in self.where(ConversationStarted, ModelSelected):
            name = entry.event.conversation_id
            recent = last_distinct([used for _, used in found], module.MAX_CONVERSATIONS)
            if isinstance(entry.event, ConversationStarted) or name in recent:
                found.append((entry.sequence, name))
        return found

    def kept(self, at: int) -> list[str]:
        names = [name for sequence, name in self.uses if sequence <= at]
        return last_distinct(names, module.MAX_CONVERSATIONS)

    def current(self, at: int) -> str | None:
        return next(reversed(self.kept(at)), None)

    # A conversation's selection.

    def start(self, name: str, at: int) -> Entry:
        entry: Entry = self.of(name, ConversationStarted, to=at)[-1]
        return entry

    def choices(self, name: str, at: int) -> list[tuple[Entry, Chosen]]:
        """Return every event since its start that says what is selected, with the selection."""
        start = self.start(name, at)
        assert isinstance(start.event, ConversationStarted)
        provider = start.event.provider
        later = self.of(name, ModelSelected, after=start.sequence, to=at)
        return [
            (e, Chosen(provider, e.event.model, tuple(touching(provider, e.event.options).items())))
            for e in (start, *later)
        ]

    def chosen(self, name: str, at: int) -> Chosen:
        return self.choices(name, at)[-1][1]

    def chosen_since(self, name: str, at: int) -> int:
        choices = self.choices(name, at)
        last = choices[-1][1]
        others = [number for number, (_, chosen) in enumerate(choices) if chosen != last]
        return choices[others[-1] + 1 if others else 0][0].sequence

    # Telemetry.

    def described(self, report: Entry) -> int:
        assert isinstance(report.event, UsageReported)
        said = report.event.described_at
        return report.sequence if said is None else min(said, report.sequence)

    def matching(self, name: str, at: int) -> list[Entry]:
        """Return the reports since its start that are of the selection then in force."""
        found = []
        for report in self.of(name, UsageReported, after=self.start(name, at).sequence, to=at):
            then = self.chosen(name, report.sequence)
            options = report.event.options
            if report.event.model not in {None, then.model}:
                continue
            if options is None or touching(then.provider, options) == dict(then.touching):
                found.append(report)
        return found

    def compactions(self, name: str, at: int) -> list[Entry]:
        return self.of(name, ConversationCompacted, after=self.start(name, at).sequence, to=at)

    def accepted(self, name: str, at: int) -> list[Entry]:
        """Return the reports that nothing newer was known than."""
        found = []
        for report in self.matching(name, at):
            before = report.sequence - 1
            newest = [
                self.chosen_since(name, before),
                *(entry.sequence for entry in self.compactions(name, before)),
                *(self.described(earlier) for earlier in self.matching(name, before)),
            ]
            if self.described(report) >= max(newest):
                found.append(report)
        return found

    def used(self, name: str, at: int) -> int | None:
        """Return what the report says that describes the latest moment, the last one of several."""
        since = self.chosen_since(name, at)
        oldest = max([since, *(entry.sequence for entry in self.compactions(name, at))])
        candidates = [
            (self.described(report), report.sequence, report.event.used_tokens)
            for report in self.matching(name, at)
            if isinstance(report.event, UsageReported)
            and report.sequence > since
            and self.described(report) >= oldest
        ]
        return max(candidates)[2] if candidates else None

    def latest(self, field: str, entries: list[Entry]) -> int | None:
        """Return the last figure among those of events that is one."""
        said = [getattr(entry.event, field) for entry in entries]
        return next((figure for figure in reversed(said) if figure and figure > 0), None)

    # What a conversation holds.

    def stretch(self, at: int) -> int:
        """Return after which sequence items count into the conversation that carries the thread now."""
        begins = [
            e.sequence
            for e in self.where(ConversationStarted, ModelSelected, ConversationCompacted, to=at)
            if isinstance(e.event, ConversationStarted)
            or (
                isinstance(e.event, ModelSelected)
                and self.current(e.sequence) != self.current(e.sequence - 1)
            )
            or (
                isinstance(e.event, ConversationCompacted)
                and self.current(e.sequence) == e.event.conversation_id
            )
        ]
        return max(begins, default=0)

    def recent(self, at: int) -> list[tuple[int, int]]:
        records = self.where(ItemRecorded, OpaqueEvent, after=self.stretch(at), to=at)
        sizes = {entry.position: size_of(entry.event) for entry in records}
        positions = last_distinct([entry.position for entry in records], module.RECENT_ITEMS)
        return [(position, sizes[position]) for position in positions]

    def growth(self, entry: Entry) -> int:
        """Return by how much a record makes its conversation's context longer."""
        before = dict(self.recent(entry.sequence - 1)).get(entry.position, 0)
        return size_of(entry.event) - before

    def estimate(self, name: str, at: int) -> int:
        start = self.start(name, at)
        base = (self.compactions(name, at) or [start])[-1]
        if isinstance(base.event, ConversationCompacted):
            total = base.event.used_tokens or 0
        else:
            assert isinstance(base.event, ConversationStarted)
            continued, before = base.event.continues, base.sequence - 1
            total = self.held(continued, before) if continued in self.kept(before) else 0
        for entry in self.of(name, HandoffDelivered, after=base.sequence, to=at):
            total += 16_000 if entry.event.tokens is None else entry.event.tokens
        for entry in self.where(ItemRecorded, OpaqueEvent, after=base.sequence, to=at):
            if self.current(entry.sequence) == name:
                total += self.growth(entry)
        return total

    def held(self, name: str | None, at: int) -> int:
        assert name is not None
        used = self.used(name, at)
        return self.estimate(name, at) if used is None else used

    def pending(self) -> int:
        """Return what was asked last and nobody has begun to answer."""
        records = self.where(ItemRecorded, OpaqueEvent, TurnEnded, TurnsRolledBack)
        answers = [
            entry.sequence
            for entry in records
            if not isinstance(getattr(entry.event, "item", None), UserMessage)
        ]
        since = max([*answers, self.stretch(len(self.entries))])
        pending = 0
        for entry in records:
            if entry.sequence > since:
                pending = max(0, pending + self.growth(entry))
        return pending

    # What a conversation has of the thread.

    def seen(self, name: str, at: int) -> tuple[int, int]:
        """Return up to where it has the thread, and when that became so."""
        start = self.start(name, at)
        assert isinstance(start.event, ConversationStarted)
        continued, before = start.event.continues, start.sequence - 1
        has = (0, 0)
        if continued is not None and continued in self.kept(before):
            has = self.seen(continued, before)
        for entry in self.entries[start.sequence : at]:
            event, more = entry.event, 0
            if isinstance(event, TurnsRolledBack):
                has = (event.to, entry.sequence) if event.to < has[0] else has
            elif isinstance(event, HandoffDelivered):
                if event.conversation_id == name:
                    more = min(event.through, entry.sequence)
            elif isinstance(event, ItemRecorded | OpaqueEvent):
                mine = self.current(entry.sequence) == name
                complete = has[0] >= self.activity(entry.sequence - 1)
                more = entry.sequence if mine and complete else 0
            has = (more, entry.sequence) if more > has[0] else has
        return has

    def activity(self, at: int) -> int:
        """Return where the latest activity lies, as far as rollbacks let it stand."""
        latest = 0
        for entry in self.entries[:at]:
            if isinstance(entry.event, ItemRecorded | OpaqueEvent):
                latest = entry.sequence
            elif isinstance(entry.event, TurnsRolledBack):
                latest = min(latest, entry.event.to)
        return latest

    def items(self, to: int, at: int) -> int:
        """Return how many items up to `to` there were at `at`, without what was taken back since."""
        voided = [
            (e.event.to, e.sequence)
            for e in self.where(TurnsRolledBack)  # those that lie ahead, too
        ]
        return len(
            {
                entry.position
                for entry in self.where(ItemRecorded, to=at)
                if entry.position <= to and kind_of(entry.event.item) is not None
                if not any(first < entry.sequence < end for first, end in voided)
            }
        )

    # All of it.

    def conversation(self, name: str) -> Conversation:
        at = len(self.entries)
        since = self.chosen_since(name, at)
        chosen = self.chosen(name, at)
        tellers = [entry for entry, _ in self.choices(name, at) if entry.sequence >= since]
        accepted = self.accepted(name, at)
        current = [report for report in accepted if report.sequence > since]
        moments = [
            *(self.described(report) for report in accepted),
            *(entry.sequence for entry in self.compactions(name, at)),
        ]
        return Conversation(
            conversation_id=name,
            provider=chosen.provider,
            model=chosen.model,
            options=dict(chosen.touching),
            capacity=self.latest("capacity", tellers),
            used_tokens=self.used(name, at),
            max_tokens=self.latest("max_tokens", current),
            compact_threshold=self.latest("compact_threshold", current),
            reported_at=max(moments, default=0),
            selected_at=since,
            estimated_tokens=self.estimate(name, at),
            seen=self.seen(name, at)[0],
            seen_items=self.items(*self.seen(name, at)),
        )

    def windows(self) -> list[tuple[str, KnownWindow]]:
        learnt: list[tuple[str, int | None, int | None]] = []
        for entry in self.where(ConversationStarted, ModelSelected, UsageReported):
            name = entry.event.conversation_id
            if name not in self.kept(entry.sequence):
                continue
            chosen = self.chosen(name, entry.sequence)
            key = selection_key(chosen.provider, chosen.model, dict(chosen.touching))
            if not isinstance(entry.event, UsageReported):
                learnt.append((key, self.latest("capacity", [entry]), None))
            elif entry in self.accepted(name, entry.sequence):
                learnt.append((key, None, self.latest("max_tokens", [entry])))
        learnt = [news for news in learnt if news[1:] != (None, None)]
        return [
            (key, self.remembered(key, learnt))
            for key in last_distinct([key for key, _, _ in learnt], module.MAX_WINDOWS)
        ]

    def remembered(self, key: str, learnt: list[tuple[str, int | None, int | None]]) -> KnownWindow:
        """Return what was learnt of a window since it was last forgotten for others."""
        told = measured = None
        for number, (of, new_told, new_measured) in enumerate(learnt):
            if of != key:
                continue
            before = [name for name, _, _ in learnt[:number]]
            if key not in last_distinct(before, module.MAX_WINDOWS):
                told = measured = None
            told, measured = new_told or told, new_measured or measured
        return KnownWindow(told, measured)


# Histories.

texts = st.sampled_from(["", "a", "é\n", "word " * 9, "x" * 300])
item_ids = st.sampled_from([f"item-{number}" for number in range(6)])
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(user, texts, item_id=item_ids),
    st.builds(user, texts, item_id=item_ids),
    st.builds(assistant, texts, item_id=item_ids),
    st.builds(command, st.just("make"), texts, item_id=item_ids),
    st.builds(plan, texts, item_id=item_ids),
    st.builds(reasoning, texts, item_id=item_ids),
    st.builds(tool_call, st.just("f"), texts, texts, item_id=item_ids),
    st.builds(opaque_item, st.integers(0, 999), item_id=item_ids),
)
names = st.sampled_from(["a", "a", "a", "a", "b", "c", "d"])
providers = st.sampled_from(["codex", "codex", "codex", "claude-code"])
models = st.sampled_from(["large", "large", "large", "small", None])
options = st.sampled_from(
    [
        {},
        {},
        {},
        {"effort": "high"},
        {"effort": "low"},
        {"context_window": 9},
        {"context_window": 9, "effort": "low"},
        {"context_window": 8},
        {"betas": "context-1m-2025-08-07"},
        {"betas": "interleaved-thinking-2025-05-14"},
    ]
)
bounds = st.none() | st.integers(-1, 3) | st.integers(0, 200_000)
sizes = st.none() | st.integers(0, 5_000)
events: st.SearchStrategy[ThreadEvent] = st.one_of(
    st.builds(
        started,
        names,
        provider=providers,
        model=models,
        options=options,
        capacity=bounds,
        continues=st.none() | names,
    ),
    st.builds(ModelSelected, conversation_id=names, model=models, options=options, capacity=bounds),
    st.builds(usage, st.integers(0, 9_999), names, max_tokens=bounds, compact_threshold=bounds),
    st.builds(
        usage,
        st.integers(0, 9_999),
        names,
        max_tokens=bounds,
        compact_threshold=bounds,
        described_at=st.none() | st.integers(0, 45),
        model=models,
        options=st.none() | options,
    ),
    st.builds(ConversationCompacted, conversation_id=names, used_tokens=sizes),
    st.builds(HandoffDelivered, conversation_id=names, through=st.integers(1, 45), tokens=sizes),
    st.builds(OpaqueEvent, size=st.integers(0, 999)),
    st.builds(TurnEnded, turn_id=st.just("t"), status=st.sampled_from(list(TurnStatus))),
    st.just(TurnStarted(turn_id="t")),
)
rollbacks = st.builds(TurnsRolledBack, to=st.integers(0, 40))
steps = st.one_of(items, items, items, events, events, events, rollbacks)


def written(what: list[ThreadEvent | Item]) -> Log:
    history = Log()
    for step in what:
        if isinstance(step, TurnsRolledBack):
            history.add(TurnsRolledBack(to=min(step.to, history.through)))
        else:
            history.add(step)
    return history


# Left to itself, Hypothesis draws short lists most of the time.
lengths = st.sampled_from([0, 1, 5, 15, 25, 35])
histories = lengths.flatmap(lambda least: st.lists(steps, min_size=least, max_size=40)).map(written)
thorough = settings(max_examples=500, deadline=None)


@contextmanager
def small_bounds() -> Iterator[None]:
    """Keep so little that histories of forty events have more."""
    with (
        mock.patch.multiple(window, WINDOW_ITEMS=6, WINDOW_BYTES=3_000, SKETCH_BYTES=200),
        mock.patch.multiple(module, MAX_CONVERSATIONS=3, MAX_WINDOWS=3, RECENT_ITEMS=3),
    ):
        yield


def whole(entries: list[Entry]) -> ThreadState:
    try:
        return fold(ThreadState(), entries)
    except RebuildNeededError:
        return rebuilt(entries)


def kept(state: ThreadState) -> dict[str, Any]:
    return {
        "conversations": list(state.conversations),
        "windows": list(state.windows.items()),
        "recent": list(state.recent),
        "pending_request": state.pending_request,
    }


def read(entries: list[Entry]) -> dict[str, Any]:
    reading = Reading(entries)
    at = len(entries)
    return {
        "conversations": [reading.conversation(name) for name in reading.kept(at)],
        "windows": reading.windows(),
        "recent": reading.recent(at),
        "pending_request": reading.pending(),
    }


@thorough
@given(histories, st.booleans())
def test_what_is_kept_of_conversations_is_what_the_log_says(history: Log, small: bool) -> None:
    if not small:
        assert kept(whole(history.entries)) == read(history.entries)
        return
    with small_bounds():
        folded, expected = kept(whole(history.entries)), read(history.entries)
    # Where items are no longer kept one by one, they cannot be counted up to any point.
    for figures in (folded, expected):
        figures["conversations"] = [replace(c, seen_items=0) for c in figures["conversations"]]
    assert folded == expected


@thorough
@given(histories, st.data())
def test_folding_in_pieces_keeps_the_same(history: Log, data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(0, history.through), max_size=8).map(sorted))
    with small_bounds():
        state = ThreadState()
        for end in (*ends, history.through):
            try:
                state = fold(state, history.entries[state.through : end])
            except RebuildNeededError:
                state = rebuilt(history.entries[:end])
            state = msgspec.json.decode(msgspec.json.encode(state), type=ThreadState)
        assert kept(state) == kept(whole(history.entries))


@thorough
@given(histories)
def test_a_rebuilt_state_keeps_the_same(history: Log) -> None:
    with small_bounds():
        try:
            state = fold(ThreadState(), history.entries)
        except RebuildNeededError:
            return
        assert kept(rebuilt(history.entries)) == kept(state)


@thorough
@given(histories)
def test_no_figure_is_negative_and_no_bound_is_zero(history: Log) -> None:
    state = whole(history.entries)
    assert state.pending_request >= 0
    for conversation in state.conversations:
        assert conversation.estimated_tokens >= 0
        assert 0 <= conversation.seen <= state.through
        assert 0 <= conversation.seen_items <= min(conversation.seen, state.items)
        for bound in (
            conversation.capacity,
            conversation.max_tokens,
            conversation.compact_threshold,
        ):
            assert bound is None or bound > 0
    # What is pending was counted, once, into the conversation that carries the thread.
    if state.conversations:
        assert state.pending_request <= state.conversations[-1].estimated_tokens


# The state's size.

LIMIT = 64 * 1024  # bytes
MOST = 2**53 - 1
NAMES = ("context_window", "context_length", "max_context_tokens", "context_limit", "input_limit")


@dataclass(frozen=True)
class Worst:
    """The longest names that the wire lets through, `number` telling them apart."""

    filler: str
    length: int

    def name(self, number: int) -> str:
        return self.filler * (self.length - 4) + f"{number:04}"

    def options(self, number: int) -> dict[str, Any]:
        filling = {f"other-{n}": self.name(n) for n in range(64 - len(NAMES) - 1)}
        return {**dict.fromkeys((*NAMES, "compaction_reserved"), self.name(number)), **filling}

    def events(self, number: int) -> Iterator[ThreadEvent]:
        conversation_id = f"{number:0>200}"
        model, options = self.name(number), self.options(number)
        yield started(
            conversation_id, provider="opencode", model=model, options=options, capacity=MOST
        )
        yield ModelSelected(
            conversation_id=conversation_id, model=model, options=options, capacity=MOST
        )
        yield usage(
            MOST,
            conversation_id,
            max_tokens=MOST,
            compact_threshold=MOST,
            model=model,
            options=options,
        )
        yield HandoffDelivered(conversation_id=conversation_id, through=1, tokens=MOST)


def speaking(number: int) -> Item:
    """Return a small item, or one in ten a long one, that mentions names."""
    if number % 10:
        return command(f"E{number}x", exit_code=-MOST)
    return command("make", f"fail E{number}x\n" * 300, exit_code=-MOST)


@given(
    st.sampled_from(["x", '"', "\\", "\x01", "é", "\N{SNOWMAN}", "\N{PARTY POPPER}"]),
    st.sampled_from([8, 11, 14, 19, 24, 60, 124, 200]),
)
@settings(max_examples=12, deadline=None)
def test_the_state_is_small_whatever_is_named(filler: str, length: int) -> None:
    worst = Worst(filler, length)
    history = Log()
    for number in range(40):
        for event in worst.events(number):
            assert decode_event(encode(event)) == event  # the wire lets it through
            history.add(event)
    # Small items fill the window with references, others with all the sketches that there is room
    # for; the largest sizes are told beside them.
    kinds = Log().add(*(speaking(number) for number in range(100))).entries
    many = [
        kinds[number % 100]._replace(sequence=number, position=number)
        for number in range(history.through + 1, history.through + 3_000)
    ]
    after = Log(through=many[-1].sequence)
    after.add(*(opaque_item(MOST) for _ in range(100)), user("x" * 9))
    state = fold(ThreadState(), [*history.entries, *many, *after.entries])
    assert len(state.window) == WINDOW_ITEMS
    assert len(state.conversations) == module.MAX_CONVERSATIONS
    assert state.bare
    state = msgspec.structs.replace(state, ranking=rank(state))
    assert len(state.ranking) >= WINDOW_ITEMS
    raw = msgspec.json.encode(state)
    assert len(raw) <= LIMIT
    assert msgspec.json.decode(raw, type=ThreadState) == state


def test_a_hundred_thousand_events_are_folded_into_a_small_state() -> None:
    worst = Worst("\x01", 200)
    parts = [[*worst.events(number)] for number in range(40)]
    cycle: list[ThreadEvent] = []
    for part in parts:
        answers = (assistant("a"), command("c", exit_code=-MOST), reasoning("hm"))
        cycle += [*part, *(ItemRecorded(item=item) for item in (user("u"), *answers))]
    entries = [
        Entry(sequence, sequence, cycle[sequence % len(cycle)]) for sequence in range(1, 100_001)
    ]
    state = fold(ThreadState(), entries)
    raw = msgspec.json.encode(state)
    assert state.through == 100_000
    assert len(raw) <= LIMIT
    assert msgspec.json.decode(raw, type=ThreadState) == state
