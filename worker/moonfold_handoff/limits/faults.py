"""An error as it was marked, and the limit that it tells of.

Decided in this order: the error's own code; then what the headers state of the account's windows, and
the HTTP status; then the sentence. A status and an open code each stand for several classes, so there
the headers, and else the sentence, tell which: a 429 is a throttle or a used-up window, a 403 a missing
login or a used-up subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

from moonfold_handoff.limits import headers as http
from moonfold_handoff.limits import sentences
from moonfold_handoff.limits.clocks import after
from moonfold_handoff.limits.codes import Meaning, status_kind
from moonfold_schemas.events import Limit, LimitKind

LONG_DELAY = 300.0
"""Seconds up to which a stated delay is worth waiting for; a longer one is a quota window.

Gemini CLI draws the line between its retries and a used-up quota there, too.
"""

_MESSAGE_LENGTH = 4_000  # characters; a notice is a sentence, and some bodies are whole pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a record says of an error that its provider marked.

    Attributes:
        meaning: What its code stands for; None where it has none, or one of no limit.
        text: Its sentence.
        status: Its HTTP status.
        headers: Its HTTP headers, by lower-case name.
        resets_at: When the last used-up window opens again, as a field of it states.
        delay: Seconds to wait, as a field of it states.
        is_daily: It is about a day's quota, of which a short delay beside it says nothing.
    """

    meaning: Meaning | None = None
    text: str = ""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    resets_at: datetime | None = None
    delay: float | None = None
    is_daily: bool = False


def decide(fault: Fault, now: datetime | None, zone: tzinfo | None) -> Limit | None:
    """Return the limit that an error tells of, or None for any other error.

    Args:
        fault: The error.
        now: When it was written; without it delays are no times.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    kind = _kind(fault, now)
    if kind is None:
        return None
    message = fault.text[:_MESSAGE_LENGTH] or None
    if kind is LimitKind.QUOTA or kind is LimitKind.THROTTLE:
        return _timed(kind, fault, now, zone, message)
    return Limit(kind=kind, message=message)


def _kind(fault: Fault, now: datetime | None) -> LimitKind | None:
    meaning = fault.meaning
    if meaning is not None and not meaning.is_open:
        return meaning.kind
    said = sentences.classify(fault.text)
    if said is not LimitKind.CREDITS and http.is_used_up(fault.headers, now):
        return LimitKind.QUOTA
    status = sentences.status_in(fault.text) if fault.status is None else fault.status
    return said or (meaning.kind if meaning else status_kind(status))


def _timed(
    kind: LimitKind,
    fault: Fault,
    now: datetime | None,
    zone: tzinfo | None,
    message: str | None,
) -> Limit:
    resets_at = _reset(kind, fault, now, zone)
    delay = _delay(fault, now, is_sentence_read=resets_at is None)
    if kind is LimitKind.THROTTLE:
        wait = delay
        if wait is None and resets_at is not None and now is not None:
            wait = max(0.0, (resets_at - now).total_seconds())
        if wait is None:
            wait = delay = http.refill(fault.headers, now)
        if wait is None or wait <= LONG_DELAY:
            at = resets_at if wait is None else None
            return Limit(kind=kind, resets_at=at, retry_after=wait, message=message)
    elif delay is not None and delay <= LONG_DELAY and _is_daily(fault):
        delay = None
    # Two statements about one window: going by the earlier would shorten the other.
    times = [time for time in (resets_at, after(now, delay)) if time is not None]
    return Limit(
        kind=LimitKind.QUOTA,
        resets_at=max(times, default=None),
        retry_after=delay if now is None else None,
        message=message,
    )


def _reset(
    kind: LimitKind, fault: Fault, now: datetime | None, zone: tzinfo | None
) -> datetime | None:
    stated = [fault.resets_at]
    if kind is LimitKind.QUOTA:
        stated.append(http.reset(fault.headers, now))
    latest = max((time for time in stated if time is not None), default=None)
    return latest or sentences.reset_time(fault.text, now, zone)


def _delay(fault: Fault, now: datetime | None, *, is_sentence_read: bool) -> float | None:
    """Return the longest of the stated delays; a sentence rounds what a field states."""
    stated = [fault.delay, http.retry_after(fault.headers, now)]
    if is_sentence_read:
        stated.append(sentences.delay(fault.text))
    return max((max(0.0, seconds) for seconds in stated if seconds is not None), default=None)


def _is_daily(fault: Fault) -> bool:
    return fault.is_daily or sentences.is_daily(fault.text)
