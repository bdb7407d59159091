"""`support.tables.every_row`: a row that fails must fail its test, whichever way it fails."""

from typing import Any

import pytest

from support.tables import every_row


def failing_rows(problem: BaseExceptionGroup[Any]) -> list[str]:
    return [note for each in problem.exceptions for note in each.__notes__]


def test_every_row_that_fails_is_reported_with_its_values() -> None:
    seen = []

    @every_row(("a", "b"), [(1, 1), (1, 2), pytest.param(2, 1, id="named"), (3, 3)])
    def equal(a: int, b: int) -> None:
        seen.append((a, b))
        assert a == b

    with pytest.raises(ExceptionGroup) as caught:
        equal()
    assert failing_rows(caught.value) == ["row: {'a': 1, 'b': 2}", "row: named"]
    assert len(seen) == 4


def test_a_row_that_does_not_raise_what_it_must_fails() -> None:
    @every_row("text", ["1", "x"])
    def refused(text: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(BaseExceptionGroup) as caught:
        refused()
    assert failing_rows(caught.value) == ["row: {'text': '1'}"]


async def test_rows_of_a_coroutine_are_awaited_one_after_the_other() -> None:
    @every_row("number", lambda: [1, 2])
    async def small(number: int, most: int) -> None:
        assert number <= most

    with pytest.raises(ExceptionGroup) as caught:
        await small(most=1)
    assert failing_rows(caught.value) == ["row: {'number': 2}"]


def test_two_tables_are_every_pair_of_their_rows() -> None:
    seen = set()

    @every_row("a", "xy")
    @every_row("b", [1, 2])
    def pair(a: str, b: int) -> None:
        seen.add((a, b))

    pair()
    assert seen == {("x", 1), ("x", 2), ("y", 1), ("y", 2)}


def test_a_table_without_rows_fails() -> None:
    @every_row("row", [])
    def nothing(row: int) -> None: ...

    with pytest.raises(AssertionError, match="without rows"):
        nothing()
