"""Users of the server, each with the least it needs, as rules of Redis 7 and Valkey ACLs.

A producer owns what is named after it: the id of every thread, session and request of it begins with its
name and a dot. Keys and channels are made of these ids, so patterns by name keep producers apart.

A script's keys count as read and written, and each command that it runs is checked by itself. So every user
has one selector that lets it call scripts on its keys, and further ones that say which commands may do what
to which of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from moonfold_handoff.store import keys

WORKER = "worker"
READER = "reader"
MONITOR = "monitor"
ADMIN = "admin"
ROLES = (ADMIN, WORKER, READER, MONITOR)
"""The users that are not producers."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Following other clients' keys, and the list of clients, are no part of having a connection. Which node of a
# cluster holds what is.
# The scripts go by the server's clock, which all who share a queue have in common.
_CONNECTION = (
    "+@connection +time -@admin -@dangerous -client|tracking -client|caching +asking +cluster|slots"
)
_SCRIPTS = "+eval +evalsha"


def check_producer(name: str) -> None:
    """Refuse a name whose pattern would reach further than what is the producer's.

    Raises:
        ValueError: the name is no producer's.
    """
    if not _NAME.fullmatch(name) or name in {*ROLES, "default"}:
        raise ValueError(
            f"{name!r} cannot be a producer: 1-64 of A-Z a-z 0-9 _ -, and none of "
            f"{', '.join((*ROLES, 'default'))}"
        )


def producer(name: str) -> str:
    """Return the rules of a producer: append, enqueue, and read the results of its own sessions.

    It reads its threads' logs as far as `append` does, and never a state, which names what is in a
    parent's log. To the queues it only adds.

    Raises:
        ValueError: the name is no producer's.
    """
    check_producer(name)
    own = f"{name}.*"
    log, items, state = keys.log(own), keys.items(own), keys.state(own)
    jobs = (keys.job(own), keys.job(f"fold:{own}"))
    answers = (keys.result(own), keys.result(f"fold:{own}"))
    pending = f"moonfold:pending:{own}"
    queues = (keys.HANDOFFS, keys.BACKGROUND)
    return _rules(
        _CONNECTION,
        _selector(_SCRIPTS, log, items, state, *jobs, *answers, pending, *queues),
        _selector("+xadd +xrange +xrevrange +pexpire", log),
        _selector("+hget +hset +hsetnx +pexpire", items),
        _selector("+pexpire", state, only="W"),
        _selector("+exists", *jobs, *answers),
        _selector("+psetex", *jobs, only="W"),
        _selector("+zadd +zrem +zrangebyscore +zremrangebyscore +zrevrange +pexpire", pending),
        _selector("+set", f"moonfold:superseded:{own}", only="W"),
        _selector("+zadd", *queues, only="W"),
        _selector("+publish", channels=map(keys.wake, queues)),
        _selector("+get +exists +pttl", *answers, only="R"),
        _selector("+xread +xrange +xrevrange +xlen", keys.results(own), only="R"),
        _selector("+subscribe +unsubscribe", channels=[keys.results(own)]),
    )


def rules(name: str) -> str:
    """Return the rules of a role, or those of the producer of that name.

    Raises:
        ValueError: it is neither.
    """
    return _ROLES[name] if name in _ROLES else producer(name)


def user_line(name: str, passwords: Iterable[str] = ()) -> str:
    """Return a user as a line of an ACL file; without a password nobody can log in.

    Raises:
        ValueError: the name is neither a role nor can be a producer.
    """
    hashes = "".join(f"#{hashlib.sha256(word.encode()).hexdigest()} " for word in passwords)
    return f"user {name} on {hashes}{rules(name)}"


def file(passwords: Mapping[str, Iterable[str]]) -> str:
    """Return an ACL file with a user for each name, and the one without a name switched off.

    Raises:
        ValueError: a name is neither a role nor can be a producer.
    """
    lines = [user_line(name, words) for name, words in passwords.items()]
    return "\n".join(("user default off resetpass resetkeys resetchannels -@all", *lines, ""))


def _selector(commands: str, *patterns: str, only: str = "RW", channels: Iterable[str] = ()) -> str:
    places = [f"%{only}~{pattern}" for pattern in patterns]
    return f"({' '.join(('-@all', commands, *places, *(f'&{name}' for name in channels)))})"


def _rules(*parts: str) -> str:
    return " ".join(("resetkeys resetchannels -@all", *parts))


_ANY = "*"

_ROLES = {
    ADMIN: "~* &* +@all",
    # Everything here is the worker's own; what is kept from it is the server, and the names of other keys.
    WORKER: _rules(
        "+@read +@write +@pubsub +@transaction -@dangerous -scan -randomkey",
        _CONNECTION,
        _SCRIPTS,
        "+script|exists +script|load +info +dbsize",
        "~moonfold:* ~arq:* &moonfold:*",
    ),
    READER: _rules(
        _CONNECTION,
        _selector(_SCRIPTS, keys.log(_ANY), keys.items(_ANY), keys.state(_ANY)),
        _selector("+xrange +xrevrange +xlen", keys.log(_ANY), only="R"),
        _selector("+hget +hmget", keys.items(_ANY), keys.state(_ANY), only="R"),
        _selector("+get", keys.token("*"), only="R"),
    ),
    # The dead letters hold ids, sizes and reasons, and no text.
    MONITOR: _rules(
        _CONNECTION,
        "+info +dbsize",
        _selector(_SCRIPTS, keys.HANDOFFS, keys.BACKGROUND, keys.REJECTED),
        _selector("+zcard +zcount +zrangebyscore", keys.HANDOFFS, keys.BACKGROUND, only="R"),
        _selector("+exists", "arq:in-progress:*", only="R"),
        _selector("+xlen +xrange +xrevrange", keys.REJECTED, only="R"),
        _selector("+hgetall", keys.PROVIDERS, only="R"),
        _selector("+zcount +zrange", keys.WORKERS, only="R"),
        _selector("+get +mget", keys.worker(_ANY), only="R"),
    ),
}
