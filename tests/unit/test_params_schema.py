"""The JSON Schema of a flow's params: what it refuses, and that no schema makes a check expensive."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyoco_server.domain.params_schema import MAX_SCHEMA_BYTES, ParamsSchema
from pyoco_server.errors import InvalidRequest
from support.tables import every_row


def problem(schema: dict[str, Any], params: dict[str, Any] | None = None) -> str:
    with pytest.raises(InvalidRequest) as refused:
        ParamsSchema(schema).check(params or {})
    return refused.value.detail


@every_row(
    ("schema", "place"),
    [
        ({"type": "intger"}, "params_schema.type: "),
        ({"properties": {"a": {"minimum": "1"}}}, "params_schema.properties.a.minimum: "),
        ({"properties": 3}, "params_schema.properties: "),
        ({"properties": {"a": {"pattern": "("}}}, "params_schema.properties.a.pattern: is not a supported"),
        ({"pattern": "(?=a)b"}, "params_schema.pattern: is not a supported pattern"),
        ({"pattern": r"(a)\1"}, "params_schema.pattern: is not a supported pattern"),
        ({"pattern": "(a{1000}){1000}"}, "params_schema.pattern: is not a supported pattern"),
        ({"$ref": "http://127.0.0.1:1/x"}, "params_schema.$ref: must begin with #/"),
        ({"$ref": "file:///etc/passwd"}, "params_schema.$ref: must begin with #/"),
        ({"items": {"$ref": "other.json"}}, "params_schema.items.$ref: must begin with #/"),
        ({"$defs": {"a": {"$ref": "http://x"}}}, "params_schema.$defs.a.$ref: must begin with #/"),
        ({"$ref": 5}, "params_schema.$ref: must begin with #/"),
        ({"$ref": "#/$defs/a"}, "params_schema.$ref: '#/$defs/a' refers to nothing"),
        ({"$ref": "#"}, "'#' refers to itself"),
        ({"items": {"$id": "http://x/"}}, "params_schema.items.$id: is supported at the top only"),
        ({"$dynamicRef": "#a"}, "params_schema.$dynamicRef: is not supported"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "params_schema.$schema: only "),
        ({"$schema": 7}, "params_schema.$schema: only "),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "params_schema: more than 65,536 bytes"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_its_place(schema: dict[str, Any], place: str) -> None:
    assert place in problem(schema)


def test_a_reference_that_comes_back_to_itself_is_refused() -> None:
    schema = {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}}
    assert "refers to itself" in problem({**schema, "properties": {"x": {"$ref": "#/$defs/a"}}})


def test_names_of_params_may_be_those_of_keywords() -> None:
    schema = ParamsSchema({"properties": {"$ref": {"type": "string"}, "$id": {"type": "integer"}}})
    schema.check({"$ref": "x", "$id": 1})
    with pytest.raises(InvalidRequest, match=r"params\.\$id: "):
        schema.check({"$id": "x"})


def test_references_within_the_schema_are_followed() -> None:
    schema = {"$defs": {"a b/c": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/a%20b~1c"}}}
    assert problem(schema, {"n": "x"}).startswith("params.n: ")


def test_all_problems_of_small_params_are_named_without_their_values() -> None:
    schema = {
        "properties": {
            "day": {"format": "date"},
            "mode": {"enum": ["fast", "safe"]},
            "rows": {"items": {"type": "integer"}},
            "key": {"pattern": "^a+$"},
            "token": {"const": "x"},
        },
    }
    secret = "hunter2"  # noqa: S105
    found = problem(
        schema, {"day": secret, "mode": secret, "rows": [1, secret], "key": secret, "token": secret}
    )
    assert secret not in found
    for place in ("params.day: ", "params.mode: ", "params.rows.1: ", "params.key: ", "params.token: "):
        assert place in found


def test_of_large_params_the_first_problem_is_named() -> None:
    found = problem({"properties": {"rows": {"items": {"type": "string"}}}}, {"rows": [1] * 50_000})
    assert found == 'params.rows.0: the value is not of type "string"'


# Cost: a check holds up the whole gateway


def exponential(levels: int) -> dict[str, Any]:
    """Few bytes that mean 2 ** levels alternatives."""
    both = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(levels)
    }
    return {"$defs": {**both, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def test_a_schema_that_means_much_more_than_it_says_is_refused() -> None:
    assert "more than 2,000 keywords" in problem(exponential(20))


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"not": schema}
    assert "nested deeper than 100" in problem(schema)


ALTERNATIVES = [{"properties": {"a": {"const": -n}}} for n in range(600)]
NESTED: list[dict[str, Any]] = [{"properties": {f"p{n}": {}}} for n in range(300)]


@pytest.mark.parametrize(
    ("schema", "params"),
    [
        pytest.param(
            {"properties": {"rows": {"items": {"anyOf": [*ALTERNATIVES, {}]}}}},
            lambda size: {"rows": [{"a": 1}] * size},
            id="alternatives",
        ),
        pytest.param(
            {"properties": {"t": {"allOf": [{"pattern": f"(x+x+)+y|{n}|x$"} for n in range(600)]}}},
            lambda size: {"t": "x" * size},
            id="patterns",
        ),
        pytest.param(
            {"allOf": [{"allOf": NESTED, "unevaluatedProperties": {}}] * 2},
            lambda size: {f"p{n}": 1 for n in range(size)},
            id="unevaluated",
        ),
        pytest.param(
            {"properties": {"rows": {"uniqueItems": True}}},
            lambda size: {"rows": [[n] for n in range(size)]},
            id="unique items",
        ),
        pytest.param(
            {"properties": {"t": {"pattern": "^(a+)+$"}}}, lambda size: {"t": "a" * size}, id="backtracking"
        ),
    ],
)
def test_the_largest_params_that_are_checked_do_not_take_long(
    schema: dict[str, Any], params: Callable[[int], dict[str, Any]]
) -> None:
    """Params have at most 256 KiB. CPU time, because others may use the machine."""
    usable, size = ParamsSchema(schema), 256 * 1024
    while True:
        given = params(size)
        began = time.thread_time()
        try:
            usable.check(given)
            break
        except InvalidRequest as refused:
            assert "too large to be checked" in refused.detail  # noqa: PT017
            size = size * 3 // 4
    assert size > 100
    assert time.thread_time() - began < 1.5


@every_row(
    ("schema", "is_free"),
    [
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n", "rows"]}, True),
        ({"properties": {"rows": True}}, True),
        ({"properties": {"rows": {"type": "array"}}}, False),
        ({"additionalProperties": False}, False),
        ({"anyOf": [{"required": ["rows"]}]}, False),
        ({"maxProperties": 5}, False),
    ],
)
def test_a_large_param_is_accepted_only_where_the_schema_leaves_it_free(
    schema: dict[str, Any], *, is_free: bool
) -> None:
    checked = ParamsSchema(schema)
    params = {"n": 1, "rows": {"$ref": "sha256:…"}}
    if is_free:
        checked.check(params, ["rows"])
        return
    with pytest.raises(InvalidRequest, match=r"params\.rows: a large value cannot be checked"):
        checked.check(params, ["rows"])
