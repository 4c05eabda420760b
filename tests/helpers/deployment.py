"""Reading what is under `deploy/`, and the tools that check it; a test whose tool is absent is skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moonfold_handoff.ops import monitor
from moonfold_handoff.settings import FILE, SETTINGS, Settings
from moonfold_handoff.worker import GIVE_BACK_SECONDS, STOP_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

LONGEST_STOP = 2 * STOP_SECONDS + GIVE_BACK_SECONDS + monitor.VISIT_SECONDS
"""Seconds that a worker takes to stop at most: a claim, its jobs, giving them back, saying goodbye."""


def tool(name: str) -> str:
    """Return the path of a program: beside the interpreter, or the system's."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def check(*command: str | Path) -> str:
    """Run a tool that is to find nothing, and return what it said."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def document(path: Path) -> Any:
    """Return the only document of a YAML file."""
    [only] = documents(path)
    return only


def assert_settings_are_ours(environment: Mapping[str, str]) -> None:
    """Check that each `MOONFOLD_*` variable is one, and that its value can be read."""
    variables = {setting.variable for setting in SETTINGS.values()}
    variables |= {setting.variable + FILE for setting in SETTINGS.values() if setting.secret}
    ours = {name: value for name, value in environment.items() if name.startswith("MOONFOLD_")}
    assert ours.keys() <= variables
    assert all(isinstance(value, str) for value in ours.values()), "YAML read another type"
    values = {name: value for name, value in ours.items() if not name.endswith(FILE)}
    assert Settings.from_environment(values).warnings == ()


def is_pinned(image: str) -> bool:
    """Return whether an image has a tag that names a version."""
    name, _, tag = image.rpartition(":")
    return bool(name) and any(character.isdigit() for character in tag)
