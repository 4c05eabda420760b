"""Servers that only let users in: each user with its URL, as `moonfold acl` makes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.servers import RedisServer

from moonfold_handoff.ops import acl
from moonfold_handoff.settings import Settings

PASSWORD = "a-password-of-the-tests"
USERS = (*acl.ROLES, "alice", "bob")


class GuardedServer(RedisServer):
    """A server with the users of every role and the producers alice and bob."""

    def url_of(self, user: str) -> str:
        return f"unix://{user}:{PASSWORD}@{self.socket}"

    def settings(self, user: str) -> Settings:
        return Settings(redis_url=self.url_of(user), separate_producers=True)


@contextmanager
def guarded_server(binary: Path) -> Iterator[GuardedServer]:
    with tempfile.TemporaryDirectory(prefix="mf-", dir="/tmp") as directory:
        file = Path(directory) / "users.acl"
        file.write_text(acl.file({user: [PASSWORD] for user in USERS}), encoding="utf-8")
        with GuardedServer(binary, "--aclfile", str(file)) as server:
            yield server
