"""What a handoff to one target would be, before anything is read: its budget and its selection."""

from __future__ import annotations

from dataclasses import dataclass

from moonfold_handoff.context.budget import compute_budget
from moonfold_handoff.context.capacity import Catalogue
from moonfold_handoff.context.selection import NOTHING, Selection, needed_for_must_haves, select
from moonfold_handoff.context.state import ThreadState
from moonfold_schemas.requests import NewRequest, Target
from moonfold_schemas.results import Budget, Figure


@dataclass(frozen=True, slots=True)
class Plan:
    """A handoff as it would be made.

    Attributes:
        target: where the thread goes on.
        budget: the allowance and its inputs; what the delivery costs is not known yet.
        selection: what travels.
        native: whether the target goes on by itself, so that nothing has to travel.
        unseen: what the selection was made of: the part of the thread that the target does not have.
    """

    target: Target
    budget: Budget
    selection: Selection
    native: bool
    unseen: ThreadState

    @property
    def lacking(self) -> int | None:
        """Bytes that the must-haves would take, where not all of them travel; else None."""
        return needed_for_must_haves(self.unseen, self.selection)

    @property
    def omitted_bytes(self) -> int:
        """Bytes, as JSON literals, of the items that could have been chosen and stay behind."""
        if not self.selection.coverage.omitted_items:
            return 0
        chosen = sum(choice.ref.body for choice in self.selection.choices)
        return sum(ref.body for ref in self.unseen.kept) - chosen


def plan(
    state: ThreadState,
    thread_id: str,
    target: Target,
    *,
    request: NewRequest | None,
    cap: Figure,
    catalogue: Catalogue,
    native: bool = False,
) -> Plan:
    """Return what the handoff of `state` to `target` would be.

    Args:
        state: the thread.
        thread_id: how the handoff names it.
        target: where it goes on.
        request: the new request; None when only preparing.
        cap: upper bound in tokens, already clamped.
        catalogue: windows of models.
        native: whether the target goes on by itself.

    Raises:
        ReferencesDoNotFitError: not even the one-line pointer to the history fits (R12).
    """
    budget = compute_budget(state, target, request, cap, catalogue)
    unseen = state.since(state.conversation(target.conversation_id))
    if native:
        return Plan(target, budget, NOTHING, native, unseen)
    asked = request.text if request is not None else None
    selection = select(unseen, thread_id, budget.allowance, asked)
    return Plan(target, budget, selection, native, unseen)
