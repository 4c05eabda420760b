"""The producer protocol as Lua: `append`, `enqueue` and `publish`, one round trip each.

The scripts in `schemas/redis/` are the contract for producers in any language; this finds them.
"""

from __future__ import annotations

from importlib import resources


def script_source(name: str) -> str:
    """Return the Lua source of the script called `name`.

    Raises:
        FileNotFoundError: there is no such script.
    """
    package = resources.files("moonfold_schemas")
    installed = package / "redis" / f"{name}.lua"
    if installed.is_file():
        return installed.read_text(encoding="utf-8")
    # In a source checkout the scripts lie beside the package, where other languages look for them.
    checkout = package / ".." / "redis" / f"{name}.lua"
    return checkout.read_text(encoding="utf-8")
