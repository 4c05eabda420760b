"""OpenCode's messages with their parts, with everything that can be wrong in them settled here.

Later steps may rely on it: a message has an id and a known role, a part has an id and a type, a tool's part
names its tool and has a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moonfold_handoff.limits.clocks import from_epoch
from moonfold_handoff.transcripts.lines import (
    MALFORMED,
    Json,
    count,
    dictionary,
    entries,
    integer,
    label,
    string,
    tokens,
)
from moonfold_schemas.items import Attachment, AttachmentKind

ROLES = frozenset({"assistant", "user"})

_PARTS = frozenset(
    {
        "agent",
        "compaction",
        "file",
        "patch",
        "reasoning",
        "retry",
        "snapshot",
        "step-finish",
        "step-start",
        "subtask",
        "text",
        "tool",
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message."""

    id: str
    type: str
    data: Json

    @property
    def state(self) -> Json:
        """How far a tool's call got."""
        return dictionary(self.data.get("state"))

    @property
    def clock(self) -> Json:
        """When the part, or the tool's call, began and ended."""
        return dictionary((self.state or self.data).get("time"))

    @property
    def is_open(self) -> bool:
        """Whether it was begun and not ended; one without times was never streamed."""
        return "start" in self.clock and "end" not in self.clock

    @property
    def is_of_opencode(self) -> bool:
        """Whether OpenCode added it for the model, or keeps it out of its sight."""
        return self.data.get("synthetic") is True or self.data.get("ignored") is True


@dataclass(frozen=True, slots=True)
class Message:
    """A message, with all of its parts, or with those that changed."""

    id: str
    role: str
    info: Json
    parts: tuple[Part, ...]

    @property
    def parent(self) -> str:
        """The request that an answer belongs to."""
        return string(self.info.get("parentID")) or ""

    @property
    def created(self) -> datetime | None:
        """When it was begun."""
        return at(dictionary(self.info.get("time")).get("created"))

    @property
    def completed(self) -> datetime | None:
        """When it was completed; None: it is still being written."""
        return at(dictionary(self.info.get("time")).get("completed"))

    @property
    def error(self) -> Json | None:
        """The error that it ended with."""
        error = self.info.get("error")
        return error if isinstance(error, dict) else None

    @property
    def finish(self) -> str | None:
        """Why the model stopped."""
        return string(self.info.get("finish"))

    @property
    def is_summary(self) -> bool:
        """Whether it is the summary that a compaction wrote."""
        return self.info.get("summary") is True

    @property
    def model(self) -> str | None:
        """The model's name behind its provider's, as OpenCode takes it on its command line."""
        names = self.info if self.role == "assistant" else dictionary(self.info.get("model"))
        name, provider = string(names.get("modelID")), string(names.get("providerID"))
        return f"{provider}/{name}" if provider and name else name or None

    @property
    def used(self) -> int | None:
        """The tokens in the context after it; a usage of zeros is no usage."""
        used = dictionary(self.info.get("tokens"))
        cache = dictionary(used.get("cache"))
        counts = (used.get("input"), used.get("output"), used.get("reasoning"))
        caches = (cache.get("read"), cache.get("write"))
        return tokens(sum(tokens(number) or 0 for number in (*counts, *caches))) or None

    def find(self, type_: str) -> Part | None:
        """Return the first part of a type."""
        return next((part for part in self.parts if part.type == type_), None)

    def asked(self) -> tuple[list[str], tuple[Attachment, ...]]:
        """Return what the person wrote and attached; OpenCode adds texts of its own to it.

        A command that a subagent carries out is a part of its own, with the prompt.
        """
        texts = []
        for part in self.parts:
            name = {"text": "text", "subtask": "prompt"}.get(part.type)
            if name and not part.is_of_opencode and (text := string(part.data.get(name))):
                texts.append(text)
        files = (_attachment(part) for part in self.parts if part.type == "file")
        return texts, tuple(files)


def parse_message(document: Any, skipped: dict[str, int]) -> Message | None:
    """Return the message that a document `{info, parts}` is, or None where it is none, which is counted."""
    if not isinstance(document, dict):
        count(skipped, "not a record")
        return None
    info = dictionary(document.get("info"))
    id_, role = string(info.get("id")), string(info.get("role"))
    if not id_ or role is None:
        count(skipped, MALFORMED)
        return None
    if role not in ROLES:
        count(skipped, f"unknown record: {label(role)}")
        return None
    return Message(id_, role, info, tuple(_parts(entries(document.get("parts")), skipped)))


def at(value: Any) -> datetime | None:
    """Return the time of a number of milliseconds since the epoch."""
    milliseconds = integer(value)
    return None if milliseconds is None else from_epoch(milliseconds)


def _parts(documents: list[Any], skipped: dict[str, int]) -> Iterator[Part]:
    for document in documents:
        data = dictionary(document)
        id_, type_ = string(data.get("id")), string(data.get("type"))
        if not id_ or type_ is None or not _has_its_fields(data, type_):
            count(skipped, MALFORMED)
        elif type_ not in _PARTS:
            count(skipped, f"unknown part: {label(type_)}")
        else:
            yield Part(id_, type_, data)


def _has_its_fields(data: Json, type_: str) -> bool:
    if type_ in {"text", "reasoning"}:
        return isinstance(data.get("text"), str)
    if type_ == "tool":
        return isinstance(data.get("tool"), str) and isinstance(data.get("state"), dict)
    return True


def _attachment(part: Part) -> Attachment:
    is_image = (string(part.data.get("mime")) or "").startswith("image/")
    kind = AttachmentKind.IMAGE if is_image else AttachmentKind.FILE
    return Attachment(kind=kind, name=string(part.data.get("filename")))
