from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from moonfold_schemas import HandoffRequest, HandoffResult, Item, ThreadEvent, documents

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
NAMES = ("event", "item", "request", "result")
ASYNCAPI = json.loads(documents.documents()["asyncapi.json"])


def json_schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(documents.documents()[f"json/{name}.json"])
    return document


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def resolve(document: Any, reference: str) -> Any:
    root, *names = reference.split("/")
    assert root == "#"
    for name in names:
        document = document[name]
    return document


def schema_of(name: str) -> dict[str, Any]:
    """Return a component's schema as a document of its own."""
    return {"$ref": f"#/components/schemas/{name}", "components": ASYNCAPI["components"]}


def job(request: Any, **changes: Any) -> dict[str, Any]:
    return {"t": None, "f": "build_handoff", "a": [request], "k": {}, "et": 1} | changes


def golden(path: str) -> Any:
    return json.loads((SCHEMAS.parent / "tests" / "golden" / path).read_bytes())


def test_the_committed_documents_are_as_generated() -> None:
    assert documents.stale(SCHEMAS) == [], "run python -m moonfold_schemas"


def test_nothing_else_lies_beside_the_documents() -> None:
    found = {path.relative_to(SCHEMAS).as_posix() for path in (SCHEMAS / "json").iterdir()}
    assert {*found, "asyncapi.json"} == set(documents.documents())


def test_documents_end_with_a_newline_and_are_indented_by_two() -> None:
    for text in documents.documents().values():
        assert text.endswith("}\n")
        assert text.startswith('{\n  "')


@pytest.mark.parametrize("name", NAMES)
def test_json_schemas_are_valid_and_self_contained(name: str) -> None:
    document = json_schema(name)
    Draft202012Validator.check_schema(document)
    found = set(references(document))
    assert found
    for reference in found:
        assert resolve(document, reference)["title"] == reference.rpartition("/")[2]


@pytest.mark.parametrize(
    ("name", "union", "tag_field"),
    [
        ("event", ThreadEvent, "type"),
        ("item", Item, "kind"),
        ("request", HandoffRequest, "type"),
        ("result", HandoffResult, "type"),
    ],
)
def test_json_schemas_discriminate_by_tag(name: str, union: Any, tag_field: str) -> None:
    document = json_schema(name)
    types = {type_.__struct_config__.tag: type_ for type_ in union.__args__}
    assert document["discriminator"] == {
        "propertyName": tag_field,
        "mapping": {tag: f"#/$defs/{type_.__name__}" for tag, type_ in types.items()},
    }
    for tag, type_ in types.items():
        definition = document["$defs"][type_.__name__]
        assert definition["properties"][tag_field] == {"enum": [tag]}
        assert tag_field in definition["required"]
        assert definition["description"]


def test_asyncapi_references_resolve() -> None:
    found = set(references(ASYNCAPI))
    assert found
    for reference in found:
        assert isinstance(resolve(ASYNCAPI, reference), dict)


def test_asyncapi_uses_every_component() -> None:
    found = set(references(ASYNCAPI))
    for section in ("messages", "schemas"):
        for name in ASYNCAPI["components"][section]:
            assert f"#/components/{section}/{name}" in found


def test_every_event_request_and_result_has_a_message_in_a_channel() -> None:
    channels = ASYNCAPI["channels"]
    for union, names in (
        (ThreadEvent, ["threadLog"]),
        (HandoffRequest, ["handoffs", "background"]),
        (HandoffResult, ["result"]),
    ):
        tags = [type_.__struct_config__.tag for type_ in union.__args__]
        for name in names:
            assert list(channels[name]["messages"]) == tags
        for type_, tag in zip(union.__args__, tags, strict=True):
            message = ASYNCAPI["components"]["messages"][tag]
            assert f"#/components/schemas/{type_.__name__}" in set(references(message["payload"]))
            assert message["summary"]


def test_asyncapi_addresses_and_their_parameters() -> None:
    channels = {c["address"]: c.get("parameters") for c in ASYNCAPI["channels"].values()}
    described = {"description": "1-200 characters of A-Z a-z 0-9 . _ : -"}
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert channels == {
        "moonfold:{thread_id}:log": {"thread_id": described},
        "moonfold:handoffs": None,
        "moonfold:background": None,
        "moonfold:results:{session_id}": {"session_id": described},
        "moonfold:result:{request_id}": {"request_id": described},
    }


def test_asyncapi_schemas_have_nothing_beside_a_reference() -> None:
    def check(part: Any) -> None:
        if isinstance(part, dict):
            assert "$ref" not in part or len(part) == 1
            for inner in part.values():
                check(inner)
        elif isinstance(part, list):
            for inner in part:
                check(inner)

    check(ASYNCAPI["components"])


def test_asyncapi_discriminators_are_properties_of_their_schema() -> None:
    item = ASYNCAPI["components"]["schemas"]["ItemRecorded"]["properties"]["item"]
    assert item["discriminator"] == "kind"
    assert item["required"] == ["kind"]
    assert "kind" in item["properties"]
    kind = ASYNCAPI["components"]["schemas"]["Plan"]["properties"]["kind"]
    assert kind == {"const": "plan"}


@pytest.mark.parametrize("type_", ThreadEvent.__args__)
def test_asyncapi_accepts_every_golden_event(type_: Any) -> None:
    document = golden(f"events/{type_.__struct_config__.tag}.json")
    Draft202012Validator(schema_of(type_.__name__)).validate(document)


@pytest.mark.parametrize("type_", HandoffRequest.__args__)
def test_asyncapi_accepts_a_job_with_its_request_only(type_: Any) -> None:
    tag = type_.__struct_config__.tag
    payload = ASYNCAPI["components"]["messages"][tag]["payload"]
    validator = Draft202012Validator({**payload, "components": ASYNCAPI["components"]})
    assert validator.is_valid(job(golden(f"requests/{tag}.json")))
    others = {t.__struct_config__.tag for t in HandoffRequest.__args__} - {tag}
    for other in others:
        assert not validator.is_valid(job(golden(f"requests/{other}.json")))


@pytest.mark.parametrize(
    "changes", [{"f": "other"}, {"a": []}, {"k": {"x": 1}}, {"et": "now"}, {"t": "first"}]
)
def test_asyncapi_refuses_a_wrong_job(changes: dict[str, Any]) -> None:
    request = golden("requests/restart.requested.json")
    validator = Draft202012Validator(schema_of("Job"))
    assert validator.is_valid(job(request))
    assert not validator.is_valid(job(request, **changes))


def test_asyncapi_describes_the_notice_of_a_result() -> None:
    validator = Draft202012Validator(schema_of("ResultNotice"))
    assert validator.is_valid({"request_id": "request-1", "type": "handoff.ready"})
    assert not validator.is_valid({"request_id": "request-1", "type": "thread.started"})


def test_the_command_writes_what_is_missing_and_names_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(documents, "checkout", lambda: tmp_path)
    assert documents.main(["--check"]) == 1
    named = capsys.readouterr().err
    assert all(f"schemas/{path}" in named for path in documents.documents())

    assert documents.main([]) == 0
    assert documents.main(["--check"]) == 0
    assert capsys.readouterr().err == ""

    (tmp_path / "json" / "item.json").write_bytes(b"\xff")
    assert documents.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "stale: schemas/json/item.json (run python -m moonfold_schemas)"
    ]
    assert (tmp_path / "json" / "item.json").read_bytes() == b"\xff"


def test_the_command_runs_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["moonfold_schemas", "--check"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("moonfold_schemas", run_name="__main__")
    assert exit_.value.code == 0


def test_an_installed_wheel_says_that_it_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "site-packages" / "moonfold_schemas" / "documents.py"
    monkeypatch.setattr(documents, "__file__", str(installed))
    assert documents.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not installed.parent.parent.exists()


def test_the_checkout_is_found_from_the_package() -> None:
    assert documents.checkout() == SCHEMAS
