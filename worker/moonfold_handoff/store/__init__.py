"""What is kept in Redis: logs, states, queues, results, rejected requests."""

from __future__ import annotations
