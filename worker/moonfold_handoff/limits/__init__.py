"""Recognises a limit wherever a switching session meets it, and reads the quota before it is reached.

Pure: no files, no network, no clock but the evidence's own. What is looked at is only what a provider or
its agent marked as an error, so prose and a command's output never raise an alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from moonfold_handoff.limits import (
    api,
    claude_code,
    codex,
    cursor,
    gemini_cli,
    headers,
    opencode,
)
from moonfold_handoff.limits.evidence import Evidence
from moonfold_handoff.limits.faults import Fault, decide
from moonfold_handoff.limits.quotas import Quota
from moonfold_schemas.events import Limit

__all__ = ["Evidence", "Quota", "quota", "recognise"]

_READERS: Mapping[str, Callable[[Evidence], Fault | None]] = {
    "claude-code": claude_code.read,
    "codex": codex.read,
    "cursor": cursor.read,
    "gemini-cli": gemini_cli.read,
    "opencode": opencode.read,
}
_TELEMETRY: Mapping[str, Callable[[Evidence], Quota | None]] = {
    "claude-code": claude_code.quota,
    "codex": codex.quota,
}
_FIRST_ERROR = 400  # HTTP status


def recognise(provider: str, evidence: Evidence) -> Limit | None:
    """Return the limit that the evidence tells of, or None where it tells of none.

    What has another shape or type than documented is ignored, and never raises.

    Args:
        provider: The agent, such as `claude-code`; the errors of the model APIs are read for any name.
        evidence: What the provider or the agent marked as an error.
    """
    read = _READERS.get(provider)
    fault = read(evidence) if read else api.read(evidence.body, provider)
    if fault is None:
        is_error = evidence.text or (evidence.status or 0) >= _FIRST_ERROR
        if not is_error:
            return None
        fault = Fault()
    fault = replace(
        fault,
        text=evidence.text or fault.text,
        status=fault.status if evidence.status is None else evidence.status,
        headers={**fault.headers, **headers.plain(evidence.headers)},
    )
    return decide(api.unpacked(fault, provider), evidence.now, evidence.zone)


def quota(provider: str, evidence: Evidence) -> Quota | None:
    """Return how far the account's quota windows are used up, or None where nothing tells.

    Args:
        provider: The agent, such as `codex`; headers are read for any name.
        evidence: Telemetry of the provider, or a response with its headers.
    """
    read = _TELEMETRY.get(provider)
    found = read(evidence) if read else None
    return found or headers.quota(headers.plain(evidence.headers), evidence.now)
