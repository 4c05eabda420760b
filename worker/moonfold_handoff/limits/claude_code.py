"""How Claude Code says that its provider would not go on: in its session files, its stream, its hooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from moonfold_handoff.limits import api, headers
from moonfold_handoff.limits.clocks import from_epoch
from moonfold_handoff.limits.codes import Meaning, meaning, status_kind
from moonfold_handoff.limits.evidence import (
    Evidence,
    integer,
    mapping,
    number,
    parts_text,
    string,
)
from moonfold_handoff.limits.faults import Fault
from moonfold_handoff.limits.quotas import Quota, latest_reset, quota_of, window
from moonfold_schemas.events import LimitKind, QuotaWindow

_MINUTES = {"five_hour": 300}
_WEEK = 10_080  # minutes of the windows whose names begin with `seven_day`

_RETRIES = frozenset({"api_error", "api_retry"})
# What Claude Code gives up on is the account's window: a throttle it names in a sentence of its own.
_GIVEN_UP = Meaning(LimitKind.QUOTA, is_open=True)
_THROTTLED = Meaning(LimitKind.THROTTLE)


def read(evidence: Evidence) -> Fault | None:
    """Return what Claude Code's record or event, or its API's response, says of an error."""
    body = mapping(evidence.body)
    kind = body.get("type")
    if kind == "rate_limit_event":
        return _of_window(mapping(body.get("rate_limit_info")))
    if kind == "system" and string(body.get("subtype")) in _RETRIES:
        return _retry(body)
    if kind == "result":
        return _result(body)
    if body.get("hook_event_name") == "StopFailure":
        text = string(body.get("last_assistant_message")) or string(body.get("error_details"))
        return Fault(meaning=meaning(body.get("error")), text=text)
    if kind == "assistant" or "isApiErrorMessage" in body:
        return _notice(body, is_marked=bool(evidence.text))
    return api.read(evidence.body)


def quota(evidence: Evidence) -> Quota | None:
    """Return the windows that a `rate_limit_event`, a record or the status line's JSON tells of."""
    body = mapping(evidence.body)
    if rates := mapping(body.get("rate_limits")):
        return quota_of(_of_status_line(rates))
    info = mapping(body.get("rate_limit_info")) or mapping(body.get("quotaLimits"))
    return quota_of(_windows(info), has_credits=_has_overage(info))


def _notice(record: dict[str, Any], *, is_marked: bool) -> Fault | None:
    """Return what an assistant record says, if it is a notice: one that the model wrote is none."""
    code = string(record.get("error"))
    if not (is_marked or code or record.get("isApiErrorMessage") is True):
        return None
    text = parts_text(mapping(record.get("message")).get("content"))
    status = integer(record.get("apiErrorStatus"))
    known = _of_status(meaning(code), status)
    fault = Fault(meaning=known, text=text, status=status)
    limits = mapping(record.get("quotaLimits"))
    if not limits or (known is not None and not known.is_open):
        return fault
    stated = _of_window(limits)
    if stated is None:
        # The account's window has room: this request met a limit of another kind.
        is_allowed = string(limits.get("status")) in headers.ALLOWED or _has_overage(limits)
        return (
            replace(fault, meaning=Meaning(LimitKind.THROTTLE, is_open=True))
            if is_allowed
            else fault
        )
    return replace(fault, meaning=stated.meaning, resets_at=stated.resets_at)


def _of_status(known: Meaning | None, status: int | None) -> Meaning | None:
    return _GIVEN_UP if known is None and status == 429 else known


def _result(body: dict[str, Any]) -> Fault | None:
    if body.get("is_error") is not True:
        return None
    status = integer(body.get("api_error_status"))
    known = meaning(body.get("terminal_reason")) or meaning(body.get("error"))
    text = string(body.get("result"))
    return Fault(meaning=_of_status(known, status), text=text, status=status)


def _retry(body: dict[str, Any]) -> Fault | None:
    """Return what a retry says: Claude Code is waiting already, so it is a throttle or nothing."""
    error = mapping(body.get("error"))
    status = integer(body.get("error_status")) or integer(error.get("status"))
    inner = api.read(error) or api.read(error.get("error"))
    known = meaning(body.get("error")) or (inner.meaning if inner else None)
    kind = known.kind if known else status_kind(status)
    if kind not in {LimitKind.QUOTA, LimitKind.THROTTLE}:
        return None
    delay = number(body.get("retry_delay_ms")) or number(body.get("retryInMs"))
    return Fault(
        meaning=_THROTTLED,
        status=status,
        headers=headers.plain(error.get("headers")),
        delay=None if delay is None else delay / 1000,
    )


def _of_window(info: dict[str, Any]) -> Fault | None:
    """Return what Claude's own words on a window say, or None where it has room."""
    if info.get("errorCode") == "credits_required":
        return Fault(meaning=meaning("credits_required"))
    if info.get("status") != "rejected" or _has_overage(info):
        return None
    used_up = Quota(tuple(w for w in _windows(info) if w is not None)).used_up(None)
    is_overage = info.get("rateLimitType") == "overage"
    stated = _time(info.get("resetsAt")) or (is_overage and _time(info.get("overageResetsAt")))
    times = [time for time in (stated, latest_reset(used_up)) if time]
    resets_at = max(times, default=None)
    is_open = resets_at is None
    return Fault(meaning=Meaning(LimitKind.QUOTA, is_open=is_open), resets_at=resets_at)


def _has_overage(info: dict[str, Any]) -> bool:
    return (
        info.get("isUsingOverage") is True or string(info.get("overageStatus")) in headers.ALLOWED
    )


def _windows(info: dict[str, Any]) -> Iterator[QuotaWindow | None]:
    several = mapping(info.get("unifiedWindows"))
    for name, value in several.items():
        details = mapping(value)
        yield _window(name, _percent(details.get("utilization")), details.get("resetsAt"))
    name = string(info.get("rateLimitType"))
    if name and name not in several:
        percent = _percent(info.get("utilization"))
        if info.get("status") == "rejected":
            # Rounded, a rejected window can show less than it has used.
            percent = max(100.0, percent or 0.0)
        yield _window(name, percent, info.get("resetsAt"))


def _of_status_line(rates: dict[str, Any]) -> Iterator[QuotaWindow | None]:
    for name, value in rates.items():
        details = mapping(value)
        yield _window(name, number(details.get("used_percentage")), details.get("resets_at"))


def _window(name: str, percent: float | None, resets_at: Any) -> QuotaWindow | None:
    minutes = _WEEK if name.startswith("seven_day") else _MINUTES.get(name)
    return window(name, percent, resets_at=_time(resets_at), minutes=minutes)


def _percent(utilization: Any) -> float | None:
    share = number(utilization)
    return None if share is None else share * 100


def _time(value: Any) -> datetime | None:
    seconds = number(value)
    return None if seconds is None else from_epoch(seconds)
