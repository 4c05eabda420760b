"""Recognises how Gemini CLI says that its provider would not go on.

Only called for a message of type `error`: prose and command output are never searched. The session keeps
nothing but the sentence, so an anchored sentence is all there is; structured details are gone by then.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from moonfold_handoff.transcripts.base import STOPS
from moonfold_schemas.events import Limit, LimitKind

LONG_DELAY = 300.0  # seconds; Gemini CLI itself takes a longer delay for a used-up window

_API_ERROR = re.compile(r"\[API Error: (?P<text>.*?)\](?:\n|\Z)", re.DOTALL)
_DELAY = r"(?P<delay>(?:\d+(?:\.\d+)?(?:ms|h|m|s))+)"
_RESET = re.compile(r"reset after " + _DELAY, re.IGNORECASE)
_RETRY = re.compile(r"retry (?:in|after) " + _DELAY, re.IGNORECASE)
_DELAY_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_SENTENCES = (
    (r"You have exhausted your (?:daily quota|capacity) on this model\b", LimitKind.QUOTA),
    (r"Your prepayment credits are depleted\b", LimitKind.CREDITS),
    (r"Quota exceeded for .*\bper day\b", LimitKind.QUOTA),
    (r"You exceeded your current quota.*\blimit: 0\b", LimitKind.QUOTA),
    (r"Quota exceeded for |You exceeded your current quota\b", LimitKind.THROTTLE),
    (r"Resource (?:has been )?exhausted\b", LimitKind.THROTTLE),
    (r"The model is overloaded\b|No capacity available for model\b", LimitKind.THROTTLE),
    (r"The input token count .*exceeds the maximum\b", LimitKind.CONTEXT),
    (r"API key (?:not valid|expired)\b", LimitKind.AUTHENTICATION),
)
_PATTERNS = tuple((re.compile(text, re.IGNORECASE | re.DOTALL), kind) for text, kind in _SENTENCES)
_STATUS = re.compile(r"\(Status: (?P<status>[A-Z_]+)\)\Z")
_STATUSES = {
    "RESOURCE_EXHAUSTED": LimitKind.THROTTLE,
    "UNAVAILABLE": LimitKind.THROTTLE,
    "UNAUTHENTICATED": LimitKind.AUTHENTICATION,
}


def api_error(text: str) -> str | None:
    """Return what the provider said, from an error that it caused; None for any other error."""
    match = _API_ERROR.match(text)
    return match["text"] if match else None


def recognise(text: str, now: datetime | None) -> Limit | None:
    """Return the limit that an error message tells of, or None for any other error.

    Args:
        text: The message, as Gemini CLI shows it.
        now: When it was written; without it a delay gives no time.
    """
    said = api_error(text)
    kind = _kind(said) if said is not None else None
    if said is None or kind is None:
        return None
    reset, retry = _delay(_RESET, said), _delay(_RETRY, said)
    if reset is None and retry is not None and retry > LONG_DELAY:
        reset = retry
        kind = LimitKind.QUOTA if kind is LimitKind.THROTTLE else kind
    if kind in STOPS:
        return Limit(kind=kind, resets_at=_after(now, reset), message=said)
    return Limit(kind=kind, retry_after=retry, message=said)


def _kind(said: str) -> LimitKind | None:
    for pattern, kind in _PATTERNS:
        if pattern.match(said):
            return kind
    status = _STATUS.search(said)
    return _STATUSES.get(status["status"]) if status else None


def _delay(pattern: re.Pattern[str], said: str) -> float | None:
    """Return the delay in a sentence in seconds, of a form such as `142h40m7s` or `34.07s`."""
    match = pattern.search(said)
    if match is None:
        return None
    return sum(float(n) * _SECONDS[unit] for n, unit in _DELAY_PART.findall(match["delay"]))


def _after(now: datetime | None, delay: float | None) -> datetime | None:
    if now is None or delay is None:
        return None
    try:
        return now + timedelta(seconds=delay)
    except OverflowError:
        return None
