"""The pure core: accounting, budget, state, fold, selection, rendering.

Nothing here does I/O or knows Redis, arq or asyncio; a test enforces it.
"""

from __future__ import annotations
