"""Values of users' tasks become JSON, whatever they are."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.engine.values import MAX_DEPTH, MAX_REPR, described, json_safe


class Odd:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.binary()
    | st.dates()
    | st.complex_numbers()
    | st.builds(Odd, any_text)
    | st.builds(Unprintable),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(any_text | st.integers() | st.none(), inner)
        | st.builds(lambda item: {"set": frozenset(), "nested": item}, inner)
    ),
    max_leaves=10,
)


@given(anything)
def test_any_value_can_be_written_as_json_and_read_again(value: Any) -> None:
    safe = json_safe(value)
    assert msgspec.json.decode(msgspec.json.encode(safe)) == safe


@pytest.mark.parametrize("value", [None, True, 0, -1, 1.5, "日本", [1, [2]], {"a": {"b": None}}, 2**63 - 1])
def test_what_json_can_hold_stays_as_it_is(value: Any) -> None:
    assert json_safe(value) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (2**64, "18446744073709551616"),
        (b"x", "b'x'"),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ((1, 2), [1, 2]),
        ({3}, "{3}"),
        (Odd("an odd thing"), "an odd thing"),
        (Unprintable(), "<Unprintable: its repr raised RuntimeError>"),
    ],
)
def test_what_json_cannot_hold_becomes_its_repr(value: Any, expected: Any) -> None:
    assert json_safe(value) == expected


def test_half_a_character_is_escaped_instead_of_breaking_the_snapshot() -> None:
    """A lone surrogate (a file name that is no UTF-8, say) is a str that no JSON can hold."""
    assert json_safe({"\udc80": "a\ud800b"}) == {"\\udc80": "a\\ud800b"}


def test_a_long_repr_is_capped() -> None:
    assert json_safe(Odd("x" * 5_000)) == "x" * MAX_REPR + "…"


def test_a_value_that_contains_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    depth, safe = 0, json_safe(loop)
    while isinstance(safe, list):
        depth, safe = depth + 1, safe[0]
    assert (depth, safe) == (MAX_DEPTH, "[[...]]")


class ChangesWhileItIsRead(dict[str, int]):
    """As a dict that another task writes to at the same moment."""

    def items(self) -> Any:
        for item in list(super().items()):
            yield item
            raise RuntimeError("dictionary changed size during iteration")


def test_a_container_that_cannot_be_read_becomes_its_repr() -> None:
    assert json_safe({"shared": ChangesWhileItIsRead(a=1)}) == "{'shared': {'a': 1}}"


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_is_described_even_if_it_has_no_text() -> None:
    assert described(ValueError("what")) == "ValueError: what"
    assert described(ValueError("a\ud800")) == "ValueError: a\\ud800"
    assert described(Speechless()) == "Speechless: (its text raised RuntimeError)"
