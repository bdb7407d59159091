"""Values by key, the least recently used ones forgotten: bounded by number and by what they take."""

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    value: V
    size: int


class BoundedMemory(Generic[V]):
    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept[V]] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> V | None:
        found = self._kept.get(key)
        return None if found is None else found.value

    def used(self, key: str) -> V | None:
        """Like `get`, and it is the last to be forgotten."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self.get(key)

    def size(self, key: str) -> int:
        found = self._kept.get(key)
        return 0 if found is None else found.size

    def keep(self, key: str, value: V, size: int) -> None:
        """In the place of what was kept. One that is too large for itself is not kept."""
        self.forget(key)
        self._kept[key] = _Kept(value, size)
        self._bytes += size
        while len(self._kept) > self._max_count or (self._kept and self._bytes > self._max_bytes):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size

    def forget(self, key: str) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found.size

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
