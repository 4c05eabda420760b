"""How an answer says, in words, what it covers and how to go on; a model reads them."""

from __future__ import annotations

from collections.abc import Sequence

from moonfold_handoff.reading.answers import Entry, View


def of_item(entry: Entry) -> str:
    """Return the note on a page of one item."""
    total = entry.characters_total
    if entry.offset == total and total:
        return f"#{entry.position} has {total} characters; nothing follows."
    if entry.next_offset is None:
        return "" if entry.offset == 0 else f"This is the end of #{entry.position}."
    return (
        f"Characters {entry.offset}-{entry.next_offset} of {total}; go on with "
        f"position={entry.position}, offset={entry.next_offset}."
    )


def of_range(entries: Sequence[Entry], rest: int | None, view: View, *, down: bool) -> str:
    """Return the note on a range.

    Args:
        entries: what it shows.
        rest: the position beyond which there is more; None where there is none.
        view: what it was to show.
        down: whether it is read backwards.
    """
    sentences = [
        f"#{entry.position} is cut at {entry.next_offset} of {entry.characters_total} characters; "
        f"its rest is at position={entry.position}, offset={entry.next_offset}."
        for entry in entries
        if entry.next_offset is not None
    ]
    if not entries:
        hint = " (view=activity shows more)" if view is View.MESSAGES else ""
        sentences.append(f"There is nothing to show here{hint}.")
    if rest is not None:
        more, argument = ("What precedes", "before") if down else ("More", "after")
        sentences.append(f"{more} is at {argument}={rest}.")
    return " ".join(sentences)


def of_search(hits: int, oldest: int, newest: int) -> str:
    """Return the note on a search that covered the positions from `oldest` to `newest`."""
    if newest < oldest:
        return "There is nothing older to search."
    found = "1 item was found" if hits == 1 else f"{hits or 'no'} items were found"
    covered = f"Searched #{oldest} to #{newest}: {found}"
    if oldest > 1:
        return f"{covered}. Older items are not searched yet: go on with after={oldest}."
    return f"{covered}, and that is all there is."
