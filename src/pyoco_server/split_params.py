"""Takes the large params out of a request, in a process of its own.

Decoded, JSON may take 40 times its size, and to decode it keeps the interpreter for itself. So a gateway has
this done elsewhere: `python -m pyoco_server.split_params BODY VALUES MOST LEFT`, with the descriptors of two
files, the size up to which params stay whole, and what may be left of larger ones.
"""

import os
import resource
import sys
from contextlib import suppress
from typing import IO, Any

import msgspec
from msgspec import Struct

from pyoco_server.domain.inputs import Refused, decode_json
from pyoco_server.domain.large_values import to_store
from pyoco_server.domain.secrets import references

MEMORY_BYTES = 2 * 1024**3


class Span(Struct, frozen=True):
    """A value in the file of values."""

    start: int
    size: int


class Split(Struct, frozen=True, omit_defaults=True):
    request: Any = None
    """Without the large params."""
    values: dict[str, Span] = {}
    """The large params, as JSON."""
    refused: tuple[list[str | int], str] | None = None
    """What is not JSON, and where."""
    too_large: str = ""


def split(body: bytes, most_bytes: int, left_bytes: int, values: IO[bytes]) -> Split:
    try:
        request = decode_json(body)
    except Refused as error:
        return Split(refused=(list(error.path), error.problem))
    except MemoryError:
        return Split(too_large="params: they take too much memory to be checked; send some of it as text")
    params = request.get("params") if isinstance(request, dict) else None
    if not isinstance(params, dict):
        return Split(request)
    encoded = {name: msgspec.json.encode(value) for name, value in params.items()}
    sizes = {name: len(data) for name, data in encoded.items()}
    if _size(params) <= most_bytes:
        return Split(request)
    fixed = [name for name in params if references.has_syntax(params[name])]
    spans: dict[str, Span] = {}
    at = 0
    for name in to_store(sizes, fixed, left_bytes):
        values.write(encoded[name])
        spans[name] = Span(at, sizes[name])
        at += sizes[name]
        del params[name]
    if (size := _size(params)) > most_bytes:
        problem = (
            f"params: {size:,} bytes of JSON that cannot be stored apart, because they name secrets or "
            f"are many small values; at most {most_bytes:,} are allowed"
        )
        return Split(too_large=problem)
    return Split(request, spans)


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def main() -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    body, values, most_bytes, left_bytes = map(int, sys.argv[1:])
    with os.fdopen(body, "rb") as sent, os.fdopen(values, "wb") as apart:
        sent.seek(0)
        found = split(sent.read(), most_bytes, left_bytes, apart)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
