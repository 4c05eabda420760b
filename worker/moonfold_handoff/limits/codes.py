"""What the codes and statuses of providers and agents mean.

Codes are compared in snake case: `usageLimitExceeded` and `usage_limit_exceeded` are one. A code that
is *open* is used for several classes, and the sentence or the headers beside it tell which.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from moonfold_schemas.events import LimitKind

_QUOTA, _CREDITS, _THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
_CONTEXT, _AUTHENTICATION = LimitKind.CONTEXT, LimitKind.AUTHENTICATION


class Meaning(NamedTuple):
    """The class that a code stands for, and whether a sentence can say otherwise."""

    kind: LimitKind
    is_open: bool = False


_MEANINGS = {
    # A used-up window, or the credits beyond it.
    "rate_limit": Meaning(_QUOTA, is_open=True),  # Claude Code, when it has given up
    "usage_limit_reached": Meaning(_QUOTA, is_open=True),
    "usage_limit_exceeded": Meaning(_QUOTA, is_open=True),
    "free_usage_limit_error": Meaning(_QUOTA),
    "go_usage_limit_error": Meaning(_QUOTA),
    "black_usage_limit_error": Meaning(_QUOTA),  # OpenCode's gateway, as the next three
    "resource_exhausted": Meaning(_QUOTA, is_open=True),  # Connect, as Cursor ends a session
    # Credits, billing, or a plan that does not include it.
    "billing_error": Meaning(_CREDITS),
    "billing_hard_limit_reached": Meaning(_CREDITS),
    "credits_error": Meaning(_CREDITS),
    "monthly_limit_error": Meaning(_CREDITS),
    "user_limit_error": Meaning(_CREDITS),
    "credits_required": Meaning(_CREDITS),
    "insufficient_quota": Meaning(_CREDITS, is_open=True),
    "usage_not_included": Meaning(_CREDITS),
    # A throttle or overload.
    "overloaded": Meaning(_THROTTLE),
    "overloaded_error": Meaning(_THROTTLE),
    "rate_limit_error": Meaning(_THROTTLE, is_open=True),  # Anthropic's API, whatever the limit
    "rate_limit_exceeded": Meaning(_THROTTLE, is_open=True),
    "server_is_overloaded": Meaning(_THROTTLE),
    "server_overloaded": Meaning(_THROTTLE),
    "slow_down": Meaning(_THROTTLE),
    "unavailable": Meaning(_THROTTLE),
    # A context that is full. Claude Code blocks a request that it knows to be too long.
    "blocking_limit": Meaning(_CONTEXT),
    "context_length_exceeded": Meaning(_CONTEXT),
    "context_overflow_error": Meaning(_CONTEXT),
    "context_window_exceeded": Meaning(_CONTEXT),
    "prompt_too_long": Meaning(_CONTEXT),
    # An account that has to be seen to.
    "account_on_hold": Meaning(_AUTHENTICATION),
    "auth_error": Meaning(_AUTHENTICATION),
    "authentication_error": Meaning(_AUTHENTICATION),
    "authentication_failed": Meaning(_AUTHENTICATION),
    "cloud_credential_error": Meaning(_AUTHENTICATION),
    "invalid_api_key": Meaning(_AUTHENTICATION),
    "oauth_org_not_allowed": Meaning(_AUTHENTICATION),
    "provider_auth_error": Meaning(_AUTHENTICATION),
    "unauthenticated": Meaning(_AUTHENTICATION),
    "unauthorized": Meaning(_AUTHENTICATION),
    "verification_required": Meaning(_AUTHENTICATION),
}
_STATUSES = {
    401: _AUTHENTICATION,
    402: _CREDITS,
    403: _AUTHENTICATION,
    429: _THROTTLE,
    503: _THROTTLE,
    529: _THROTTLE,
}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CODE_LENGTH = 100


def meaning(code: Any) -> Meaning | None:
    """Return what a code means, or None where it is no limit's or no code at all."""
    if not isinstance(code, str):
        return None
    # Alibaba and Amazon name each of their throttles, as in `Throttling.RateQuota`.
    is_throttling = code.startswith("Throttling")
    return Meaning(_THROTTLE) if is_throttling else _MEANINGS.get(snake_case(code))


def status_kind(status: int | None) -> LimitKind | None:
    """Return the class of an HTTP status that comes with nothing more precise."""
    return None if status is None else _STATUSES.get(status)


def snake_case(code: str) -> str:
    """Return a code such as `usageLimitExceeded` in snake case."""
    return _HUMP.sub("_", code[:_CODE_LENGTH]).lower()
