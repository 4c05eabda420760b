"""`moonfold watch`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from moonfold_handoff.cli.going_on import begin, run, worked_in
from moonfold_handoff.cli.handoff import MOST
from moonfold_handoff.client import HandoffClient
from moonfold_handoff.delivery.programs import PROGRAMS, NotStartedError
from moonfold_handoff.delivery.start import GO_ON
from moonfold_handoff.errors import HandoffError
from moonfold_handoff.handover import Answered, Handover, Notice, Prepared, Reached, Unanswered
from moonfold_handoff.settings import Settings, seconds
from moonfold_handoff.store.connection import RedisError
from moonfold_handoff.store.log import AppendError
from moonfold_handoff.tasks import end
from moonfold_handoff.transcripts import AGENTS, Agent, Session
from moonfold_handoff.transfer import worker_if_embedded
from moonfold_handoff.watching import Watcher
from moonfold_schemas import HandoffResult, NewRequest, Target
from moonfold_schemas.results import HandoffFailed, HandoffReady

_encode = msgspec.json.Encoder().encode


class _Duration(click.ParamType[int]):
    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return seconds(str(value))
        except ValueError as expected:
            self.fail(f"{value!r} is not {expected}", param, ctx)


@click.command()
@click.option(
    "--from",
    "sources",
    type=click.Choice([agent.provider for agent in AGENTS]),
    multiple=True,
    help="Agents to follow; all by default. Can be given more than once.",
)
@click.option(
    "--to",
    "targets",
    type=click.Choice(list(PROGRAMS)),
    multiple=True,
    help="Where to go on, the first choice first. Without it the operator's policy says.",
)
@click.option("--request", "text", help=f"What you want next.  [default: {GO_ON}]")
@click.option("--cap", type=click.IntRange(1, MOST), help="Most tokens of history (1,024-64,000).")
@click.option(
    "--since",
    type=_Duration(),
    default="1h",
    show_default=True,
    help="Also read sessions at the start that were written this long ago; others when they grow.",
)
@click.option("--run", "start_it", is_flag=True, help="Start the agent that goes on, right here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.pass_obj
def watch(
    settings: Settings,
    *,
    sources: Sequence[str],
    targets: Sequence[str],
    text: str | None,
    cap: int | None,
    since: int,
    start_it: bool,
    as_json: bool,
) -> None:
    """Follow your agents' sessions, and hand over when one reaches its limit.

    The agents' own session files are followed as they grow, and recorded as threads. The moment a limit
    is written into one, its handoff is asked for, and you get the command that goes on with it; with
    --run it is started. Ctrl-C ends it; started again it goes on where it stopped.
    """
    followed = [agent for agent in AGENTS if not sources or agent.provider in sources]
    watching = _Watching(
        settings,
        show=_as_json if as_json else _as_line,
        request=NewRequest(text=text or GO_ON),
        start_it=start_it,
    )
    asyncio.run(watching.run(followed, targets, cap=cap, since=time.time() - since))


class _Watching:
    """One run of the command."""

    def __init__(
        self,
        settings: Settings,
        *,
        show: Callable[[_Told], str],
        request: NewRequest,
        start_it: bool,
    ) -> None:
        self._settings = settings
        self._show = show
        self._request = request
        self._start_it = start_it
        self._stop = asyncio.Event()
        self._ready: asyncio.Queue[HandoffReady] = asyncio.Queue()
        self._at_work = False  # an agent has the terminal
        self._held: list[str] = []

    async def run(
        self, agents: Sequence[Agent], targets: Sequence[str], *, cap: int | None, since: float
    ) -> None:
        """Watch until interrupted."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        chosen = [
            Target(provider=name, version=await asyncio.to_thread(PROGRAMS[name].version))
            for name in targets
        ]
        async with (
            worker_if_embedded(self._settings),
            HandoffClient(f"watch:{uuid.uuid4()}", self._settings) as client,
        ):
            handover = Handover(
                client,
                chosen,
                tell=self._tell,
                near_percent=self._settings.limit_near_percent,
                request=self._request,
                token_cap=cap,
            )
            roots = [(agent, agent.roots(os.environ, Path.home())) for agent in agents]
            watcher = Watcher(
                client, roots, found=handover.found, troubled=self._troubled, since=since
            )
            self._print(_Following(tuple(agent.title for agent in agents)))
            starting = asyncio.create_task(self._start_agents(client))
            try:
                await watcher.run(self._stop)
            finally:
                await end(starting)
                await handover.finish()

    def _interrupted(self) -> None:
        if not self._at_work:  # else it is meant for the agent, which has the terminal
            self._stop.set()

    def _tell(self, notice: Notice) -> None:
        self._print(notice)
        if isinstance(notice, Answered) and isinstance(notice.result, HandoffReady):
            self._ready.put_nowait(notice.result)

    def _troubled(self, path: Path, message: str) -> None:
        self._print(_Trouble(path, message))

    def _print(self, told: _Told) -> None:
        line = self._show(told)
        if self._at_work:
            self._held.append(line)
        else:
            click.echo(line)

    async def _start_agents(self, client: HandoffClient) -> None:
        """Start the agents that go on, one after the other, where the person wants that."""
        while self._start_it:
            result = await self._ready.get()
            try:
                await self._start(client, result)
            except (AppendError, HandoffError, NotStartedError, OSError) as error:
                self._print(_NotStarted(result.request_id, str(error)))
            except RedisError as error:
                message = f"The server cannot be used: {type(error).__name__}."
                self._print(_NotStarted(result.request_id, message))

    async def _start(self, client: HandoffClient, result: HandoffReady) -> None:
        cwd = await worked_in(client.services, result)
        start = await begin(client, result, self._request.text or GO_ON, cwd)
        self._at_work = True
        try:
            await run(start)
        finally:
            self._at_work = False
            held, self._held = self._held, []
            for line in held:
                click.echo(line)


@dataclass(frozen=True, slots=True)
class _Following:
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Trouble:
    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class _NotStarted:
    request_id: str
    message: str


_Told = Notice | _Following | _Trouble | _NotStarted


def _as_line(told: _Told) -> str:
    """Return what a person reads."""
    line: str
    match told:
        case _Following(agents):
            line = f"Following {', '.join(agents)}. Ctrl-C ends it."
        case Reached(session, limit):
            until = f" until {_clock(limit.resets_at)}" if limit.resets_at else ""
            line = f"{session.provider} reached its limit ({limit.kind}{until})."
        case Answered(_, _, HandoffReady() as result, seconds_):
            coverage = result.coverage
            total = coverage.selected_items + coverage.omitted_items
            passed = "".join(
                f"\n  passed over {p.target.provider}: {p.message}" for p in result.passed_over
            )
            line = (
                f"Ready for {result.target.provider} in {seconds_ * 1000:.0f} ms: "
                f"{coverage.selected_items} of {total} items, {result.budget.cost:,} bytes.{passed}\n"
                f"  Go on with:  moonfold continue {result.request_id}"
            )
        case Answered(session, _, result, _):
            line = f"No handoff of {session.provider}: {_reason(result)}"
        case Prepared(session, window, result):
            provider = getattr(result, "target", session).provider
            line = (
                f"{session.provider} has used {window.used_percent:.0f} % of its quota; "
                f"the handoff to {provider} is prepared."
            )
        case Unanswered(session, message):
            line = f"No handoff of {session.provider}: {message}"
        case _Trouble(path, message):
            line = f"{path.name}: {message}"
        case _:
            request_id, message = told.request_id, told.message
            line = f"{message} The handoff stays:  moonfold continue {request_id}"
    return line


def _as_json(told: _Told) -> str:
    """Return what a program reads: ids, sizes and times, no text of a conversation."""
    fields: dict[str, Any]
    match told:
        case _Following(agents):
            fields = {"event": "following", "agents": agents}
        case Reached(session, limit):
            fields = {
                "event": "limit_reached",
                **_ids(session),
                "kind": limit.kind,
                "resets_at": limit.resets_at,
            }
        case Answered(session, followed, result, seconds_):
            fields = {
                "event": str(result.__struct_config__.tag),
                **_ids(session),
                "request_id": result.request_id,
                "through": followed.through,
                "seconds": round(seconds_, 6),
                **_outcome(result),
            }
        case Prepared(session, window, result):
            fields = {
                "event": str(result.__struct_config__.tag),
                **_ids(session),
                "request_id": result.request_id,
                "used_percent": window.used_percent,
            }
        case Unanswered(session, message):
            fields = {"event": "unanswered", **_ids(session), "message": message}
        case _Trouble(path, message):
            fields = {"event": "trouble", "path": str(path), "message": message}
        case _NotStarted(request_id, message):
            fields = {"event": "not_started", "request_id": request_id, "message": message}
    return _encode(fields).decode()


def _ids(session: Session) -> dict[str, Any]:
    return {
        "provider": session.provider,
        "session_id": session.session_id,
        "thread_id": session.thread_id,
    }


def _outcome(result: HandoffResult) -> dict[str, Any]:
    if isinstance(result, HandoffReady):
        return {
            "target": result.target.provider,
            "delivery": result.delivery,
            "selected_items": result.coverage.selected_items,
            "omitted_items": result.coverage.omitted_items,
            "cost": result.budget.cost,
            "passed_over": [(p.target.provider, p.reason) for p in result.passed_over],
        }
    if isinstance(result, HandoffFailed):
        return {"code": result.code, "message": result.message, "resets_at": result.resets_at}
    return {"message": getattr(result, "message", "")}


def _reason(result: HandoffResult) -> str:
    if isinstance(result, HandoffFailed):
        until = f" Not before {_clock(result.resets_at)}." if result.resets_at else ""
        return f"{result.message}{until}"
    return str(getattr(result, "message", ""))


def _clock(time_: datetime) -> str:
    """Return a time as a clock at this place shows it, with the day if it is another one."""
    local = time_.astimezone()
    same_day = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M}" if same_day else f"{local:%Y-%m-%d %H:%M}"
