"""Servers by URL: one, the primary that Sentinels name, or the nodes of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import SSLConnection
from redis.asyncio.connection import parse_url

SERVER_PORT = 6379
SENTINEL_PORT = 26379

Host = tuple[str, int]

_SEVERAL = re.compile(r"(rediss?)\+(sentinel|cluster)://([^/?#]*)([^?#]*)(\?[^#]*)?")
_SENTINELS = re.compile(r"/(?P<service>[\w.-]+)(?:/(?P<database>\d+))?")


class InvalidRedisUrlError(ValueError):
    """The URL is none that is understood, or of none that serves here."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a cluster, of which one that answers is enough to find the others.

    Attributes:
        hosts: where they are.
        options: user, password and TLS, as the client takes them.
    """

    hosts: tuple[Host, ...]
    options: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Sentinels, and whose primary they are to name.

    Attributes:
        hosts: where they are.
        service: name of the primary in their configuration.
        options: user, password, database and TLS of the primary, as the client takes them.
        sentinel_options: user, password and TLS of the Sentinels themselves.
    """

    hosts: tuple[Host, ...]
    service: str
    options: Mapping[str, Any] = field(repr=False)
    sentinel_options: Mapping[str, Any] = field(repr=False)

    @property
    def database(self) -> int:
        """Number of the primary's database."""
        return int(self.options.get("db", 0))


def several(url: str) -> Nodes | Sentinels | None:
    """Return what a URL of several servers names; None where it is no such URL.

    `redis+cluster://user:password@host:port,host:port` and
    `redis+sentinel://user:password@host:port,host:port/service/database`, with `rediss` over TLS. The
    query takes TLS options such as `ssl_ca_certs`, and `sentinel_username` and `sentinel_password`.

    Raises:
        ValueError: it begins like one and is none.
    """
    if not re.match(r"rediss?\+", url):
        return None
    parts = _SEVERAL.fullmatch(url)
    if parts is None:
        raise ValueError("neither a cluster nor Sentinels")
    scheme, kind, place, path, query = parts.groups(default="")
    port = SENTINEL_PORT if kind == "sentinel" else SERVER_PORT
    identity, at, hosts = place.rpartition("@")
    found: list[Host] = []
    options: dict[str, Any] = {}
    for host in hosts.split(","):
        options = dict(parse_url(f"{scheme}://{identity}{at}{host}{query}"))
        if "host" not in options:
            raise ValueError("no host")
        found.append((str(options.pop("host")), int(options.pop("port", port))))
    if kind == "cluster":
        if path.strip("/") not in {"", "0"} or options.get("db"):
            raise ValueError("a cluster has one database")
        return Nodes(tuple(found), options)
    tls = {name: options.pop(name) for name in list(options) if name.startswith("ssl_")}
    if options.pop("connection_class", None) is SSLConnection:
        tls["ssl"] = True
    named = _SENTINELS.fullmatch(path)
    if named is None:
        raise ValueError("no service")
    own = {
        name: options.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in options
    }
    options["db"] = int(named["database"] or options.get("db", 0))
    return Sentinels(tuple(found), named["service"], options | tls, own | tls)


def without_password(url: str) -> str:
    """Return `url` fit for a person's eyes, even if the password in it is not escaped as it should be."""
    start = url.find("://") + 3 if "://" in url else 0
    identity, at, place = url[start:].rpartition("@")
    user, colon, _ = identity.partition(":")
    if colon:
        url = f"{url[:start]}{user}:***{at}{place}"
    return re.sub(r"([?&#](?:sentinel_)?password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)
