"""How Cursor says that its provider would not go on: in its stream, and in its service's errors."""

from __future__ import annotations

from moonfold_handoff.limits import api
from moonfold_handoff.limits.evidence import Evidence, mapping, string
from moonfold_handoff.limits.faults import Fault


def read(evidence: Evidence) -> Fault | None:
    """Return what an event or a response says of an error."""
    body = mapping(evidence.body)
    if body.get("type") == "result":
        return Fault(text=string(body.get("result"))) if body.get("is_error") is True else None
    return api.read(evidence.body)
