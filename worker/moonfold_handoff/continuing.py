"""A session that goes on with a handoff: its thread is a fork of the one that the handoff came from.

So the history keeps its positions and is not carried twice: what the session was given stands in its file
like anything else that was said, and is left out of its thread, which has it from its parent.
"""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.store import log, sources
from moonfold_handoff.store.sources import Given, Place
from moonfold_handoff.transcripts.base import safe_id
from moonfold_schemas import ThreadEvent
from moonfold_schemas.events import (
    ConversationStarted,
    HandoffDelivered,
    ItemRecorded,
    ModelSelected,
    OpaqueEvent,
    ThreadForked,
)
from moonfold_schemas.items import AssistantMessage, UserMessage
from moonfold_schemas.results import HandoffReady


async def link(client: HandoffClient, result: HandoffReady, conversation_id: str) -> str:
    """Make the thread of a session that is begun with a handoff, and return its id.

    Args:
        client: the connection to the service.
        result: the handoff.
        conversation_id: the session, as its agent names it.

    Raises:
        AppendError: there is a thread of that session already.
    """
    if result.thread_id is None:
        raise AssertionError  # a handoff that is ready names its thread
    target, through = result.target, result.coverage.through
    thread_id = safe_id(f"{target.provider}:{conversation_id}")
    named = safe_id(conversation_id)
    begins: list[ThreadEvent] = [
        ThreadForked(parent_thread_id=result.thread_id, through=through),
        ConversationStarted(
            conversation_id=named,
            provider=target.provider,
            instance=target.instance,
            model=target.model,
            options=target.options,
            capacity=target.capacity,
        ),
        HandoffDelivered(
            conversation_id=named,
            through=through,
            request_id=result.request_id,
            tokens=result.budget.cost,
        ),
    ]
    base = await client.append(thread_id, through, begins)
    texts = (part.text for message in result.items for part in message.content)
    given = Given(len(result.text), _mark(result.text), tuple(map(_mark, texts)))
    services = client.services
    place, ttl = Place(base=base, given=given), services.settings.thread_ttl
    await sources.save(services.threads, thread_id, place, ttl=ttl)
    await log.renew(services.threads, [result.thread_id], ttl=ttl)
    return thread_id


def own(event: ThreadEvent, given: Given) -> tuple[ThreadEvent, Given]:
    """Return an event of a session as its thread has it, and what of the given is still to come.

    What was given is counted already, by the `handoff.delivered` at the thread's beginning; so is the
    beginning of the conversation. From the first message on that was not given, everything is its own.
    """
    if isinstance(event, ConversationStarted):
        selected = ModelSelected(
            time=event.time,
            conversation_id=event.conversation_id,
            model=event.model,
            options=event.options,
            capacity=event.capacity,
        )
        return selected, given
    item = event.item if isinstance(event, ItemRecorded) else None
    if given.met is None or not isinstance(item, UserMessage | AssistantMessage):
        return event, given
    mark = _mark(item.text)
    if mark in given.messages[given.met :]:
        met = given.messages.index(mark, given.met) + 1
        return OpaqueEvent(time=event.time, original_type="item.recorded"), replace(given, met=met)
    before, after = item.text[: given.characters], item.text[given.characters :]
    if before and _mark(before) == given.text:
        item = replace(item, text=after.lstrip("\n"))
        event = ItemRecorded(time=event.time, item=item)
    return event, replace(given, met=None)


def _mark(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()
