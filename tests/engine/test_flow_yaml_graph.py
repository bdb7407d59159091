"""REQ-0018: a graph is text in a small grammar, never code."""

import json
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pyoco.core.models import Flow, Task
from pyoco.dsl.syntax import TaskWrapper, switch

from pyoco_server.engine import flow_graph_06, flow_graph_07
from pyoco_server.engine.flow_expressions import problem_in
from pyoco_server.engine.flow_yaml import (
    HAS_BLOCKS,
    HAS_NAMED_NODES,
    _pyoco_graph,
    check_flow_yaml,
    load_flow,
)
from pyoco_server.errors import InvalidRequest
from support.tables import every_row

FLAG = "smuggled"
CODE = f"open('{FLAG}', 'w')"

PYTHON = [
    CODE,
    f"a >> b; {CODE}",
    f"a >> b\n{CODE}",
    f"import pathlib; pathlib.Path('{FLAG}').touch()",
    f"from pathlib import Path; Path('{FLAG}').touch()",
    f"__import__('pathlib').Path('{FLAG}').touch()",
    f"__builtins__['open']('{FLAG}', 'w')",
    f'eval("{CODE}")',
    f'exec("{CODE}")',
    f"print({CODE})",
    f"a({CODE})",
    f"a >> b({CODE})",
    f"a.task.func.__globals__['__builtins__']['open']('{FLAG}', 'w')",
    f"().__class__.__base__.__subclasses__() and {CODE}",
    f"[{CODE} for _ in (1,)]",
    f"{{{CODE} for _ in (1,)}}",
    f"list({CODE} for _ in (1,))",
    f"(lambda: {CODE})()",
    f"(lambda x={CODE}: x)",
    f'f"{{{CODE}}}"',
    f"a if {CODE} else b",
    f"a and {CODE}",
    f"not {CODE}",
    f"a > {CODE}",
    f"a + {CODE}",
    f"x = {CODE}",
    f"x: {CODE} = a",
    f"a.name = {CODE}",
    f"(x := {CODE})",
    f"def f(x={CODE}): pass",
    f"class X: {CODE}",
    f"@{CODE}\ndef f(): pass",
    f"with {CODE}: pass",
    f"for _ in [{CODE}]: pass",
    f"while {CODE}: break",
    f"try: {CODE}\nfinally: pass",
    f"assert {CODE}",
    f"raise {CODE}",
    f"del a[{CODE}]",
    f"if {CODE}: pass",
    f"a[{CODE}]",
    f"a[1:{CODE}]",
    f"flow >> a[{CODE}]",
    f"flow >> a % {CODE}",
    f"flow >> a % ('$ctx.params.n', {CODE})",
    f"flow >> switch({CODE})['x' >> a]",
    f"flow >> switch('$ctx.params.n')[{CODE} >> a]",
    f"flow >> switch('$ctx.params.n', *[{CODE}])['x' >> a]",
    f"flow >> [a, {CODE}]",
    f"[a, {CODE}]",
    f"{{'x': {CODE}}}",
    f"*[{CODE}],",
    f"a >> (b, {CODE})",
    unicodedata.lookup("FULLWIDTH LATIN SMALL LETTER O") + f"pen('{FLAG}', 'w')",
]

IN_EXPRESSIONS = [
    f"repeat(count={{{{{CODE}}}}}){{ a }}",
    f'repeat(count="{CODE}"){{ a }}',
    f'until(cond="$ctx.params.n or {CODE}", max_iter=1){{ a }}',
    f'foreach(over="[{CODE}]"){{ a }}',
    f'switch(on=n){{ x: "{CODE}"; }}',
    f"switch(on={CODE}){{ x: a }}",
    f"pipe({CODE})",
    f"{CODE} >> a",
    f"a >> node: {CODE}",
    "repeat(count={{$ctx.params.__class__.__mro__}}){ a }",
    "foreach(over={{().__class__.__base__.__subclasses__()}}){ a }",
    "until(cond={{$ctx.params.n ** 999999999}}){ a }",
    "until(cond={{[x for x in $ctx.params.n]}}){ a }",
    "until(cond={{(lambda: 1)()}}){ a }",
    "until(cond={{$ctx.params.n(1)}}){ a }",
    "until(cond={{$ctx.params.n.x[0]}}){ a }",
    f'flow >> a["{CODE}"]',
    f'flow >> a["$ctx.params.items as {CODE}"]',
    f'flow >> a % "{CODE}"',
    f'flow >> switch("{CODE}")["x" >> a]',
    'flow >> a["$ctx.params.__class__.__mro__"]',
]


def file_with(graph: str) -> bytes:
    tasks = {"a": {"callable": "os:getpid"}, "b": {"callable": "os:getpid"}}
    return json.dumps({"flow": {"graph": graph}, "tasks": tasks}, ensure_ascii=False).encode()


@pytest.mark.parametrize("graph", PYTHON + IN_EXPRESSIONS)
def test_code_in_a_graph_is_refused_and_does_not_run(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = file_with(graph)
    with pytest.raises(InvalidRequest, match=r"flow\.graph"):
        check_flow_yaml(data, max_bytes=100_000)
    with pytest.raises(InvalidRequest, match=r"flow\.graph"):
        load_flow(data.decode(), "smuggler")
    assert not Path(FLAG).exists()


@every_row("graph", PYTHON + IN_EXPRESSIONS)
def test_neither_grammar_knows_code(graph: str) -> None:
    with pytest.raises(InvalidRequest, match=r"flow\.graph"):
        flow_graph_06.tasks_in(graph)
    with pytest.raises(InvalidRequest, match=r"flow\.graph"):
        flow_graph_07.tasks_in(graph, {})


@every_row("graph", PYTHON)
@pytest.mark.filterwarnings("ignore")
def test_what_is_smuggled_would_run(graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the two tests above would prove nothing."""
    monkeypatch.chdir(tmp_path)
    task = TaskWrapper(Task(func=file_with, name="a"))
    with suppress(Exception):
        exec(graph, {}, {"a": task, "b": task, "flow": Flow(), "switch": switch})  # noqa: S102 - as old pyoco does
    assert Path(FLAG).exists()


@every_row(
    ("graph", "names"),
    [
        ("a", {"a"}),
        ("a >> b >> c", {"a", "b", "c"}),
        ("a\n>> b # then c\n>> c", {"a", "b", "c"}),
        ("first: a >> second: a", {"a"}),
        ("repeat(count=3){ a >> b }", {"a", "b"}),
        ("repeat(count={{n}}, collect=last){ a }", {"a"}),
        ("foreach(over={{items}}, item=it, index=idx){ a }", {"a"}),
        ('until(cond="$ctx.params.n >= 3 and not $env.DRY", max_iter=5){ a }', {"a"}),
        ("switch(on={{mode}}){ x: a; 1: b; 'two words': c >> d; default: e }", {"a", "b", "c", "d", "e"}),
        ("switch(on=mode){ x: \"a >> b\"; 'default': c; default: n: d; }", {"a", "b", "c", "d"}),
        (
            "a >> switch(on=m){ x: repeat(count=2){ b >> until(cond={{params.done}}){ c } } } >> d",
            set("abcd"),
        ),
        ("repeat >> switch", {"repeat", "switch"}),
        ("pipe(p) >> pipe('q')", {"a", "b"}),
    ],
)
def test_the_grammar_with_blocks(graph: str, names: set[str]) -> None:
    assert flow_graph_07.tasks_in(graph, {"p": "a >> b", "q": "pipe(p)"}) == names


@every_row(
    ("graph", "message"),
    [
        ("a >>", "line 1, column 5: expected the name of a task"),
        ("a b", "line 1, column 3: expected >> or the end of the graph, got 'b'"),
        ("a >> (b & c)", "line 1, column 6: expected the name of a task"),
        ("a\n| b", "line 2, column 1: '|' is not part of the grammar; tasks are joined with >> only"),
        ("a > b", "line 1, column 3: '>' is not part of the grammar; tasks are joined with >> only"),
        ("a >> __b__", "line 1, column 6: '__b__' is not a valid name in a graph"),
        ("repat(count=1){ a }", "repat(…) is not part of the grammar (did you mean 'repeat'?)"),
        ("repeat(){ a }", "line 1, column 1: repeat(…) needs count="),
        ("repeat(count=1,){ a }", "line 1, column 16: an argument is missing after the comma"),
        ("repeat(count=1, count=2){ a }", "line 1, column 17: duplicate argument count"),
        ("repeat(count=1){ }", "line 1, column 18: expected the name of a task"),
        ("repeat(count=1){ a", "expected '}', got the end of the graph"),
        ("repeat(count=9999999999){ a }", "count= cannot be '9999999999'"),
        ("repeat(count=1, collect=all){ a }", "collect= takes one of list, last, first, flatten, not 'all'"),
        ("until(cond=x, max_itre=5){ a }", "until(…) has no argument 'max_itre' (did you mean 'max_iter'?)"),
        ("until(cond=x, max_iter=0){ a }", "max_iter= must be a number of at least 1, not '0'"),
        ("until(cond=x, max_iter=n){ a }", "max_iter= must be a number of at least 1, not 'n'"),
        ("until(cond=5){ a }", "cond= cannot be '5'"),
        ("until(cond={{x > 1}}){ a }", "'x' is not known in an expression; write $ctx.params.x"),
        ("until(cond={{}}){ a }", "this is not an expression"),
        ("foreach(over=x, item='1x'){ a }", "item= takes a name, not '1x'"),
        ("switch(on=x){ }", "a switch needs at least one case"),
        ("switch(on=x){ a: b c: d }", "line 1, column 20: expected ';', got 'c'"),
        ("switch(on=x){ 1: a; '1': b }", "duplicate case '1'"),
        ("switch(on=x){ default: a; default: b }", "duplicate case 'default'"),
        ("switch(on=x){ a: 'b >> ' }", "line 1, column 18, in quotes, line 1, column 6: expected the name"),
        ("switch(on={{x){ a: b }", "line 1, column 11: {{ is not closed"),
        ("switch(on='x){ a: b }", "line 1, column 11: ' is not closed"),
        ("pipe(1)", "pipe(…) takes the name of a pipe"),
        ("pipe(setpu)", "flow.graph: pipe(setpu) is not defined under pipes (did you mean 'setup'?)"),
        ("pipe(x)", "pipes.y: pipe(x) contains itself: x > y > x"),
        ("pipe(bad)", "pipes.bad, line 1, column 3: expected >> or the end"),
        ("repeat(count=1){" * 51 + "a" + "}" * 51, "blocks are nested more than 50 deep"),
        (" >> ".join(["a"] * 5000), "more than 4,096 terms"),
    ],
)
def test_a_graph_outside_the_grammar_with_blocks(graph: str, message: str) -> None:
    pipes = {"setup": "a", "x": "pipe(y)", "y": "pipe(x)"} | ({"bad": "a b"} if "bad" in graph else {})
    with pytest.raises(InvalidRequest) as caught:
        flow_graph_07.tasks_in(graph, pipes)
    assert message in caught.value.detail


def test_pipes_that_double_are_counted_not_expanded() -> None:
    pipes = {f"p{n}": f"pipe(p{n + 1}) >> pipe(p{n + 1})" for n in range(40)} | {"p40": "a"}
    with pytest.raises(InvalidRequest, match="more than 4,096 terms after its pipes are expanded"):
        flow_graph_07.tasks_in("pipe(p0)", pipes)


def test_pipes_nest_only_so_deep() -> None:
    pipes = {f"p{n}": f"pipe(p{n + 1})" for n in range(2000)} | {"p2000": "a"}
    with pytest.raises(InvalidRequest, match="pipes are nested more than 50 deep"):
        flow_graph_07.tasks_in("pipe(p0)", pipes)


def test_quoted_branches_nest_only_so_deep() -> None:
    graph = "a"
    for _ in range(8):
        graph = f"switch(on=x){{ y: {json.dumps(graph)} }}"
    assert flow_graph_07.tasks_in(graph, {}) == {"a"}
    for _ in range(43):
        graph = f"repeat(count=1){{ {graph} }}"
    with pytest.raises(InvalidRequest, match="blocks are nested more than 50 deep"):
        flow_graph_07.tasks_in(graph, {})


def test_a_pyoco_without_named_nodes_does_not_get_them() -> None:
    with pytest.raises(
        InvalidRequest, match="line 1, column 2: expected >> or the end of the graph, got ':'"
    ):
        flow_graph_07.tasks_in("n: a", {}, named_nodes=False)


@every_row(
    ("graph", "names"),
    [
        ("a", {"a"}),
        ("a >> b >> c", {"a", "b", "c"}),
        ("(a & b) >> c  # both", {"a", "b", "c"}),
        ("(a | b) >> c", {"a", "b", "c"}),
        ("a >> c\nb >> c", {"a", "b", "c"}),
        ("(a >>\n b)", {"a", "b"}),
        ("flow >> [a, b] >> c", {"a", "b", "c"}),
        ("flow >> a[3]", {"a"}),
        ("flow >> (a >> b)['$ctx.params.items as it']", {"a", "b"}),
        ("flow >> a % '$ctx.params.done' >> b", {"a", "b"}),
        ("flow >> a % ('$ctx.params.n >= 3', 5)", {"a"}),
        ("flow >> switch('$ctx.params.mode')['x' >> a, 1 >> (b >> c), '*' >> d]", {"a", "b", "c", "d"}),
        ("flow >> switch('$ctx.params.mode')['x' >> a[2]]", {"a"}),
        (" >> ".join(f"t{n}" for n in range(900)), {f"t{n}" for n in range(900)}),
    ],
)
def test_the_grammar_with_operators(graph: str, names: set[str]) -> None:
    assert flow_graph_06.tasks_in(graph) == names


@every_row(
    ("graph", "message"),
    [
        ("a >>", "line 1, column 5: invalid syntax"),
        ("a\n >> b", "line 2, column 1"),
        ("a >> b.c", "line 1, column 6: Attribute is not part of the grammar"),
        ("a >> __b__", "line 1, column 6: '__b__' is not a valid name in a graph"),
        ("flow", "line 1, column 1: `flow` is not allowed here"),
        ("a >> flow", "line 1, column 6: `flow` is not allowed here"),
        ("flow & a", "`flow` is followed by >> only"),
        ("a >> switch", "line 1, column 6: `switch` is not allowed here"),
        ("a = b", "line 1, column 1: Assign is not part of the grammar"),
        ("a\nimport os", "line 2, column 1: Import is not part of the grammar"),
        ("a[3]", "must start each line with `flow >>`"),
        ("flow >> a[3]\nb >> c", "line 2, column 1: a graph with loops or switch must start each line"),
        ("flow >> a[True]", "expected a number or an expression in quotes"),
        ("flow >> a[-1]", "expected a number or an expression in quotes"),
        ("flow >> a % 3", "expected an expression in quotes"),
        ("flow >> a % ('$ctx.x', 0)", "the maximum number of iterations, at least 1"),
        ("flow >> other('x')['x' >> a]", "calls are not part of the grammar, except switch"),
        ("flow >> switch('$ctx.x', 1)['x' >> a]", "switch takes one expression in quotes"),
        ("flow >> switch('$ctx.x')['x' >> a >> b]", 'a case is a value and a branch: "x" >> (a >> b)'),
        ("flow >> switch('$ctx.x')[()]", "a switch needs at least one case"),
        ("'x' >> a", "line 1, column 1: Constant is not part of the grammar"),
        ("(" * 300 + "a" + ")" * 300, "too many nested parentheses"),
        # Which of the two limits it meets first depends on the version of Python.
        ("a" + " >> a" * 5000, "nested too deep or too long|parentheses or 4,096 terms"),
        ("a" * 40_000, "flow.graph has 40,000 characters; 32,768 are allowed"),
        ("(a & " * 60 + "a" + ")" * 60, "more than 50 levels of parentheses"),
    ],
)
def test_a_graph_outside_the_grammar_with_operators(graph: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        flow_graph_06.tasks_in(graph)
    assert any(one in caught.value.detail for one in message.split("|"))


@pytest.mark.parametrize(
    "expression",
    ["x", "params.x", "$ctx.params.x", "$env.HOME == 'a'", "$ctx.loop.index + 1 >= 3 and not $ctx.params.x"],
)
def test_expressions_compare_references_and_constants(expression: str) -> None:
    assert problem_in(expression) is None


TOUCHING = (
    "f(1)",
    "$ctx.a(1)",
    "$ctx.a$ctx.b",
    "x$ctx.a",
    "_$ctx.a",
    "$ctx.a[0]",
    "$ctx.a.__class__",
    "$foo.a",
)
OTHER = (
    "",
    "x y",
    "1 ** 2",
    "b'x'",
    "1j",
    "...",
    "'\\n'",
    "lambda: 1",
    "[1]",
    "(1,)",
    "{}",
    "f'{1}'",
    "1 if 1 else 2",
)


@every_row("expression", TOUCHING + OTHER)
def test_other_expressions_are_refused(expression: str) -> None:
    assert problem_in(expression)


def test_an_expression_has_a_length() -> None:
    assert problem_in("1" + " + 1" * 300) == "an expression has at most 1,000 characters"


SIGNS = (">>", ">", "(", ")", "{", "}", "{{", "}}", ":", ";", ",", "=", "[", "]", "'", '"', "\\", "#", "\n")
BLOCKS = ("repeat(count=2){", "until(cond=x){", "switch(on=x){", "default", "foreach(over=x){", "pipe(p)")
WORDS = st.sampled_from((*SIGNS, *BLOCKS, "a", "b", "1", "é", "²"))


@pytest.mark.skipif(not HAS_BLOCKS, reason="this pyoco has no parser of its own")
@given(st.lists(WORDS, max_size=25).map(" ".join) | st.lists(WORDS, max_size=25).map("".join))
def test_pyoco_reads_every_graph_that_passes(graph: str) -> None:
    with suppress(InvalidRequest):
        flow_graph_07.tasks_in(graph, {"p": "a"}, named_nodes=HAS_NAMED_NODES)
        _pyoco_graph.parse_graph(graph)


@given(st.text(st.sampled_from("ab>&|()[]%'\"$.,:=\n# 1\\{}@*-")))
@pytest.mark.filterwarnings("ignore")
def test_no_graph_does_more_than_be_refused(graph: str) -> None:
    for tasks_in in (flow_graph_06.tasks_in, lambda text: flow_graph_07.tasks_in(text, {})):
        with suppress(InvalidRequest):
            assert all(name.isidentifier() for name in tasks_in(graph))
