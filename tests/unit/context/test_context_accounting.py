from __future__ import annotations

import pytest
from helpers.building import json_bytes

from moonfold_handoff.context.accounting import (
    literal_bytes,
    text_bytes,
)

TEXTS = [
    pytest.param("", id="empty"),
    pytest.param("plain", id="ascii"),
    pytest.param('say "hi"', id="quotes"),
    pytest.param("C:\\path\\n", id="backslashes"),
    pytest.param("a\tb\r\nc\x08\x0c", id="short escapes"),
    pytest.param("\x00\x01\x1b[0m\x1f", id="control characters"),
    pytest.param("\x7f\x80\x9f", id="controls that JSON leaves alone"),
    pytest.param("Grüße, 世界", id="two and three bytes"),
    pytest.param("👩‍💻🎉", id="four bytes"),
    pytest.param("a\u2028b\u2029c\ufeff", id="line separators"),
    pytest.param("</script>&amp;", id="markup"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_literal_costs_what_the_standard_library_writes(text: str) -> None:
    assert literal_bytes(text) == json_bytes(text)


@pytest.mark.parametrize("text", TEXTS)
def test_text_costs_its_literal_without_quotes(text: str) -> None:
    assert text_bytes(text) == json_bytes(text) - 2


@pytest.mark.parametrize("text", TEXTS)
def test_costs_of_parts_add_up(text: str) -> None:
    assert sum(map(text_bytes, text)) == text_bytes(text)
