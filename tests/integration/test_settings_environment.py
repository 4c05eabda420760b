from __future__ import annotations

import pytest

from moonfold_handoff.settings import DAY, SETTINGS, Settings
from moonfold_schemas.results import Figure, Origin

GOOD = [
    ("MOONFOLD_REDIS_URL", " redis://host ", "redis_url", "redis://host"),
    ("MOONFOLD_THREADS_URL", "unix:///s", "threads_url", "unix:///s"),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "8000", "token_cap", 8_000),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", " 8,000 ", "token_cap", 8_000),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "8_000", "token_cap", 8_000),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "1", "token_cap", 1_024),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "0", "token_cap", 1_024),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "-5", "token_cap", 1_024),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "999999", "token_cap", 64_000),
    ("MOONFOLD_THREAD_TTL", "90", "thread_ttl", 90),
    ("MOONFOLD_THREAD_TTL", "90s", "thread_ttl", 90),
    ("MOONFOLD_THREAD_TTL", "2 M", "thread_ttl", 120),
    ("MOONFOLD_THREAD_TTL", "12h", "thread_ttl", 43_200),
    ("MOONFOLD_RESULT_TTL", "7d", "result_ttl", 7 * DAY),
    ("MOONFOLD_MAX_EVENT_BYTES", "1_000", "max_event_bytes", 1_000),
    ("MOONFOLD_METRICS_ADDRESS", " 0.0.0.0:9464", "metrics_address", "0.0.0.0:9464"),
    ("MOONFOLD_METRICS_ADDRESS", "[::1]:0", "metrics_address", "[::1]:0"),
    ("MOONFOLD_METRICS_ADDRESS", "Localhost:65535", "metrics_address", "localhost:65535"),
    ("MOONFOLD_METRICS_ADDRESS", "OFF", "metrics_address", "off"),
    ("MOONFOLD_LOG_FORMAT", "JSON", "log_format", "json"),
    ("MOONFOLD_LOG_LEVEL", " debug", "log_level", "debug"),
]

BAD = [
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "many", "a whole number of tokens"),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "1.5", "a whole number of tokens"),
    ("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "١٢٣", "a whole number of tokens"),
    ("MOONFOLD_THREAD_TTL", "0", "a duration"),
    ("MOONFOLD_THREAD_TTL", "-1", "a duration"),
    ("MOONFOLD_THREAD_TTL", "soon", "a duration"),
    ("MOONFOLD_THREAD_TTL", "99999999999999d", "a duration"),
    ("MOONFOLD_RESULT_TTL", "9" * 5000, "a duration"),
    ("MOONFOLD_RESULT_TTL", "1w", "a duration"),
    ("MOONFOLD_MAX_EVENT_BYTES", "0", "a positive whole number"),
    ("MOONFOLD_MAX_EVENT_BYTES", "8 MiB", "a positive whole number"),
    ("MOONFOLD_METRICS_ADDRESS", "9464", "host:port such as"),
    ("MOONFOLD_METRICS_ADDRESS", ":9464", "host:port such as"),
    ("MOONFOLD_METRICS_ADDRESS", "localhost:65536", "host:port such as"),
    ("MOONFOLD_METRICS_ADDRESS", "::1:9464", "host:port such as"),
    ("MOONFOLD_METRICS_ADDRESS", "http://localhost:1/", "host:port such as"),
    ("MOONFOLD_LOG_FORMAT", "xml", "one of auto, json, console"),
    ("MOONFOLD_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
]


@pytest.mark.parametrize(("variable", "text", "name", "value"), GOOD)
def test_a_variable_is_read(variable: str, text: str, name: str, value: object) -> None:
    settings = Settings.from_environment({variable: text})
    assert getattr(settings, name) == value
    assert settings.given == {name}
    assert settings.warnings == ()


@pytest.mark.parametrize(("variable", "text", "expected"), BAD)
def test_what_cannot_be_read_is_a_warning_and_the_default(
    variable: str, text: str, expected: str
) -> None:
    settings = Settings.from_environment({variable: text})
    [warning] = settings.warnings
    assert warning.startswith(f"{variable} is not {expected}")
    assert "using the default" in warning
    assert settings.given == frozenset()
    for name, setting in SETTINGS.items():
        assert getattr(settings, name) == setting.default


@pytest.mark.parametrize("text", ["", "  ", "\t"])
def test_an_empty_variable_is_unset(text: str) -> None:
    environment = {setting.variable: text for setting in SETTINGS.values()}
    assert Settings.from_environment(environment) == Settings()


def test_the_defaults_are_the_documented_ones() -> None:
    settings = Settings.from_environment({})
    assert settings == Settings()
    assert (settings.token_cap, settings.thread_ttl, settings.result_ttl) == (16_000, 30 * DAY, DAY)
    assert settings.max_event_bytes == 8 * 1024 * 1024
    for name, setting in SETTINGS.items():
        assert getattr(settings, name) == setting.default
        assert setting.variable.startswith("MOONFOLD_")
        assert setting.help


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP", "2000")
    assert Settings.from_environment().token_cap == 2_000


def test_the_cap_of_a_handoff_says_where_it_comes_from() -> None:
    given = Settings.from_environment({"MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP": "2000"})
    assert Settings().cap(None) == Figure(value=16_000, origin=Origin.DEFAULT)
    assert given.cap(None) == Figure(value=2_000, origin=Origin.SETTING)
    assert given.cap(5_000) == Figure(value=5_000, origin=Origin.REQUEST)
    assert given.cap(0) == Figure(value=1_024, origin=Origin.REQUEST)
    assert given.cap(10**9) == Figure(value=64_000, origin=Origin.REQUEST)
