from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from moonfold_schemas import (
    HandoffRequest,
    HandoffResult,
    Item,
    ThreadEvent,
    decode_event,
    decode_request,
    decode_result,
    encode,
)

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden"
SCHEMAS = TESTS.parent / "schemas" / "json"
UNIONS: dict[str, Any] = {
    "events": ThreadEvent,
    "items": Item,
    "requests": HandoffRequest,
    "results": HandoffResult,
}
DECODERS: dict[str, Any] = {
    "events": decode_event,
    "items": msgspec.json.Decoder(Item).decode,
    "requests": decode_request,
    "results": decode_result,
}
VALIDATORS = {
    name: Draft202012Validator(json.loads((SCHEMAS / f"{name[:-1]}.json").read_bytes()))
    for name in UNIONS
}
TYPES = [
    pytest.param(name, type_, id=f"{name}:{type_.__struct_config__.tag}")
    for name, union in UNIONS.items()
    for type_ in union.__args__
]
every_type = pytest.mark.parametrize(("name", "type_"), TYPES)


def golden(name: str, type_: Any) -> bytes:
    path = GOLDEN / name / f"{type_.__struct_config__.tag}.json"
    assert path.is_file(), f"{path.relative_to(TESTS)} is missing"
    return path.read_bytes().removesuffix(b"\n")


def required(type_: Any) -> set[str]:
    names = {field.encode_name for field in msgspec.structs.fields(type_) if field.required}
    return {*names, type_.__struct_config__.tag_field}


def unset(value: Any, path: str = "$") -> list[str]:
    """Return the paths of all fields that were left at their default."""
    if isinstance(value, tuple):
        return [p for index, part in enumerate(value) for p in unset(part, f"{path}[{index}]")]
    if not isinstance(value, msgspec.Struct):
        return []
    found = []
    for field in msgspec.structs.fields(value):
        at = f"{path}.{field.name}"
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        part = getattr(value, field.name)
        found += [at] if part == default else unset(part, at)
    return found


def with_unknown_fields(value: Any) -> Any:
    if isinstance(value, list):
        return [with_unknown_fields(part) for part in value]
    if not isinstance(value, dict):
        return value
    # A model's options and an environment are free-form: an unknown name is kept, not ignored.
    free = {"options", "environment"}
    known = {k: v if k in free else with_unknown_fields(v) for k, v in value.items()}
    return {"unknown_before": {"deep": [1]}, **known, "unknown_after": None}


@pytest.mark.parametrize("name", UNIONS)
def test_there_is_one_golden_file_for_each_type(name: str) -> None:
    files = {path.name for path in (GOLDEN / name).iterdir()}
    assert files == {f"{type_.__struct_config__.tag}.json" for type_ in UNIONS[name].__args__}


@every_type
def test_a_golden_file_decodes_and_encodes_to_the_same_bytes(name: str, type_: Any) -> None:
    raw = golden(name, type_)
    value = DECODERS[name](raw)
    assert type(value) is type_
    assert encode(value) == raw


@every_type
def test_a_golden_file_fills_every_field(name: str, type_: Any) -> None:
    assert unset(DECODERS[name](golden(name, type_))) == []


@every_type
def test_a_golden_file_is_valid_by_the_json_schema(name: str, type_: Any) -> None:
    document = json.loads(golden(name, type_))
    assert [error.message for error in VALIDATORS[name].iter_errors(document)] == []


@every_type
def test_the_required_fields_are_enough(name: str, type_: Any) -> None:
    document = json.loads(golden(name, type_))
    least = {key: value for key, value in document.items() if key in required(type_)}
    value = DECODERS[name](json.dumps(least).encode())
    assert type(value) is type_
    assert DECODERS[name](encode(value)) == value
    assert VALIDATORS[name].is_valid(least)
    # Results write their defaults out; everything else leaves them out.
    written = set(json.loads(encode(value)))
    assert written == (set(document) if name == "results" else required(type_))


@every_type
def test_every_required_field_is_required_by_codec_and_schema(name: str, type_: Any) -> None:
    document = json.loads(golden(name, type_))
    for key in required(type_):
        rest = {k: v for k, v in document.items() if k != key}
        assert not VALIDATORS[name].is_valid(rest)
        with pytest.raises(ValueError, match=f"missing required field `{key}`"):
            DECODERS[name](json.dumps(rest).encode())


@every_type
def test_unknown_fields_are_ignored_at_every_depth(name: str, type_: Any) -> None:
    raw = golden(name, type_)
    newer = with_unknown_fields(json.loads(raw))
    assert encode(DECODERS[name](json.dumps(newer).encode())) == raw
    assert VALIDATORS[name].is_valid(newer)
