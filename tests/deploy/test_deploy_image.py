from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from conftest import RunningWorker
from helpers.deployment import DEPLOY, ROOT, assert_settings_are_ours, check, is_pinned, tool
from helpers.servers import RedisServer, free_port
from helpers.waiting import until_sync

from moonfold_handoff.settings import Settings

FILE = DEPLOY / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions, each with the rest of its line, lines that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    split = (line.split(maxsplit=1) for line in lines if line.strip())
    return [(name, " ".join(rest.split())) for name, rest in split]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest))
    return found


def all_of(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for instruction, rest in stage if instruction == name]


def environment(stage: list[tuple[str, str]]) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in all_of(stage, "ENV") for pair in rest.split())


def copied() -> list[str]:
    """Return what of the repository goes into the first stage."""
    return [source for rest in all_of(stages()[0], "COPY") for source in rest.split()[:-1]]


def test_hadolint_finds_nothing() -> None:
    assert check(tool("hadolint"), FILE) == ""


def test_the_image_has_a_user_of_its_own_and_what_was_built_and_nothing_that_builds() -> None:
    build, final = stages()
    assert all_of(final, "USER") == ["10001:10001"]
    assert all_of(final, "COPY") == ["--from=build /opt/moonfold /opt/moonfold"]
    [run] = all_of(final, "RUN")
    assert "pip uninstall" in run
    assert not re.search(r"\b(apt|apt-get|install|gcc|curl)\b", run)
    assert not all_of(final, "ADD") + all_of(build, "ADD")


def test_the_base_is_one_version_of_python_that_we_support() -> None:
    bases = {rest.split()[0] for stage in stages() for rest in all_of(stage, "FROM")}
    [base] = bases
    assert is_pinned(base)
    version = re.match(r"python:(\d+\.\d+)-", base)
    assert version is not None
    assert f"Python :: {version[1]}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_versions_are_those_that_were_tested() -> None:
    assert environment(stages()[0])["PIP_CONSTRAINT"] == "/source/deploy/constraints.txt"
    assert "deploy/constraints.txt" in copied()


def test_settings_and_ports_are_those_of_a_worker() -> None:
    final = stages()[-1]
    assert_settings_are_ours(environment(final))
    [port] = all_of(final, "EXPOSE")
    assert environment(final)["MOONFOLD_METRICS_ADDRESS"] == f"0.0.0.0:{port}"
    assert f"http://127.0.0.1:{port}/readyz" in all_of(final, "HEALTHCHECK")[0]


def test_the_package_is_built_from_what_is_copied_and_nothing_else(tmp_path: Path) -> None:
    for name in copied():
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "built"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    [wheel] = (tmp_path / "built").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "moonfold_schemas/redis/append.lua" in names
    assert "moonfold_handoff/store/lua/claim.lua" in names
    assert not [name for name in names if name.startswith(("tests/", "deploy/"))]


def test_what_is_copied_is_what_the_context_lets_through() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert sorted(let_through) == sorted(copied())


async def test_the_healthcheck_is_content_with_a_ready_worker_and_with_nothing_else(
    server: RedisServer,
) -> None:
    command = json.loads(all_of(stages()[-1], "HEALTHCHECK")[0].partition("CMD ")[2])
    port = free_port()
    asked = [part.replace("9464", str(port)) for part in command]
    asked[0] = sys.executable

    def outcome() -> int:
        return subprocess.run(asked, capture_output=True, check=False).returncode

    assert outcome() == 1
    running = RunningWorker(Settings(redis_url=server.url, metrics_address=f"127.0.0.1:{port}"))
    await running.start()
    await asyncio.to_thread(until_sync, lambda: outcome() == 0)
    await running.stop()
    assert outcome() == 1
