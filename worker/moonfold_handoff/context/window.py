"""The window of recent items: bounded in number, in what could be carried, and in sketches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from moonfold_handoff.context.sketches import split_marks
from moonfold_handoff.context.state import SKETCH_BYTES, WINDOW_BYTES, WINDOW_ITEMS, ItemRef

SPOKEN_ITEMS = 24  # items back whose identifiers count as spoken of when a sketch has to choose


class Window:
    """The recent items of a thread being folded, in the order of their positions.

    Attributes:
        evicted: position of the newest item no longer held; 0 if all are.
        bare: position of the newest item whose sketch was dropped; 0 if none was.
    """

    def __init__(self, refs: Iterable[ItemRef], evicted: int = 0, bare: int = 0) -> None:
        self.evicted = evicted
        self.bare = bare
        self._refs = deque(refs)
        self._bytes = sum(ref.least for ref in self._refs)
        self._sketch_bytes = sum(ref.sketch_bytes for ref in self._refs)
        self._without_sketch = sum(ref.position <= bare for ref in self._refs)
        self._spoken_of: frozenset[str] | None = None

    def __iter__(self) -> Iterator[ItemRef]:
        return iter(self._refs)

    @property
    def is_complete(self) -> bool:
        """Whether nothing was given up to keep the bounds."""
        return not self.evicted and not self.bare

    def spoken_of(self) -> frozenset[str]:
        """Return the marks that the latest items mention."""
        if self._spoken_of is None:
            latest = [self._refs[-i] for i in range(1, min(SPOKEN_ITEMS, len(self._refs)) + 1)]
            self._spoken_of = frozenset(m for ref in latest for m in split_marks(ref.sketch))
        return self._spoken_of

    def add(self, ref: ItemRef) -> None:
        """Hold a new item, which is nearly always the newest."""
        index = len(self._refs)
        while index and self._refs[index - 1].position > ref.position:
            index -= 1
        if ref.position <= self.bare:
            ref = _without_sketch(ref)
            self._without_sketch += 1
        self._refs.insert(index, ref)
        self._count(ref, 1)
        self._keep_bounds()

    def replace(self, ref: ItemRef) -> bool:
        """Put the new record of a held item in its place; False if the item is not held."""
        for index in range(len(self._refs) - 1, -1, -1):
            known = self._refs[index]
            if known.position == ref.position:
                ref = _without_sketch(ref) if ref.position <= self.bare else ref
                self._refs[index] = ref
                self._count(known, -1)
                self._count(ref, 1)
                self._keep_bounds()
                return True
        return False

    def _count(self, ref: ItemRef, times: int) -> None:
        self._bytes += times * ref.least
        self._sketch_bytes += times * ref.sketch_bytes
        self._spoken_of = None

    def _keep_bounds(self) -> None:
        while len(self._refs) > WINDOW_ITEMS or (
            self._refs and self._bytes - self._refs[0].least >= WINDOW_BYTES
        ):
            oldest = self._refs.popleft()
            self._count(oldest, -1)
            self._without_sketch -= oldest.position <= self.bare
            self.evicted = oldest.position
        while self._sketch_bytes > SKETCH_BYTES:
            oldest = self._refs[self._without_sketch]
            self._refs[self._without_sketch] = _without_sketch(oldest)
            self._sketch_bytes -= oldest.sketch_bytes
            self._without_sketch += 1
            self.bare = oldest.position


def _without_sketch(ref: ItemRef) -> ItemRef:
    return replace(ref, sketch="", pieces=())
