"""The contract documents: JSON Schema and AsyncAPI, made from the types alone.

A JSON Schema here describes what a reader accepts. It is open where the codec is: unknown fields are
ignored, and activity of an unknown tag is kept as opaque, which no schema can say. A malformed trace context
does not fit it, and is read as none.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from moonfold_schemas.base import ID_PATTERN
from moonfold_schemas.events import ThreadEvent
from moonfold_schemas.items import Item
from moonfold_schemas.requests import HandoffRequest
from moonfold_schemas.results import HandoffResult

CONTRACT_VERSION = "1.0.0"
"""Version of the wire contract: the first number changes when an old reader would misread."""

_UNIONS = {
    "event": ("ThreadEvent", ThreadEvent, "Any thread event, discriminated by `type`."),
    "item": ("Item", Item, "Any item, discriminated by `kind`."),
    "request": ("HandoffRequest", HandoffRequest, "Any request, discriminated by `type`."),
    "result": ("HandoffResult", HandoffResult, "Any result, discriminated by `type`."),
}
_SCHEMAS = "#/components/schemas/"
_MESSAGES = "#/components/messages/"

_THREAD_LOG = """\
Redis stream of a thread's events. The key is `moonfold:{<thread_id>}:log`: its braces are written out,
they are the Redis Cluster hash tag. Entry `<sequence>-0` holds the event of that sequence as JSON;
sequences start at 1 and have no gaps. Written through the `append` script only."""
_QUEUE = """\
arq queue: a sorted set of job ids. The job is JSON under arq's key of that id; its first argument is the
request. Written through the `enqueue` script only. The worker's own jobs are not described here."""
_RESULTS = """\
Redis stream that tells a session which results are there, once for each request. The key is
`moonfold:results:<session_id>`, without braces. Capped and expiring. On the pub/sub channel of the same
name the result itself is published, for a session that listens; a lost message is found by looking."""
_RESULT = """\
Redis string that holds the result of one request as JSON. The key is `moonfold:result:<request_id>`,
without braces. Expiring."""


def documents() -> dict[str, str]:
    """Return the text of every document by its path below `schemas/`."""
    found = {f"json/{name}.json": _json_schema(*union) for name, union in _UNIONS.items()}
    found["asyncapi.json"] = _asyncapi()
    return {
        path: json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        for path, document in found.items()
    }


def stale(directory: Path) -> list[str]:
    """Return the paths of the documents in `directory` that are missing or not as generated."""
    return [path for path, text in documents().items() if _content(directory / path) != text]


def write(directory: Path) -> None:
    """Write every document below `directory`."""
    for path, text in documents().items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def checkout() -> Path | None:
    """Return the `schemas/` directory of the source checkout this package runs from, if it does."""
    directory = Path(__file__).resolve().parents[1]
    is_checkout = directory.name == "schemas" and (directory.parent / "pyproject.toml").is_file()
    return directory if is_checkout else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate or check the documents; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m moonfold_schemas", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="name stale documents, write nothing")
    check = parser.parse_args(arguments).check
    directory = checkout()
    if directory is None:
        sys.stderr.write("The contract documents can only be generated in a source checkout.\n")
        return 2
    if not check:
        write(directory)
        return 0
    paths = stale(directory)
    for path in paths:
        sys.stderr.write(f"stale: schemas/{path} (run python -m moonfold_schemas)\n")
    return 1 if paths else 0


def _content(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _json_schema(title: str, union: Any, description: str) -> dict[str, Any]:
    (schema,), definitions = msgspec.json.schema_components([union], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def _asyncapi() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(
        [union for _, union, _ in _UNIONS.values()], ref_template=_SCHEMAS + "{name}"
    )
    schemas = {name: _for_asyncapi(schema) for name, schema in components.items()}
    schemas["Job"] = _job()
    schemas["ResultNotice"] = _result_notice()
    events = {_tag(type_): _message(type_) for type_ in ThreadEvent.__args__}
    requests = {_tag(type_): _job_message(type_) for type_ in HandoffRequest.__args__}
    results = {_tag(type_): _message(type_) for type_ in HandoffResult.__args__}
    notice = {
        "result.published": {
            "name": "result.published",
            "title": "ResultNotice",
            "summary": schemas["ResultNotice"]["description"],
            "payload": {"$ref": _SCHEMAS + "ResultNotice"},
        }
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Moonfold handoffs",
            "version": CONTRACT_VERSION,
            "description": (
                "What sessions, thread logs and handoff workers say to each other over Redis or"
                " Valkey. Operations are the worker's: it receives events and requests and sends"
                " results. Unknown fields are ignored."
            ),
        },
        "defaultContentType": "application/json",
        "channels": {
            "threadLog": _channel("moonfold:{thread_id}:log", "Thread log", _THREAD_LOG, events),
            "handoffs": _channel("moonfold:handoffs", "Interactive queue", _QUEUE, requests),
            "background": _channel("moonfold:background", "Background queue", _QUEUE, requests),
            "results": _channel(
                "moonfold:results:{session_id}", "Results of a session", _RESULTS, notice
            ),
            "result": _channel(
                "moonfold:result:{request_id}", "Result of a request", _RESULT, results
            ),
        },
        "operations": {
            "readThread": _operation("receive", "threadLog", "Read a thread's history."),
            "takeHandoff": _operation("receive", "handoffs", "Make a handoff someone waits for."),
            "takeBackground": _operation("receive", "background", "Prepare a handoff."),
            "announceResult": _operation("send", "results", "Tell the session a result is there."),
            "storeResult": _operation("send", "result", "Store the result of a request."),
        },
        "components": {
            "messages": {**events, **requests, **results, **notice},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def _job() -> dict[str, Any]:
    return {
        "title": "Job",
        "description": "A job as arq stores it, in JSON.",
        "type": "object",
        "properties": {
            "t": {"description": "Attempt; null at first.", "type": ["integer", "null"]},
            "f": {"description": "What the worker runs.", "const": "build_handoff"},
            "a": {
                "description": "Arguments: the request, alone.",
                "type": "array",
                "items": {"oneOf": [_reference(type_) for type_ in HandoffRequest.__args__]},
                "minItems": 1,
                "maxItems": 1,
            },
            "k": {"description": "Named arguments: none.", "type": "object", "maxProperties": 0},
            "et": {"description": "When it was enqueued, Unix ms.", "type": "integer"},
        },
        "required": ["t", "f", "a", "k", "et"],
    }


def _result_notice() -> dict[str, Any]:
    return {
        "title": "ResultNotice",
        "description": "That the result of a request is there.",
        "type": "object",
        "properties": {
            "request_id": {"type": "string", "pattern": ID_PATTERN},
            "type": {"enum": [_tag(type_) for type_ in HandoffResult.__args__]},
        },
        "required": ["request_id", "type"],
    }


def _channel(
    address: str, title: str, description: str, messages: dict[str, Any]
) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": address,
        "title": title,
        "description": description,
        "messages": {name: {"$ref": _MESSAGES + name} for name in messages},
    }
    _, brace, rest = address.partition("{")
    if brace:
        name = rest.partition("}")[0]
        channel["parameters"] = {name: {"description": "1-200 characters of A-Z a-z 0-9 . _ : -"}}
    return channel


def _operation(action: str, channel: str, summary: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
    }


def _message(type_: Any) -> dict[str, Any]:
    return {
        "name": _tag(type_),
        "title": type_.__name__,
        "summary": " ".join((inspect.getdoc(type_) or "").partition("\n\n")[0].split()),
        "payload": _reference(type_),
    }


def _job_message(type_: Any) -> dict[str, Any]:
    only_this = {"type": "object", "properties": {"a": {"items": _reference(type_)}}}
    return {
        **_message(type_),
        "payload": {"allOf": [{"$ref": _SCHEMAS + "Job"}, only_this]},
    }


def _reference(type_: Any) -> dict[str, Any]:
    return {"$ref": _SCHEMAS + type_.__name__}


def _tag(type_: Any) -> str:
    return str(type_.__struct_config__.tag)


def _for_asyncapi(schema: Any) -> Any:
    """Return `schema` in AsyncAPI's dialect, a superset of JSON Schema draft 7.

    Nothing counts beside a `$ref` there, and a discriminator is the name of a property that the schema
    itself defines and requires, whose `const` in each alternative stands for the alternative's name.
    """
    if isinstance(schema, list):
        return [_for_asyncapi(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _for_asyncapi(part) for name, part in schema.items()}
    if "$ref" in plain and len(plain) > 1:
        plain["allOf"] = [{"$ref": plain.pop("$ref")}]
    values = plain.get("enum", ())
    if len(values) == 1:
        del plain["enum"]
        plain["const"] = values[0]
    if "discriminator" in plain:
        name = plain["discriminator"]["propertyName"]
        plain |= {
            "type": "object",
            "discriminator": name,
            "properties": {name: {"type": "string"}},
            "required": [name],
        }
    return plain
