"""Finds the active branch of a Claude Code session: what the person sees when they resume it."""

from __future__ import annotations

from collections.abc import Sequence

from moonfold_handoff.transcripts.claude_links import begins, talks
from moonfold_handoff.transcripts.claude_records import TOOL_USES, Record
from moonfold_handoff.transcripts.lines import string


def active_branch(records: Sequence[Record]) -> dict[int, tuple[int, int]]:
    """Return the lines of the active branch, each with what they are sorted by.

    They follow the file, except where it has a child before its parent. The branch is walked upwards
    from the last leaf. A strict walk loses the siblings of parallel tool calls, so the other lines of its
    messages and the results of its tool calls are added. A file without links between its records is one
    branch.
    """
    main = _without_repeats([r for r in records if not r.sidechain])
    by_uuid = {r.uuid: r for r in main if r.uuid}
    if not any(_parent(r, by_uuid) for r in main):
        return {r.line: (r.line, 0) for r in main}
    chain = _walk(main, by_uuid)
    order = _file_order(chain)
    for record in _siblings(main, chain):
        order.setdefault(record.line, (record.line, 0))
    return order


def _without_repeats(records: list[Record]) -> list[Record]:
    """Leave out records that were written twice, as a crash and a resume do."""
    seen: dict[str, Record] = {}
    kept = []
    for record in records:
        first = seen.get(record.uuid) if record.uuid else None
        if first and first.type == record.type and first.message == record.message:
            continue
        if record.uuid:
            seen[record.uuid] = record
        kept.append(record)
    return kept


def _parent(record: Record, by_uuid: dict[str, Record]) -> Record | None:
    """Return the record's parent if the file has it; across a compaction, the logical one."""
    for name in ("parentUuid", "logicalParentUuid"):
        uuid = string(record.data.get(name))
        if uuid and (parent := by_uuid.get(uuid)) and parent is not record:
            return parent
    return None


def _walk(main: list[Record], by_uuid: dict[str, Record]) -> list[Record]:
    place = {r.line: i for i, r in enumerate(main)}
    current: Record | None = _leaf(main, by_uuid)
    chain: list[Record] = []
    visited: set[int] = set()
    while current is not None:
        chain.append(current)
        visited.add(current.line)
        parent = _parent(current, by_uuid)
        if parent is not None and parent.line not in visited:
            current = parent
        elif parent is None and begins(current):
            current = None
        else:
            # The parent is lost (a broken line, a cycle): going on with what was written before it
            # can take in an abandoned answer, which costs less than losing the whole history.
            earlier = (main[i] for i in range(place[current.line] - 1, -1, -1))
            current = next((r for r in earlier if talks(r) and r.line not in visited), None)
    chain.reverse()
    return chain


def _leaf(main: list[Record], by_uuid: dict[str, Record]) -> Record:
    """Return the last record of the conversation that has nothing of the conversation below it."""
    talk = [r for r in main if talks(r)]
    above: set[int] = set()
    for record in talk:
        parent = _parent(record, by_uuid)
        while parent is not None and parent.line not in above:
            above.add(parent.line)
            parent = _parent(parent, by_uuid)
    return next((r for r in reversed(talk) if r.line not in above), talk[-1])


def _file_order(chain: list[Record]) -> dict[int, tuple[int, int]]:
    """Return sort keys that follow the file, except where it has a child before its parent."""
    order = {}
    furthest = 0
    for depth, record in enumerate(chain):
        furthest = max(furthest, record.line)
        order[record.line] = (furthest, depth)
    return order


def _siblings(main: list[Record], chain: list[Record]) -> list[Record]:
    messages = {key for r in chain if (key := r.message_key)}
    said = [r for r in main if r.message_key in messages]
    calls = {b["id"] for r in (*chain, *said) for b in r.blocks if b["type"] in TOOL_USES}
    unlinked = [r for r in main if r.uuid is None and talks(r)]
    return said + unlinked + [r for r in main if r.type == "user" and _answers(r, calls)]


def _answers(record: Record, calls: set[str]) -> bool:
    return any(b["type"] == "tool_result" and b["tool_use_id"] in calls for b in record.blocks)
