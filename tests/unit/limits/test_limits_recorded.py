from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moonfold_handoff.limits import Evidence, quota, recognise
from moonfold_schemas.events import LimitKind

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests/fixtures"
DEMO = ROOT / "worker/moonfold_handoff/demo/recorded-2.1-slugger-limit.jsonl"
PROVIDERS = ("claude-code", "codex", "gemini-cli", "opencode", "cursor", "another")


def evidence(path: Path) -> list[Evidence]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    times = [record.get("timestamp") for record in records]
    return [
        Evidence(record, now=datetime.fromisoformat(time) if time else None, zone=UTC)
        for record, time in zip(records, times, strict=True)
    ]


@pytest.mark.parametrize(
    ("path", "provider", "resets_at"),
    [
        (FIXTURES / "claude-code/recorded-2.1-rate-limit.jsonl", "claude-code", None),
        (
            FIXTURES / "claude-code/synthetic-limit-hit.jsonl",
            "claude-code",
            "2026-11-30T18:06:40Z",
        ),
        (DEMO, "claude-code", "2026-11-30T21:50:00Z"),
        (
            FIXTURES / "codex/recorded-0.171-usage-limit.jsonl",
            "codex",
            "2026-11-30T17:33:00Z",
        ),
        (FIXTURES / "codex/rollout-0.171-usage-limit.jsonl", "codex", "2026-11-30T17:11:00Z"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_a_recorded_session_has_one_limit_and_no_false_alarm(
    path: Path, provider: str, resets_at: str | None
) -> None:
    records = evidence(path)
    found = [limit for record in records if (limit := recognise(provider, record)) is not None]
    at = datetime.fromisoformat(resets_at) if resets_at else None
    assert [(limit.kind, limit.resets_at) for limit in found] == [(LimitKind.QUOTA, at)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_recorded_session_without_a_limit_has_none(provider: str) -> None:
    records = evidence(FIXTURES / "codex/rollout-0.171-patch-interrupt.jsonl")
    assert len(records) > 10
    assert [recognise(provider, record) for record in records] == [None] * len(records)


def test_a_recorded_session_has_its_telemetry() -> None:
    records = evidence(FIXTURES / "codex/rollout-0.171-patch-interrupt.jsonl")
    found = [known for record in records if (known := quota("codex", record)) is not None]
    assert [(w.name, w.used_percent, w.minutes) for w in found[-1].windows] == [
        ("primary", 42.0, 300),
        ("secondary", 7.0, 10_080),
    ]


HUGE = [10**400, -(10**400), float("inf"), float("nan"), True, "9" * 400]


@pytest.mark.parametrize("value", HUGE, ids=["huge", "negative", "inf", "nan", "bool", "digits"])
def test_a_number_that_is_none_gives_no_time(value: object) -> None:
    info = {"status": "rejected", "resetsAt": value, "utilization": value}
    for provider, body in (
        ("claude-code", {"type": "rate_limit_event", "rate_limit_info": info}),
        ("codex", {"error": {"type": "usage_limit_reached", "resets_at": value}}),
        ("codex", {"error": {"type": "usage_limit_reached", "resets_in_seconds": value}}),
    ):
        limit = recognise(provider, Evidence(body, now=datetime(2026, 11, 30, tzinfo=UTC)))
        assert limit is not None
        assert (limit.kind, limit.resets_at) == (LimitKind.QUOTA, None)
