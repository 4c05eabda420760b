from __future__ import annotations

import json
import string
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from moonfold_schemas import (
    HandoffRequest,
    HandoffResult,
    ThreadEvent,
    WireError,
    decode_event,
    decode_request,
    decode_result,
    encode,
    utc_now,
)
from moonfold_schemas.base import ID_PATTERN, TRACEPARENT_PATTERN, TRACESTATE_PATTERN
from moonfold_schemas.codec import read_trace_context
from moonfold_schemas.events import (
    ConversationStarted,
    ItemRecorded,
    OpaqueEvent,
    ThreadStarted,
    TurnsRolledBack,
    TurnStarted,
)
from moonfold_schemas.items import (
    Attachment,
    AttachmentKind,
    ItemStatus,
    OpaqueItem,
    Plan,
    UserMessage,
)
from moonfold_schemas.requests import ProviderLimitReached
from moonfold_schemas.results import HandoffWaiting

Decoder = Callable[[bytes], Any]

ALPHABET = string.ascii_letters + string.digits + "._:-"
MARKER = "do-not-tell-7f3a"
DECODERS = pytest.mark.parametrize("decode", [decode_event, decode_request, decode_result])


def dumps(document: Any) -> bytes:
    return json.dumps(document).encode()


def refusal(decode: Decoder, raw: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode(raw)
    shown = "".join(traceback.format_exception(caught.value))
    assert MARKER not in shown
    return str(caught.value)


def request(**changes: Any) -> dict[str, Any]:
    ids = {"request_id": "r", "session_id": "s", "thread_id": "t", "through": 1}
    return {"type": "restart.requested", **ids, "target": {"provider": "codex"}} | changes


# Strategies, made from the types.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.text(ALPHABET, min_size=1, max_size=200)
traceparents = st.builds(
    "00-{:032x}-{:016x}-{:02x}".format,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 255),
)
tracestates = st.sampled_from(["a=1", "t61@vendor/x=~ b, b*=!"])
PATTERNED = {
    None: texts,
    ID_PATTERN: ids,
    TRACEPARENT_PATTERN: traceparents,
    TRACESTATE_PATTERN: tracestates,
}
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC) | zones)  # noqa: DTZ001


def values(type_: inspect.Type) -> st.SearchStrategy[Any]:
    found: st.SearchStrategy[Any]
    match type_:
        case inspect.Metadata():
            found = values(type_.type)
        case inspect.UnionType():
            found = st.one_of([values(part) for part in type_.types])
        case inspect.StructType():
            found = structs(type_.cls)
        case inspect.EnumType():
            found = st.sampled_from(list(type_.cls))
        case inspect.LiteralType():
            found = st.sampled_from(type_.values)
        case inspect.VarTupleType():
            least = type_.min_length or 0
            found = st.lists(values(type_.item_type), min_size=least, max_size=4).map(tuple)
        case inspect.DictType():
            found = st.dictionaries(values(type_.key_type), values(type_.value_type), max_size=4)
        case _:
            found = scalars(type_)
    return found


def scalars(type_: inspect.Type) -> st.SearchStrategy[Any]:
    found: st.SearchStrategy[Any]
    match type_:
        case inspect.StrType():
            found = PATTERNED[type_.pattern]
        case inspect.IntType():
            least = -(2**63) if type_.ge is None else type_.ge
            found = st.integers(least, 2**64 - 1 if type_.le is None else type_.le)
        case inspect.FloatType():
            found = st.floats(min_value=type_.ge, allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            found = st.booleans()
        case inspect.DateTimeType():
            found = times
        case inspect.NoneType():
            found = st.none()
        case _:
            raise AssertionError(type_)
    return found


def structs(cls: Any) -> st.SearchStrategy[Any]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    required = {field.name: values(field.type) for field in info.fields if field.required}
    optional = {field.name: values(field.type) for field in info.fields if not field.required}
    fields = st.fixed_dictionaries(required, optional=optional)
    return st.deferred(lambda: fields.map(lambda chosen: cls(**chosen)))


# Round trips.


@pytest.mark.parametrize(
    ("type_", "decode"),
    [
        pytest.param(type_, decode, id=type_.__struct_config__.tag)
        for union, decode in (
            (ThreadEvent, decode_event),
            (HandoffRequest, decode_request),
            (HandoffResult, decode_result),
        )
        for type_ in union.__args__
    ],
)
def test_every_value_survives_a_round_trip(type_: Any, decode: Decoder) -> None:
    @settings(max_examples=60, deadline=None)
    @given(structs(type_))
    def check(value: Any) -> None:
        raw = encode(value)
        assert raw == encode(value)
        decoded = decode(raw)
        assert type(decoded) is type_
        assert decoded == value
        assert encode(decoded) == raw

    check()


def test_the_same_value_gives_the_same_bytes_however_it_was_made() -> None:
    one = ThreadStarted(cwd="/a", title="b")
    other = decode_event(b'{ "title": "b", "cwd": "\\u002fa", "type": "thread.started" }')
    assert encode(one) == encode(other) == b'{"type":"thread.started","title":"b","cwd":"/a"}'


def test_nul_and_other_control_characters_survive() -> None:
    event = ThreadStarted(title="a\x00b\x1f\x7f\u2028")
    assert b"\x00" not in encode(event)
    assert decode_event(encode(event)) == event


def test_defaults_stay_off_the_wire_except_in_results() -> None:
    assert encode(TurnStarted(turn_id="t")) == b'{"type":"turn.started","turn_id":"t"}'
    waiting = HandoffWaiting(request_id="r", session_id="s", retry_after=1.0)
    assert json.loads(encode(waiting)) == {
        "type": "handoff.waiting",
        "request_id": "r",
        "session_id": "s",
        "thread_id": None,
        "created_at": None,
        "duration_ms": None,
        "traceparent": None,
        "tracestate": None,
        "retry_after": 1.0,
        "message": "",
    }


# Trace context.

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MALFORMED_TRACEPARENTS = pytest.mark.parametrize(
    "traceparent",
    [
        "",
        MARKER,
        7,
        None,
        [TRACEPARENT],
        TRACEPARENT + "\n",
        TRACEPARENT + "-what-is-to-come",
        " " + TRACEPARENT,
        TRACEPARENT.upper(),
        TRACEPARENT.replace("00-", "ff-", 1),
        TRACEPARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        TRACEPARENT.replace("b7ad6b7169203331", "0" * 16),
        TRACEPARENT * 10_000,
        "\ud83d",
    ],
)


@MALFORMED_TRACEPARENTS
def test_a_malformed_traceparent_is_none_and_refuses_nothing(traceparent: Any) -> None:
    sound = request(native_failed=True)
    document = {**sound, "traceparent": traceparent, "tracestate": "a=1"}
    decoded = decode_request(dumps(document))
    assert decoded.traceparent is None
    assert encode(decode_request(encode(decoded))) == encode(decoded)
    assert msgspec.structs.replace(decoded, tracestate=None) == decode_request(dumps(sound))
    result = {"type": "handoff.waiting", "request_id": "r", "session_id": "s", "retry_after": 1}
    assert decode_result(dumps({**result, "traceparent": traceparent})).traceparent is None


@pytest.mark.parametrize(
    ("tracestate", "is_sound"),
    [
        ("a=1", True),
        ("a=1,b*/_-=~ !", True),
        ("a=1 ,\tb=2", True),
        ("0tenant@vendor=x", True),
        (f"a={'x' * 256},b={'y' * 251}", True),
        (f"a={'x' * 256},b={'y' * 252}", False),
        (",".join(f"k{number}=1" for number in range(32)), True),
        (",".join(f"k{number}=1" for number in range(33)), False),
        ("", False),
        ("a", False),
        ("a=", False),
        ("A=1", False),
        ("a=1,", False),
        ("a=1\n", False),
        ("a=\u00e9", False),
        (MARKER, False),
        ({"a": 1}, False),
    ],
)
def test_a_malformed_tracestate_is_none_and_its_traceparent_stays(
    tracestate: Any, is_sound: bool
) -> None:
    raw = dumps(request(traceparent=TRACEPARENT, tracestate=tracestate))
    decoded = decode_request(raw)
    assert (decoded.traceparent, decoded.tracestate) == (
        TRACEPARENT,
        tracestate if is_sound else None,
    )
    found = {"traceparent": TRACEPARENT} | ({"tracestate": tracestate} if is_sound else {})
    assert read_trace_context(raw) == found


def test_what_else_is_wrong_beside_a_malformed_traceparent_is_still_refused() -> None:
    raw = dumps(request(traceparent=MARKER, through="x"))
    assert refusal(decode_request, raw) == "Expected `int`, got `str` - at `$.through`"


def test_an_unreadable_request_may_tell_its_trace() -> None:
    raw = dumps({"type": "unknown", "traceparent": TRACEPARENT, "target": {"deep": [1]}})
    assert read_trace_context(raw) == {"traceparent": TRACEPARENT}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"thread"', b"\xff", b"{}", b"[" * 100_000])
def test_what_is_no_request_tells_no_trace(raw: bytes) -> None:
    assert read_trace_context(raw) == {}


# Lone surrogates.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ud83d", "\ufffd\ufffd"),
        ("\ude00-\ud83d", "\ufffd-\ufffd"),
        ("\ufeff\ud83d\x00", "\ufeff\ufffd\x00"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text: str, expected: str) -> None:
    event = ThreadStarted(title=text)
    assert decode_event(encode(event)) == ThreadStarted(title=expected)
    document = {"type": "thread.started", "title": text}
    assert decode_event(dumps(document)) == ThreadStarted(title=expected)


def test_lone_surrogates_are_replaced_at_every_depth_and_nothing_else_changes() -> None:
    attachments = (Attachment(kind=AttachmentKind.FILE, name="\ud83d.txt"),)
    time = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    item = UserMessage(item_id="i", turn_id="t", text="é", attachments=attachments)
    raw = encode(ItemRecorded(time=time, item=item))
    clean = msgspec.structs.replace(
        item, attachments=(Attachment(kind=AttachmentKind.FILE, name="\ufffd.txt"),)
    )
    assert raw == encode(ItemRecorded(time=time, item=clean))

    started = ConversationStarted(conversation_id="c", provider="p", options={"\ud83d": 1})
    assert decode_event(encode(started)) == ConversationStarted(
        conversation_id="c", provider="p", options={"\ufffd": 1}
    )


def test_lone_surrogates_in_a_request_are_replaced() -> None:
    asked = decode_request(dumps(request(request={"text": "\ud83d!"})))
    assert asked.request is not None
    assert asked.request.text == "\ufffd!"


# Unknown activity.


def test_an_unknown_event_becomes_opaque_with_its_size() -> None:
    raw = b'{"type":"poll.started","question":"?","through":1}'
    assert decode_event(raw) == OpaqueEvent(original_type="poll.started", size=len(raw))


def test_an_unknown_item_becomes_opaque_with_its_size_and_keeps_its_head() -> None:
    raw = dumps(
        {
            "type": "item.recorded",
            "time": "2026-01-02T03:04:05Z",
            "item": {"kind": "video", "item_id": "i", "turn_id": "t", "status": "failed", "x": 1},
        }
    )
    item = OpaqueItem(
        item_id="i",
        turn_id="t",
        status=ItemStatus.FAILED,
        original_kind="video",
        size=len(raw),
    )
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert decode_event(raw) == ItemRecorded(time=time, item=item)


def test_an_opaque_tag_is_cut_to_what_the_contract_allows() -> None:
    event = decode_event(dumps({"type": "n" * 300}))
    assert isinstance(event, OpaqueEvent)
    assert event.original_type == "n" * 200
    head = {"item_id": "i", "turn_id": "t"}
    recorded = decode_event(dumps({"type": "item.recorded", "item": {"kind": "n" * 300, **head}}))
    assert isinstance(recorded, ItemRecorded)
    assert isinstance(recorded.item, OpaqueItem)
    assert recorded.item.original_kind == "n" * 200


def test_opaque_activity_survives_a_second_round_trip() -> None:
    opaque = decode_event(b'{"type":"poll.started","size":3}')
    assert decode_event(encode(opaque)) == opaque


def test_an_unknown_item_without_its_ids_is_refused() -> None:
    raw = dumps({"type": "item.recorded", "item": {"kind": "video", "item_id": "i"}})
    assert refusal(decode_event, raw) == "Object missing required field `turn_id` - at `$.item`"


@pytest.mark.parametrize("item", [5, None, [], {}, {"kind": 5}, {"kind": ["plan"]}])
def test_an_item_without_a_kind_is_refused(item: Any) -> None:
    assert "$.item" in refusal(decode_event, dumps({"type": "item.recorded", "item": item}))


def test_an_unknown_request_or_result_is_refused() -> None:
    assert refusal(decode_request, dumps({"type": MARKER})) == "Invalid value - at `$.type`"
    assert refusal(decode_result, dumps({"type": MARKER})) == "Invalid value - at `$.type`"


# Refusals name the place and never the value.

# Python would quote these in one kind of quotes or the other, and one looks like the end of a message.
SECRETS = [
    MARKER,
    f"{MARKER}'",
    f"'{MARKER}",
    f"\"{MARKER}'",
    f"`{MARKER}`\n",
    f"' - at `$.{MARKER}`",
    f"' - at `$.x`\n{MARKER}",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    ("decode", "path", "make"),
    [
        (decode_event, "$.turn_id", lambda s: {"type": "turn.started", "turn_id": s + " "}),
        (decode_event, "$.turn_id", lambda s: {"type": "turn.started", "turn_id": [s]}),
        (decode_event, "$.time", lambda s: {"type": "thread.started", "time": s}),
        (decode_event, "$.to", lambda s: {"type": "turns.rolled_back", "to": s}),
        (decode_event, "$.type", lambda s: {"type": {s: s}}),
        (
            decode_event,
            "$.status",
            lambda s: {"type": "turn.ended", "turn_id": "t", "status": s},
        ),
        (
            decode_event,
            "$.limit.kind",
            lambda s: {
                "type": "turn.ended",
                "turn_id": "t",
                "status": "limited",
                "limit": {"kind": s},
            },
        ),
        (
            decode_event,
            "$.options[...]",
            lambda s: {
                "type": "conversation.started",
                "conversation_id": "c",
                "provider": "p",
                "options": {s: [s]},
            },
        ),
        (
            decode_event,
            "$.original_type",
            lambda s: {"type": "opaque", "original_type": s * 200},
        ),
        (
            decode_event,
            "$.item.status",
            lambda s: {
                "type": "item.recorded",
                "item": {"kind": "video", "item_id": "i", "turn_id": "t", "status": s},
            },
        ),
        (
            decode_event,
            "$.item.attachments[0].kind",
            lambda s: {
                "type": "item.recorded",
                "item": {
                    "kind": "user_message",
                    "item_id": "i",
                    "turn_id": "t",
                    "text": "",
                    "attachments": [{"kind": s}],
                },
            },
        ),
        (decode_request, "$.type", lambda s: request(type=s)),
        (decode_request, "$.thread_id", lambda s: request(thread_id=s + " ")),
        (decode_request, "$.request", lambda s: request(request=s)),
        (decode_request, "$.request.text", lambda s: request(request={"text": {s: s}})),
        (
            decode_request,
            "$.request.attachments[1]",
            lambda s: request(request={"attachments": ["file", s]}),
        ),
        (decode_request, "$.target.options[...]", lambda s: {**request(), **bad_option(s)}),
        (decode_result, "$.type", lambda s: {"type": s}),
        (
            decode_result,
            "$.code",
            lambda s: {"type": "handoff.failed", "request_id": "r", "code": s, "message": ""},
        ),
        (
            decode_result,
            "$.retry_after",
            lambda s: {"type": "handoff.waiting", "request_id": "r", "retry_after": s},
        ),
    ],
)
def test_a_refusal_names_the_path_and_not_the_value(
    decode: Decoder, path: str, make: Callable[[str], dict[str, Any]], secret: str
) -> None:
    message = refusal(decode, dumps(make(secret)))
    assert message.endswith(f" - at `{path}`")
    assert len(message) < 150


def bad_option(secret: str) -> dict[str, Any]:
    return {"target": {"provider": "codex", "options": {"fine": secret, secret: {secret: 1}}}}


def test_a_refused_number_is_not_told() -> None:
    raw = dumps({"type": "turns.rolled_back", "to": -777123})
    assert refusal(decode_event, raw) == "Expected `int` >= 0 - at `$.to`"


def test_a_missing_field_is_named() -> None:
    raw = dumps({"type": "turn.started", "note": MARKER})
    assert refusal(decode_event, raw) == "Object missing required field `turn_id`"


# Not JSON, or not the JSON that was asked for.


@DECODERS
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b'{"type":"thread.started"',
        b'{"type":"thread.started","title":"' + MARKER.encode(),
        b'{"type":"thread.started","title":' + MARKER.encode() + b"}",
        b'{"type":"thread.started","title":"\\q' + MARKER.encode() + b'"}',
        b'{"type":"thread.started","title":"\x00"}',
        b'{"type":"thread.started"}' + MARKER.encode(),
        b'{"type":"thread.started"}{"type":"thread.started"}',
        b'{"type":"thread.started"}\x00',
        b'{"type":"thread.started","title":"\xff' + MARKER.encode() + b'"}',
        b"\xff\xfe\xff",
        b"\x80",
        b"null",
        b"true",
        b"17",
        b"NaN",
        b'"' + MARKER.encode() + b'"',
        b"[]",
        b'[{"type":"thread.started"}]',
        b"{}",
        b'{"type":null}',
    ],
)
def test_what_is_not_a_document_of_the_contract_is_refused(decode: Decoder, raw: bytes) -> None:
    assert refusal(decode, raw)


def test_refusals_of_bytes_say_what_is_wrong() -> None:
    assert refusal(decode_event, b'{"title":"\xff"}') == "not UTF-8"
    assert refusal(decode_event, b"{} x") == "not JSON: Extra data at character 3"
    assert refusal(decode_event, b"[]") == "Expected `object`, got `array`"


@pytest.mark.parametrize(
    "prefix",
    [b"", b'{"type":"thread.started","x":', b'{"type":"poll.started","x":'],
)
@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"a":', b"}")])
@DECODERS
def test_deep_nesting_is_refused(decode: Decoder, prefix: bytes, left: bytes, right: bytes) -> None:
    depth = 100_000
    assert refusal(decode, prefix + left * depth)
    closing = b"}" if prefix else b""
    assert refusal(decode, prefix + left * depth + b"1" + right * depth + closing)


def test_deep_nesting_is_told_as_such() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    expected = "JSON is nested too deeply"
    assert refusal(decode_event, b'{"type":"poll.started","x":' + deep + b"}") == expected
    assert refusal(decode_result, b'{"type":"handoff.failed","x":' + deep + b"}") == expected


def test_the_last_of_duplicate_keys_wins() -> None:
    assert decode_event(b'{"type":"turn.started","turn_id":"a","turn_id":"b"}') == TurnStarted(
        turn_id="b"
    )
    assert decode_event(
        b'{"type":"thread.started","type":"turn.started","turn_id":"a"}'
    ) == TurnStarted(turn_id="a")
    assert decode_event(
        b'{"type":"item.recorded","item":{"kind":"error","kind":"plan","item_id":"i",'
        b'"turn_id":"t","text":"x"}}'
    ) == ItemRecorded(item=Plan(item_id="i", turn_id="t", text="x"))


def test_not_a_number_is_refused_where_a_number_is_bounded() -> None:
    raw = b'{"type":"turn.ended","turn_id":"t","status":"limited","limit":{"kind":"quota",'
    assert refusal(decode_event, raw + b'"retry_after":NaN}}')
    assert refusal(decode_event, b'{"type":"turns.rolled_back","to":NaN}')
    assert refusal(decode_result, b'{"type":"handoff.waiting","request_id":"r","retry_after":NaN}')


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
def test_numbers_that_json_cannot_hold_are_refused(number: bytes) -> None:
    raw = b'{"type":"conversation.started","conversation_id":"c","provider":"p","options":{"a":'
    assert refusal(decode_event, raw + number + b"}}")


@pytest.mark.parametrize(
    "prefix", [b'{"type":"turns.rolled_back","to":', b'{"type":"poll.started","x":']
)
def test_an_integer_of_thousands_of_digits_is_no_other_error(prefix: bytes) -> None:
    try:
        decode_event(prefix + b"9" * 5000 + b"}")
    except WireError:
        return


# Identifiers, numbers, times.


@pytest.mark.parametrize("text", ["a", "a" * 200, ALPHABET])
def test_identifiers_of_the_alphabet_are_accepted(text: str) -> None:
    assert decode_event(dumps({"type": "turn.started", "turn_id": text})) == TurnStarted(
        turn_id=text
    )


@pytest.mark.parametrize(
    "text",
    ["", "a" * 201, "a\n", "\na", "a b", "a/b", "é", "{a}", "a*", "\u0661", "a" * 200 + "\n"],
)
def test_other_identifiers_are_refused(text: str) -> None:
    raw = dumps({"type": "turn.started", "turn_id": text})
    assert "$.turn_id" in refusal(decode_event, raw)


@settings(deadline=None)
@given(ids | st.text(ALPHABET + "\n /{}é", max_size=210) | texts)
def test_exactly_1_to_200_characters_of_the_alphabet_are_an_identifier(text: str) -> None:
    raw = dumps({"type": "turn.started", "turn_id": text})
    if 1 <= len(text) <= 200 and set(text) <= set(ALPHABET):
        assert decode_event(raw) == TurnStarted(turn_id=text)
    else:
        assert "$.turn_id" in refusal(decode_event, raw)


@pytest.mark.parametrize("sequence", [0, 1, 2**53 - 1])
def test_sequences_are_accepted_within_what_lua_holds_exactly(sequence: int) -> None:
    raw = dumps({"type": "turns.rolled_back", "to": sequence})
    assert decode_event(raw) == TurnsRolledBack(to=sequence)


@pytest.mark.parametrize(
    "sequence", [-1, 2**53, 2**63, 2**64, 10**40, 1.0, 1.5, True, "1", None, 1e300]
)
def test_other_sequences_are_refused(sequence: Any) -> None:
    assert "$.to" in refusal(decode_event, dumps({"type": "turns.rolled_back", "to": sequence}))
    assert "$.through" in refusal(decode_request, dumps(request(through=sequence)))


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05Z", "2026-01-02T05:04:05.000+02:00"])
def test_times_carry_a_zone(text: str) -> None:
    event = decode_event(dumps({"type": "thread.started", "time": text}))
    assert event.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "time", ["2026-01-02T03:04:05", "2026-01-02", "2026-13-02T03:04:05Z", "", 1767323045, True]
)
def test_other_times_are_refused(time: Any) -> None:
    assert "$.time" in refusal(decode_event, dumps({"type": "thread.started", "time": time}))


def test_the_current_time_is_in_utc() -> None:
    assert utc_now().tzinfo is UTC
    assert abs(datetime.now(UTC) - utc_now()) < timedelta(minutes=1)


def test_a_limit_names_at_most_32_candidates() -> None:
    document = request(type="provider.limit_reached", candidates=[{"provider": "codex"}] * 33)
    assert "$.candidates" in refusal(decode_request, dumps(document))


def test_a_limit_may_leave_the_candidates_to_the_operators_policy() -> None:
    document = request(type="provider.limit_reached")
    decoded = decode_request(dumps(document))
    assert isinstance(decoded, ProviderLimitReached)
    assert decoded.candidates == ()
