"""How Gemini CLI says that its provider would not go on: in its chats, its output, its API."""

from __future__ import annotations

from moonfold_handoff.limits import api
from moonfold_handoff.limits.evidence import Evidence, integer, mapping, parts_text, string
from moonfold_handoff.limits.faults import Fault

# Gemini CLI's own notices; `gemini` is the model's message and `user` the person's.
_NOTICES = frozenset({"error", "info", "warning"})


def read(evidence: Evidence) -> Fault | None:
    """Return what a chat's record, an event of its output or an API's response says of an error."""
    body = mapping(evidence.body)
    if string(body.get("type")) in _NOTICES and not isinstance(body.get("error"), dict):
        text = parts_text(body.get("content")) or string(body.get("message"))
        return Fault(text=text, status=integer(body.get("code")))
    return api.read(evidence.body)
