"""Reading what a handoff left out: a thread's messages and activity, in pages, and search (R8, R9)."""

from __future__ import annotations
