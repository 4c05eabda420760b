"""The sentences that say a limit is reached, each anchored at its start, and the times in them.

Only called for a sentence that a provider or its agent marked as an error. The anchor keeps a quotation
of such a sentence, and a program's output that contains one, from being taken for it.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from moonfold_handoff.limits.clocks import (
    CLOCK,
    SPAN,
    clock_time,
    duration,
    from_epoch,
    instant,
    midnight,
)
from moonfold_schemas.events import LimitKind

# What is longer than this is no sentence but a page, or a trace; its start says what it is.
_READ = 4_000  # characters

# What agents and client libraries put in front of a provider's sentence.
_PREFIX = re.compile(
    r"(?:\s+|\[?(?:API|Internal) error:|Error:|(?:API|Connect|FreeUsageLimit|GoUsageLimit)Error:"
    r"|Request rejected \(\d{3}\)\s*[·∙]|unexpected status \d{3}[\w ]{0,40}:"
    r"|got status: [A-Z_]{1,40}\.|[45]\d\d(?=\s+[A-Z{]))*",
    re.IGNORECASE,
)
_STATUS = re.compile(
    r"\[?(?:API error:\s*(?:Request rejected \()?|Request rejected \("
    r"|unexpected status |exceeded retry limit, last status: )([45]\d\d)\b",
    re.IGNORECASE,
)

# A limit's name ends the clause: "your usage limit." or "your usage limit for …", not "… limit errors".
_END = r"(?=\s*(?:$|[.…,;:|·∙(\[\n]|(?:for|on|until|and)\b))"
_YOU_HAVE = r"You(?:['\u2019]ve| have)"
_YOU_ARE = r"You(?:['\u2019]re| are)"
_PERIOD = r"(?:\d+[- ]hour|hourly|daily|weekly|monthly|session|opus|sonnet)"

_THROTTLED = (
    r"Server is temporarily limiting requests\b",
    r"(?:Provider is )?Overloaded\W*$",
    r"exceeded retry limit, last status: (?:429|503|529)\b",
    r"Selected model is at capacity\b",
    r"No capacity available for model\b",
    r"Rate limit reached(?: for\b|\W*$)",
    r"(?:Too Many Requests|Rate Limited)\W*$",
    r"Resource (?:has been )?exhausted(?: \(e\.g\. check quota\))?\W*$",
    r"The model is overloaded\b",
)
_OUT_OF_CREDITS = (
    rf"(?:Your workspace is|{_YOU_ARE}) out of (?:usage )?credits\b",
    r"Usage credits are required\b",
    r"Your prepayment credits are depleted\b",
    r"(?:Your )?credit balance is too low\b",
    r"Quota exceeded\. Check your plan",
    r"To use Codex with your ChatGPT plan\b",
    r"You(?:['\u2019]ve| have)? (?:hit|reached) (?:your|the) (?:[\w-]+ ){0,3}spend (?:cap|limit)\b",
)
_USED_UP = (
    rf"Claude (?:AI )?usage limit reached{_END}",
    rf"(?:\w+ ){{0,2}}{_PERIOD} (?:usage )?limit reached{_END}",
    rf"{_YOU_HAVE} (?:hit|reached) your (?:[\w.'\u2019-]+ ){{0,5}}limit{_END}",
    rf"{_YOU_ARE} out of extra usage{_END}",
    r"The usage limit has been reached\b",
    r"You have exhausted your (?:daily quota|capacity) on this model\b",
    rf"{_YOU_HAVE} exceeded (?:the|your) (?:[\w-]+ ){{0,3}}usage quota\b",
    rf"Free usage exceeded{_END}",
    r"\[resource_exhausted\]",
)
_CONTEXT_FULL = (
    r"Prompt is too long\b",
    r"Codex ran out of room in the model['\u2019]s context window\b",
    r"Context limit reached\b",
    r"This model['\u2019]s maximum context length is\b",
    r"Your input exceeds the context window\b",
    r"The input token count (?:\(\d+\) )?exceeds the maximum\b",
)
_NOT_LOGGED_IN = (
    r"Please run /login\b",
    r"Invalid API key\b",
    r"API key (?:not valid|expired)\b",
    r"Incorrect API key provided\b",
    r"Your access token could not be refreshed\b",
    r"exceeded retry limit, last status: 401\b",
)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_SENTENCES = (
    (_any_of(_THROTTLED), LimitKind.THROTTLE),
    (_any_of(_OUT_OF_CREDITS), LimitKind.CREDITS),
    (_any_of(_USED_UP), LimitKind.QUOTA),
    (_any_of(_CONTEXT_FULL), LimitKind.CONTEXT),
    (_any_of(_NOT_LOGGED_IN), LimitKind.AUTHENTICATION),
)
# The same words for a used-up credit, a used-up day and a short throttle; what follows tells them apart.
_CURRENT_QUOTA = re.compile(
    r"You exceeded your current quota\b|Quota exceeded for (?:quota )?metric\b", re.IGNORECASE
)
_TOKENS_A_MINUTE = "error-code#token-limit"  # where DashScope's sentence points for its throttle
_DAY = re.compile(r"\blimit: 0(?![\d]|\.\d)|PerDay|\bper day\b|daily quota")
# Goes on with credits, or with what one pays beyond a plan: without a clock, that is what is missing.
_BEYOND = re.compile(r"/usage-credits\b|\bout of extra usage\b|\bspendLimitHit: true\b")

_EPOCH = re.compile(r"limit reached\|(\d{9,13})\b")
_DATE_TIME = re.compile(
    r"\bresets? (?:at|on) (\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?"
    r"\s*(Z\b|UTC\b|[+-]\d\d:?\d\d\b)?",
    re.IGNORECASE,
)
_US_DATE = re.compile(r"\b(?:resets?|ends) on (\d{1,2})/(\d{1,2})/(\d{4})\b", re.IGNORECASE)
_CLOCK = re.compile(r"(?i:\bresets?\s+(?:(?:at|on)\s+)?|\btry again at )" + CLOCK)
_SPAN = re.compile(
    rf"\b(?:try again|retry(?:ing)?|resets?)\s+(?:in|after)\s+~?({SPAN})", re.IGNORECASE
)


def bare(text: str) -> str:
    """Return a sentence without what an agent or a client library put in front of it."""
    start = _PREFIX.match(text)
    return text[start.end() :] if start else text


def classify(text: str) -> LimitKind | None:
    """Return what class of limit a sentence tells of, or None for any other sentence."""
    text = bare(text[:_READ])
    if _CURRENT_QUOTA.match(text):
        return _of_current_quota(text)
    kind = next((kind for pattern, kind in _SENTENCES if pattern.match(text)), None)
    if kind is LimitKind.QUOTA and _BEYOND.search(text) and not _has_clock(text):
        return LimitKind.CREDITS
    return kind


def status_in(text: str) -> int | None:
    """Return the HTTP status that an agent put in front of a sentence."""
    found = _STATUS.match(text.lstrip())
    return int(found[1]) if found else None


def reset_time(text: str, now: datetime | None, zone: tzinfo | None) -> datetime | None:
    """Return, in UTC, at which time a sentence says that the window opens again.

    Args:
        text: The sentence.
        now: When it was written; without it a time of day has no date.
        zone: Zone of a sentence that names none; None is the machine's.
    """
    text = text[:_READ]
    if epoch := _EPOCH.search(text):
        return from_epoch(int(epoch[1]))
    if stamp := _DATE_TIME.search(text):
        date, time, offset = stamp.groups("")
        return instant(f"{date}T{time}{offset.upper().replace('UTC', 'Z')}", zone)
    if date_only := _US_DATE.search(text):
        month, day, year = map(int, date_only.groups())
        return midnight(year, month, day, zone)
    return clock_time(_CLOCK.search(text), now, zone)


def delay(text: str) -> float | None:
    """Return the seconds that a sentence says to wait, such as "try again in 1.5s"."""
    found = _SPAN.search(text[:_READ])
    return duration(found[1]) if found else None


def is_daily(text: str) -> bool:
    """Return whether a sentence is about a day's quota, or about one of nothing.

    Gemini's API names a short delay beside it, which is a minute's and not the day's.
    """
    return _DAY.search(text[:_READ]) is not None


def _of_current_quota(text: str) -> LimitKind:
    if _TOKENS_A_MINUTE in text:
        return LimitKind.THROTTLE
    if _DAY.search(text):
        return LimitKind.QUOTA
    is_metered = delay(text) is not None or not text.lower().startswith("you exceeded")
    return LimitKind.THROTTLE if is_metered else LimitKind.CREDITS


def _has_clock(text: str) -> bool:
    patterns = (_EPOCH, _DATE_TIME, _US_DATE, _CLOCK, _SPAN)
    return any(pattern.search(text) for pattern in patterns)
