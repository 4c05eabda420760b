"""How Gemini CLI says that its provider would not go on: in its chats, its output, its API."""

from __future__ import annotations

import re

from moonfold_handoff.limits import api
from moonfold_handoff.limits.codes import Meaning, meaning
from moonfold_handoff.limits.evidence import Evidence, integer, mapping, parts_text, string
from moonfold_handoff.limits.faults import Fault
from moonfold_schemas.events import LimitKind

_STATUS = re.compile(r"\(Status: ([A-Z_]{1,40})\)\]?\Z")  # how it ends what the API said
# A day that is used up says so in its sentence; without one it is the requests of a minute.
_MEANINGS = {"RESOURCE_EXHAUSTED": Meaning(LimitKind.THROTTLE, is_open=True)}
# Gemini CLI's own notices; `gemini` is the model's message and `user` the person's.
_NOTICES = frozenset({"error", "info", "warning"})


def read(evidence: Evidence) -> Fault | None:
    """Return what a chat's record, an event of its output or an API's response says of an error."""
    body = mapping(evidence.body)
    if string(body.get("type")) in _NOTICES and not isinstance(body.get("error"), dict):
        text = parts_text(body.get("content")) or string(body.get("message"))
        status = _STATUS.search(text)
        return Fault(
            text=text,
            status=integer(body.get("code")),
            meaning=_MEANINGS.get(status[1], meaning(status[1])) if status else None,
        )
    return api.read(evidence.body)
