"""`${…}` in graphs: what is read, what it becomes, and what is said when it is not there."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.executions.interpolation import (
    MAX_RENDERED,
    TemplateError,
    TemplateFailed,
    check,
    render,
)
from support.tables import every_row

INPUT = {"ym": "2026-01", "n": 3, "list": [{"a": 1}, None], "any key": "k", "flag": True, "a-b": {"c_1": 1.5}}
NODES: dict[str, dict[str, Any]] = {
    "x": {"output": {"y": [1, 2]}, "status": "SUCCEEDED", "error": None},
    "match-a": {"output": "text", "status": "FAILED", "error": {"code": "E"}},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def rendered(value: Any) -> Any:
    return render(value, input=INPUT, nodes=NODES)


@every_row(
    ("template", "value"),
    [
        ("${input.n}", 3),
        ("${ input.n }", 3),
        ("${input.flag}", True),
        ("${input.list}", [{"a": 1}, None]),
        ("${input.list[0].a}", 1),
        ("${input.list[1]}", None),
        ("${input['any key']}", "k"),
        ('${input["any key"]}', "k"),
        ("${input.a-b.c_1}", 1.5),
        ("${input}", INPUT),
        ("${nodes.x.output.y[1]}", 2),
        ("${nodes.match-a.error.code}", "E"),
        ("${nodes['match-a'].status}", "FAILED"),
        ("month ${input.ym}!", "month 2026-01!"),
        ("${input.ym}${input.n}", "2026-013"),
        ("n=${input.n}, ${input.list}, ${input.flag}", 'n=3, [{"a":1},null], true'),
        (" ${input.n}", " 3"),
        ("$${input.n}", "${input.n}"),
        ("$${a} ${input.n} $${b}", "${a} 3 ${b}"),
        ("$$${", "$${"),
        ("costs $5 {x} $x", "costs $5 {x} $x"),
        ("", ""),
        (7, 7),
        ({"a": ["${input.n}", {"b": "${input.ym}"}], "c": None}, {"a": [3, {"b": "2026-01"}], "c": None}),
    ],
)
def test_a_template_becomes_its_value(template: Any, value: Any) -> None:
    check(template)
    result = rendered(template)
    assert result == value
    assert type(result) is type(value)


def test_a_key_in_quotes_may_have_any_character() -> None:
    assert render("${input['a}b']}", input={"a}b": 1}, nodes={}) == 1
    assert render("""${input["it's"]}""", input={"it's": 1}, nodes={}) == 1


def test_check_names_the_nodes_that_are_read() -> None:
    value = {
        "a": "${nodes.x.output}",
        "b": ["${nodes['match-a'].error} ${input.n}"],
        "c": "$${nodes.z.output}",
    }
    assert check(value) == {"x", "match-a"}


@every_row(
    ("template", "message"),
    [
        ("${input.n", "has no closing }; write $${ for a literal ${"),
        ("${}", "is not a path like input.a.b[0]"),
        ("${inptu.n}", "must begin with input, nodes, secrets or vars (did you mean 'input'?)"),
        ("${env.HOME}", "must begin with input, nodes, secrets or vars"),
        ("${input..a}", "is invalid at '..a'"),
        ("${input.a b}", "is invalid at ' b'"),
        ("${input[-1]}", "is invalid at '[-1]'"),
        ("${input.a + 1}", "is invalid at ' + 1'"),
        ("${input.__class__()}", "is invalid at '()'"),
        ("${nodes}", "has no node id"),
        ("${nodes[0].output}", "has no node id"),
        ("${nodes.x}", "missing field of a node; write nodes.x.output, .status or .error"),
        ("${nodes.x.outptu}", "'outptu' (did you mean 'output'?) is not a field of a node"),
        ("${input." + "a" * 600 + "}", "more than 500 characters"),
        ({"${input.n}": 1}, "only values are rendered, not keys"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused(template: Any, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        check(template)
    assert message in str(caught.value)


@every_row(
    ("template", "message"),
    [
        (
            "${input.ymm}",
            "${input.ymm}: input has no 'ymm' (did you mean 'ym'?); it has ym, n, list, any key",
        ),
        ("${input.a-b.x.y}", "${input.a-b.x.y}: input.a-b has no 'x'; it has c_1"),
        ("${input.list[2]}", "${input.list[2]}: input.list has 2 items, so [2] does not exist"),
        ("${input.list.a}", "input.list is a list, not an object, so .a does not exist"),
        ("${input.list[1].a}", "input.list[1] is null, not an object, so .a does not exist"),
        ("${input.ym[0]}", "input.ym is a string, not a list, so [0] does not exist"),
        ("${input['any key'].x}", "input['any key'] is a string"),
        ("${nodes.q.output}", "nodes has no 'q'; it has x, match-a"),
    ],
)
def test_what_is_missing_is_said_with_what_is_there(template: Any, message: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        rendered(template)
    assert message in str(caught.value)


def test_values_are_never_shown_in_a_failure() -> None:
    with pytest.raises(TemplateFailed) as caught:
        render("${input.secret.x}", input={"secret": "hunter2"}, nodes={})
    assert "hunter2" not in str(caught.value)


def test_too_deep_is_an_error_and_not_a_crash() -> None:
    value: Any = "x"
    for _ in range(5_000):
        value = [value]
    with pytest.raises(TemplateError, match="nested more than"):
        check(value)
    with pytest.raises(TemplateError, match="nested more than"):
        rendered(value)


@given(JSON)
def test_a_lone_reference_keeps_any_value_as_it_is(value: Any) -> None:
    assert render("${input.v}", input={"v": value}, nodes={}) == value


@given(JSON)
def test_inside_text_a_value_is_text_or_json(value: Any) -> None:
    text = render("<${input.v}>", input={"v": value}, nodes={})[1:-1]
    assert text == value if isinstance(value, str) else msgspec.json.decode(text) == value


@given(st.text())
def test_escaped_text_comes_back_unchanged(text: str) -> None:
    template = text.replace("${", "$${")
    assert check(template) == frozenset()
    assert rendered(template) == text


@given(st.text(alphabet="${}input.nodesx[]'\"0 -", max_size=40))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    try:
        check(text)
    except TemplateError:
        return
    try:
        rendered(text)
    except TemplateFailed as failed:
        assert str(failed).startswith("${")  # noqa: PT017 - either way is right, but it must say which


def test_repeated_references_end_at_a_limit_and_not_at_the_end_of_the_memory() -> None:
    """D50: 2,000 times a long text took 1.56 GB."""
    with pytest.raises(TemplateFailed, match=f"more than {MAX_RENDERED:,} bytes"):
        render("${input.s}" * 2_000, input={"s": "x" * 250_000}, nodes={})
    with pytest.raises(TemplateFailed, match=f"more than {MAX_RENDERED:,} bytes"):
        render(["${input.s}"] * 2_000, input={"s": {"a": ["x" * 250_000]}}, nodes={})
    assert len(render("${input.s}" * 4, input={"s": "x" * 250_000}, nodes={})) == 1_000_000
