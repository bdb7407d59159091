"""Conditions of edges (`when`): they can read `input` and `nodes.<id>.output`, `.status` and `.error`.

Those of nodes that wait for a message read its `data`, and those of repeats the `output` of an iteration.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from cel_expr_python import cel
from msgspec import Struct

from pyoco_server.domain.cel.cost import Path
from pyoco_server.domain.cel.expressions import (
    ConditionError,
    Expression,
    checked,
    condition,
    new_environment,
    shown,
)
from pyoco_server.domain.cel.values import Allowance, ConditionFailed, Values
from pyoco_server.domain.executions.interpolation import NODE_FIELDS, NOTHING_STORED
from pyoco_server.domain.executions.stored import CannotOpen, Stored
from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.large_values import Place, with_value

_ENVIRONMENT = cel.NewEnv(
    variables={
        "input": cel.Type.DYN,
        "nodes": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
    }
)


class _Condition(Struct, frozen=True):
    expression: Expression
    nodes: frozenset[str]


def check(expr: str) -> None:
    """Raises ConditionError for an expression that is invalid for all values."""
    checked(_compiled(expr).expression)


def nodes_in(expr: str) -> frozenset[str]:
    """The ids of the nodes that `expr` reads. Raises ConditionError."""
    return _compiled(expr).nodes


def holds(expr: str, *, input: Any, nodes: Mapping[str, Mapping[str, Any]]) -> bool:  # noqa: A002 - the word of graphs
    """Raises ConditionFailed if a value is missing or of the wrong type, ConditionError as `check` does."""
    return GraphValues(input, nodes).holds(expr)


class _StoredValues(Values):
    """Opens the stored values that a condition reads, once for all conditions."""

    def __init__(
        self, environment: Any, values: Mapping[str, Any], allowance: Allowance | None, stored: Stored
    ) -> None:
        super().__init__(environment, values, allowance)
        self._stored = stored
        self._opened: set[Place] = set()

    def _open(self, expr: str, expression: Expression) -> None:
        """Raises ConditionFailed, Lacking."""
        for place in (noted for path in expression.paths for noted in self._stored.noted(path)):
            if place in self._opened:
                continue
            try:
                value = self._stored.look(self._roots, place)
            except CannotOpen as error:
                raise ConditionFailed(f"{shown(expr)}: {error}") from None
            self._roots = dict(with_value(self._roots, place, value))
            self._opened.add(place)


class GraphValues(_StoredValues):
    """The values that conditions read from one state."""

    _advice: ClassVar[str] = "Let a task compute it and test its output"
    _maps: ClassVar[frozenset[str]] = frozenset({"nodes"})

    def __init__(
        self,
        input: Any,  # noqa: A002 - the word of graphs
        nodes: Mapping[str, Mapping[str, Any]],
        allowance: Allowance | None = None,
        stored: Stored = NOTHING_STORED,
    ) -> None:
        super().__init__(_ENVIRONMENT, {"input": input, "nodes": nodes}, allowance, stored)

    def holds(self, expr: str) -> bool:
        """Raises ConditionFailed, ConditionError, TooHeavy, Lacking."""
        self._open(expr, _compiled(expr).expression)
        return self.truth(expr, _compiled(expr).expression)


_DATA = new_environment(("data",))


class DataValues(Values):
    """The data of a message, for the conditions of the nodes that wait for it."""

    _advice: ClassVar[str] = "Send less data, or let a task test it"

    def __init__(self, data: Any, allowance: Allowance | None = None) -> None:
        super().__init__(_DATA, {"data": data}, allowance)

    def holds(self, expr: str) -> bool:
        """Raises ConditionFailed, ConditionError, TooHeavy."""
        return self.truth(expr, of_data(expr))


_OUTPUT = new_environment(("output",))


class OutputValues(_StoredValues):
    """The output of an iteration, for the `until` of a repeat."""

    _advice: ClassVar[str] = "Return less, or let the task decide"

    def __init__(
        self, output: Any, allowance: Allowance | None = None, stored: Stored = NOTHING_STORED
    ) -> None:
        super().__init__(_OUTPUT, {"output": output}, allowance, stored)

    def holds(self, expr: str) -> bool:
        """Raises ConditionFailed, ConditionError, TooHeavy, Lacking."""
        self._open(expr, of_output(expr))
        return self.truth(expr, of_output(expr))


@lru_cache(maxsize=512)
def of_output(expr: str) -> Expression:
    """A condition over `output`. Raises ConditionError for one that is invalid for all values."""
    return checked(condition(expr, _OUTPUT, ("output",)))


@lru_cache(maxsize=512)
def of_data(expr: str) -> Expression:
    """A condition over `data`. Raises ConditionError for one that is invalid for all values."""
    return checked(condition(expr, _DATA, ("data",)))


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> _Condition:
    found = condition(expr, _ENVIRONMENT, ("input", "nodes"))
    return _Condition(found, frozenset(_node_names(expr, found.paths)))


def _node_names(expr: str, paths: tuple[Path, ...]) -> Iterator[str]:
    """Node ids are literal, never computed, so that the nodes an edge reads are known beforehand."""
    for root, *steps in paths:
        if root != "nodes":
            continue
        if not steps:
            raise ConditionError(
                f"{shown(expr)}: nodes must be followed by a name: nodes.x.output or nodes['x'].output"
            )
        name, field = steps[0], steps[1] if steps[1:] else None
        if field not in NODE_FIELDS:
            wrong = (
                f"{field!r}{nearest(field, NODE_FIELDS)} is not a field of a node"
                if field
                else "a field is missing"
            )
            raise ConditionError(f"{shown(expr)}: {wrong}; write nodes[{name!r}].output, .status or .error")
        yield name
