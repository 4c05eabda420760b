"""The wire contract of Moonfold handoffs: items, thread events, requests and results.

`python -m moonfold_schemas` regenerates the JSON Schema and AsyncAPI documents from these types.
"""

from __future__ import annotations

from moonfold_schemas import events, items, requests, results
from moonfold_schemas.base import ID_PATTERN, is_id, utc_now
from moonfold_schemas.codec import (
    WireError,
    decode_event,
    decode_request,
    decode_result,
    encode,
)
from moonfold_schemas.events import ThreadEvent
from moonfold_schemas.items import Item
from moonfold_schemas.requests import HandoffRequest, NewRequest, Target
from moonfold_schemas.results import HandoffResult

__all__ = [
    "ID_PATTERN",
    "HandoffRequest",
    "HandoffResult",
    "Item",
    "NewRequest",
    "Target",
    "ThreadEvent",
    "WireError",
    "decode_event",
    "decode_request",
    "decode_result",
    "encode",
    "events",
    "is_id",
    "items",
    "requests",
    "results",
    "utc_now",
]
