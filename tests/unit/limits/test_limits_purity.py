from __future__ import annotations

import ast
from pathlib import Path

import pytest

import moonfold_handoff.limits

SOURCES = sorted(Path(moonfold_handoff.limits.__file__).parent.glob("*.py"))
IMPURE = {"redis", "arq", "asyncio", "socket", "subprocess", "threading", "time", "random", "os"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_no_module_of_the_package_imports_what_does_io(source: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {name.partition(".")[0] for name in imported} & IMPURE
    ours = {name for name in imported if name.startswith("moonfold_handoff")}
    assert all(name.startswith("moonfold_handoff.limits") for name in ours)
