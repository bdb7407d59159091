"""Short texts about values, for messages and records, and their size in memory. They never raise."""

import reprlib
from itertools import islice
from typing import Any

MAX_REPR = 1_000
MAX_KEY = 64


def type_name(value: object) -> str:
    try:
        return str(type(value).__name__)
    except Exception:  # noqa: BLE001 - a user's metaclass may do anything
        return "object"


def article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeio" else f"a {noun}"


def bounded_repr(value: object) -> str:
    """The `repr` of a value, cut for large containers and texts."""
    try:
        text = str(_bounded.repr(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may do anything
        text = f"<{type_name(value)}: repr() raised {type_name(error)}>"
    return text if len(text) <= MAX_REPR else text[:MAX_REPR] + "…"


class _Bounded(reprlib.Repr):
    """Keeps the order of items, where reprlib would sort all of them first."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxdict = 10
        self.maxstring = self.maxlong = self.maxother = MAX_REPR
        self.fillvalue = "…"

    def repr1(self, x: Any, level: int) -> str:
        """The base class dispatches on the type name, which a user's class may share."""
        if type(x).__module__ in ("builtins", "collections"):
            return super().repr1(x, level)
        return repr(x)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{…}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}"
            for key, item in islice(x.items(), self.maxdict)
        ]
        return self._joined("{", pairs, len(x), "}")

    def repr_set(self, x: set[Any], level: int) -> str:
        if not x:
            return "set()"
        return self._joined("{", self._first(x, level), len(x), "}")

    def repr_frozenset(self, x: frozenset[Any], level: int) -> str:
        return self._joined("frozenset({", self._first(x, level), len(x), "})")

    def repr_bytes(self, x: bytes, level: int) -> str:  # noqa: ARG002
        return repr(x[: self.maxstring])

    def repr_bytearray(self, x: bytearray, level: int) -> str:  # noqa: ARG002
        return repr(x[: self.maxstring])

    def _first(self, x: Any, level: int) -> list[str]:
        return [self.repr1(item, level - 1) for item in islice(x, self.maxset)] if level > 0 else []

    def _joined(self, start: str, parts: list[str], total: int, end: str) -> str:
        return start + ", ".join([*parts, "…"] if len(parts) < total else parts) + end


_bounded = _Bounded()


def json_text(text: str) -> str:
    """Escape lone surrogates, which Python allows and JSON does not."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def path_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() and len(step) <= MAX_KEY else f"[{shown_key(step)}]"


def shown_key(key: str) -> str:
    return repr(key if len(key) <= MAX_KEY else key[:MAX_KEY] + "…")


_ADVICE = {
    "DataFrame": "return a list of rows or save it as an artifact",
    "complex": "return its real and imaginary parts",
    "generator": "return a list",
    "async_generator": "return a list",
    "coroutine": "await it: make the task an async def",
    "Task": "await it: make the task an async def",
    "Future": "await it: make the task an async def",
    "TextIOWrapper": "return its content or its path",
    "BufferedReader": "return its content or its path",
    "BufferedWriter": "return its content or its path",
    "function": "return its result",
    "builtin_function_or_method": "return its result",
    "method": "return its result",
    "map": "return a list",
    "filter": "return a list",
    "zip": "return a list",
    "SecretStr": "leave secrets out",
}


def refusal_of(value: Any, kind: type) -> tuple[str, str]:
    if issubclass(kind, int):
        return "an int beyond 64 bits", "return it as a string"
    name = type_name(value)
    return article(name), _ADVICE.get(
        name, "return strings, numbers, lists and dicts, or save it as an artifact"
    )


# Memory of decoded JSON

_LIST, _ITEM = 80, 8
_OBJECT, _KEY = 200, 100
_TEXT = 50
_OTHER = 32


def memory_of(value: Any) -> int:
    """Approximate bytes: nested lists take up to 40 times the size of their JSON, a long text once."""
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
