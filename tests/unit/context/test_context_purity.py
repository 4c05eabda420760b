from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import moonfold_handoff.context

SOURCES = sorted(Path(moonfold_handoff.context.__file__).parent.glob("*.py"))
IMPURE = {"redis", "arq", "asyncio", "socket", "subprocess", "threading", "time", "random", "os"}


def test_importing_the_core_loads_neither_redis_nor_arq() -> None:
    names = [f"moonfold_handoff.context.{source.stem}" for source in SOURCES[1:]]
    script = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "moonfold_handoff" in loaded
    assert not loaded & {"redis", "arq"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_no_module_of_the_core_imports_what_does_io(source: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {name.partition(".")[0] for name in imported} & IMPURE
    ours = {name for name in imported if name.startswith("moonfold_handoff")}
    allowed = ("moonfold_handoff.context.", "moonfold_handoff.errors")
    assert all(name.startswith(allowed) for name in ours)
