"""Following the agents' own session files as they grow, and seeing when one is stopped by a limit.

Changes are told by the system (watchfiles); looking at all files now and then is the fallback beside it,
so that a lost notification costs seconds and never a session.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from watchfiles import awatch

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.following import Followed, Follower, FollowError
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.store.log import AppendError
from moonfold_handoff.tasks import end
from moonfold_handoff.transcripts import Agent, Session, TranscriptError
from moonfold_handoff.transcripts.base import OtherSessionError
from moonfold_schemas import WireError

LOOK_SECONDS = 2.0  # between two looks at all files
GATHER_MILLISECONDS = 20  # changes are told once there were no more for so long
GATHER_MOST_MILLISECONDS = 200
ACTIVE_SECONDS = 6 * 3600  # in which an agent answers a request, where many sessions share a file
AGAIN_SECONDS = 1.0  # before a file is read again whose thread could not be written
FILES_KEPT = 256  # that were read last; of an older one the place is looked up when it grows again

logger = structlog.get_logger()

Found = Callable[[Session, Followed, float], None]
"""What is told of a session that has grown: how far it is recorded, and when its file was written."""

Troubled = Callable[[Path, str], None]
"""What is told of a file that cannot be followed, and why."""


@dataclass(slots=True)
class _File:
    """A session file that is being followed."""

    agent: Agent
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    followers: dict[str, Follower] = field(default_factory=dict)
    trouble: str = ""


class Watcher:
    """Follows the sessions of agents below their folders.

    Args:
        client: the connection to the service.
        agents: the agents, each with the folders of its sessions.
        found: called for each session that was read; not while it is read.
        troubled: called once for each new trouble with a file.
        since: a file that was written before this time, in seconds since the epoch, is read only when it
            grows.
    """

    def __init__(
        self,
        client: HandoffClient,
        agents: Iterable[tuple[Agent, Iterable[Path]]],
        *,
        found: Found,
        troubled: Troubled,
        since: float,
    ) -> None:
        self._client = client
        self._roots = [(agent, root) for agent, roots in agents for root in roots]
        self._found = found
        self._troubled = troubled
        self._since = since
        self._files: dict[Path, _File] = {}
        self._seen: dict[Path, tuple[int, int]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set."""
        tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._listen())]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            following = [file.task for file in self._files.values() if file.task is not None]
            for task in (*tasks, *following):
                await end(task)
        for task in tasks:
            if not task.cancelled():
                task.result()

    # Which files

    async def _look(self) -> None:
        """Look at all files, again and again."""
        while True:
            for agent, path, written in await asyncio.to_thread(self._changed_files):
                if written >= self._since:
                    self._touch(agent, path)
            await asyncio.sleep(LOOK_SECONDS)

    def _changed_files(self) -> list[tuple[Agent, Path, float]]:
        """Return what changed since the last look; it blocks."""
        changed = []
        for agent, root in self._roots:
            for path, status in _files_below(root):
                mark = (status.st_mtime_ns, status.st_size)
                if agent.holds_sessions(path) and self._seen.get(path) != mark:
                    self._seen[path] = mark
                    changed.append((agent, path, status.st_mtime))
        return changed

    async def _listen(self) -> None:
        """Hear of changes from the system."""
        while True:
            roots = await asyncio.to_thread(self._existing_roots)
            if not roots:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            renew = asyncio.Event()
            renewing = asyncio.create_task(self._renew_when_more(len(roots), renew))
            try:
                async for changes in awatch(
                    *roots,
                    watch_filter=None,
                    debounce=GATHER_MOST_MILLISECONDS,
                    step=GATHER_MILLISECONDS,
                    stop_event=renew,
                    ignore_permission_denied=True,
                ):
                    for _, name in changes:
                        await self._heard_of(Path(name))
            except OSError as error:
                # A folder that went away meanwhile, or too many to be told of: looking does it alone.
                logger.warning("not_told_of_changes", error=type(error).__name__)
                await asyncio.sleep(LOOK_SECONDS)
            finally:
                await end(renewing)

    async def _renew_when_more(self, known: int, renew: asyncio.Event) -> None:
        while not renew.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            if len(await asyncio.to_thread(self._existing_roots)) != known:
                renew.set()

    def _existing_roots(self) -> list[Path]:
        return [root for _, root in self._roots if root.is_dir()]

    async def _heard_of(self, path: Path) -> None:
        for agent, root in self._roots:
            if not path.is_relative_to(root):
                continue
            if agent.holds_sessions(path):
                self._touch(agent, path)
            elif path.suffix == "":  # a new folder: what was written into it was not told
                for inner in await asyncio.to_thread(_paths_below, path):
                    if agent.holds_sessions(inner):
                        self._touch(agent, inner)

    # One file

    def _touch(self, agent: Agent, path: Path) -> None:
        """Have a file read, now or when it is read to its end."""
        path = agent.file_of(path)
        file = self._files.pop(path, None) or _File(agent)
        self._files[path] = file
        if len(self._files) > FILES_KEPT:
            self._forget_one()
        file.changed.set()
        if file.task is None or file.task.done():
            file.task = asyncio.create_task(self._follow(path, file))

    def _forget_one(self) -> None:
        for path, file in self._files.items():
            if file.task is not None and file.task.done():
                del self._files[path]
                return

    async def _follow(self, path: Path, file: _File) -> None:
        while file.changed.is_set():
            file.changed.clear()
            try:
                await self._read(path, file)
                file.trouble = ""
            except OtherSessionError:
                file.followers.clear()
                file.changed.set()
            except (TranscriptError, FollowError, AppendError, WireError) as error:
                self._tell(path, file, str(error))
            except RedisError as error:
                self._tell(path, file, f"The server cannot be used: {type(error).__name__}.")
                await asyncio.sleep(AGAIN_SECONDS)
                file.changed.set()
            except OSError as error:
                self._tell(path, file, f"Cannot read the file: {error.strerror}.")
            except Exception as error:
                logger.exception("file_not_followed")
                self._tell(path, file, f"An internal error ({type(error).__name__}).")

    async def _read(self, path: Path, file: _File) -> None:
        if not file.followers or file.agent.shares_files:
            sessions = await asyncio.to_thread(lambda: list(file.agent.sessions(path)))
            file.followers = {
                session.thread_id: self._follower(file, session)
                for session in sessions
                if self._is_active(session)
            }
        for follower in list(file.followers.values()):
            asked_at = follower.session.asked_at
            written = await asyncio.to_thread(lambda: path.stat().st_mtime)
            followed = await follower.catch_up()
            self._found(follower.session, followed, written if asked_at is None else asked_at)

    def _follower(self, file: _File, session: Session) -> Follower:
        known = file.followers.get(session.thread_id)
        if known is None:
            return Follower(self._client, session)
        known.session = session
        return known

    def _is_active(self, session: Session) -> bool:
        """Tell whether a session is worth a look, where a change of its file may be another session's."""
        if session.asked_at is None:
            return True
        return session.asked_at >= max(self._since, time.time() - ACTIVE_SECONDS)

    def _tell(self, path: Path, file: _File, trouble: str) -> None:
        if file.trouble != trouble:
            file.trouble = trouble
            self._troubled(path, trouble)


def _paths_below(root: Path) -> list[Path]:
    return [path for path, _ in _files_below(root)]


def _files_below(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a folder; what goes away meanwhile is left out."""
    pending = [root]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    elif entry.is_file():
                        yield Path(entry.path), entry.stat()
        except OSError:
            continue
