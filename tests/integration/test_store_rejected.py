from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.asking import document, job
from redis.asyncio import Redis

from moonfold_handoff.store import keys, rejected

SECRET = "private words"


async def test_a_rejected_job_is_kept_with_its_reason_for_a_while(redis: Redis) -> None:
    await rejected.reject(
        redis, job_id="job", function="build_handoff", reason="why", argument=b'{"through":1}'
    )
    [(_, fields)] = await redis.xrange(keys.REJECTED)
    assert fields == {
        b"job_id": b"job",
        b"function": b"build_handoff",
        b"reason": b"why",
        b"argument": b'{"through":1}',
        b"whole": b"1",
    }
    assert 0 < await redis.ttl(keys.REJECTED) <= rejected.LIFETIME


def test_what_is_no_secret_of_a_request_stays() -> None:
    given = document(
        request_id="r",
        request={"text": SECRET, "attachments": ["image", "file"]},
        target={"provider": "codex", "model": "gpt-5.1", "options": {"effort": "high", "n": 1.5}},
        token_cap=None,
    )
    kept = json.loads(rejected.without_text(json.dumps(given).encode()))
    assert kept["request"] == {"json_bytes": 15, "attachments": ["image", "file"]}
    for name in set(given) - {"request"}:
        assert kept[name] == given[name]


def test_a_request_that_came_as_its_length_only_is_kept_whole() -> None:
    given = document(request={"json_bytes": 42})
    assert json.loads(rejected.without_text(json.dumps(given).encode())) == given


@pytest.mark.parametrize(
    "argument",
    [
        b'{"request": {"text": "private words"',
        b"private words",
        b"\xff private words",
        b'"private words"',
        json.dumps(document(request=SECRET)).encode(),
        json.dumps(document(request=[SECRET])).encode(),
        json.dumps(document(request={"text": [SECRET]})).encode(),
        json.dumps(document(request={"text": {"text": SECRET}})).encode(),
        json.dumps(document(request={"words": SECRET})).encode(),
        json.dumps(document(text=SECRET)).encode(),
        json.dumps([document(request={"text": SECRET})]).encode(),
        json.dumps({SECRET: 1}).encode(),
        job(document(request={"text": SECRET}), f=5),
    ],
)
def test_the_text_of_a_request_stays_out_however_it_came(argument: bytes) -> None:
    kept = rejected.without_text(argument)
    assert b"private" not in kept
    json.loads(kept)


@pytest.mark.parametrize("word", ["continue", "go"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda word: {"request": word},
        lambda word: {"request": [word]},
        lambda word: {"request": {"text": [word], "attachments": word}},
        lambda word: {"request": {"attachments": [word]}},
        lambda word: {"text": word},
        lambda word: [{"a": [{"request": {"text": word}}]}],
    ],
)
def test_a_text_that_could_be_an_id_stays_out_too(wrap: Any, word: str) -> None:
    assert word.encode() not in rejected.without_text(json.dumps(wrap(word)).encode())
