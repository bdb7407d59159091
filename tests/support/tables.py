"""A table of cases as one test: thousands of small tests cost more in pytest than in what they check."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, cast

import pytest

Rows = Iterable[Any]
FAILED = (Exception, pytest.fail.Exception)


def every_row(names: str | Sequence[str], rows: Rows | Callable[[], Rows]) -> Callable[..., Any]:
    """Like `pytest.mark.parametrize`, as one test that checks all rows and reports every one that fails.

    The rows share the test's fixtures, its directory and its environment. `rows` may be a function, which is
    called when the test runs.
    """
    columns = (names,) if isinstance(names, str) else tuple(names)

    def one_test(check: Callable[..., Any]) -> Callable[..., Any]:
        def table() -> list[tuple[str, dict[str, Any]]]:
            found = [_named(columns, row) for row in _table(rows)]
            assert found, "a table without rows proves nothing"
            return found

        def test(**fixtures: Any) -> None:
            failed = []
            for name, row in table():
                try:
                    check(**fixtures, **row)
                except FAILED as problem:
                    failed.append(_with(name, problem))
            _report(failed)

        async def async_test(**fixtures: Any) -> None:
            failed = []
            for name, row in table():
                try:
                    await check(**fixtures, **row)
                except FAILED as problem:
                    failed.append(_with(name, problem))
            _report(failed)

        return _in_place_of(check, async_test if inspect.iscoroutinefunction(check) else test, columns)

    return one_test


def _table(rows: Rows | Callable[[], Rows]) -> Rows:
    """An enumeration is a table, though it can be called."""
    return cast("Rows", rows() if inspect.isfunction(rows) else rows)


def _named(columns: Sequence[str], row: Any) -> tuple[str, dict[str, Any]]:
    name = getattr(row, "id", None) if isinstance(row, PARAM) else None
    values = row.values if isinstance(row, PARAM) else (row,) if len(columns) == 1 else tuple(row)
    given = dict(zip(columns, values, strict=True))
    return str(name or given), given


PARAM = type(pytest.param())


def _with(name: str, problem: BaseException) -> BaseException:
    problem.add_note(f"row: {name}")
    return problem


def _report(failed: Sequence[BaseException]) -> None:
    if failed:
        raise BaseExceptionGroup("rows that fail", failed)


def _in_place_of(
    check: Callable[..., Any], test: Callable[..., Any], columns: Sequence[str]
) -> Callable[..., Any]:
    """With the name and the marks of the check; pytest sees the fixtures only."""
    update_wrapper(test, check)
    del test.__wrapped__  # type: ignore[attr-defined]
    wanted: Mapping[str, inspect.Parameter] = inspect.signature(check).parameters
    fixtures = [parameter for name, parameter in wanted.items() if name not in columns]
    test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
    return test
