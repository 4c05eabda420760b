"""Settings: every `MOONFOLD_*` variable, its default, and where each value came from.

A value that cannot be read is a warning and the default, never a stop: a worker that serves with the
default serves better than one that does not start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moonfold_handoff.context.budget import DEFAULT_CAP, MAX_CAP, MIN_CAP, clamp_cap
from moonfold_schemas.results import Figure, Origin

DAY = 24 * 3600  # seconds
CENTURY = 36_525 * DAY  # the server's clock has an end
MEBIBYTE = 1024 * 1024  # bytes

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": DAY}


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable: how it is called, read and explained."""

    variable: str
    default: Any
    read: Callable[[str], Any]
    help: str
    secret: bool = False


def seconds(text: str) -> int:
    """Return the seconds of a duration such as `3600`, `12h` or `30d`.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    match = re.fullmatch(r"([0-9]{1,12})\s*([smhd]?)", text.strip().lower())
    count = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < count <= CENTURY:
        raise ValueError("a duration such as 3600, 12h or 30d")
    return count


def _count(text: str) -> int:
    digits = text.strip().replace("_", "").replace(",", "")
    if not re.fullmatch(r"[0-9]{1,18}", digits) or int(digits) == 0:
        raise ValueError("a positive whole number")
    return int(digits)


def _cap(text: str) -> int:
    digits = text.strip().replace("_", "").replace(",", "")
    if not re.fullmatch(r"-?[0-9]{1,18}", digits):
        raise ValueError("a whole number of tokens")
    return clamp_cap(int(digits))


def _percent(text: str) -> int:
    digits = text.strip().removesuffix("%").rstrip()
    if not re.fullmatch(r"[0-9]{1,3}", digits) or not 0 < int(digits) <= 100:
        raise ValueError("a whole number of percent, 1-100")
    return int(digits)


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text.strip().lower()

    return read


SETTINGS = {
    "redis_url": Setting(
        "MOONFOLD_REDIS_URL",
        None,
        str.strip,
        "Redis or Valkey server (redis://, rediss://, unix://), or redis+sentinel://HOST,HOST/SERVICE; "
        "unset: the embedded server",
        secret=True,
    ),
    "threads_url": Setting(
        "MOONFOLD_THREADS_URL",
        None,
        str.strip,
        "server of thread logs and states, where it is another one; may be redis+cluster://HOST,HOST",
        secret=True,
    ),
    "token_cap": Setting(
        "MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP",
        DEFAULT_CAP,
        _cap,
        f"upper bound of a handoff in tokens, clamped to {MIN_CAP:,}-{MAX_CAP:,}",
    ),
    "thread_ttl": Setting(
        "MOONFOLD_THREAD_TTL", 30 * DAY, seconds, "lifetime of a thread after its last append"
    ),
    "result_ttl": Setting("MOONFOLD_RESULT_TTL", DAY, seconds, "lifetime of a result"),
    "max_event_bytes": Setting(
        "MOONFOLD_MAX_EVENT_BYTES", 8 * MEBIBYTE, _count, "largest event accepted, in bytes"
    ),
    "model_windows": Setting(
        "MOONFOLD_MODEL_WINDOWS",
        None,
        Path,
        "file of context windows that come before the built-in ones (the form of windows.toml)",
    ),
    "failover_policy": Setting(
        "MOONFOLD_FAILOVER_POLICY",
        None,
        Path,
        "file of candidates for threads whose provider is used up (TOML)",
    ),
    "failovers_per_hour": Setting(
        "MOONFOLD_FAILOVERS_PER_HOUR",
        6,
        _count,
        "most failovers of one thread within an hour; the policy file precedes it",
    ),
    "limit_near_percent": Setting(
        "MOONFOLD_LIMIT_NEAR_PERCENT",
        90,
        _percent,
        "share of a quota, in percent, from which on a handoff is prepared",
    ),
    "log_format": Setting(
        "MOONFOLD_LOG_FORMAT",
        "auto",
        _one_of("auto", "json", "console"),
        "json, console, or auto: console on a terminal",
    ),
    "log_level": Setting(
        "MOONFOLD_LOG_LEVEL",
        "info",
        _one_of("debug", "info", "warning", "error"),
        "least severe line that is logged",
    ),
}
"""Every setting by the name of its field in `Settings`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, read once at start.

    Attributes:
        warnings: one sentence for each value that could not be read.
        given: names of the fields that the environment set.
    """

    redis_url: str | None = None
    threads_url: str | None = None
    token_cap: int = DEFAULT_CAP
    thread_ttl: int = 30 * DAY
    result_ttl: int = DAY
    max_event_bytes: int = 8 * MEBIBYTE
    model_windows: Path | None = None
    failover_policy: Path | None = None
    failovers_per_hour: int = 6
    limit_near_percent: int = 90
    log_format: str = "auto"
    log_level: str = "info"
    warnings: tuple[str, ...] = ()
    given: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read every variable; an empty one counts as unset."""
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        warnings = []
        for name, setting in SETTINGS.items():
            text = source.get(setting.variable, "")
            if not text.strip():
                continue
            try:
                values[name] = setting.read(text)
            except ValueError as expected:
                warnings.append(
                    f"{setting.variable} is not {expected}; using the default, {setting.default}."
                )
        return cls(**values, warnings=tuple(warnings), given=frozenset(values))

    def cap(self, requested: int | None) -> Figure:
        """Return the cap for one handoff: the request's own, else the operator's, else the default."""
        if requested is not None:
            return Figure(value=clamp_cap(requested), origin=Origin.REQUEST)
        origin = Origin.SETTING if "token_cap" in self.given else Origin.DEFAULT
        return Figure(value=self.token_cap, origin=origin)
