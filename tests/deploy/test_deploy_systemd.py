from __future__ import annotations

from pathlib import Path

import pytest
from helpers.deployment import DEPLOY, LONGEST_STOP, assert_settings_are_ours, check, tool

UNIT = DEPLOY / "systemd" / "moonfold-worker@.service"
EXPOSURE = 20  # tenths: the tool calls 0-2 safe


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """Return the unit of an instance, whose program is one that this machine has."""
    text = UNIT.read_text(encoding="utf-8")
    program = "/opt/moonfold/bin/moonfold"
    assert program in text
    path = tmp_path / "moonfold-worker@9464.service"
    path.write_text(text.replace(program, "/bin/true"), encoding="utf-8")
    return path


def options(section: str) -> dict[str, list[str]]:
    """Return the options of a section, each with all its values."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_systemd_finds_nothing_in_the_unit(instance: Path) -> None:
    assert check(tool("systemd-analyze"), "verify", "--man=no", instance) == ""


def test_systemd_calls_the_unit_safe(instance: Path) -> None:
    command = ("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager")
    check(tool("systemd-analyze"), *command, instance)


def test_settings_exist_and_the_server_is_a_credential() -> None:
    service = options("Service")
    environment = dict(pair.split("=", 1) for pair in service["Environment"])
    assert environment["MOONFOLD_METRICS_ADDRESS"] == "127.0.0.1:%i"
    assert_settings_are_ours({**environment, "MOONFOLD_METRICS_ADDRESS": "127.0.0.1:9464"})
    [credential] = service["LoadCredential"]
    name = credential.partition(":")[0]
    assert environment["MOONFOLD_REDIS_URL_FILE"] == f"%d/{name}"


def test_the_worker_has_more_time_to_end_than_it_takes_and_comes_back() -> None:
    service = options("Service")
    assert int(service["TimeoutStopSec"][0]) > LONGEST_STOP
    assert service["Restart"] == ["always"]
    assert options("Unit")["StartLimitIntervalSec"] == ["0"]


def test_the_worker_runs_as_a_user_that_is_nobody_else() -> None:
    service = options("Service")
    assert service["DynamicUser"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
