"""The rule of values (docs/values.md): every row of its table, and what no value may do to a worker. D21"""

import math
import sys
import time
import tracemalloc
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time as clock_time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.value_previews import MAX_REPR, bounded_repr
from pyoco_server.domain.values import (
    MAX_DEPTH,
    MAX_WARNINGS,
    NotJson,
    TooLarge,
    bounded_warnings,
    from_caller,
    marked,
    to_json,
    to_preview,
)
from pyoco_server.engine.tasks import MAX_TEXT, described
from pyoco_server.engine.values import RecordBudget, ValueRoom, result_of
from pyoco_server.errors import InvalidRequest, RequestTooLarge
from support.tables import every_row

ROOM = 262_144


def converted(value: Any) -> Any:
    return to_json(value, "output", ROOM).value


def refused(value: Any) -> str:
    with pytest.raises(NotJson) as caught:
        to_json(value, "output", ROOM)
    return f"{caught.value.what} at {caught.value.place}: {caught.value.advice}"


class Colour(Enum):
    RED = "red"
    ONE = 1


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    HELLO = "hello"


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the untyped ones, too


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass
class Row:
    n: int
    more: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class SlottedRow:
    n: int


class Model(pydantic.BaseModel):
    n: int
    when: datetime
    secret: str = pydantic.Field("hidden", exclude=True)


class Root(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class PydanticRow:
    n: int


class AStruct(msgspec.Struct, rename="camel"):
    the_n: int
    inner: Any = None


@attrs.define
class AnAttrs:
    n: int
    _private: int = 2


class MyStr(str):
    __slots__ = ()


class MyInt(int):
    pass


class Odd:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@every_row(
    "value",
    [None, True, 0, -1, 1.5, "日本", [1, [2]], {"a": {"b": None}}, 2**63 - 1, -(2**63), [], {}, "", 0.0],
)
def test_what_json_has_stays_as_it_is(value: Any) -> None:
    assert converted(value) == value
    assert type(converted(value)) is type(value)


TOKYO = timezone(timedelta(hours=9))


@every_row(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("ba"), ["a", "b"]),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.values(), [1]),
        ({"a": 1}.items(), [["a", 1]]),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=TOKYO), "2026-01-02T03:04:05.000600+09:00"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),  # noqa: DTZ001 - that is what is tried
        (date(2026, 1, 2), "2026-01-02"),
        (clock_time(3, 4), "03:04:00"),
        (timedelta(minutes=1, milliseconds=500), 60.5),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Path("c"), "c"),
        (ip_address("10.0.0.1"), "10.0.0.1"),
        (ip_address("::1"), "::1"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Word.HELLO, "hello"),
        (Row(1, [Row(2)]), {"n": 1, "more": [{"n": 2, "more": []}]}),
        (SlottedRow(1), {"n": 1}),
        (Point(1), {"x": 1, "y": None}),
        (Pair(1, 2), {"a": 1, "b": 2}),
        (Model(n=1, when=datetime(2026, 1, 2, tzinfo=UTC)), {"n": 1, "when": "2026-01-02T00:00:00+00:00"}),
        (Root([1, 2]), [1, 2]),
        (PydanticRow(n=1), {"n": 1}),
        (AStruct(1, AStruct(2)), {"theN": 1, "inner": {"theN": 2, "inner": None}}),
        (AnAttrs(1), {"n": 1, "_private": 2}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        (bytearray(b"a"), {"$bytes": "YQ=="}),
        (memoryview(b"abcd")[::2], {"$bytes": "YWM="}),
        (MyStr("x"), "x"),
        (MyInt(4), 4),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
    ],
)
def test_the_rows_of_the_table_that_are_converted(value: Any, expected: Any) -> None:
    """D21"""
    assert converted(value) == expected
    assert converted({"in": [value]}) == {"in": [expected]}
    assert msgspec.json.decode(msgspec.json.encode(converted(value))) == expected


def test_int_bool_and_enum_keys_become_strings() -> None:
    keys = {1: "a", Colour.ONE: "b"}
    assert converted({-1: 0, False: 0}) == {"-1": 0, "false": 0}
    assert converted({Level.HIGH: 0, Colour.RED: 1, Word.HELLO: 2}) == {"3": 0, "red": 1, "hello": 2}
    assert refused(keys) == "a dict with two keys that become '1' at output: rename one of them"


def test_a_set_of_several_kinds_is_an_array_in_any_order() -> None:
    assert sorted(map(str, converted({1, "a", None}))) == ["1", "None", "a"]


def gen() -> Any:
    yield 1


async def coro() -> int:
    return 1


class DataFrame:
    """As pandas' one: no row of the table has it."""


@every_row(
    ("value", "problem"),
    [
        (2**63, "an int beyond 64 bits at output.x[0]: return it as a string"),
        (-(2**63) - 1, "an int beyond 64 bits at output.x[0]"),
        (MyInt(2**70), "an int beyond 64 bits at output.x[0]"),
        (1j, "a complex at output.x[0]"),
        (DataFrame(), "a DataFrame at output.x[0]: return a list of rows or save it as an artifact"),
        (gen(), "a generator at output.x[0]: return a list"),
        (gen, "a function at output.x[0]"),
        (len, "a builtin_function_or_method at output.x[0]"),
        (sys.stdout, "output.x[0]"),
        (object(), "an object at output.x[0]: return strings, numbers, lists and dicts"),
        (Odd, "a type at output.x[0]"),
        (types.SimpleNamespace(a=1), "a SimpleNamespace at output.x[0]"),
        ({(1, 2): 3}, "a dict with a tuple as a key at output.x[0]: use strings as keys"),
        ({1.5: 3}, "a dict with a float as a key at output.x[0]: use strings as keys"),
        ({None: 3}, "a dict with a NoneType as a key at output.x[0]"),
        ({b"a": 3}, "a dict with a bytes as a key at output.x[0]"),
        ({"1": 3, 1: 4}, "a dict with two keys that become '1' at output.x[0]"),
        (pydantic.SecretStr("s"), "a SecretStr at output.x[0]: leave secrets out"),
    ],
)
def test_the_rows_of_the_table_that_are_refused_with_their_place(value: Any, problem: str) -> None:
    """D21"""
    assert problem in refused({"x": [value]})


def test_a_coroutine_is_refused() -> None:
    """D20"""
    work = coro()
    assert refused(work) == "a coroutine at output: await it: make the task an async def"
    work.close()


@pytest.mark.parametrize(
    ("key", "place"), [("a", "output.a"), ("a b", "output['a b']"), ("x" * 99, f"output['{'x' * 64}…']")]
)
def test_a_place_is_short_and_clear(key: str, place: str) -> None:
    assert f" at {place}:" in refused({key: 1j})


def test_what_is_not_a_number_becomes_null_and_is_listed_with_its_place() -> None:
    """D21"""
    found = to_json({"a": math.nan, "b": [1.0, math.inf, {"c": -math.inf}]}, "output", ROOM)
    assert found.value == {"a": None, "b": [1.0, None, {"c": None}]}
    assert found.nulls == ("NaN at output.a", "Infinity at output.b[1]", "-Infinity at output.b[2].c")


def test_warnings_are_bounded() -> None:
    result = result_of({"t": [math.nan] * 5_000}, ValueRoom())
    assert result.value == {"t": [None] * 5_000}
    assert result.warnings[0] == "task 't' returned NaN at output[0]: null instead"
    assert len(result.warnings) == MAX_WARNINGS + 1
    assert result.warnings[-1] == "4,980 more"
    assert bounded_warnings(["a"]) == ("a",)


def test_half_a_character_is_escaped_instead_of_breaking_the_snapshot() -> None:
    """A lone surrogate (a file name that is no UTF-8, say) is a str that no JSON can hold."""
    assert converted({"\udc80": "a\ud800b"}) == {"\\udc80": "a\\ud800b"}


# Real numpy and pandas where they are installed, and classes of the same shape everywhere.


class Dtype:
    def __init__(self, kind: str) -> None:
        self.kind = kind


def fake(module: str, name: str, **members: Any) -> Any:
    return type(name, (), {"__module__": module, **members})


def test_a_scalar_of_numpys_shape_is_a_number() -> None:
    generic = fake("numpy", "generic", dtype=Dtype("i"), item=lambda _: 7, __int__=lambda _: 7)
    int64 = type("int64", (generic,), {"__module__": "numpy"})
    assert converted({"n": int64(), "by": {int64(): 1}}) == {"n": 7, "by": {"7": 1}}


def test_an_array_of_numpys_shape_is_an_array() -> None:
    array = fake("numpy", "ndarray", dtype=Dtype("f"), ndim=1, size=2, tolist=lambda _: [1.0, math.nan])
    assert to_json(array(), "output", ROOM).nulls == ("NaN at output[1]",)
    huge = fake("numpy", "ndarray", dtype=Dtype("f"), ndim=1, size=10**9, tolist=lambda _: 1 / 0)
    with pytest.raises(TooLarge):
        converted(huge())


def test_a_series_of_pandas_shape_is_an_array_and_a_frame_is_refused() -> None:
    series = fake("pandas.core.series", "Series", __len__=lambda _: 2, tolist=lambda _: [1, 2])
    assert converted(series()) == [1, 2]
    frame = fake("pandas.core.frame", "DataFrame", __len__=lambda _: 2)
    assert refused({"rows": frame()}) == (
        "a DataFrame at output.rows: return a list of rows or save it as an artifact"
    )


def test_numpy_itself() -> None:
    numpy = pytest.importorskip("numpy")
    assert converted(numpy.float32(1.5)) == 1.5
    assert converted([numpy.int64(3), numpy.uint8(4), numpy.bool_(True)]) == [3, 4, True]
    assert converted(numpy.longdouble(1.5)) == 1.5
    assert converted(numpy.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert converted(numpy.array(5)) == 5
    assert converted(numpy.str_("x")) == "x"
    assert converted({numpy.int64(1): 2}) == {"1": 2}
    assert converted(numpy.datetime64("2026-01-02T03:04:05.000000006")) == "2026-01-02T03:04:05.000000006"
    assert converted(numpy.array(["2026-01-02", "NaT"], "datetime64[ns]")) == [
        "2026-01-02T00:00:00.000000000",
        None,
    ]
    assert converted(numpy.timedelta64(1500, "ms")) == 1.5
    assert to_json(numpy.array([1.0, numpy.nan]), "output", ROOM).nulls == ("NaN at output[1]",)
    assert "an int beyond 64 bits" in refused(numpy.uint64(2**64 - 1))
    assert "a complex" in refused(numpy.complex128(1j))
    with pytest.raises(TooLarge):
        converted(numpy.zeros(10**7))


def test_pandas_itself() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, None]})
    assert converted(frame["a"]) == [1, 2]
    assert to_json(frame["b"], "output", ROOM).nulls == ("NaN at output[1]",)
    assert converted(frame["a"].sum()) == 3
    assert converted(frame.to_dict("records")[0]) == {"a": 1, "b": 0.5}
    assert converted(pandas.Timestamp("2026-01-02T03:04:05", tz="UTC")) == "2026-01-02T03:04:05+00:00"
    assert converted(pandas.Series(pandas.to_datetime(["2026-01-02", None]))) == ["2026-01-02T00:00:00", None]
    assert converted(pandas.Series([1, None], dtype="Int64")) == [1, None]
    assert "a DataFrame at output.rows" in refused({"rows": frame})
    preview = to_preview({"rows": frame, "n": 1}, ROOM)
    assert preview is not None
    assert (preview.value["rows"]["type"], preview.value["n"]) == ("DataFrame", 1)


# Bounds


def test_a_value_above_its_limit_is_refused_with_its_size() -> None:
    """D22"""
    with pytest.raises(TooLarge) as caught:
        to_json("x" * 5_000_000, "output", ROOM)
    assert caught.value.text == "more than 5,000,001 bytes"
    with pytest.raises(TooLarge) as caught:
        to_json(["\x00" * 100_000], "output", ROOM)  # six bytes each
    assert caught.value.text == "600,004 bytes"


def test_the_limit_is_that_of_the_json_to_the_byte() -> None:
    value = {"a": ["é" * 100, 1.5, None, "\n"] * 10}
    size = len(msgspec.json.encode(value))
    assert to_json(value, "output", size).value == value
    with pytest.raises(TooLarge):
        to_json(value, "output", size - 1)


def test_a_huge_value_costs_neither_time_nor_memory() -> None:
    """D08"""
    rows = [{"i": 0}] * 1_500_000
    endless: Any = range(10**15)
    cube: Any = "x"
    for _ in range(40):
        cube = [cube] * 10
    began = time.process_time()
    tracemalloc.start()
    for value in (rows, {"rows": rows}, (rows, rows), endless, cube, {str(i): rows for i in range(100)}):
        with pytest.raises(TooLarge):
            converted(value)
        assert to_preview(value, ROOM) is None
        assert len(marked(value, is_large=True)["$repr"]) <= MAX_REPR + 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000
    assert time.process_time() - began < 20


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append({"again": loop})
    assert refused(loop) == "a list that contains itself at output[0].again: return a tree"
    row = Row(1)
    row.more.append(row)
    assert "a Row that contains itself at output.more[0]" in refused(row)


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert converted(deep) == deep
    assert f"a value nested more than {MAX_DEPTH} deep" in refused([deep])
    deeper = deep
    for _ in range(100_000):
        deeper = [deeper]
    assert f"nested more than {MAX_DEPTH} deep" in refused(deeper)
    while isinstance(deeper, list):  # taken apart one by one
        deeper = deeper.pop()


def test_one_object_in_two_places_is_fine() -> None:
    shared = [1]
    assert converted([shared, shared]) == [[1], [1]]


# Hostile objects


def _hostile() -> list[Any]:
    """Not at the module's level: pytest asks its members questions, too."""

    class Liar:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    class BadList(list[Any]):
        def __iter__(self) -> Any:
            raise RuntimeError("no items")

    class ChangesWhileItIsRead(dict[str, int]):
        """As a dict that another task writes to at the same moment."""

        def items(self) -> Any:
            for item in list(super().items()):
                yield item
                raise RuntimeError("dictionary changed size during iteration")

    @dataclass
    class BadProperty:
        n: int = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "n":
                raise RuntimeError("no n")
            return super().__getattribute__(name)

    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            raise RuntimeError(name)

    class WithMeta(metaclass=Meta):
        pass

    class DeepRepr:
        def __repr__(self) -> str:
            return repr(self)

    return [
        Unprintable(),
        Liar(),
        BadList([1]),
        ChangesWhileItIsRead(a=1),
        BadProperty(),
        WithMeta(),
        DeepRepr(),
    ]


@pytest.mark.parametrize("number", range(7))
def test_whatever_an_object_does_it_is_refused_and_its_preview_is_marked(number: int) -> None:
    """D21"""
    value = _hostile()[number]
    assert type(value).__name__ in refused({"x": value})
    preview = to_preview({"x": value, "n": 1}, ROOM)
    assert preview is not None
    assert preview.value["n"] == 1
    assert preview.value["x"]["type"] == type(value).__name__
    assert isinstance(preview.value["x"]["$repr"], str)


def test_what_json_cannot_hold_is_marked_in_its_place_and_never_a_plain_text() -> None:
    """D21"""
    preview = to_preview({"frame": Odd("an odd thing"), "n": [1, math.nan, 2**70]}, ROOM)
    assert preview is not None
    assert preview.value == {
        "frame": {"$repr": "an odd thing", "type": "Odd"},
        "n": [1, {"$repr": "nan", "type": "float"}, {"$repr": str(2**70), "type": "int"}],
    }


def test_a_long_repr_is_capped() -> None:
    assert bounded_repr(Odd("x" * 5_000)) == "x" * MAX_REPR + "…"
    assert len(bounded_repr({(i, "x" * 10_000): [i] * 10_000 for i in range(1_000)})) <= MAX_REPR + 1


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.binary()
    | st.dates()
    | st.decimals()
    | st.complex_numbers()
    | st.integers(0, 6).map(lambda number: _hostile()[number])
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
def test_any_value_is_converted_or_refused_and_has_a_preview(value: Any) -> None:
    try:
        result = to_json(value, "output", ROOM)
    except NotJson:
        pass
    else:
        data = msgspec.json.encode(result.value)
        assert msgspec.json.decode(data) == result.value
        assert len(data) >= result.size
    preview = to_preview(value, ROOM)
    assert preview is not None
    assert msgspec.json.decode(msgspec.json.encode(preview.value)) == preview.value


# Params of Python programs


def test_params_of_a_program_follow_the_rule() -> None:
    """D48"""
    assert from_caller({"when": date(2026, 1, 2), "n": (1,)}, "params", 100) == {
        "when": "2026-01-02",
        "n": [1],
    }
    with pytest.raises(InvalidRequest, match=r"^params\.v: an int beyond 64 bits is not JSON$"):
        from_caller({"v": 2**64}, "params", 100)
    with pytest.raises(InvalidRequest, match=r"^params\.v: NaN is not JSON; use null or a string$"):
        from_caller({"v": math.nan}, "params", 100)
    with pytest.raises(RequestTooLarge, match=r"^params: more than 1,00\d bytes of JSON; at most 100"):
        from_caller({"v": "x" * 1_000}, "params", 100)


# Records


def test_the_values_of_records_share_one_budget() -> None:
    """D08"""
    budget = RecordBudget(1_000)
    assert budget.values_of("a", {"n": 1}, "x" * 900, {}) == ({"n": 1}, "x" * 900, {})
    is_exceeded = budget.is_exceeded
    inputs, _, _ = budget.values_of("b", {"a": "x" * 900, "n": 2}, None, {})
    assert inputs == {"a": {"$repr": repr("x" * 900), "type": "str"}, "n": 2}
    assert (is_exceeded, budget.is_exceeded) == (False, True)
    budget.values_of("a", {}, "short", {})
    assert budget.values_of("b", {"a": "x" * 900}, None, {}) == ({"a": "x" * 900}, None, {})


# Exceptions


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_is_described_even_if_it_has_no_text() -> None:
    assert described(ValueError("what")) == "ValueError: what"
    assert described(ValueError("a\ud800")) == "ValueError: a\\ud800"
    assert described(Speechless()) == "Speechless: (its text raised RuntimeError)"


def test_the_text_of_an_exception_is_bounded() -> None:
    """D08"""
    text = described(ValueError("a" * 10_000_000 + "the end"))
    assert len(text) < MAX_TEXT + 100
    assert text.startswith("ValueError: aaa")
    assert text.endswith("the end")
