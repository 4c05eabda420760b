from __future__ import annotations

from pathlib import Path

import pytest

from moonfold_handoff.settings import DAY, OFF, SecretFileError, Settings, endpoint
from moonfold_schemas.results import Figure, Origin

CAP = "MOONFOLD_CONTEXT_HANDOFF_TOKEN_CAP"
WINDOWS = "MOONFOLD_MODEL_WINDOWS"
NEAR = "MOONFOLD_LIMIT_NEAR_PERCENT"


def read(**environment: str) -> Settings:
    return Settings.from_environment(environment)


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("1023", 1_024),
        ("1024", 1_024),
        ("1025", 1_025),
        ("63999", 63_999),
        ("64000", 64_000),
        ("64001", 64_000),
        ("9" * 18, 64_000),
    ],
)
def test_the_cap_is_clamped_to_the_token(text: str, cap: int) -> None:
    settings = read(**{CAP: text})
    assert settings.cap(None) == Figure(value=cap, origin=Origin.SETTING)
    assert settings.warnings == ()


@pytest.mark.parametrize(
    "text", ["16k", "1.5e4", "16000.0", "16 000", "--5", "+5", "0x400", "²", "9" * 5_000]
)
def test_a_cap_that_cannot_be_read_is_one_sentence_and_the_default(text: str) -> None:
    settings = read(**{CAP: text})
    assert settings.cap(None) == Figure(value=16_000, origin=Origin.DEFAULT)
    assert settings.warnings == (
        f"{CAP} is not a whole number of tokens; using the default, 16000.",
    )


@pytest.mark.parametrize(
    ("requested", "cap"), [(1_023, 1_024), (2_000, 2_000), (64_000, 64_000), (64_001, 64_000)]
)
@pytest.mark.parametrize("environment", [{}, {CAP: "8000"}, {CAP: "lots"}], ids=str)
def test_a_requests_own_cap_comes_first_within_the_same_bounds(
    environment: dict[str, str], requested: int, cap: int
) -> None:
    assert read(**environment).cap(requested) == Figure(value=cap, origin=Origin.REQUEST)


@pytest.mark.parametrize(
    ("address", "place"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9464", ("::1", 9464)), (OFF, None)],
)
def test_an_address_is_a_host_and_a_port(address: str, place: tuple[str, int] | None) -> None:
    assert endpoint(address) == place


def test_a_value_that_cannot_be_read_spoils_no_other() -> None:
    settings = read(**{CAP: "lots", "MOONFOLD_RESULT_TTL": "12h", "MOONFOLD_THREAD_TTL": "soon"})
    expected = (16_000, 12 * 3600, 30 * DAY)
    assert (settings.token_cap, settings.result_ttl, settings.thread_ttl) == expected
    assert len(settings.warnings) == 2
    assert settings.given == {"result_ttl"}


def test_the_file_of_windows_is_a_path_that_is_read_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "our windows.toml"  # which is not there
    settings = read(**{WINDOWS: str(path)})
    assert settings.model_windows == path
    assert settings.given == {"model_windows"}
    assert settings.warnings == ()


@pytest.mark.parametrize("environment", [{}, {WINDOWS: " "}], ids=str)
def test_there_is_none_by_default(environment: dict[str, str]) -> None:
    assert read(**environment).model_windows is None


@pytest.mark.parametrize(
    ("text", "percent"), [("1", 1), ("90", 90), ("100", 100), ("75%", 75), (" 80 % ", 80)]
)
def test_the_share_of_a_quota_that_is_nearly_all_of_it(text: str, percent: int) -> None:
    settings = read(**{NEAR: text})
    assert (settings.limit_near_percent, settings.warnings) == (percent, ())


@pytest.mark.parametrize("text", ["0", "101", "-5", "0.9", "ninety", "%", "²"])
def test_a_share_that_cannot_be_read_is_one_sentence_and_the_default(text: str) -> None:
    settings = read(**{NEAR: text})
    assert settings.limit_near_percent == 90
    assert settings.warnings == (
        f"{NEAR} is not a whole number of percent, 1-100; using the default, 90.",
    )


def test_failovers_are_limited_by_default() -> None:
    assert read().failovers_per_hour == 6
    assert read(MOONFOLD_FAILOVERS_PER_HOUR="2").failovers_per_hour == 2
    assert read().failover_policy is None


@pytest.mark.parametrize(("text", "seconds"), [("12h", 12 * 3600), ("0", 0), (" Off ", 0)])
def test_readers_have_tokens_for_as_long_as_is_said_or_none(text: str, seconds: int) -> None:
    assert read(MOONFOLD_READER_TTL=text).reader_ttl == seconds
    assert read().reader_ttl == 7 * DAY


def test_a_lifetime_of_tokens_that_cannot_be_read_is_one_sentence_and_the_default() -> None:
    settings = read(MOONFOLD_READER_TTL="never")
    assert settings.reader_ttl == 7 * DAY
    assert settings.warnings == (
        "MOONFOLD_READER_TTL is not a duration such as 12h or 7d, or off; using the default, 604800.",
    )


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.url"
    file.write_text("redis://worker:word@valkey:6379/0\n")
    settings = read(MOONFOLD_REDIS_URL_FILE=str(file))
    assert settings.redis_url == "redis://worker:word@valkey:6379/0"
    assert settings.given == {"redis_url"}
    both = read(MOONFOLD_REDIS_URL_FILE=str(file), MOONFOLD_REDIS_URL="redis://here")
    assert both.redis_url == "redis://here"


def test_a_file_of_a_secret_that_is_not_there_is_no_reason_to_use_another_server(
    tmp_path: Path,
) -> None:
    with pytest.raises(SecretFileError, match="MOONFOLD_REDIS_URL_FILE names a file"):
        read(MOONFOLD_REDIS_URL_FILE=str(tmp_path / "missing"))


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "cap"
    file.write_text("2000")
    assert read(**{f"{CAP}_FILE": str(file)}) == Settings()


@pytest.mark.parametrize(
    ("text", "on"), [("on", True), (" YES ", True), ("1", True), ("off", False), ("false", False)]
)
def test_producers_are_kept_apart_where_that_is_switched_on(text: str, on: bool) -> None:
    settings = read(MOONFOLD_SEPARATE_PRODUCERS=text)
    assert (settings.separate_producers, settings.warnings) == (on, ())


def test_a_switch_that_cannot_be_read_is_one_sentence() -> None:
    assert read(MOONFOLD_SEPARATE_PRODUCERS="maybe").warnings == (
        "MOONFOLD_SEPARATE_PRODUCERS is not on or off; using the default, off.",
    )
