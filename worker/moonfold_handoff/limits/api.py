"""Error bodies of the model APIs, whichever agent received them.

Anthropic's `{"type": "error", "error": {"type": …}}`, OpenAI's and ChatGPT's `{"error": {"code": …}}`
and its forms in a stream, Google's `{"error": {"status": …, "details": […]}}`, Connect's
`{"code": …, "message": …}`, and JSON-RPC as the Agent Client Protocol uses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from moonfold_handoff.limits import google, headers, sentences
from moonfold_handoff.limits.clocks import from_epoch
from moonfold_handoff.limits.codes import Meaning, meaning
from moonfold_handoff.limits.evidence import integer, mapping, number, string
from moonfold_handoff.limits.faults import Fault
from moonfold_schemas.events import LimitKind

# Model Studio (DashScope, Bailian) has OpenAI's code for missing credits where it throttles.
_THROTTLES_BY_QUOTA = frozenset({"alibaba", "alibaba-cn", "bailian", "dashscope"})
_MISSING_CREDITS = meaning("insufficient_quota")

_MAX_EMBEDDED = 1_000_000  # characters of JSON within a string


def read(body: Any, provider: str = "") -> Fault | None:
    """Return what an API's error body says, or None where it is none.

    Args:
        body: The body, or the JSON text of it. Of a list, as Google streams it, the first error counts.
        provider: Who answered, where the same words mean something else there.
    """
    if isinstance(body, str):
        return embedded(body, provider)
    if isinstance(body, list):
        faults = (read(part, provider) for part in body if isinstance(part, dict))
        return next((fault for fault in faults if fault is not None), None)
    body = mapping(body)
    if body.get("type") == "response.failed":
        body = mapping(body.get("response"))
    error = body.get("error")
    if isinstance(error, dict):
        fault = google.read(error) if google.is_error(error) else _error(error, provider)
    elif isinstance(body.get("code"), str) and isinstance(body.get("message"), str):
        fault = _error(body, provider)
    else:
        return None
    status = integer(body.get("status_code")) or integer(body.get("status")) or fault.status
    fault = replace(fault, status=status, headers=headers.plain(body.get("headers")))
    return unpacked(fault, provider)


def embedded(text: str, provider: str = "") -> Fault | None:
    """Return what the JSON in a sentence says, as agents write a body out, or None without any."""
    document = sentences.bare(text).strip()
    if not document.startswith(("{", "[")) or len(document) > _MAX_EMBEDDED:
        return None
    try:
        # Gemini CLI closes a bracket that its prefix opened.
        body = msgspec.json.decode(document.removesuffix("]") if document[0] == "{" else document)
    except (ValueError, RecursionError):
        return None
    return None if isinstance(body, str) else read(body, provider)


def unpacked(fault: Fault, provider: str = "") -> Fault:
    """Return the fault with what the body says that its sentence is, where it is one."""
    if fault.meaning is not None and not fault.meaning.is_open:
        return fault
    inner = embedded(fault.text, provider)
    if inner is None:
        return fault
    return replace(
        inner,
        meaning=inner.meaning or fault.meaning,
        status=fault.status or inner.status or sentences.status_in(fault.text),
        headers={**inner.headers, **fault.headers},
        resets_at=inner.resets_at or fault.resets_at,
        delay=fault.delay if inner.delay is None else inner.delay,
    )


def _error(error: dict[str, Any], provider: str) -> Fault:
    codes = (
        error.get("type"),
        error.get("code"),
        error.get("name"),
        mapping(error.get("data")).get("errorKind"),
    )
    known = next((found for code in codes if (found := meaning(code)) is not None), None)
    if known == _MISSING_CREDITS and provider in _THROTTLES_BY_QUOTA:
        known = Meaning(LimitKind.THROTTLE)
    resets_at, delay = number(error.get("resets_at")), number(error.get("resets_in_seconds"))
    at = None if resets_at is None else from_epoch(resets_at)
    code = integer(error.get("code"))
    return Fault(
        meaning=known,
        text=string(error.get("message")),
        # JSON-RPC has its own numbers, below zero.
        status=integer(error.get("status")) or (code if code is not None and code > 0 else None),
        resets_at=at,
        delay=delay if at is None else None,
    )
