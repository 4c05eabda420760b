from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from helpers.building import (
    Log,
    assistant,
    command,
    error,
    file_change,
    folded,
    interruption,
    log,
    meant,
    opaque_item,
    plan,
    reasoning,
    rebuilt,
    started,
    state_of,
    tool_call,
    usage,
    user,
)

from moonfold_handoff.context.conversations import MAX_CONVERSATIONS
from moonfold_handoff.context.fold import Entry, RebuildNeededError, adopt, fold, surviving
from moonfold_handoff.context.identifiers import mark_of
from moonfold_handoff.context.ranking import rank
from moonfold_handoff.context.state import (
    SKETCH_BYTES,
    STATE_VERSION,
    WINDOW_BYTES,
    WINDOW_ITEMS,
    Ancestor,
    Conversation,
    ItemRef,
    Kind,
    KnownWindow,
    Progress,
    ThreadState,
)
from moonfold_schemas.events import (
    ConversationCompacted,
    HandoffDelivered,
    ModelSelected,
    OpaqueEvent,
    ThreadEvent,
    ThreadForked,
    ThreadStarted,
    TurnEnded,
    TurnsRolledBack,
    TurnStarted,
    TurnStatus,
)
from moonfold_schemas.items import Item, ItemStatus

STATE_LIMIT = 64 * 1024  # bytes


def positions(state: ThreadState) -> list[int]:
    return [ref.position for ref in state.window]


def rolled_back(to: int) -> TurnsRolledBack:
    return TurnsRolledBack(to=to)


def noted(state: ThreadState) -> tuple[int | None, int | None, int | None]:
    """Return the positions of original request, newest request and newest answer."""
    refs = (state.first_request, state.last_request, state.last_answer)
    first, last, answer = (None if ref is None else ref.position for ref in refs)
    return first, last, answer


def named(number: int, lines: int) -> str:
    """Return lines each of which mentions names that no other does."""
    return "".join(
        f"src/part_{number}/file_{i}.py:{i}: E{number}x{i} failed\n" for i in range(lines)
    )


def only(state: ThreadState) -> Conversation:
    [conversation] = state.conversations
    return conversation


# Items.


def test_nothing_folds_to_the_empty_state() -> None:
    assert fold(ThreadState(), []) == ThreadState()


def test_an_item_becomes_a_reference_without_its_text() -> None:
    state = state_of(
        ThreadStarted(), command('say "hi"', "né\n", exit_code=2, status=ItemStatus.FAILED)
    )
    assert state.window == (
        ItemRef(
            position=2,
            record=2,
            kind=Kind.COMMAND,
            progress=Progress.FAILED,
            body=len(r"$ say \"hi\"\n") + len("né\\n".encode()),
            label=len("command, exit 2"),
            exit_code=2,
            key=mark_of('$ say "hi"'),
        ),
    )
    assert (state.items, state.first_position, state.through) == (1, 2, 2)


@pytest.mark.parametrize("status", list(ItemStatus))
def test_every_status_has_its_number(status: ItemStatus) -> None:
    [ref] = state_of(user("u", status=status)).window
    assert ref.progress.name == status.name


@pytest.mark.parametrize("item", [reasoning("hmm"), tool_call("f", "x", "y"), opaque_item(7)])
def test_what_never_travels_is_no_reference_but_fills_the_conversation(item: Item) -> None:
    state = state_of(started(), item)
    assert (state.window, state.items, state.first_position) == ((), 0, 0)
    size = {"reasoning": 3, "tool_call": len(r"f x\ny"), "opaque": 7}
    assert only(state).estimated_tokens == size[str(item.__struct_config__.tag)]


def test_turns_and_deliveries_move_the_state_on_and_change_nothing_else() -> None:
    events: list[ThreadEvent] = [
        ThreadStarted(),
        TurnStarted(turn_id="t"),
        TurnEnded(turn_id="t", status=TurnStatus.COMPLETED),
        HandoffDelivered(conversation_id="c", through=1),
        ThreadForked(parent_thread_id="p", through=4),
    ]
    assert state_of(*events) == ThreadState(through=5)


def test_the_newest_answer_is_the_agents_own_words() -> None:
    state = state_of(
        user("do"),
        assistant("done"),
        command("make", "assistant: all good"),
        file_change("a.py"),
        plan("next"),
        error("boom"),
        interruption(),
        assistant(""),
    )
    assert noted(state) == (1, 1, 2)


def test_the_original_and_the_newest_request_are_kept() -> None:
    state = state_of(assistant("hello"), user("one"), user("two"), assistant("ok"), user("three"))
    assert noted(state) == (2, 5, 4)
    assert state.first_position == 1


def test_recording_an_item_again_keeps_its_position_and_changes_its_content() -> None:
    history = log(user("u"), command("make", exit_code=None, item_id="x"), assistant("a"))
    history.add(command("make", "ok", exit_code=0, item_id="x"))
    state = history.state
    assert positions(state) == [1, 2, 3]
    ref = state.window[1]
    assert (ref.record, ref.exit_code, ref.body) == (4, 0, len(r"$ make\nok"))
    assert state.items == 3


def test_recording_requests_and_answers_again_changes_them_wherever_they_are_kept() -> None:
    history = log(user("one", item_id="u"), assistant("par", item_id="a"))
    state = history.add(user("one!", item_id="u"), assistant("partial", item_id="a")).state
    assert state.first_request == state.last_request == state.window[0]
    assert state.last_answer == state.window[1]
    assert [ref.record for ref in state.window] == [3, 4]


def test_an_answer_that_begins_empty_becomes_the_newest_once_it_has_words() -> None:
    history = log(user("u"), assistant("old"), assistant("", item_id="a"))
    assert noted(history.state) == (1, 1, 2)
    assert noted(history.add(assistant("new", item_id="a")).state) == (1, 1, 3)


def test_an_older_answer_recorded_again_does_not_become_the_newest() -> None:
    history = log(assistant("", item_id="a"), assistant("newest"))
    assert noted(history.add(assistant("old", item_id="a")).state) == (None, None, 2)


def test_an_item_of_a_kind_unknown_at_first_takes_its_place_when_it_becomes_known() -> None:
    history = log(opaque_item(5, item_id="x"), opaque_item(5, item_id="y"), user("two"))
    state = history.add(user("one", item_id="x"), assistant("a", item_id="y")).state
    assert positions(state) == [1, 2, 3]
    assert (state.items, state.first_position) == (3, 1)
    assert noted(state) == (1, 3, 2)


def test_the_first_item_of_a_thread_may_have_been_unknown_at_first() -> None:
    history = log(opaque_item(5, item_id="x")).add(user("one", item_id="x"))
    assert positions(history.state) == [1]


# The window.


def test_the_window_keeps_so_many_items() -> None:
    state = state_of(*(user("u") for _ in range(WINDOW_ITEMS + 3)))
    assert positions(state) == list(range(4, WINDOW_ITEMS + 4))
    assert (state.evicted, state.items, state.first_position) == (3, WINDOW_ITEMS + 3, 1)
    assert noted(state) == (1, WINDOW_ITEMS + 3, None)


def test_the_window_lets_go_of_what_could_not_be_carried_beside_the_newer() -> None:
    half = "x" * (WINDOW_BYTES // 2)
    assert positions(state_of(user(half), user("x"), user(half))) == [1, 2, 3]
    state = state_of(user("old"), user(half), user(half), user("new"))
    assert (positions(state), state.evicted) == ([2, 3, 4], 1)


def test_the_window_lets_go_to_the_byte() -> None:
    frame = state_of(user("old"), user("")).window[1].cost
    assert positions(state_of(user("old"), user("x" * (WINDOW_BYTES - frame - 1)))) == [1, 2]
    assert positions(state_of(user("old"), user("x" * (WINDOW_BYTES - frame)))) == [2]


def test_a_long_output_weighs_only_what_it_takes_abridged() -> None:
    assert positions(state_of(*(command("c", "x" * 70_000) for _ in range(150)))) == [
        *range(1, 151)
    ]


def test_an_item_larger_than_the_window_is_kept_itself() -> None:
    state = state_of(user("old"), user("x" * 999_999))
    assert (positions(state), state.evicted) == ([2], 1)


def test_an_item_that_grows_pushes_older_ones_out() -> None:
    history = log(user("old"), assistant("", item_id="a"))
    state = history.add(assistant("x" * WINDOW_BYTES, item_id="a")).state
    assert (positions(state), state.evicted, state.items) == ([2], 1, 2)


def test_an_evicted_item_recorded_again_is_not_a_new_one() -> None:
    history = log(user("one", item_id="u"), command("c", item_id="x"), user("x" * WINDOW_BYTES))
    before = history.state
    assert (positions(before), before.evicted) == ([3], 2)
    state = history.add(command("c", "out", item_id="x"), user("one!", item_id="u")).state
    assert (positions(state), state.items) == ([3], 3)
    assert state.first_request is not None
    assert state.first_request.record == 5


MANY = 100_000
SOME = 3_000  # enough for bounds to have been met for long


@pytest.mark.parametrize(
    ("count", "items"),
    [
        (MANY, lambda i: user("u") if i % 2 else command("c", exit_code=-(2**31))),
        (MANY, lambda i: assistant("x" * 50_000) if i % 100 == 0 else error("e")),
        (
            MANY,
            lambda _: command(
                "make", "0123456789" * 20, exit_code=None, status=ItemStatus.INTERRUPTED
            ),
        ),
        (SOME, lambda i: command(f"make part-{i}", named(i, 400), exit_code=-(2**31))),
        (SOME, lambda i: command(f"make part-{i}", f"error: broken\n{'x' * 90}\n" * 200)),
        (SOME, lambda i: command(f"c-{i}", named(i, 4)) if i % 8 else user(named(i, 3))),
        (SOME, lambda i: file_change(f"a_{i}", diff=named(i, 40)) if i % 4 else error("E1")),
        (SOME, lambda i: user(named(i, 3))),
        (SOME, lambda i: command(f"E{i}") if i % 10 else command("x", f"fail E{i}\n" * 300)),
    ],
    ids=[
        "tiny",
        "some large",
        "commands",
        "long outputs",
        "pieces of trouble",
        "tiny outputs",
        "diffs",
        "requests",
        "mixed",
    ],
)
def test_the_state_is_small_however_long_the_thread(
    count: int, items: Callable[[int], Item]
) -> None:
    recorded = [entry.event for entry in log(*(items(i) for i in range(200))).entries]
    history = Log()
    for i in range(MAX_CONVERSATIONS + 2):
        options = {"context_window": 1_000_000, "effort": "x" * 40}
        history.add(started(f"conversation-{i:0>36}", options=options, capacity=2**40))
    # Each record is an item of its own: only the position tells. In the end it has six digits.
    entries = history.entries
    entries += [Entry(n, n, recorded[n % 200]) for n in range(MANY + 20 - count, MANY + 20)]
    state = fold(ThreadState(), entries)
    assert state.items == count
    state = msgspec.structs.replace(state, ranking=rank(state))
    assert sum(ref.sketch_bytes for ref in state.window) <= SKETCH_BYTES
    raw = msgspec.json.encode(state)
    assert len(raw) <= STATE_LIMIT
    assert msgspec.json.decode(raw, type=ThreadState) == state


def test_a_saved_state_says_its_version() -> None:
    assert msgspec.json.decode(msgspec.json.encode(ThreadState()))["version"] == STATE_VERSION


# Rollbacks.


def test_a_rollback_takes_back_what_came_after() -> None:
    history = log(user("one"), assistant("a"), command("c"), user("two"), assistant("b"))
    state = history.add(rolled_back(3)).state
    assert positions(state) == [1, 2, 3]
    assert (state.items, state.through) == (3, 6)
    assert noted(state) == (1, 1, 2)
    assert noted(history.add(user("three")).state) == (1, 7, 2)


def test_a_rollback_to_zero_leaves_nothing() -> None:
    state = log(user("one"), assistant("a"), rolled_back(0)).state
    assert state == ThreadState(through=3, recent=((1, 3), (2, 1)))


def test_after_a_rollback_to_zero_the_thread_begins_anew() -> None:
    state = log(user("one"), assistant("a"), rolled_back(0), user("again")).state
    assert (positions(state), state.first_position, noted(state)) == ([4], 4, (4, 4, None))


def test_a_rollback_of_nothing_changes_nothing() -> None:
    before = log(user("one"), assistant("a"))
    after = log(
        *(entry.event for entry in before.entries), TurnStarted(turn_id="t"), rolled_back(2)
    )
    assert after.state == msgspec.structs.replace(before.state, through=4)


def test_a_rollback_of_nothing_is_no_matter_for_a_long_thread() -> None:
    history = log(user("old"), user("x" * WINDOW_BYTES), rolled_back(2))
    assert positions(fold(ThreadState(), history.entries)) == [2]


def test_a_rollback_gives_a_long_thread_its_older_items_back() -> None:
    history = log(user("old"), assistant("older"), user("x" * WINDOW_BYTES), rolled_back(2))
    with pytest.raises(RebuildNeededError):
        fold(ThreadState(), history.entries)
    state = rebuilt(history.entries)
    assert (positions(state), state.evicted, state.through) == ([1, 2], 0, 4)


def test_a_rollback_of_an_items_newer_content_brings_the_older_back() -> None:
    history = log(user("u"), command("c", item_id="x"), command("c", "out", item_id="x"))
    history.add(rolled_back(2))
    with pytest.raises(RebuildNeededError):
        fold(ThreadState(), history.entries)
    assert [ref.record for ref in rebuilt(history.entries).window] == [1, 2]


def test_so_it_does_for_the_original_request_long_gone_from_the_window() -> None:
    history = log(user("one", item_id="u"), user("x" * WINDOW_BYTES), user("one!", item_id="u"))
    history.add(rolled_back(2))
    with pytest.raises(RebuildNeededError):
        fold(ThreadState(), history.entries)
    state = rebuilt(history.entries)
    assert state.first_request is not None
    assert state.first_request.record == 1


def test_a_rebuilt_state_covers_as_much_of_the_log_as_any_other() -> None:
    history = log(user("old"), user("x" * WINDOW_BYTES), rolled_back(1))
    assert rebuilt(history.entries).through == 3


def test_a_rebuilt_state_is_the_state_a_rollback_leads_to() -> None:
    history = log(
        started(),
        user("one"),
        assistant("answer"),
        user("two"),
        reasoning("thought"),
        opaque_item(9),
        rolled_back(3),
        usage(50),
        user("three"),
        rolled_back(9),
        rolled_back(1),
        user("four"),
    )
    assert rebuilt(history.entries) == fold(ThreadState(), history.entries)


def test_what_a_rollback_took_back_is_not_restored_by_a_lesser_one() -> None:
    history = log(user("one"), user("two"), user("three"), rolled_back(1), user("four"))
    history.add(rolled_back(3))
    assert positions(history.state) == [1]
    assert rebuilt(history.entries) == history.state


def test_events_other_than_items_survive_rollbacks() -> None:
    history = log(user("one"), started(), usage(7), user("two"), rolled_back(1))
    events = [entry.event for entry in surviving(history.entries, [(2, 4)])]
    assert [type(event).__name__ for event in events] == [
        "ItemRecorded",
        "ConversationStarted",
        "UsageReported",
        "OpaqueEvent",
        "TurnsRolledBack",
    ]


# Conversations.


def test_a_conversation_starts_with_what_is_known_of_it() -> None:
    options = {"effort": "high", "model_context_window": 200_000}
    state = state_of(started(options=options, capacity=190_000))
    assert only(state) == Conversation(
        conversation_id="c",
        provider="codex",
        model="large",
        options={"model_context_window": 200_000},
        capacity=190_000,
        selected_at=1,
    )


@pytest.mark.parametrize("unknown", [0, -1, None])
def test_zero_or_less_is_an_unknown_capacity(unknown: int | None) -> None:
    state = state_of(
        started(capacity=unknown), usage(5, max_tokens=unknown, compact_threshold=unknown)
    )
    known = only(state)
    assert (known.capacity, known.max_tokens, known.compact_threshold) == (None, None, None)
    assert known.used_tokens == 5


def test_activity_counts_into_the_newest_conversation_escaped() -> None:
    state = state_of(user("before any"), started("a"), user("é\n"), started("b"), assistant('"x"'))
    assert [c.estimated_tokens for c in state.conversations] == [4, 5]


def test_unknown_activity_counts_by_its_size() -> None:
    state = state_of(OpaqueEvent(size=3), started(), OpaqueEvent(size=40), opaque_item(2))
    assert only(state).estimated_tokens == 42


def test_a_report_replaces_the_one_before() -> None:
    first = usage(5, max_tokens=100, compact_threshold=90)
    state = state_of(started(), first, usage(7, max_tokens=80, compact_threshold=70))
    known = only(state)
    assert (known.used_tokens, known.max_tokens, known.compact_threshold) == (7, 80, 70)


def test_starting_a_conversation_again_clears_its_usage() -> None:
    state = state_of(started(), user("x" * 50), usage(5, compact_threshold=90), started())
    known = only(state)
    assert (known.used_tokens, known.compact_threshold, known.estimated_tokens) == (None, None, 0)


def test_starting_a_conversation_again_keeps_what_is_known_of_its_window() -> None:
    again = state_of(started(capacity=32_000), usage(5, max_tokens=30_000), started())
    assert again.windows[only(again).selection] == KnownWindow(told=32_000, measured=30_000)
    corrected = state_of(started(capacity=32_000), started(capacity=64_000))
    assert corrected.windows[only(corrected).selection].told == 64_000


@pytest.mark.parametrize(
    "change", [{"model": "small"}, {"options": {"context_window": 9}}], ids=str
)
def test_but_not_of_another_selections(change: dict[str, Any]) -> None:
    state = state_of(started(capacity=32_000), usage(5, max_tokens=30_000), started(**change))
    assert (only(state).capacity, only(state).max_tokens) == (None, None)
    assert only(state).selection not in state.windows


@pytest.mark.parametrize(
    "change",
    [{"model": "small"}, {"model": "large", "options": {"context_window": 9}}, {}],
    ids=str,
)
def test_another_model_or_other_options_discard_usage_and_capacity(change: dict[str, Any]) -> None:
    selected = ModelSelected(conversation_id="c", **change)
    report = usage(5, max_tokens=100, compact_threshold=90)
    known = only(state_of(started(capacity=100), user("abc"), report, selected))
    assert (known.model, known.options) == (change.get("model"), change.get("options", {}))
    assert (known.used_tokens, known.max_tokens, known.compact_threshold) == (None, None, None)
    assert (known.capacity, known.estimated_tokens) == (None, 3)


def test_the_same_model_selected_again_keeps_everything() -> None:
    before = state_of(started(capacity=100), usage(5, max_tokens=100, compact_threshold=90))
    again = ModelSelected(conversation_id="c", model="large")
    after = folded(Log(through=2).add(again).entries, before)
    assert after.conversations == before.conversations


def test_a_selection_may_tell_the_capacity() -> None:
    selected = ModelSelected(conversation_id="c", model="small", capacity=9)
    assert only(state_of(started(capacity=100), selected)).capacity == 9
    selected = ModelSelected(conversation_id="c", model="large", capacity=9)
    assert only(state_of(started(capacity=100), selected)).capacity == 9


def test_the_thread_is_in_the_conversation_whose_model_was_selected_last() -> None:
    state = state_of(
        started("a"), started("b"), ModelSelected(conversation_id="a", model="large"), user("xyz")
    )
    assert [(c.conversation_id, c.estimated_tokens) for c in state.conversations] == [
        ("b", 0),
        ("a", 3),
    ]


def test_a_report_does_not_move_the_thread_to_another_conversation() -> None:
    state = state_of(started("a"), started("b"), usage(5, "a"), user("xyz"))
    assert [c.estimated_tokens for c in state.conversations] == [0, 3]


@pytest.mark.parametrize(("size", "estimated"), [(None, 2), (0, 2), (30, 32)])
def test_compaction_starts_the_count_anew(size: int | None, estimated: int) -> None:
    state = state_of(
        started(),
        user("x" * 500),
        usage(900, max_tokens=1_000),
        ConversationCompacted(conversation_id="c", used_tokens=size),
        assistant("ok"),
    )
    known = only(state)
    assert (known.used_tokens, known.max_tokens) == (None, 1_000)
    assert known.estimated_tokens == known.held == estimated


@pytest.mark.parametrize(
    "event",
    [
        usage(5, "other"),
        ModelSelected(conversation_id="other", model="small"),
        ConversationCompacted(conversation_id="other", used_tokens=1),
    ],
)
def test_news_of_an_unknown_conversation_changes_nothing(event: ThreadEvent) -> None:
    assert only(state_of(started(), event)) == only(state_of(started()))


def test_only_the_most_recent_conversations_are_kept() -> None:
    names = [f"c{i}" for i in range(MAX_CONVERSATIONS + 2)]
    state = state_of(*map(started, names), started("c2"))
    kept = [c.conversation_id for c in state.conversations]
    assert kept == [*names[3:], "c2"]
    assert len(kept) == MAX_CONVERSATIONS
    assert state.conversation("c0") is None
    assert state.conversation(None) is None
    assert state.conversation("c2") is not None


# Forks.


def test_a_fork_has_its_parents_items_and_none_of_its_conversations() -> None:
    parent = state_of(started(capacity=9), user("one"), assistant("a"))
    fork = adopt(parent, "parent")
    assert (fork.conversations, fork.recent, fork.pending_request) == ((), (), 0)
    assert (fork.window, fork.items, fork.through) == (parent.window, 2, 3)
    assert fork.windows == parent.windows != {}
    assert fork.lineage == (Ancestor(thread_id="parent", through=3),)


def test_a_fork_of_a_fork_goes_on_where_each_left_off() -> None:
    root = state_of(user("one"))
    child_log = Log(through=1).add(ThreadForked(parent_thread_id="root", through=1), user("two"))
    child = folded(child_log.entries, adopt(root, "root"))
    grandchild_log = Log(through=3).add(ThreadForked(parent_thread_id="child", through=3))
    grandchild_log.add(user("three"))
    grandchild = folded(grandchild_log.entries, adopt(child, "child"))
    assert positions(grandchild) == [1, 3, 5]
    assert noted(grandchild) == (1, 5, None)
    holders = [grandchild.holder("grandchild", n) for n in range(1, 7)]
    assert holders == ["root", "child", "child", "grandchild", "grandchild", "grandchild"]


def test_a_thread_without_ancestors_holds_its_own_records() -> None:
    assert ThreadState().holder("thread", 7) == "thread"


def test_a_fork_may_roll_back_into_its_parents_part() -> None:
    parent = state_of(user("one"), user("two"), user("three"))
    fork_log = Log(through=3).add(ThreadForked(parent_thread_id="p", through=3), user("four"))
    state = folded(fork_log.add(rolled_back(1)).entries, adopt(parent, "p"))
    assert positions(state) == [1]


def test_what_a_fork_took_back_of_a_long_parent_never_comes_back_unnoticed() -> None:
    parent = state_of(user("one"), user("two"), user("x" * WINDOW_BYTES))
    entries = (
        Log(through=3).add(ThreadForked(parent_thread_id="p", through=3), rolled_back(2)).entries
    )
    with pytest.raises(RebuildNeededError):
        fold(adopt(parent, "p"), surviving(entries, [(3, 4)]))


# A pure function of the log.


def test_folding_in_pieces_is_folding_in_one_go() -> None:
    chance = random.Random(3)
    makers: list[Callable[[str], Item]] = [user, assistant, error, reasoning]
    history = Log()
    for _ in range(3_000):
        text = "x" * chance.choice([0, 1, 20, 300, 9_000])
        item: Item = chance.choice(makers)(text)
        item_id = f"item-{chance.randrange(9_999)}"
        history.add(msgspec.structs.replace(item, item_id=item_id))
    whole = fold(ThreadState(), history.entries)
    pieces = ThreadState()
    while pieces.through < history.through:
        end = pieces.through + chance.randrange(1, 200)
        pieces = fold(pieces, history.entries[pieces.through : end])
        pieces = msgspec.json.decode(msgspec.json.encode(pieces), type=ThreadState)
    assert pieces == whole
    assert whole.evicted
    expected = [entry.position for entry, _ in meant(history.entries)]
    assert positions(whole) == [p for p in expected if p > whole.evicted]
