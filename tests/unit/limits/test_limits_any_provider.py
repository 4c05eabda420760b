from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moonfold_handoff.limits import Evidence, recognise
from moonfold_schemas.events import Limit, LimitKind

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

QUOTA, CREDITS, THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
AUTHENTICATION = LimitKind.AUTHENTICATION


def told(body: Any, provider: str, **fields: Any) -> Limit | None:
    return recognise(provider, Evidence(body=body, now=NOW, zone=UTC, **fields))


def of(body: Any, provider: str, **fields: Any) -> tuple[LimitKind, datetime | None, float | None]:
    limit = told(body, provider, **fields)
    assert limit is not None
    return limit.kind, limit.resets_at, limit.retry_after


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {
                "type": "result",
                "is_error": True,
                "result": "Error: You've hit your usage limit. Your usage limits will reset when "
                "your monthly cycle ends on 12/17/2026",
            },
            (QUOTA, datetime(2026, 12, 17, tzinfo=UTC), None),
        ),
        ({"code": "resource_exhausted", "message": "Error"}, (QUOTA, None, None)),
        ({"error": {"code": "resource_exhausted", "message": "Error"}}, (QUOTA, None, None)),
        ({"code": "unauthenticated", "message": "Error"}, (AUTHENTICATION, None, None)),
    ],
)
def test_cursor_s_errors_have_their_class(body: Any, expected: Any) -> None:
    assert of(body, "cursor") == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AUTHENTICATION),
        (402, CREDITS),
        (403, AUTHENTICATION),
        (429, THROTTLE),
        (503, THROTTLE),
        (529, THROTTLE),
    ],
)
def test_a_status_alone_has_its_class_for_any_provider(status: int, kind: LimitKind) -> None:
    for provider in ("another", "claude-code", "codex", "gemini-cli", "opencode", "cursor"):
        assert of(None, provider, status=status) == (kind, None, None)
        assert of("<html>", provider, status=status) == (kind, None, None)


@pytest.mark.parametrize("status", [None, 200, 304, 400, 404, 500])
def test_other_statuses_are_no_limit(status: int | None) -> None:
    assert told({"choices": []}, "another", status=status, headers={"retry-after": "9"}) is None
