"""The values that expressions read, and the evaluation within its limits."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from cel_expr_python import cel

from pyoco_server.domain.cel.cost import Names, Path, estimate, text_size
from pyoco_server.domain.cel.expressions import Expression, reason, shown, type_name

MAX_DEPTH = 100
"""Depth limit of values, because the library recurses in C, where a stack overflow is a crash."""
MAX_READ = 200_000
"""Limit of values and hundreds of characters per expression: some 20 ms of library time."""
MAX_STEPS = 300_000
"""Limit per expression; see cost.py."""
MAX_PASS = 3_000_000
"""Limit of values and steps for all expressions evaluated on the same values."""
_SCALARS = frozenset({int, float, bool, type(None)})


class ConditionFailed(Exception):
    """An expression without a result for these values; the text contains the reason."""


class TooHeavy(Exception):
    """The work exceeds the current allowance; it can be done in another thread."""


class Allowance:
    """The amount of work before `TooHeavy` is raised."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooHeavy


class Values:
    """Values by name, each measured and converted once for all expressions that read them."""

    _advice: ClassVar[str] = "Use a simpler expression"
    _maps: ClassVar[frozenset[str]] = frozenset()
    """Names whose values the environment declares as maps: empty if nothing of them is read, not null."""

    def __init__(
        self, environment: Any, values: Mapping[str, Any], allowance: Allowance | None = None
    ) -> None:
        self._environment = environment
        self._roots = dict(values)
        self._allowance = allowance
        self._found: dict[Path, Any] = {}
        self._sizes: dict[Path, int] = {}
        self._handed: OrderedDict[tuple[Path, ...], tuple[Any, int]] = OrderedDict()
        self._spent = 0

    def truth(self, expr: str, condition: Expression) -> bool:
        """Raises ConditionFailed, TooHeavy."""
        result = self._result(expr, condition)
        if result.type() != cel.Type.BOOL:
            raise ConditionFailed(f"{shown(expr)} gives {type_name(result.type())}, not true or false")
        return bool(result.value())

    def value(self, expr: str, expression: Expression) -> Any:
        """Raises ConditionFailed, TooHeavy."""
        return self._result(expr, expression).plain_value()

    def _result(self, expr: str, condition: Expression) -> Any:
        if condition.problem is not None:
            raise ConditionFailed(condition.problem)
        try:
            activation = self._activation(expr, condition)
            self._charge(expr, condition)
        except RecursionError:
            raise ConditionFailed(_too_deep(expr)) from None
        return _answer(expr, condition.program, activation)

    def _activation(self, expr: str, condition: Expression) -> Any:
        known = self._handed.get(condition.paths)
        if known is not None:
            self._handed.move_to_end(condition.paths)
            return known[0]
        size = sum(self._size(expr, path) for path in condition.paths)
        if size > MAX_READ:
            raise ConditionFailed(f"{shown(expr)} reads more than {MAX_READ:,} values")
        self._spend(expr, size)
        made = self._environment.Activation(self._data(condition.paths)), size
        self._handed[condition.paths] = made
        while sum(held for _, held in self._handed.values()) > MAX_READ:
            self._handed.popitem(last=False)
        return made[0]

    def _charge(self, expr: str, condition: Expression) -> None:
        names = Names(lambda path: self._size(expr, path), self._text)
        steps = estimate(condition.tree, names).steps
        if steps > MAX_STEPS:
            raise ConditionFailed(
                f"{shown(expr)} may take {steps:,} steps with these values; {MAX_STEPS:,} are allowed. "
                f"{self._advice}"
            )
        self._spend(expr, steps)

    def _spend(self, expr: str, work: int) -> None:
        self._spent += work
        if self._spent > MAX_PASS:
            raise ConditionFailed(
                f"{shown(expr)}: the conditions together read more than {MAX_PASS:,} values"
            )
        if self._allowance is not None:
            self._allowance.take(work)

    def _data(self, paths: tuple[Path, ...]) -> dict[str, Any]:
        """Only the values that are read. Missing values stay missing, so that the library reports them."""
        data: dict[str, Any] = {name: {} if name in self._maps else None for name in self._roots}
        for path in paths:
            place: dict[str, Any] = data
            value: Any = self._roots
            for depth, step in enumerate(path):
                if not isinstance(value, Mapping) or step not in value:
                    break
                value = value[step]
                if depth + 1 == len(path) or not isinstance(value, Mapping):
                    place[step] = _plain(value)
                else:
                    held = place.get(step)
                    place[step] = place = held if isinstance(held, dict) else {}
        return data

    def _size(self, expr: str, path: Path) -> int:
        if path not in self._sizes:
            self._sizes[path] = _Measured(expr, self._allowance).size(self._value(path), 0)
        return self._sizes[path]

    def _text(self, path: Path) -> str | None:
        value = self._value(path)
        return value if isinstance(value, str) else None

    def _value(self, path: Path) -> Any:
        """The value at a path; None if missing. A path into a list ends at the list."""
        if path in self._found:
            return self._found[path]
        value: Any = self._roots
        for step in path:
            if not isinstance(value, Mapping):
                break
            value = value.get(step)
        self._found[path] = value
        return value


def _answer(expr: str, program: Any, activation: Any) -> Any:
    try:
        result = program.eval(activation)
    except RuntimeError as error:
        raise ConditionFailed(f"{shown(expr)}: {reason(str(error))}") from error
    if result.type() == cel.Type.ERROR:
        raise ConditionFailed(f"{shown(expr)}: {reason(result.value())}")
    return result


def _too_deep(expr: str) -> str:
    return f"{shown(expr)} reads values that are nested more than {MAX_DEPTH} deep"


def _plain(value: Any) -> Any:
    """The value in types of the library; decoded JSON is used without a copy."""
    if isinstance(value, Enum):
        return value.value
    if type(value) in (dict, list) or not isinstance(value, (Mapping, tuple)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value]


class _Measured:
    """The size of a value, in values and hundreds of characters."""

    def __init__(self, expr: str, allowance: Allowance | None) -> None:
        self._expr = expr
        self._allowance = allowance
        self._size = 0

    def size(self, value: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ConditionFailed(_too_deep(self._expr))
        if isinstance(value, Mapping):
            self._add(1 + sum(text_size(str(key)) for key in value))
            self._items(value.values(), depth)
        elif isinstance(value, (list, tuple)):
            self._add(1)
            self._items(value, depth)
        else:
            self._add(text_size(value) if isinstance(value, str) else 1)
        return self._size

    def _items(self, items: Iterable[Any], depth: int) -> None:
        scalars = 0
        for item in items:
            if type(item) in _SCALARS:
                scalars += 1
            else:
                self.size(item, depth + 1)
        self._add(scalars)

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > MAX_READ:
            raise ConditionFailed(f"{shown(self._expr)} reads more than {MAX_READ:,} values")
        if self._allowance is not None:
            self._allowance.take(size)
