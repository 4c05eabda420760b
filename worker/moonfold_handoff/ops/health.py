"""Whether a worker lives, and whether it can take jobs and answer them.

A worker lives as long as its loops come round, whatever the server does: restarting it would not bring a
server back. It is ready while it reaches its servers, may write, and has what it needs there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

LIVE_SECONDS = (
    180.0  # one round at most: a reply that never comes is waited for, and asked for again
)
TURN_SECONDS = 5.0  # a queue that was not looked at for so long is not served


class Polling(Protocol):
    """What looks at a queue again and again.

    Attributes:
        queue_name: the queue's key.
        turned_at: when it began to look last, by the monotonic clock.
        polled_at: when it last looked and the server answered; long ago where it does not answer now.
    """

    queue_name: str
    turned_at: float
    polled_at: float


class Health:
    """What is known of a worker's health.

    Args:
        queues: what looks at the queues.
    """

    def __init__(self, queues: Sequence[Polling]) -> None:
        self._queues = queues
        self._trouble = "it has only just started"
        self._stopping = False

    def heard(self, trouble: str = "") -> None:
        """Take what a visit to the servers came to: why they cannot be used, or nothing."""
        self._trouble = trouble

    def stop(self) -> None:
        """Take that the worker stops, after which it takes no more jobs."""
        self._stopping = True

    def why_dead(self) -> str:
        """Return why the worker ought to be started anew; nothing while it lives."""
        now = time.monotonic()
        for queue in self._queues:
            if now - queue.turned_at > LIVE_SECONDS:
                return f"{queue.queue_name}: not looked at for {now - queue.turned_at:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Return why the worker cannot take jobs and answer them; nothing while it can."""
        if self._stopping:
            return "it is stopping"
        now = time.monotonic()
        for queue in self._queues:
            if now - queue.polled_at > TURN_SECONDS:
                return f"{queue.queue_name}: the server does not answer"
        return self._trouble
