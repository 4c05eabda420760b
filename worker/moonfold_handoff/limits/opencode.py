"""How OpenCode says that its provider would not go on: in its database, its exports, its events."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from moonfold_handoff.limits import api, headers, sentences
from moonfold_handoff.limits.clocks import from_epoch
from moonfold_handoff.limits.codes import Meaning, meaning
from moonfold_handoff.limits.evidence import Evidence, integer, mapping, number, string
from moonfold_handoff.limits.faults import LONG_DELAY, Fault
from moonfold_schemas.events import LimitKind


def read(evidence: Evidence) -> Fault | None:
    """Return what a message, a part, an event or an API's response says of an error."""
    body = mapping(evidence.body)
    for name in ("properties", "info", "part"):
        if isinstance(body.get(name), dict):
            body = body[name]
    if isinstance(body.get("status"), dict):
        return _waiting(body["status"], evidence.now)
    error = mapping(body.get("error"))
    if isinstance(error.get("name"), str):
        return _named(error, string(body.get("providerID")))
    if isinstance(body.get("name"), str) and isinstance(body.get("data"), dict):
        return _named(body, "")
    return api.read(evidence.body)


def _named(error: dict[str, Any], provider: str) -> Fault:
    """Return what an error of OpenCode's says, with the response of the API that it keeps."""
    data = mapping(error.get("data"))
    answered = api.read(data.get("responseBody"), provider) or Fault()
    return api.unpacked(
        replace(
            answered,
            meaning=meaning(error.get("name")) or answered.meaning,
            text=answered.text or string(data.get("message")),
            status=integer(data.get("statusCode")) or answered.status,
            headers={**answered.headers, **headers.plain(data.get("responseHeaders"))},
        ),
        provider,
    )


def _waiting(status: dict[str, Any], now: datetime | None) -> Fault | None:
    """Return what a session's status says: OpenCode waits for whatever it means to try again."""
    if status.get("type") != "retry":
        return None
    text, at = string(status.get("message")), number(status.get("next"))
    resets_at = None if at is None else from_epoch(at)
    wait = (resets_at - now).total_seconds() if resets_at and now else 0.0
    # Only a provider asks for a long wait: OpenCode's own are of seconds, for any passing error.
    is_asked = wait > LONG_DELAY and sentences.classify(text) is None
    known = Meaning(LimitKind.QUOTA) if is_asked else None
    return Fault(meaning=known, text=text, resets_at=resets_at)
