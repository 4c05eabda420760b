"""How Codex says that its provider would not go on: rollouts, app-server, `exec --json`, ChatGPT's API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from moonfold_handoff.limits import api
from moonfold_handoff.limits.clocks import after, from_epoch
from moonfold_handoff.limits.codes import Meaning, meaning
from moonfold_handoff.limits.evidence import Evidence, integer, mapping, number, string
from moonfold_handoff.limits.faults import Fault
from moonfold_handoff.limits.quotas import Quota, latest_reset, quota_of, window
from moonfold_schemas.events import LimitKind, QuotaWindow

_NAMES = ("primary", "secondary")
_OWN = "codex"  # the id of the limit whose windows need no other name

# The records and notifications that hold an error; every other one is the conversation's.
_ENDINGS = frozenset({"task_complete", "turn_complete", "turn.failed"})
_METHODS = frozenset({"error", "turn/completed"})


def read(evidence: Evidence) -> Fault | None:
    """Return what a record, a notification or a response says of an error."""
    body = _payload(evidence.body)
    if (error := _error(body)) is not None:
        return _of_info(error)
    rates = _rates(body)
    if rates is not None or "ordinaryUsageAllowed" in body:
        return _reached(body, rates or {}, evidence.now)
    return None if "method" in body else api.read(evidence.body)


def quota(evidence: Evidence) -> Quota | None:
    """Return the windows that a record, a notification or a response tells of."""
    body = _payload(evidence.body)
    by_id = mapping(body.get("rateLimitsByLimitId"))
    first = _rates(body)
    if first is None:
        return None
    name = string(_field(first, "limit_id"))
    others = [mapping(rates) for id_, rates in by_id.items() if id_ not in {name, _OWN}]
    windows = [w for rates in (first, *others) for w in _windows(rates, evidence.now)]
    return quota_of(windows, has_credits=_has_credits(first))


def reached_type(rates: dict[str, Any]) -> str:
    """Return Codex's own word for which limit was reached, empty where it says that none was."""
    return string(_field(rates, "rate_limit_reached_type"))


def is_credits(reached: str) -> bool:
    """Return whether Codex's word for a reached limit stands for missing credits."""
    return "credits_depleted" in reached


def _payload(body: Any) -> dict[str, Any]:
    """Return what is within a rollout's line, a JSON-RPC notification or response."""
    outer = mapping(body)
    inner = next(
        (i for n in ("payload", "params", "result") if (i := mapping(outer.get(n)))), outer
    )
    return {**inner, "method": outer["method"]} if "method" in outer else inner


def _error(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the error in a payload, or None where it has none or it is the API's."""
    kind, holder = string(body.get("type")), mapping(body.get("turn")) or body
    error = mapping(holder.get("error"))
    if error and (kind in _ENDINGS or string(body.get("method")) in _METHODS or holder is not body):
        return error
    is_event = kind == "error" and not error
    return body if is_event or _info(body) is not None else None


def _of_info(error: dict[str, Any]) -> Fault:
    info = _info(error)
    codes = {info: None} if isinstance(info, str) else mapping(info)
    statuses = (
        integer(mapping(details).get(name))
        for details in codes.values()
        for name in ("http_status_code", "httpStatusCode", "httpStatus")
    )
    return Fault(
        meaning=next((known for code in codes if (known := meaning(code)) is not None), None),
        text=string(error.get("message")),
        status=next((status for status in statuses if status is not None), None),
    )


def _info(error: dict[str, Any]) -> Any:
    return _field(error, "codex_error_info")


def _rates(body: dict[str, Any]) -> dict[str, Any] | None:
    rates = _field(body, "rate_limits")
    return rates if isinstance(rates, dict) else None


def _reached(body: dict[str, Any], rates: dict[str, Any], now: datetime | None) -> Fault | None:
    """Return what Codex says was reached. A window's percentage alone is telemetry, and no error."""
    reached = reached_type(rates)
    is_over_spend = _field(rates, "spend_control_reached") is True
    is_refused = body.get("ordinaryUsageAllowed") is False
    if _has_credits(rates) or not (reached or is_over_spend or is_refused):
        return None
    if is_credits(reached) or is_over_spend:
        return Fault(meaning=Meaning(LimitKind.CREDITS))
    known = quota_of(_windows(rates, now))
    resets_at = latest_reset(known.used_up(now)) if known else None
    return Fault(meaning=Meaning(LimitKind.QUOTA), resets_at=resets_at)


def _has_credits(rates: dict[str, Any]) -> bool:
    credits_ = mapping(rates.get("credits"))
    return _field(credits_, "has_credits") is True or credits_.get("unlimited") is True


def _windows(rates: dict[str, Any], now: datetime | None) -> Iterator[QuotaWindow | None]:
    id_ = string(_field(rates, "limit_id"))
    for name in _NAMES:
        details = mapping(rates.get(name))
        # Rollouts of 0.40 have the windows' fields side by side.
        used = number(_field(details, "used_percent"))
        flat = number(rates.get(f"{name}_used_percent"))
        minutes = _first(details, "window_minutes", "windowDurationMins")
        yield window(
            name if id_ in {"", _OWN} else f"{id_}.{name}",
            flat if used is None else used,
            resets_at=_resets_at(details, now),
            minutes=number(rates.get(f"{name}_window_minutes")) if minutes is None else minutes,
        )


def _resets_at(details: dict[str, Any], now: datetime | None) -> datetime | None:
    at = _first(details, "resets_at", "resetsAt", "reset_at")
    if at is not None:
        return from_epoch(at)
    return after(now, _first(details, "resets_in_seconds", "reset_after_seconds"))


def _first(details: dict[str, Any], *names: str) -> float | None:
    numbers = (number(details.get(name)) for name in names)
    return next((value for value in numbers if value is not None), None)


def _field(value: dict[str, Any], name: str) -> Any:
    """Return a field that rollouts name in snake case and the app-server in camel case."""
    head, *rest = name.split("_")
    return value.get(name, value.get(head + "".join(word.capitalize() for word in rest)))
