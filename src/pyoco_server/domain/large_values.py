"""Large values: stored beside their run, by the hash of their JSON. A reference stands in their place.

A run notes the places of its references. What a client or a task writes as `{"$ref": …}` has no noted place:
it is data, and opens nothing.
"""

import re
from typing import Any

from msgspec import Struct

INLINE_BYTES = 64 * 1024
"""A value with more JSON is stored beside its run."""
JSON = "application/json"
Place = tuple[str, ...]
"""Where a reference stands in a run snapshot, such as `("result", "load")`."""

_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class StoredValue(Struct, frozen=True):
    sha256: str
    size: int
    type: str
    content: str
    """The store's name of the content, which several uses may share."""


class ValueUse(Struct, frozen=True):
    """A stored value, as it is used by one run."""

    tenant: str
    sha256: str
    owner: str
    content: str
    age_sec: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.tenant, self.sha256, self.owner


def owned_by_run(run_id: str) -> str:
    return f"run.{run_id}"


ARTIFACT = "artifact"
"""Apart from the values of a run: an artifact that is replaced gives its content up."""


def owned_as_artifact(run_id: str) -> str:
    return f"{ARTIFACT}.{run_id}"


def run_of_owner(owner: str) -> str | None:
    kind, _, run_id = owner.partition(".")
    return run_id if kind in ("run", ARTIFACT) else None


def reference_to(value: StoredValue) -> dict[str, Any]:
    return {"$ref": f"sha256:{value.sha256}", "size": value.size, "type": value.type}


def sha256_in(text: str) -> str | None:
    """The hash in `sha256:…`, or alone."""
    found = _SHA256.fullmatch(text)
    return None if found is None else found[1]


class ByteRange(Struct, frozen=True):
    start: int
    end: int
    """The first byte that is not part of it."""


class NotSatisfiable(Exception):
    """The range lies outside of the content."""


_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def range_in(header: str | None, size: int) -> ByteRange | None:
    """The range that a header asks for; None: everything, also for what is not one plain range (RFC 9110).

    Raises NotSatisfiable.
    """
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)
        if found[2] and int(found[2]) < start:
            return None
    if start >= end:
        raise NotSatisfiable
    return ByteRange(start, end)
