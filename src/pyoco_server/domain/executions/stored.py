"""Stored values of an execution: where references to them stand, and looking into them.

Templates pass references on. Conditions, lists of maps and texts need the value itself: if it is not at hand,
`Lacking` leaves the reaction, whose caller reads the value and reacts again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from pyoco_server.domain.large_values import Place, ValueReference, reference_at, written_place

MAX_OPENED_BYTES: Final = 2 * 1024 * 1024
"""JSON of all values that one reaction may look into. Decoded, it may take 40 times as much."""


class Lacking(Exception):
    """A stored value is needed to go on."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256)
        self.sha256 = sha256


class CannotOpen(Exception):
    """A stored value that cannot be looked into; the text has the reason."""


GONE: Final = object()
"""In place of a value that is not stored any more."""


class Opened:
    """Values that were read for one reaction."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}

    def add(self, sha256: str, value: Any) -> None:
        self._values[sha256] = value

    def value(self, reference: ValueReference, place: Place) -> Any:
        """Raises CannotOpen, Lacking."""
        name = written_place(place)
        self._sizes[reference.sha256] = reference.size
        if sum(self._sizes.values()) > MAX_OPENED_BYTES:
            del self._sizes[reference.sha256]
            raise CannotOpen(
                f"{name} is a stored value of {reference.size:,} bytes of JSON; conditions, lists and texts "
                f"can look into {MAX_OPENED_BYTES:,} bytes of them. Let a task return what is needed of it"
            )
        if reference.sha256 not in self._values:
            raise Lacking(reference.sha256)
        value = self._values[reference.sha256]
        if value is GONE:
            raise CannotOpen(f"{name} is a stored value that does not exist any more")
        return _part_of(value, reference, name)


def _part_of(value: Any, reference: ValueReference, name: str) -> Any:
    for step in reference.part:
        try:
            value = value[step]
        except (LookupError, TypeError):
            raise CannotOpen(f"{name} has no {'.'.join(map(str, reference.part))}") from None
    return value


class HasValues(Protocol):
    @property
    def values(self) -> tuple[Place, ...]: ...


class OfExecution(HasValues, Protocol):
    """The state of an execution."""

    @property
    def nodes(self) -> Mapping[str, HasValues]: ...


class Stored:
    """The noted places of what a template or a condition can read."""

    def __init__(
        self,
        state: OfExecution | None,
        opened: Opened | None = None,
        local: Mapping[str, tuple[Place, ...]] | None = None,
    ) -> None:
        """`local`: places of other roots, such as `item`."""
        self._state = state
        self._opened = opened or Opened()
        self._local = local or {}

    def noted(self, path: Sequence[str]) -> tuple[Place, ...]:
        """The places at, above and below a path."""
        return tuple(
            place
            for place in self._of_root(path)
            if all(one == other for one, other in zip(place, path, strict=False))
        )

    def look(self, roots: Mapping[str, Any], place: Place) -> Any:
        """The value at a noted place. Raises CannotOpen, Lacking."""
        return self._opened.value(reference_at(roots, place), place)

    def _of_root(self, path: Sequence[str]) -> Iterable[Place]:
        root, *below = path
        if self._state is not None and root == "nodes":
            nodes = self._state.nodes
            named = [below[0]] if below else list(nodes)
            return [(root, name, *place) for name in named if name in nodes for place in nodes[name].values]
        if self._state is not None and root == "input":
            return [place for place in self._state.values if place[0] == "input"]
        return self._local.get(root, ())
