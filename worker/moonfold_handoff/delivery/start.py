"""From a handoff to the command that goes on with it."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path

from moonfold_handoff.delivery.codex_app_server import InjectionError, inject
from moonfold_handoff.delivery.programs import (
    MOST_ARGUMENT_BYTES,
    PROGRAMS,
    NotStartedError,
    Program,
)
from moonfold_handoff.delivery.reader import NOTHING, Offer, offer
from moonfold_schemas.results import Delivery, HandoffReady

GO_ON = "Go on where the conversation stopped."
"""What the agent is asked where the person has not said what they want next."""


@dataclass(frozen=True, slots=True)
class Start:
    """How the target agent is started.

    Attributes:
        arguments: the program and its arguments.
        cwd: where it is started; None: here.
        conversation_id: the provider conversation that goes on, where it is known beforehand.
        trouble: why the history goes as text where it could have gone as messages.
        reader: what gives it the reader of what was left out; `arguments` hold that already.
    """

    arguments: tuple[str, ...]
    cwd: str | None
    conversation_id: str | None
    trouble: str | None = None
    reader: Offer = NOTHING


async def prepare_start(result: HandoffReady, request: str, *, cwd: str | None) -> Start:
    """Return how to start the agent of a handoff, with its history, its reader and the new request.

    For Codex a thread is made that has the history as messages; where that fails it goes as text, as for
    everyone else: before the request, in the first prompt (R5, R6).

    Args:
        result: the handoff.
        request: what the person wants next.
        cwd: where the conversation worked; a folder that is gone is left out.

    Raises:
        NotStartedError: the agent is not installed, or the prompt is longer than an argument may be.
    """
    program = PROGRAMS[result.target.provider]
    path = program.path()
    if cwd is not None and not await asyncio.to_thread(Path(cwd).is_dir):
        cwd = None
    reader = await asyncio.to_thread(offer, result)
    agent = (path, *reader.arguments)
    trouble: str | None = None
    if result.delivery is Delivery.ITEMS and program.resume is not None:
        try:
            thread_id = await inject(path, result.items, cwd=cwd)
        except InjectionError as error:
            trouble = str(error)
        else:
            arguments = program.resume(thread_id, request)
            return Start((*agent, *arguments), cwd, thread_id, reader=reader)
    arguments, conversation_id = _with_text(program, result, request)
    for argument in arguments:
        if len(argument.encode()) > MOST_ARGUMENT_BYTES:
            raise NotStartedError(
                f"The history and the request are longer than {program.name} can be given. "
                "Ask for a shorter handoff (--cap)."
            )
    return Start((*agent, *arguments), cwd, conversation_id, trouble, reader)


def _with_text(
    program: Program, result: HandoffReady, request: str
) -> tuple[list[str], str | None]:
    """Return the arguments that give an agent the history as text, and the conversation they name."""
    prompt = f"{result.text}\n\n{request}" if result.text else request
    going_on = result.target.conversation_id
    if going_on is not None and program.resume is not None:
        return program.resume(going_on, prompt), going_on
    if program.takes_id is None:
        return program.begin(prompt), None
    conversation_id = str(uuid.uuid4())
    return [program.takes_id, conversation_id, *program.begin(prompt)], conversation_id
