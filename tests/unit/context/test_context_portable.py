from __future__ import annotations

import pytest
from helpers.building import (
    assistant,
    command,
    error,
    file_change,
    interruption,
    opaque_item,
    plan,
    reasoning,
    tool_call,
    user,
    with_status,
)

from moonfold_handoff.context.portable import body, kind_of, label
from moonfold_handoff.context.state import Kind
from moonfold_schemas.items import FileChangeKind, Item, ItemStatus

ALL_KINDS: list[tuple[Item, Kind | None]] = [
    (user("u"), Kind.USER),
    (assistant("a"), Kind.ASSISTANT),
    (command("c"), Kind.COMMAND),
    (file_change("f"), Kind.FILE_CHANGE),
    (plan("p"), Kind.PLAN),
    (error("e"), Kind.ERROR),
    (interruption("i"), Kind.INTERRUPTION),
    (reasoning("r"), None),
    (tool_call("t"), None),
    (opaque_item(9), None),
]


@pytest.mark.parametrize(("item", "kind"), ALL_KINDS)
def test_reasoning_tool_calls_and_unknown_items_have_no_kind(item: Item, kind: Kind | None) -> None:
    assert kind_of(item) is kind


def test_only_the_words_of_person_and_agent_are_messages() -> None:
    assert [kind for kind in Kind if kind.is_message] == [Kind.USER, Kind.ASSISTANT]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (user("u"), "user"),
        (assistant("a"), "assistant"),
        (command("c", exit_code=None), "command"),
        (file_change("f", FileChangeKind.ADD), "file add"),
        (file_change("f", FileChangeKind.UPDATE), "file update"),
        (file_change("f", FileChangeKind.DELETE), "file delete"),
        (file_change("f", FileChangeKind.RENAME), "file rename"),
        (plan("p"), "plan"),
        (error("e"), "error"),
        (interruption("i"), "interruption"),
        (reasoning("r"), "item"),
        (tool_call("t"), "item"),
        (opaque_item(9), "item"),
    ],
)
@pytest.mark.parametrize(
    ("status", "suffix"),
    [
        (ItemStatus.IN_PROGRESS, ", in progress"),
        (ItemStatus.COMPLETED, ""),
        (ItemStatus.FAILED, ", failed"),
        (ItemStatus.INTERRUPTED, ", interrupted"),
    ],
)
def test_a_label_says_who_and_how_far(
    item: Item, expected: str, status: ItemStatus, suffix: str
) -> None:
    assert label(with_status(item, status)) == expected + suffix


@pytest.mark.parametrize(
    ("exit_code", "status", "expected"),
    [
        (0, ItemStatus.COMPLETED, "command, exit 0"),
        (1, ItemStatus.FAILED, "command, exit 1"),
        (-9, ItemStatus.COMPLETED, "command, exit -9"),
        (130, ItemStatus.INTERRUPTED, "command, exit 130, interrupted"),
    ],
)
def test_an_exit_code_stands_for_the_outcome_of_a_command(
    exit_code: int, status: ItemStatus, expected: str
) -> None:
    assert label(command("make", exit_code=exit_code, status=status)) == expected


@pytest.mark.parametrize(
    ("images", "files", "expected"),
    [
        (1, 0, "user, 1 image"),
        (2, 0, "user, 2 images"),
        (0, 1, "user, 1 file"),
        (1, 2, "user, 2 files, 1 image"),
    ],
)
def test_attachments_are_counted_and_never_named(images: int, files: int, expected: str) -> None:
    assert label(user("look", images=images, files=files)) == expected


def test_attachments_come_before_the_status() -> None:
    item = user("look", images=1, status=ItemStatus.FAILED)
    assert label(item) == "user, 1 image, failed"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (user(" as\r\ntyped "), " as\r\ntyped "),
        (assistant("answer\n"), "answer\n"),
        (plan("1. do"), "1. do"),
        (reasoning("hm"), "hm"),
        (error("boom"), "boom"),
        (interruption("stop"), "stop"),
        (interruption(), ""),
        (command("ls"), "$ ls"),
        (command("ls", "a\nb\n"), "$ ls\na\nb\n"),
        (file_change("a.py"), "a.py"),
        (file_change("a.py", diff="-x\n+y"), "a.py\n-x\n+y"),
        (tool_call("fetch", "{}", "ok"), "fetch {}\nok"),
        (opaque_item(9), ""),
    ],
)
def test_a_body_is_the_text_of_the_item(item: Item, expected: str) -> None:
    assert body(item) == expected
