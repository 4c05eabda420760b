"""Names of Redis keys. The thread id is a hash tag, so a thread lives in one cluster slot."""

from __future__ import annotations

HANDOFFS = "moonfold:handoffs"
"""Queue of interactive requests."""

BACKGROUND = "moonfold:background"
"""Queue of folds and preparations, which may wait."""

REJECTED = "moonfold:rejected"
"""Stream of requests that could not be done, each with its reason."""

PROVIDERS = "moonfold:providers"
"""Hash of what is known of provider instances: whether they are used up, and until when."""

WORKERS = "moonfold:workers"
"""Sorted set of the workers that live, by when they said so last."""

PROBE = "moonfold:{probe}"
"""Written now and then to see that a server takes what is written."""


def worker(token: str) -> str:
    """Return the key of what a worker said of itself last."""
    return f"moonfold:worker:{token}"


def log(thread_id: str) -> str:
    """Return the key of a thread's log."""
    return f"moonfold:{{{thread_id}}}:log"


def items(thread_id: str) -> str:
    """Return the key of the hash from item id to first sequence."""
    return f"moonfold:{{{thread_id}}}:items"


def state(thread_id: str) -> str:
    """Return the key of a thread's folded state."""
    return f"moonfold:{{{thread_id}}}:state"


def source(thread_id: str) -> str:
    """Return the key of how far the session file of a thread was read."""
    return f"moonfold:{{{thread_id}}}:source"


def result(request_id: str) -> str:
    """Return the key of a request's result."""
    return f"moonfold:result:{request_id}"


def results(session_id: str) -> str:
    """Return the key of the stream that tells a session of its results."""
    return f"moonfold:results:{session_id}"


def failovers(thread_id: str) -> str:
    """Return the key of the requests by which a thread failed over within the hour."""
    return f"moonfold:failovers:{thread_id}"


def pending(session_id: str, thread_id: str) -> str:
    """Return the key of a session's requests for a thread that are not answered; no id holds a slash."""
    return f"moonfold:pending:{session_id}/{thread_id}"


def job(job_id: str) -> str:
    """Return the key of a queued job's body; the name is arq's."""
    return f"arq:job:{job_id}"


def wake(queue: str) -> str:
    """Return the channel on which a worker of `queue` is woken."""
    return f"{queue}:wake"
