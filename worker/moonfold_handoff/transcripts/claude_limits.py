"""Recognises how Claude Code says that its provider would not go on.

Only called for a record that Claude Code itself marked as an error: prose and command output are never
searched. Structured fields decide first, then the HTTP status, then an anchored sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from moonfold_handoff.transcripts.base import STOPS
from moonfold_handoff.transcripts.clocks import CLOCK, clock_time, from_epoch
from moonfold_schemas.events import Limit, LimitKind

_PREFIX = r"^(?:API Error:\s*)?(?:Request rejected \(429\)\s*[·∙]\s*)?"
# Sent with error `rate_limit` and status 429 too, so it has to be asked first.
_THROTTLED = re.compile(_PREFIX + r"Server is temporarily limiting requests", re.IGNORECASE)
_OVERLOADED = re.compile(r"^API Error:\s*(?:529\b|Overloaded)", re.IGNORECASE)
_CREDITS = re.compile(
    r"out of (?:usage )?credits|credits? (?:are |is )?required|credit balance is too low|/usage-credits",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    _PREFIX
    + r"(?:Claude (?:AI )?usage limit reached|You(?:['\u2019]ve| have) (?:hit|reached) your\b.*\blimit"
    r"|You['\u2019]re out of extra usage|\d+-hour limit reached)",
    re.IGNORECASE,
)
_CONTEXT = re.compile(r"^(?:API Error:\s*)?(?:400\s+)?Prompt is too long", re.IGNORECASE)
_LOGIN = re.compile(r"^(?:Please run /login|Invalid API key)", re.IGNORECASE)

_AUTHENTICATION_CODES = frozenset(
    {
        "account_on_hold",
        "authentication_failed",
        "cloud_credential_error",
        "oauth_org_not_allowed",
        "verification_required",
    }
)

_EPOCH = re.compile(r"limit reached\|(\d{9,13})\b")
_CLOCK = re.compile(r"\bresets?\s+(?:at\s+)?" + CLOCK)


def recognise(
    record: Mapping[str, Any], text: str, now: datetime | None, zone: tzinfo | None
) -> Limit | None:
    """Return the limit that an error record tells of, or None for any other error.

    Args:
        record: The record, marked as an error by Claude Code.
        text: The notice in it.
        now: When it was written; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    kind = _kind(record, text)
    if kind is None:
        return None
    resets_at = None
    if kind in STOPS:
        resets_at = _stated_reset(record) or reset_time(text, now, zone)
    return Limit(kind=kind, resets_at=resets_at, message=text or None)


def reset_time(text: str, now: datetime | None, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, when a limit sentence says that the window opens again."""
    if epoch := _EPOCH.search(text):
        return from_epoch(int(epoch[1]))
    return clock_time(_CLOCK.search(text), now, zone)


def _kind(record: Mapping[str, Any], text: str) -> LimitKind | None:
    code, status, quota = (record.get(n) for n in ("error", "apiErrorStatus", "quotaLimits"))
    code = code if isinstance(code, str) else None
    status = status if isinstance(status, int) else None
    quota = quota if isinstance(quota, dict) else {}
    kind: LimitKind | None = None
    if _THROTTLED.search(text) or code == "overloaded" or status == 529:
        kind = LimitKind.THROTTLE
    elif code == "billing_error" or quota.get("errorCode") == "credits_required" or status == 402:
        kind = LimitKind.CREDITS
    elif code == "rate_limit" or status == 429:
        has_clock = _stated_reset(record) or _CLOCK.search(text) or _EPOCH.search(text)
        kind = LimitKind.CREDITS if _CREDITS.search(text) and not has_clock else LimitKind.QUOTA
    elif code in _AUTHENTICATION_CODES or status in {401, 403}:
        kind = LimitKind.AUTHENTICATION
    else:
        kind = next((k for pattern, k in _SENTENCES if pattern.search(text)), None)
    return kind


_SENTENCES = (
    (_QUOTA, LimitKind.QUOTA),
    (_CREDITS, LimitKind.CREDITS),
    (_CONTEXT, LimitKind.CONTEXT),
    (_LOGIN, LimitKind.AUTHENTICATION),
    (_OVERLOADED, LimitKind.THROTTLE),
)


def _stated_reset(record: Mapping[str, Any]) -> datetime | None:
    quota = record.get("quotaLimits")
    seconds = quota.get("resetsAt") if isinstance(quota, dict) else None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        return from_epoch(seconds)
    return None
