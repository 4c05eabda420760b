"""Every session there is: its limits are found, with class and reset, and no other is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from moonfold_handoff.transcripts import TranscriptError, read_transcript, sessions_in
from moonfold_schemas.events import Limit, LimitKind, TurnEnded, TurnStatus

ROOT = Path(__file__).resolve().parents[3]
OWN = (ROOT / "tests/fixtures", ROOT / "worker/moonfold_handoff/demo")
PUBLIC = ROOT.parent / "shared/fixtures/transcripts"

LIMITS = {
    "recorded-2.1-rate-limit": (LimitKind.QUOTA, None),
    "recorded-2.1-slugger-limit": (LimitKind.QUOTA, "2026-11-30T21:50:00Z"),
    "synthetic-limit-hit": (LimitKind.QUOTA, "2026-11-30T18:06:40Z"),
    "recorded-0.171-usage-limit": (LimitKind.QUOTA, "2026-11-30T17:33:00Z"),
    "rollout-0.171-usage-limit": (LimitKind.QUOTA, "2026-11-30T17:11:00Z"),
    "recorded-0.61-daily-quota": (LimitKind.QUOTA, None),
}
"""The sessions that reach a limit; each does once, at its end."""

NO_SESSIONS = {"corrupt", "recorded-1.18.33"}
"""Files that are none: broken, or what OpenCode wrote to its database in the order it did."""


def sessions(*roots: Path) -> list[Path]:
    return [path for root in roots for path in sorted(root.rglob("*.json*"))]


@pytest.mark.parametrize("path", sessions(*OWN), ids=lambda path: path.stem)
def test_a_session_has_the_limits_that_it_has(path: Path) -> None:
    check(path)


def test_every_session_with_a_limit_is_there() -> None:
    assert {path.stem for path in sessions(*OWN)} >= set(LIMITS)


def test_public_sessions_have_the_limits_that_they_have() -> None:
    if not PUBLIC.exists():
        pytest.skip("the public sessions are not beside this repository")
    paths = sessions(PUBLIC)
    assert len(paths) > 15
    for path in paths:
        check(path)


def check(path: Path) -> None:
    if path.stem in NO_SESSIONS:
        with pytest.raises(TranscriptError):
            sessions_in(path)
        return
    transcript = read_transcript(path, zone=UTC)
    ends = [event for event in transcript.events if isinstance(event, TurnEnded)]
    found = [(end.status, end.limit) for end in ends if end.limit is not None]
    if path.stem not in LIMITS:
        assert (found, transcript.limit) == ([], None)
        return
    kind, resets_at = LIMITS[path.stem]
    [(status, limit)] = found
    assert status is TurnStatus.LIMITED
    assert transcript.limit == limit
    assert isinstance(limit, Limit)
    at = None if resets_at is None else datetime.fromisoformat(resets_at)
    assert (limit.kind, limit.resets_at) == (kind, at)
