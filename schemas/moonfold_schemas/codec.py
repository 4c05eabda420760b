"""Bytes to wire types and back.

Four leniencies, each for what real producers write:

* lone surrogates (JavaScript cuts strings between the halves of an emoji) become U+FFFD;
* activity of an unknown `type` or `kind` becomes `OpaqueEvent` or `OpaqueItem`, so that an older worker
  still counts what a newer producer recorded;
* a malformed trace context is taken as none: what only watches must not stop a handoff;
* unknown fields are ignored.

Everything else that does not fit raises `WireError`, whose message names the place and the expected
type and never quotes the value: conversations are private.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from moonfold_schemas.base import Traceparent, Tracestate, Wire
from moonfold_schemas.events import ItemRecorded, OpaqueEvent, ThreadEvent
from moonfold_schemas.items import Item
from moonfold_schemas.requests import HandoffRequest
from moonfold_schemas.results import HandoffResult


class _Carrier(msgspec.Struct):
    """As much of a message as may tell its trace."""

    traceparent: Any = None
    tracestate: Any = None


_TRACE_FIELDS: dict[str, Any] = {"traceparent": Traceparent, "tracestate": Tracestate}
_carrier_decoder = msgspec.json.Decoder(_Carrier)
_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(ThreadEvent)
_request_decoder = msgspec.json.Decoder(HandoffRequest)
_result_decoder = msgspec.json.Decoder(HandoffResult)

_REFUSALS = (msgspec.DecodeError, RecursionError, UnicodeError)
# msgspec quotes only a refused enum value or tag, as Python would: in either kind of quotes.
_REFUSED_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*?((?: - at `[^`]*`)?)\Z", re.DOTALL)


class WireError(ValueError):
    """Bytes that are not a valid event, request or result."""


def encode(value: Wire) -> bytes:
    """Return `value` as JSON. The same value always gives the same bytes."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(value)))


def decode_event(raw: bytes) -> ThreadEvent:
    """Return the thread event in `raw`; activity of an unknown kind comes back opaque.

    Raises:
        WireError: `raw` is not JSON, or a known event with a missing or wrong field.
    """
    try:
        return _event_decoder.decode(raw)
    except _REFUSALS:
        document = parse(raw)
        opaque = _opaque(document, len(raw))
        return _convert(document, ThreadEvent) if opaque is None else opaque


def decode_request(raw: bytes) -> HandoffRequest:
    """Return the request in `raw`.

    Raises:
        WireError: `raw` is not JSON, of an unknown type, or has a missing or wrong field.
    """
    try:
        return _request_decoder.decode(raw)
    except _REFUSALS:
        request: HandoffRequest = _convert(_with_sound_trace(parse(raw)), HandoffRequest)
        return request


def decode_result(raw: bytes) -> HandoffResult:
    """Return the result in `raw`.

    Raises:
        WireError: `raw` is not a result.
    """
    try:
        return _result_decoder.decode(raw)
    except _REFUSALS:
        result: HandoffResult = _convert(_with_sound_trace(parse(raw)), HandoffResult)
        return result


def trace_context(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a message's trace context, as far as they are well-formed.

    Without a `traceparent` there is none; without a `tracestate` there is a smaller one.
    """
    found: dict[str, str] = {}
    for name, type_ in _TRACE_FIELDS.items():
        try:
            found[name] = msgspec.convert(document.get(name), type_)
        except msgspec.ValidationError:
            break
    return found


def read_trace_context(raw: bytes) -> dict[str, str]:
    """Return the trace context of a request or result, however unsound the rest of it is."""
    try:
        carrier = _carrier_decoder.decode(raw)
    except _REFUSALS:
        return {}
    return trace_context(msgspec.structs.asdict(carrier))


def parse(raw: bytes) -> Any:
    """Return any JSON document in `raw`, with lone surrogates replaced.

    Raises:
        WireError: `raw` is not JSON.
    """
    try:
        document = json.loads(raw.decode(), parse_constant=_finite, parse_float=_finite)
        return _without_surrogates(document)
    except UnicodeDecodeError:
        raise WireError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise WireError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise WireError("JSON is nested too deeply") from None
    except ValueError:
        raise WireError("a number is out of range") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def describe(error: Exception) -> str:
    """Return what is wrong in one line, without any value of the document."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    return _REFUSED_VALUE.sub(r"\1\2", str(error))


def _convert(document: Any, type_: Any) -> Any:
    try:
        return msgspec.convert(document, type_)
    except _REFUSALS as error:
        raise WireError(describe(error)) from None


def _with_sound_trace(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    rest = {name: value for name, value in document.items() if name not in _TRACE_FIELDS}
    return rest | trace_context(document)


def _opaque(document: Any, size: int) -> ThreadEvent | None:
    """Return the opaque form of activity with an unknown tag, else None."""
    if not isinstance(document, dict):
        return None
    type_ = document.get("type")
    if type_ == "item.recorded":
        return _opaque_item(document, size)
    if isinstance(type_, str) and type_ not in _EVENT_TYPES:
        return OpaqueEvent(original_type=type_[:200], size=size)
    return None


def _opaque_item(document: dict[str, Any], size: int) -> ItemRecorded | None:
    item = document.get("item")
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(kind, str) or kind in _ITEM_KINDS:
        return None
    head = {name: item[name] for name in ("item_id", "turn_id", "status") if name in item}
    known = {"kind": "opaque", "original_kind": kind[:200], "size": size, **head}
    event: ItemRecorded = _convert({**document, "item": known}, ItemRecorded)
    return event


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(v) for v in value]
    return value


def _tags(union: Any) -> frozenset[str]:
    return frozenset(str(t.__struct_config__.tag) for t in union.__args__)


_EVENT_TYPES = _tags(ThreadEvent)
_ITEM_KINDS = _tags(Item)
