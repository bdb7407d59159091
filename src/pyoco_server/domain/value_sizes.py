"""What decoded JSON takes in memory. Pure."""

from typing import Any

_LIST, _ITEM = 80, 8
_OBJECT, _KEY = 200, 100
_TEXT = 50
_OTHER = 32


def memory_of(value: Any) -> int:
    """In bytes, about: nested lists take up to 40 times as much as their JSON, a long text once."""
    size, level = 0, [value]
    while level:
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                size += _TEXT + len(item)
            elif kind is list:
                size += _LIST + _ITEM * len(item)
                inner += item
            elif kind is dict:
                size += _OBJECT + _KEY * len(item)
                inner += item.values()
            else:
                size += _OTHER
        level = inner
    return size
