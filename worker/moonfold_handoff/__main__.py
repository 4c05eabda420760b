"""`python -m moonfold_handoff` is `moonfold`."""

from __future__ import annotations

from moonfold_handoff.cli import main

main(prog_name="moonfold")
