"""Large values: stored beside their run, by the hash of their JSON. A reference stands in their place.

Runs and executions note the places of their references. What a client or a task writes as `{"$ref": …}` has
no noted place: it is data, and opens nothing.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

INLINE_BYTES = 64 * 1024
"""A value with more JSON is stored beside its run."""
JSON = "application/json"
Place = tuple[str, ...]
"""Where a reference stands in a run snapshot or an execution, such as `("result", "load")`. Indexes of lists
are digits."""
Step = str | int

_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class StoredValue(Struct, frozen=True):
    sha256: str
    size: int
    type: str
    content: str
    """The store's name of the content, which several uses may share."""


class ValueUse(Struct, frozen=True):
    """A stored value, as it is used by one run or execution."""

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


def owned_by_execution(execution_id: str) -> str:
    return f"execution.{execution_id}"


def execution_of_owner(owner: str) -> str | None:
    kind, _, execution_id = owner.partition(".")
    return execution_id if kind == "execution" else None


def reference_to(value: StoredValue) -> dict[str, Any]:
    return {"$ref": f"sha256:{value.sha256}", "size": value.size, "type": value.type}


# References at noted places.


class ValueReference(Struct, frozen=True):
    """What stands at a noted place."""

    sha256: str
    size: int
    part: tuple[Step, ...] = ()
    """What of the value is meant; empty: all of it."""


def reference_at(value: Any, place: Iterable[str]) -> ValueReference:
    """Raises ValueError: the sender of a job is untrusted."""
    found = at_place(value, place)
    if not isinstance(found, Mapping) or (sha256 := sha256_in(str(found.get("$ref")))) is None:
        raise ValueError(f"{written_place(place)}: there is no reference at its noted place")
    part = found.get("part", ())
    return ValueReference(sha256, int(found.get("size", 0)), tuple(part) if isinstance(part, list) else ())


def at_place(value: Any, place: Iterable[str]) -> Any:
    """None if it is missing."""
    for step in place:
        try:
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        except (LookupError, TypeError, ValueError):
            return None
    return value


def with_value(value: Any, place: Sequence[str], new: Any) -> Any:
    """A copy with another value at an existing place. What is not above the place is shared."""
    if not place:
        return new
    step, *below = place
    if isinstance(value, list | tuple):
        index = int(step)
        return [*value[:index], with_value(value[index], below, new), *value[index + 1 :]]
    return {**value, step: with_value(value[step], below, new)}


def moved(places: Iterable[Place], *to: str) -> tuple[Place, ...]:
    """The places of a value that stands elsewhere now: `to` instead of their first step."""
    return tuple((*to, *place[1:]) for place in places)


def under(places: Iterable[Place], root: str) -> tuple[Place, ...]:
    """The places of a value that stands at `root` now."""
    return tuple((root, *place) for place in places)


def below(places: Iterable[Place], *above: str) -> tuple[Place, ...]:
    return tuple(place for place in places if place[: len(above)] == above)


def hashes_in(value: Mapping[str, Any], places: Iterable[Place]) -> list[str]:
    """Each once, in order. Raises ValueError."""
    return sorted({reference_at(value, place).sha256 for place in places})


SMALLEST_BYTES = 1024
"""A smaller value is not worth a reference."""


def to_store(sizes: Mapping[str, int], fixed: Collection[str], most_bytes: int) -> list[str]:
    """The largest entries, until the rest has at most `most_bytes`. `fixed` ones stay."""
    left, chosen = sum(sizes.values()), list[str]()
    for name in sorted(sizes.keys() - set(fixed), key=lambda name: (-sizes[name], name)):
        if left <= most_bytes or sizes[name] <= SMALLEST_BYTES:
            break
        chosen.append(name)
        left -= sizes[name]
    return chosen


def written_place(place: Iterable[str]) -> str:
    return ".".join(step[:64] for step in place)


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
