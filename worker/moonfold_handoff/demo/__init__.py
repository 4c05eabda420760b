"""A recorded session to try the worker on, without an agent and without an account."""

from __future__ import annotations
