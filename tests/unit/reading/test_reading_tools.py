from __future__ import annotations

from typing import Any

import pytest

from moonfold_handoff.reading.answers import Found, Page, View
from moonfold_handoff.reading.tools import (
    ArgumentError,
    ReadArguments,
    SearchArguments,
    given,
    parse,
    schema,
)


@pytest.mark.parametrize("type_", [ReadArguments, SearchArguments])
def test_every_argument_is_described_and_none_but_the_query_required(type_: Any) -> None:
    document = schema(type_)
    assert document["type"] == "object"
    assert document["required"] == (["query"] if type_ is SearchArguments else [])
    for argument in document["properties"].values():
        assert argument["description"]


@pytest.mark.parametrize("type_", [ReadArguments, SearchArguments, Page, Found])
def test_a_schema_is_in_one_piece(type_: Any) -> None:
    assert "$ref" not in str(schema(type_))
    assert "$defs" not in schema(type_)


def test_only_what_is_given_is_asked_for() -> None:
    assert given(parse(None, ReadArguments)) == {}
    arguments = parse(
        {"position": "12", "offset": 0, "after": None, "thread_id": "t"}, ReadArguments
    )
    assert arguments.thread_id == "t"
    assert given(arguments) == {"position": 12, "offset": 0}
    assert given(parse({"view": "activity"}, ReadArguments)) == {"view": View.ACTIVITY}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"position": "#12"}, "position"), ({"view": "all"}, "view"), ({"thread": "t"}, "thread")],
)
def test_what_cannot_be_used_is_named_in_one_sentence(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse(arguments, ReadArguments)
    assert named in str(raised.value)
    assert "such as 12 for #12" in str(raised.value)


def test_a_search_needs_something_to_search_for() -> None:
    for arguments in ({}, {"query": ""}, {"query": "x" * 1_001}, None):
        with pytest.raises(ArgumentError, match="query"):
            parse(arguments, SearchArguments)
