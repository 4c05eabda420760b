"""Errors of Google's model APIs: `google.rpc` details, as Gemini CLI and others receive them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moonfold_handoff.limits import sentences
from moonfold_handoff.limits.clocks import duration, instant
from moonfold_handoff.limits.codes import Meaning
from moonfold_handoff.limits.evidence import array, integer, mapping, string
from moonfold_handoff.limits.faults import Fault
from moonfold_schemas.events import LimitKind

_A_MINUTE = 60.0  # seconds: what a quota counted by the minute takes to open again

_USED_UP, _THROTTLED = Meaning(LimitKind.QUOTA), Meaning(LimitKind.THROTTLE)
_REASONS = {
    "API_KEY_INVALID": Meaning(LimitKind.AUTHENTICATION),
    "INSUFFICIENT_G1_CREDITS_BALANCE": Meaning(LimitKind.CREDITS),
    "MODEL_CAPACITY_EXHAUSTED": _THROTTLED,
    "QUOTA_EXHAUSTED": _USED_UP,
}
_STATUSES = {
    "PERMISSION_DENIED": Meaning(LimitKind.AUTHENTICATION, is_open=True),
    "RESOURCE_EXHAUSTED": Meaning(LimitKind.THROTTLE, is_open=True),
    "UNAUTHENTICATED": Meaning(LimitKind.AUTHENTICATION),
    "UNAVAILABLE": _THROTTLED,
}


def is_error(error: dict[str, Any]) -> bool:
    """Return whether an error has Google's shape."""
    return isinstance(error.get("details"), list) or string(error.get("status")).isupper()


def read(error: dict[str, Any]) -> Fault:
    """Return what an error of Google's says.

    A reason decides first, then the quota that failed: one of a day, or of nothing, is used up; one of
    a minute is a throttle. Whatever the class, the longest of the stated delays holds.
    """
    text = string(error.get("message"))
    details = [mapping(detail) for detail in array(error.get("details"))]
    reasons = [string(d.get("reason")) for d in _of(details, "ErrorInfo")]
    quotas = [
        string(mapping(violation).get("quotaId"))
        for detail in _of(details, "QuotaFailure")
        for violation in array(detail.get("violations"))
    ]
    delay = max(_delays(details), default=None)
    is_daily = any("PerDay" in q or "Daily" in q for q in quotas) or sentences.is_daily(text)
    is_a_minute_s = any("PerMinute" in quota for quota in quotas)
    meaning = next((_REASONS[reason] for reason in reasons if reason in _REASONS), None)
    if meaning is None and is_daily:
        meaning = _USED_UP
    elif meaning is None and is_a_minute_s:
        meaning, delay = _THROTTLED, _A_MINUTE if delay is None else delay
    elif meaning is None and "RATE_LIMIT_EXCEEDED" in reasons:
        meaning = _THROTTLED
    stamps = [_metadata(d).get("quotaResetTimeStamp") for d in _of(details, "ErrorInfo")]
    return Fault(
        meaning=meaning or _STATUSES.get(string(error.get("status"))),
        text=text,
        status=integer(error.get("code")),
        resets_at=next((t for stamp in stamps if (t := instant(string(stamp)))), None),
        delay=delay,
        is_daily=is_daily,
    )


def _of(details: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (d for d in details if string(d.get("@type")).endswith(f"google.rpc.{kind}"))


def _delays(details: list[dict[str, Any]]) -> Iterator[float]:
    stated = [
        *(detail.get("retryDelay") for detail in _of(details, "RetryInfo")),
        *(_metadata(detail).get("quotaResetDelay") for detail in _of(details, "ErrorInfo")),
    ]
    return (seconds for text in stated if (seconds := duration(string(text))) is not None)


def _metadata(detail: dict[str, Any]) -> dict[str, Any]:
    return mapping(detail.get("metadata"))
