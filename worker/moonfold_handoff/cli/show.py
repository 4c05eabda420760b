"""How results look to a person at a terminal. What is shown is the person's own conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moonfold_handoff.context.availability import Instance
from moonfold_handoff.context.portable import body, label
from moonfold_handoff.context.preamble import cite
from moonfold_handoff.transfer import Transfer
from moonfold_schemas.items import Item
from moonfold_schemas.results import (
    Budget,
    Coverage,
    Delivery,
    HandoffPrepared,
    HandoffReady,
    PassedOver,
)

PREVIEW = 72  # characters of an item shown
PLAIN = "\n\t\u200c\u200d"  # not printable by themselves, and obeyed by no terminal

_DELIVERIES = {
    Delivery.ITEMS: "as messages for native injection",
    Delivery.TEXT: "as attributed text",
}


@contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, on a terminal only, and give the means to change it."""
    console = Console(stderr=True)
    with console.status(message) as status:
        # Off a terminal the status shows nothing, and updating it changes nothing.
        yield status.update


def ready(outcome: Transfer, result: HandoffReady) -> None:
    """Show what travelled, what was left out, why it is this much, and how long it took."""
    console = Console()
    provider, limit = outcome.session.provider, outcome.facts.limit
    console.print(
        f"[bold]{provider} → {result.target.provider}[/bold], "
        f"{_DELIVERIES[result.delivery]}, ready {outcome.seconds * 1000:.1f} ms after the request"
    )
    if limit is not None:
        clock = f", until {limit.resets_at:%Y-%m-%d %H:%M} UTC" if limit.resets_at else ""
        console.print(f"{provider} is at its limit ({limit.kind}{clock})")
    for reason, count in outcome.facts.skipped.items():
        console.print(f"[yellow]Skipped {count}: {reason}[/yellow]")
    console.print()
    console.print(_travelled(outcome.items, result.coverage))
    console.print()
    console.print(_left_out(result.coverage))
    console.print()
    console.print(budget_table(result.budget))


def forked(result: HandoffReady | HandoffPrepared) -> None:
    """Show what a fork has, and what its handoff would carry."""
    console = Console(emoji=False)
    coverage = result.coverage
    total = coverage.selected_items + coverage.omitted_items
    console.print(
        f"[bold]Thread {result.thread_id}[/bold] begins after #{coverage.through - 1}; "
        f"its handoff to {result.target.provider} carries {coverage.selected_items} of {total} items"
    )
    console.print()
    console.print(budget_table(result.budget))


def passed_over(console: Console, candidates: Iterable[PassedOver]) -> None:
    """Say of each candidate before the target why it was not taken."""
    for candidate in candidates:
        name = Instance.of(candidate.target).name
        console.print(f"[yellow]Passed over {name}[/yellow]: {candidate.message}")


def next_steps() -> None:
    """Say where to go from the demonstration."""
    table = Table(title="Next", title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(style="dim")
    for command, purpose in (
        ("moonfold demo --cap 4000", "the same with less room"),
        ("moonfold handoff FILE --to codex", "a session of yours"),
        ("moonfold handoff FILE --to gemini-cli --text", "only the text, to pipe or paste"),
        ("moonfold watch --to codex", "hand over the moment an agent reaches its limit"),
        ("moonfold worker", "serve sessions that use HandoffClient"),
        ("moonfold settings", "what can be set"),
    ):
        table.add_row(command, purpose)
    console = Console()
    console.print()
    console.print(table)


def _travelled(items: Mapping[int, Item], coverage: Coverage) -> Table:
    table = Table(title="What travels", title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("from", style="cyan", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("begins", no_wrap=True, overflow="ellipsis", ratio=1)
    for position, item in items.items():
        text = body(item)
        note = ", abridged" if position in coverage.abridged else ""
        table.add_row(
            str(position),
            label(item) + note,
            f"{len(text.encode()):,}",
            Text(preview(text)),
        )
    return table


def _left_out(coverage: Coverage) -> str:
    ranges = ", ".join(map(cite, coverage.omitted))
    omitted = (
        f"{coverage.omitted_items} of {coverage.omitted_items + coverage.selected_items} items"
    )
    return (
        f"[bold]Left out[/bold]  {omitted}{': ' + ranges if ranges else ''}; "
        f"{len(coverage.abridged)} abridged. Reasoning and other tools' calls never travel."
    )


def budget_table(budget: Budget) -> Table:
    """Return each input of the allowance with its value and origin."""
    table = Table(
        title="Budget (tokens, one a byte)", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("input")
    table.add_column("value", justify="right")
    table.add_column("origin", style="dim")
    for name in ("window", "existing", "request", "attachments", "reserve", "cap", "ceiling"):
        figure = getattr(budget, name)
        table.add_row(name, f"{figure.value:,}", figure.origin.value.replace("_", " "))
    table.add_row(
        "[bold]allowance[/bold]",
        f"[bold]{budget.allowance:,}[/bold]",
        f"limited by {budget.limited_by}",
    )
    share = budget.own_text_bytes / budget.cost if budget.cost else 0
    table.add_row(
        "[bold]cost[/bold]",
        f"[bold]{budget.cost:,}[/bold]",
        f"{share:.0%} of it the conversation's own text",
    )
    return table


def preview(text: str, length: int = PREVIEW) -> str:
    """Return how a text begins, on one line and without what a terminal would obey."""
    return harmless(" ".join(text[: 4 * length].split())[:length])


def harmless(text: str) -> str:
    """Return a text without what a terminal would obey; lines, tabs and joined emoji stay."""
    return "".join(
        character if character.isprintable() or character in PLAIN else "�" for character in text
    )
