from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.deployment import (
    DEPLOY,
    LONGEST_STOP,
    ROOT,
    assert_settings_are_ours,
    check,
    document,
    is_pinned,
    tool,
)

from moonfold_handoff.settings import seconds

FILE = DEPLOY / "compose.yaml"
SERVICES = ("valkey", "worker", "prometheus", "grafana")


@pytest.fixture(scope="module")
def compose() -> Any:
    return document(FILE)


def mounts(compose: Any) -> Iterator[tuple[str, str]]:
    """Yield source and target of what is mounted from the repository."""
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                yield source, target


def test_compose_itself_takes_the_file(tmp_path: Path) -> None:
    # It does not look for the files of secrets, which are made when it is started.
    assert check(tool("docker-compose"), "-f", FILE, "config", "--quiet") == ""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_as_little_as_it_needs(compose: Any, name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service["mem_limit"]
    assert service["restart"] == "unless-stopped"
    assert is_pinned(service["image"])
    assert "/" not in service["image"].partition("/")[2], "an image names a registry"
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")


def test_these_are_all_services_and_every_one_is_checked_for_health(compose: Any) -> None:
    assert set(compose["services"]) == set(SERVICES)
    unchecked = {n for n, service in compose["services"].items() if "healthcheck" not in service}
    assert unchecked == {"worker"}, "whose image has a healthcheck of its own"


def test_everything_that_is_mounted_is_there(compose: Any) -> None:
    found = list(mounts(compose))
    assert found
    for source, _ in found:
        assert (DEPLOY / source).exists(), source


def test_what_programs_read_is_where_it_is_mounted(compose: Any) -> None:
    targets = {target for _, target in mounts(compose)}
    assert "/etc/valkey/redis.conf" in compose["services"]["valkey"]["command"]
    assert {"/etc/valkey/redis.conf", "/etc/prometheus/rules.yml"} <= targets
    assert (
        f"--config.file={'/etc/prometheus/prometheus.yml'}"
        in (compose["services"]["prometheus"]["command"])
    )
    home = compose["services"]["grafana"]["environment"]
    assert home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in targets
    provider = document(DEPLOY / "grafana/provisioning/dashboards/moonfold.yaml")["providers"][0]
    assert f"{provider['options']['path']}/moonfold.json" in targets


def test_two_workers_have_settings_that_exist_and_time_to_stop(compose: Any) -> None:
    worker = compose["services"]["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert_settings_are_ours(worker["environment"])
    assert worker["environment"]["MOONFOLD_SEPARATE_PRODUCERS"] == "on"
    assert seconds(worker["stop_grace_period"]) > LONGEST_STOP
    assert worker["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}


def test_secrets_come_from_files_that_git_does_not_know(compose: Any) -> None:
    secrets = compose["secrets"]
    used = [name for service in compose["services"].values() for name in service.get("secrets", ())]
    assert sorted(used) == sorted(secrets)
    for name, source in secrets.items():
        assert source == {"file": f"secrets/{name}"}
    ignored = (DEPLOY / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "secrets/" in ignored
    text = FILE.read_text(encoding="utf-8")
    for name in used:
        assert f"/run/secrets/{name}" in text or f"/run/secrets/{name}" in (
            (DEPLOY / "redis" / "redis.conf").read_text(encoding="utf-8")
        )


def test_no_service_is_given_a_password_outright(compose: Any) -> None:
    for service in compose["services"].values():
        for name in service.get("environment", {}):
            assert "PASSWORD" not in name.removesuffix("__FILE") or name.endswith("__FILE")


def test_prometheus_asks_every_worker(compose: Any) -> None:
    [job] = document(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    [names] = job["dns_sd_configs"]
    _, _, port = compose["services"]["worker"]["environment"][
        "MOONFOLD_METRICS_ADDRESS"
    ].rpartition(":")
    assert (names["names"], names["port"]) == (["worker"], int(port))


def test_the_version_is_that_of_the_package(compose: Any) -> None:
    version = compose["services"]["worker"]["image"].partition(":")[2]
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_server_has_twice_the_memory_that_it_may_fill(compose: Any) -> None:
    lines = (DEPLOY / "redis" / "redis.conf").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines if line and line[0] != "#")
    assert compose["services"]["valkey"]["mem_limit"] == "2g"
    assert settings["maxmemory"] == "1gb"
