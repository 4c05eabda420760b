"""Moonfold handoff worker: moves a coding-agent conversation to another provider, under a budget."""

from __future__ import annotations
