"""Settings: every `MOONFOLD_*` variable, its default, and where each value came from.

A value that cannot be read is a warning and the default, never a stop: a worker that serves with the
default serves better than one that does not start. Only a file with a secret that is not there is a stop:
the default is another server.
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
OFF = "off"

FILE = "_FILE"
"""Ends the name of the variable that names a file with a secret: `MOONFOLD_REDIS_URL_FILE`."""

_ON = {"on", "yes", "true", "1"}
_OFF = {"off", "no", "false", "0"}

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": DAY}


class SecretFileError(Exception):
    """A file that is to hold a secret cannot be read; the message says which variable names it."""


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


def _seconds_or_off(text: str) -> int:
    if text.strip().lower() in {"0", "off"}:
        return 0
    try:
        return seconds(text)
    except ValueError:
        raise ValueError("a duration such as 12h or 7d, or off") from None


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


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in _ON | _OFF:
        raise ValueError("on or off")
    return word in _ON


def endpoint(address: str) -> tuple[str, int] | None:
    """Return host and port of an address as `MOONFOLD_METRICS_ADDRESS` has it; None for `off`.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    if address == OFF:
        return None
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65_535:
        raise ValueError("host:port such as 127.0.0.1:9464, with port 0 for any free one, or off")
    return match[1].strip("[]"), int(match[2])


def _address(text: str) -> str:
    address = text.strip().lower()
    endpoint(address)
    return address


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
    "reader_ttl": Setting(
        "MOONFOLD_READER_TTL",
        7 * DAY,
        _seconds_or_off,
        "lifetime of the token that opens a handoff's thread to its reader; off: none is made",
    ),
    "reader_url": Setting(
        "MOONFOLD_READER_URL",
        None,
        str.strip,
        "where the thread reader is served for agents on other machines",
    ),
    "separate_producers": Setting(
        "MOONFOLD_SEPARATE_PRODUCERS",
        False,
        _switch,
        "on: each producer gets only what its own name and a dot begin (see deploy/)",
    ),
    "metrics_address": Setting(
        "MOONFOLD_METRICS_ADDRESS",
        "127.0.0.1:0",
        _address,
        "where a worker serves /metrics, /livez and /readyz: host:port, port 0 for any free one, or off",
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
    reader_ttl: int = 7 * DAY
    reader_url: str | None = None
    separate_producers: bool = False
    metrics_address: str = "127.0.0.1:0"
    log_format: str = "auto"
    log_level: str = "info"
    warnings: tuple[str, ...] = ()
    given: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read every variable; an empty one counts as unset.

        A secret may be in a file instead, which the same variable with `_FILE` at its end names.

        Raises:
            SecretFileError: such a file cannot be read.
        """
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        warnings = []
        for name, setting in SETTINGS.items():
            text = source.get(setting.variable, "")
            if setting.secret and not text.strip():
                text = _from_file(source, setting.variable + FILE)
            if not text.strip():
                continue
            try:
                values[name] = setting.read(text)
            except ValueError as expected:
                warnings.append(
                    f"{setting.variable} is not {expected}; using the default, "
                    f"{shown(setting.default)}."
                )
        return cls(**values, warnings=tuple(warnings), given=frozenset(values))

    def cap(self, requested: int | None) -> Figure:
        """Return the cap for one handoff: the request's own, else the operator's, else the default."""
        if requested is not None:
            return Figure(value=clamp_cap(requested), origin=Origin.REQUEST)
        origin = Origin.SETTING if "token_cap" in self.given else Origin.DEFAULT
        return Figure(value=self.token_cap, origin=origin)


def shown(value: object) -> str:
    """Return a value as a person would set it."""
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _from_file(source: Mapping[str, str], variable: str) -> str:
    name = source.get(variable, "").strip()
    if not name:
        return ""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SecretFileError(f"{variable} names a file that cannot be read: {error}") from error
