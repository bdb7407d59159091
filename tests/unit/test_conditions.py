"""Conditions of edges: what they see, what they answer, and that none runs long."""

import time
from contextlib import suppress
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pyoco_server.domain.cel.expressions import MAX_LENGTH, ConditionError
from pyoco_server.domain.cel.values import (
    MAX_DEPTH,
    MAX_READ,
    MAX_STEPS,
    Allowance,
    ConditionFailed,
    TooHeavy,
)
from pyoco_server.domain.executions.conditions import GraphValues, check, holds, nodes_in
from support.tables import every_row


class Status(StrEnum):
    SUCCEEDED = "SUCCEEDED"


INPUT = {"ym": "2026-01", "n": 3, "f": 1.5, "none": None, "list": [1, 2, 3], "a-b": 1}
NODES: dict[str, dict[str, Any]] = {
    "approve": {"output": {"ok": True}, "status": Status.SUCCEEDED, "error": None},
    "match-a": {"output": None, "status": "FAILED", "error": {"code": "TIMEOUT", "message": "late"}},
}


def answer(expr: str) -> bool:
    check(expr)
    return holds(expr, input=INPUT, nodes=NODES)


@every_row(
    "expr",
    [
        "nodes.approve.output.ok == true",
        "nodes.approve.output.ok",
        "nodes.approve.status == 'SUCCEEDED'",
        "nodes['match-a'].error.code == 'TIMEOUT'",
        'nodes["match-a"].output == null',
        "input.n > 2 && input.n < 4",
        "input.n > 2.5",
        "input.n == 3.0",
        "input['a-b'] == 1",
        "input.ym.startsWith('2026') || false",
        "input.ym.matches('^[0-9]{4}-01$')",
        "input.n in [1, 2, 3]",
        "'ym' in input",
        "size(input.list) == 3",
        "!has(input.missing)",
        "has(nodes.approve.output.ok)",
        "input.none == null",
        "input.n == 3 ? true : false",
        "input.list.all(i, i > 0)",
        "input.list.exists(i, i == input.n)",
        "input.list.filter(i, i > 1).size() == 2",
        "input.ym + '-31' == '2026-01-31'",
        "timestamp(input.ym + '-01T00:00:00Z') < timestamp('2027-01-01T00:00:00Z')",
        "input.n == 3 // a comment with nodes.x.y in it",
        "'nodes.x.y' != 'a'",
        "input.n ==\n 3",
        "true || input.missing",
    ],
)
def test_a_condition_sees_input_and_nodes(expr: str) -> None:
    assert answer(expr) is True
    assert answer(f"!({expr.partition('//')[0]})") is False


@every_row(
    ("expr", "names"),
    [
        ("nodes.a.output.nodes.z == 1 && input.nodes.y == 2", {"a"}),
        ("nodes [ 'b-c' ] . status == 'nodes.q.output'", {"b-c"}),
        ('nodes[r"b-c"]["error"] == null', {"b-c"}),
        ("nodes.`b-c`.output == 1", {"b-c"}),
        (".nodes.a.output == 1 || (.nodes.b.output == 1)", {"a", "b"}),
        ("input . nodes . x == 1 && input['nodes'].y == 1", set()),
        ("nodes // the nodes.x.output\n .a.output == 1", {"a"}),
        ("input == '''it's nodes.x''' || nodes.a.status == ''", {"a"}),
        ("input == 'it\\'s nodes.x' || nodes.a.status == ''", {"a"}),
        ("[input].exists(nodes_, nodes_.x == 1)", set()),
        ("input.size() > 1", set()),
    ],
)
def test_the_nodes_that_an_expression_reads_are_known_before_it_runs(expr: str, names: set[str]) -> None:
    assert nodes_in(expr) == names


@pytest.mark.parametrize(
    "expr",
    [
        "input.existsOne(i, i == 1)",
        "input.transformList(i, v, v) == []",
        "input.all(i, v, v == 1)",
        "cel.bind(x, input, x == 1)",
        "lists.range(1000000).size() == 1",
        "input.sortBy(i, i) == []",
    ],
)
def test_the_library_knows_no_loops_but_ours(expr: str) -> None:
    """A newer version of it that does must have them counted in `LOOPS`."""
    with pytest.raises(ConditionError):
        check(expr)


@every_row(
    ("expr", "message"),
    [
        ("", "column 1: Syntax error"),
        ("1 +", "column 4: Syntax error: mismatched input '<EOF>'"),
        ("input.n ==\n )", "line 2, column 2: Syntax error"),
        ("'abc", "column 1: Syntax error"),
        ("inptu.n == 1", "undeclared reference to 'inptu"),
        ("nosuch(1)", "undeclared reference to 'nosuch'"),
        ("1 == 'a'", "found no matching overload for '_==_'"),
        ("1 + 1", "gives int, not true or false"),
        ("'a'", "gives string, not true or false"),
        ("nodes.approve.outptu == 1", "'outptu' (did you mean 'output'?) is not a field of a node"),
        ("nodes.approve != {}", "a field is missing; write nodes['approve'].output"),
        ("size(nodes) == 1", "nodes must be followed by a name"),
        ("nodes[input.ym].output == 1", "nodes must be followed by a name"),
        ("x" * (MAX_LENGTH + 1), "characters; 1,000 are allowed"),
        ("(" * 40 + "true" + ")" * 40, "recursion limit"),
        ("true == '\ud800'", "UTF-8"),
        ("input.list.map(i, i) == [1]", "map is not allowed"),
        ("input.list.all(i, input.list.all(j, true))", "has 2 loops (all, all); one is allowed"),
        ("input.list.all(i, size(input.list + input.list) > 1)", "+ is not allowed beside all"),
    ],
)
def test_an_expression_that_can_never_hold_is_refused(expr: str, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        check(expr)
    assert message in str(caught.value)


@every_row(
    ("expr", "message"),
    [
        ("input.missing == 1", "'input.missing == 1': Key not found in map : \"missing\""),
        ("nodes.other.output == 1", 'Key not found in map : "other"'),
        ("nodes.approve.output.q.r == 1", 'Key not found in map : "q"'),
        ("input.list[9] == 1", "index=9 size=3"),
        ("input.n > 'a'", "No matching overloads found"),
        ("input.f * 2 == 3", "No matching overloads found"),
        ("input.n / 0 == 1", "divide by zero"),
        ("9223372036854775807 + input.n == 1", "overflow"),
        ("input.ym.matches('(')", "invalid regular expression"),
        ("input.n", "'input.n' gives int, not true or false"),
        ("input.none", "gives null, not true or false"),
    ],
)
def test_an_expression_without_an_answer_fails_and_says_why(expr: str, message: str) -> None:
    check(expr)
    with pytest.raises(ConditionFailed) as caught:
        answer(expr)
    assert message in str(caught.value)


def test_values_beyond_the_limits_fail_and_do_not_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConditionFailed, match=f"nested more than {MAX_DEPTH}"):
        holds("size(input) == 1", input=deep, nodes={})
    with pytest.raises(ConditionFailed, match="out of range"):
        holds("input > 1", input=2**70, nodes={})
    with pytest.raises(ConditionFailed, match=f"reads more than {MAX_READ:,} values"):
        holds("size(input) == 1", input=[1] * (MAX_READ + 1), nodes={})
    with pytest.raises(ConditionFailed, match=f"{MAX_STEPS:,} are allowed"):
        holds("input.all(i, input == input)", input=[1] * 1_000, nodes={})
    with pytest.raises(ConditionFailed, match=f"{MAX_STEPS:,} are allowed"):
        holds("input.a.contains(input.b)", input={"a": "x" * 100_000, "b": "x" * 50_000}, nodes={})


def test_what_an_expression_does_not_name_is_not_counted() -> None:
    large = {"large": {"output": [0] * 100_000}, "small": {"output": [1]}}
    assert holds("nodes.small.output.all(i, i == 1)", input=[0] * 100_000, nodes=large)


def test_the_worst_loop_that_is_allowed_ends_soon() -> None:
    """Its cost is the square of the values: ten times as many would take a hundred times as long."""
    rounds = " && ".join(["input == input"] * 10)
    started = time.process_time()
    assert holds(f"input.all(i, {rounds})", input=list(range(150)), nodes={})
    assert time.process_time() - started < 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_any_json_is_true_false_or_a_failure(value: Any) -> None:
    try:
        result = holds("input.a.b == 1 || size(input) > 2", input=value, nodes={})
    except ConditionFailed:
        return
    assert isinstance(result, bool)


@given(st.text(alphabet="input.nodes['x']output()!&|=<>+-*/ \"\\rb{}:?,0123u\n", max_size=60))
def test_any_text_is_an_expression_or_refused(expr: str) -> None:
    try:
        check(expr)
    except ConditionError:
        return
    assert nodes_in(expr) is not None


QUOTES = ["'a'", '"a"', "'''a'''", '"""a"""', r"r'a\\'", r"'\''", r"'''\''''", r"b'\xff'", "'//'", "'a.map('"]
COPYING = [
    "input.map(x, input + input).size() > 0",
    "input.map(x, input) != []",
    "input . map ( x , [x, x] ) == input",
    "input // .all(\n.map(x, 1) == [1]",
    "input.all(x, input.all(y, true))",
    "input.exists(x, [1].exists(y, x == y))",
    "input.filter(x, true).filter(y, true) == []",
    "input.all(x, input + input == input)",
    "input.exists_one(x, (input + [x]).size() > 1)",
]


@given(
    st.sampled_from(QUOTES),
    st.sampled_from(COPYING),
    st.sampled_from(QUOTES),
    st.sampled_from(["&&", "||"]),
    st.sampled_from(["", "!"]),
)
def test_loops_that_copy_are_refused_in_any_quoting(
    before: str, loop: str, after: str, operator: str, sign: str
) -> None:
    """D18: what is checked is the expression that the library will evaluate, not its text."""
    expr = f"input != {before} {operator} {sign}({loop}) && input != {after}"
    with pytest.raises(ConditionError, match=r"map is not allowed|loops|not allowed beside"):
        check(expr)


def test_a_quote_behind_a_backslash_hides_no_loop() -> None:
    """D18: as it was found."""
    expr = r"'''\'''' != 'a' && input.map(x, input + input).size() > 0 && 'b' != 'c'"
    with pytest.raises(ConditionError, match="map is not allowed"):
        check(expr)
    with pytest.raises(ConditionFailed, match="map is not allowed"):  # of a graph that was registered before
        holds(expr, input=[1], nodes={})


TERMS = [
    "input.l == input.l",
    "input.l.size() > 3",
    "7 in input.l",
    "input.s.contains(input.p)",
    "input.s.contains('aab')",
    "input.s.matches('(a+a+)+b')",
    "input.s.matches('(.*a){30}b')",
    "input.s.matches(input.p)",
    "input.s + input.s == input.s",
    "input.l + input.l == input.l",
    "input.s.startsWith(input.s)",
    "string(input.n) == input.s",
    "input.o == input.o",
    "size(input.s) > 1",
    "has(input.o.k1)",
]


@given(
    st.lists(st.sampled_from(TERMS), min_size=1, max_size=12),
    st.sampled_from(["{}", "input.l.all(x, {})", "input.l.exists_one(x, {})", "input.l.filter(x, {}) == []"]),
    st.integers(0, 40_000),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_and_read_the_library_is_soon_done(
    terms: list[str], around: str, size: int
) -> None:
    """D18, D50: the library cannot be interrupted, so what would take long is not begun."""
    values = {
        "l": list(range(size)),
        "s": "a" * size,
        "p": "a" * (size // 2) + "b",
        "o": {f"k{n}": n for n in range(size // 10)},
        "n": size,
    }
    expr = around.format(" && ".join(terms))
    started = time.process_time()
    with suppress(ConditionError, ConditionFailed):
        holds(expr, input=values, nodes={})
    assert time.process_time() - started < 0.5


def test_reading_a_part_does_not_cost_the_whole() -> None:
    """D50: of a large input only what is named is handed over."""
    large = {"rows": list(range(1_000_000)), "kind": "monthly", "none": {}}
    assert holds("input.kind == 'monthly' && !has(input.none.x) && !has(input.y)", input=large, nodes={})


def test_many_conditions_convert_one_input_once() -> None:
    """D50: 900 edges over 100,000 numbers took minutes, because each of them copied the input."""
    values = GraphValues(list(range(100_000)), {})
    started = time.process_time()
    assert all(values.holds(f"input[{index}] == {index} && input.size() > {index}") for index in range(900))
    assert time.process_time() - started < 3


def test_all_conditions_of_a_state_share_a_budget() -> None:
    """D50: each of these reads another combination of large values."""
    values = GraphValues({f"k{n}": list(range(2_000)) for n in range(60)}, {})
    pairs = [(one, other) for one in range(60) for other in range(60)]
    with pytest.raises(ConditionFailed, match="conditions together read more than"):
        [values.holds(f"input.k{one} == input.k{other}") for one, other in pairs]


def test_heavy_work_can_be_left_to_somebody_else() -> None:
    """D50: what is light is evaluated at once, the rest where it holds up nobody."""
    assert GraphValues([1, 2, 3], {}, Allowance(1_000)).holds("input.all(x, x > 0)")
    with pytest.raises(TooHeavy):
        GraphValues(list(range(10_000)), {}, Allowance(1_000)).holds("input.size() > 1")
