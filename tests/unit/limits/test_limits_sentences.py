from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from moonfold_handoff.limits import Evidence, recognise, sentences
from moonfold_schemas.events import LimitKind

NOW = datetime(2026, 10, 9, 12, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
PROVIDERS = ("claude-code", "codex", "gemini-cli", "opencode", "cursor", "another")

QUOTA, CREDITS, THROTTLE = LimitKind.QUOTA, LimitKind.CREDITS, LimitKind.THROTTLE
CONTEXT, AUTHENTICATION = LimitKind.CONTEXT, LimitKind.AUTHENTICATION

VOLCENGINE = (
    "429 You have exceeded the 5-hour usage quota. It will reset at 2026-10-10 16:11:46 +0800 CST."
)
CURSOR = (
    "Error: You've hit your usage limit. spendLimitHit: false chatMessage: Get more. "
    "Your usage limits will reset when your monthly cycle ends on 11/17/2026"
)
LIMITS = [
    ("Claude AI usage limit reached|1760000400", QUOTA, "2025-10-09T09:00:00Z"),
    (
        "Claude usage limit reached. Your limit will reset at 5pm (Europe/Warsaw).",
        QUOTA,
        "2026-10-09T15:00:00Z",
    ),
    ("You've hit your limit · resets 6pm (America/Toronto)", QUOTA, "2026-10-09T22:00:00Z"),
    (
        "You've hit your session limit · resets 9:50pm (Asia/Saigon)",
        QUOTA,
        "2026-10-09T14:50:00Z",
    ),
    (
        "You've hit your weekly limit · resets Oct 12, 8am (Europe/Paris)",
        QUOTA,
        "2026-10-12T06:00:00Z",
    ),
    (
        "You're out of extra usage · resets 1pm (America/Los_Angeles)",
        QUOTA,
        "2026-10-09T20:00:00Z",
    ),
    (
        "You\u2019ve hit your usage limit. Upgrade to Pro or try again at 5:11 PM.",
        QUOTA,
        "2026-10-09T21:11:00Z",
    ),
    ("Your workspace is out of credits. Add credits to continue.", CREDITS, None),
    ("You have exhausted your daily quota on this model.", QUOTA, None),
    (
        "You have exhausted your capacity on this model. Your quota will reset after 142h40m7s.",
        QUOTA,
        "2026-10-15T10:40:07Z",
    ),
    ("Free usage exceeded, subscribe to Go", QUOTA, None),
    (
        "API Error: Server is temporarily limiting requests (not your usage limit)",
        THROTTLE,
        None,
    ),
    ("Selected model is at capacity. Please try a different model.", THROTTLE, None),
    ("exceeded retry limit, last status: 429 Too Many Requests", THROTTLE, None),
    # The same sentences in other words of their time, and those of other providers.
    ("5-hour limit reached ∙ resets 3am", QUOTA, "2026-10-10T07:00:00Z"),
    ("You\u2019ve hit your Opus limit · resets 3am (UTC)", QUOTA, "2026-10-10T03:00:00Z"),
    ("You've reached your Fable 5 limit. Run /usage-credits to go on.", CREDITS, None),
    ("You're out of extra usage", CREDITS, None),
    ("Usage credits are required for this model.", CREDITS, None),
    (
        "Internal error: You've hit your session limit · resets 3:30am (America/Sao_Paulo)",
        QUOTA,
        "2026-10-10T06:30:00Z",
    ),
    (
        "API Error: Request rejected (429) · You've hit your session limit · resets 9:50pm (UTC)",
        QUOTA,
        "2026-10-09T21:50:00Z",
    ),
    (
        "You've hit your usage limit. Try again in 5 days 22 hours 11 minutes.",
        QUOTA,
        "2026-10-15T10:11:00Z",
    ),
    ("You've hit your usage limit. Try again at 5:11 PM.", QUOTA, "2026-10-09T21:11:00Z"),
    (
        "You've hit your usage limit. To get more access now, try again at Nov 30th, 2026 5:11 PM.",
        QUOTA,
        "2026-11-30T22:11:00Z",
    ),
    ("You've hit your usage limit for GPT-5. Switch to another model now,", QUOTA, None),
    ("You hit your spend cap. Ask an owner to raise it.", CREDITS, None),
    (
        "You have hit your ChatGPT usage limit (plus plan). Try again in ~4293 min.",
        QUOTA,
        "2026-10-12T11:33:00Z",
    ),
    (
        "You exceeded your current quota, please check your plan and billing details.",
        CREDITS,
        None,
    ),
    ("Codex ran out of room in the model's context window. Start a new thread.", CONTEXT, None),
    ("Prompt is too long", CONTEXT, None),
    ("Please run /login · API Error: 401", AUTHENTICATION, None),
    ("API Error: 529 Overloaded", THROTTLE, None),
    ("API Error: 429", THROTTLE, None),
    ("unexpected status 401 Unauthorized: no token", AUTHENTICATION, None),
    (
        "Free usage exceeded, subscribe to Go [retrying in 5h 32m attempt #1]",
        QUOTA,
        "2026-10-09T17:32:00Z",
    ),
    ("Weekly usage limit reached. Resets in 19hr", QUOTA, "2026-10-10T07:00:00Z"),
    (
        VOLCENGINE,
        QUOTA,
        "2026-10-10T08:11:46Z",
    ),
    ("You have reached your subscription quota limit, see your plan.", QUOTA, None),
    (
        CURSOR,
        QUOTA,
        "2026-11-17T05:00:00Z",
    ),
    ("You've hit your usage limit. spendLimitHit: true", CREDITS, None),
    ("ConnectError: [resource_exhausted] Error", QUOTA, None),
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("sentence", "kind", "resets_at"), LIMITS)
def test_a_sentence_has_its_class_and_its_reset(
    provider: str, sentence: str, kind: LimitKind, resets_at: str | None
) -> None:
    limit = recognise(provider, Evidence(text=sentence, now=NOW, zone=NEW_YORK))
    assert limit is not None
    assert (limit.kind, limit.message) == (kind, sentence)
    assert limit.resets_at == (datetime.fromisoformat(resets_at) if resets_at else None)
    assert limit.retry_after is None


HARMLESS = [
    "def rate_limit(self): pass",
    "src/http.py:429: return x",
    "tests passed: retry logic for too many requests",
    "429 tests passed",
    "529: the line that was missing",
    "You've hit your limit errors are retried now",
    "The quota is at its limit of 100 requests",
    "We have exhausted our capacity for new features.",
    "limit: 0",
    "resets 9:50pm (Asia/Saigon)",
    "API Error: 500 Internal server error",
    "stream closed: usage limit of the proxy",
    "",
]
WRAPPED = [
    "grep: log.txt: {}",
    "> {} is what the log says",
    "The agent saw '{}' in the log and went on.",
    'log.warning("{}")',
    "src/limits.py:12:{}",
    "AssertionError: {}",
    "- {}",
    "I've read it: {}",
    "Done. {}",
    "```\n{}\n```",
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("sentence", HARMLESS)
def test_a_harmless_sentence_is_no_limit(provider: str, sentence: str) -> None:
    assert recognise(provider, Evidence(text=sentence, now=NOW, zone=UTC)) is None


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("sentence", [sentence for sentence, _, _ in LIMITS])
def test_a_sentence_within_prose_or_output_is_no_limit(sentence: str, wrapped: str) -> None:
    evidence = Evidence(text=wrapped.format(sentence), now=NOW, zone=UTC)
    assert [recognise(provider, evidence) for provider in PROVIDERS] == [None] * len(PROVIDERS)


def prose(text: str) -> list[tuple[str, Any]]:
    """Return records in which `text` is the agent's prose or a command's output."""
    part = {"type": "text", "text": text}
    result = {"type": "tool_result", "tool_use_id": "t", "content": text, "is_error": True}
    output = {"type": "function_call_output", "call_id": "c", "output": text}
    done = {"type": "command_execution", "aggregated_output": text, "error": {"message": text}}
    return [
        ("claude-code", {"type": "assistant", "message": {"content": [part]}}),
        ("claude-code", {"type": "user", "message": {"content": [result]}}),
        ("claude-code", {"type": "user", "toolUseResult": f"Error: {text}"}),
        ("claude-code", {"type": "result", "is_error": False, "result": text}),
        (
            "claude-code",
            {
                "type": "assistant",
                "isApiErrorMessage": False,
                "quotaLimits": {"status": "rejected"},
                "message": {"content": text},
            },
        ),
        ("codex", {"type": "response_item", "payload": output}),
        ("codex", {"type": "event_msg", "payload": {"type": "agent_message", "message": text}}),
        ("codex", {"type": "event_msg", "payload": {"type": "stream_error", "message": text}}),
        ("codex", {"type": "event_msg", "payload": {"type": "warning", "message": text}}),
        ("codex", {"type": "event_msg", "payload": {"type": "task_complete", "error": None}}),
        ("codex", {"type": "item.completed", "item": done}),
        ("codex", {"method": "item/completed", "params": {"item": done}}),
        ("codex", {"method": "item/completed", "params": {"error": {"message": text}}}),
        ("gemini-cli", {"type": "gemini", "content": text}),
        ("gemini-cli", {"type": "user", "content": [{"text": text}]}),
        ("gemini-cli", {"type": "gemini", "toolCalls": [{"error": {"message": text}}]}),
        ("opencode", {"type": "text", "text": text}),
        ("opencode", {"type": "tool", "state": {"status": "error", "error": text}}),
        ("opencode", {"info": {"role": "assistant"}, "parts": [part]}),
        ("cursor", {"type": "assistant", "message": {"content": [part]}}),
        ("cursor", {"type": "result", "is_error": False, "result": text}),
        ("another", {"choices": [{"message": {"content": text}}]}),
    ]


@pytest.mark.parametrize("sentence", [sentence for sentence, _, _ in LIMITS])
def test_a_sentence_in_an_ordinary_record_is_no_limit(sentence: str) -> None:
    for provider, body in prose(sentence):
        assert recognise(provider, Evidence(body=body, now=NOW, zone=UTC)) is None


@pytest.mark.parametrize(
    ("sentence", "zone", "expected"),
    [
        ("resets Oct 12 at 8am (UTC)", UTC, "2026-10-12T08:00:00Z"),
        ("resets Oct 12, 2027, 8:15am (UTC)", UTC, "2027-10-12T08:15:00Z"),
        ("resets at 12am (GMT)", UTC, "2026-10-10T00:00:00Z"),
        ("resets 12PM", UTC, "2026-10-09T12:00:00Z"),
        ("It will reset at 2026-07-30 16:11:46 +0800 CST.", UTC, "2026-07-30T08:11:46Z"),
        ("It will reset at 2026-07-30 16:11:46 UTC.", NEW_YORK, "2026-07-30T16:11:46Z"),
        ("It will reset at 2026-07-30T16:11Z.", NEW_YORK, "2026-07-30T16:11:00Z"),
        ("It will reset at 2026-07-30 16:11:46.", NEW_YORK, "2026-07-30T20:11:46Z"),
        ("It will reset at 2026-02-30 16:11:46 +0800.", UTC, None),
        ("It will reset at 2026-07-30 16:11:46 +9900.", UTC, None),
        ("your monthly cycle ends on 11/17/2025", UTC, "2025-11-17T00:00:00Z"),
        ("your monthly cycle ends on 13/17/2025", UTC, None),
        ("your monthly cycle ends on 2/30/2025", UTC, None),
        ("limit reached|1760000400000", UTC, "2025-10-09T09:00:00Z"),
        ("limit reached|0000000000", UTC, None),
        ("resets 3am (Nowhere/Land)", UTC, None),
        ("resets 3am (America)", UTC, None),
        ("resets 3am (../../etc/passwd)", UTC, None),
        ("resets 3am (\x00)", UTC, None),
        ("resets Feb 31, 8am (UTC)", UTC, None),
        ("resets Foo 3, 8am (UTC)", UTC, None),
        ("resets Oct 12, 0000, 8am (UTC)", UTC, None),
        ("resets 13pm (UTC)", UTC, None),
        ("resets 0am (UTC)", UTC, None),
        ("resets 3:75am (UTC)", UTC, None),
        ("resets soon", UTC, None),
    ],
)
def test_a_time_is_read_as_it_is_meant_or_not_at_all(
    sentence: str, zone: Any, expected: str | None
) -> None:
    at = datetime.fromisoformat(expected) if expected else None
    assert sentences.reset_time(sentence, NOW, zone) == at


@pytest.mark.parametrize(
    ("sentence", "seconds"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("Please retry in 34.074824224s.", 34.074824224),
        ("Please retry in 900ms.", 0.9),
        ("Your quota will reset after 142h40m7s.", 513_607.0),
        ("Resets in 1h54m13s.", 6_853.0),
        ("Try again in 1 week, 2 days and 3 hours.", 788_400.0),
        ("Try again in ~4293 min.", 257_580.0),
        ("[retrying in 5h 32m attempt #1]", 19_920.0),
        ("Try again in 5 days 3 moons.", None),
        ("Try again in a while.", None),
        ("Try again in 99999999999999999999 s.", None),
    ],
)
def test_a_delay_is_read_with_its_units_or_not_at_all(sentence: str, seconds: float | None) -> None:
    found = sentences.delay(sentence)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "sentence", ["You've hit your limit · resets 3am (UTC)", "You've hit your limit"]
)
def test_a_clock_without_a_date_gives_no_reset(sentence: str) -> None:
    limit = recognise("claude-code", Evidence(text=sentence, zone=UTC))
    assert limit is not None
    assert (limit.kind, limit.resets_at) == (QUOTA, None)


def test_a_delay_without_a_date_is_kept_as_a_delay() -> None:
    limit = recognise("codex", Evidence(text="You've hit your usage limit. Try again in 2 hours."))
    assert limit is not None
    assert (limit.kind, limit.resets_at, limit.retry_after) == (QUOTA, None, 7_200.0)


@pytest.mark.parametrize(
    ("wait", "kind"),
    [("4m59s", THROTTLE), ("5m0s", THROTTLE), ("5m1s", QUOTA), ("2h", QUOTA)],
)
def test_a_long_delay_is_a_window_and_a_short_one_a_throttle(wait: str, kind: LimitKind) -> None:
    text = f"Rate limit reached for gpt-5. Please try again in {wait}."
    limit = recognise("codex", Evidence(text=text, now=NOW))
    assert limit is not None
    assert limit.kind is kind
    assert (limit.resets_at is None) == (kind is THROTTLE)
    assert (limit.retry_after is None) == (kind is QUOTA)


def test_a_long_text_is_read_at_its_start_only() -> None:
    text = "You've hit your limit." + " x" * 1_000_000 + " resets 3am (UTC)"
    limit = recognise("claude-code", Evidence(text=text, now=NOW))
    assert limit is not None
    assert limit.resets_at is None
    assert len(limit.message or "") < 10_000
