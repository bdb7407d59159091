"""Graphs: what is read, what is refused and how it is said, and what the state machine can rely on."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from pyoco_server.domain.executions.graphs import (
    Edge,
    EdgeOn,
    Graph,
    GraphNode,
    JoinPolicy,
    NodeType,
    OnTimeout,
    Retry,
    definition_of,
    parse_graph,
)
from pyoco_server.domain.strict_yaml import graph_definition
from pyoco_server.errors import InvalidRequest
from support.tables import every_row

MONTHLY_CLOSE = """
id: monthly-close
nodes:
  extract: {type: task, flow: extract, tag: cpu, params: {ym: "${input.ym}"}, retry: {max_attempts: 3, backoff_sec: 5}, timeout_sec: 600}
  split:   {type: fork}
  match_a: {type: task, flow: match, params: {part: a}}
  match_b: {type: task, flow: match, params: {part: b}}
  gather:  {type: join, policy: ALL_SUCCESS}
  approve: {type: wait, prompt: "Close the month?", wait_key: "${input.ym}", timeout_sec: 86400, on_timeout: fail}
  book:    {type: task, external: true}        # carried out by an outside worker through the node commands
edges:
  - {from: extract, to: split}
  - {from: split, to: match_a}
  - {from: split, to: match_b}
  - {from: match_a, to: gather}
  - {from: match_b, to: gather}
  - {from: gather, to: approve}
  - {from: approve, to: book, when: "nodes.approve.output.ok == true"}
  - {from: extract, to: book, on: failure}
"""  # noqa: E501 - as users write it


def monthly_close() -> dict[str, Any]:
    return graph_definition(MONTHLY_CLOSE, "application/yaml")


def refusal(definition: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_graph(definition)
    assert caught.value.status == 422
    return caught.value.detail


def chain(*names: str) -> list[dict[str, Any]]:
    return [{"from": a, "to": b} for a, b in pairwise(names)]


def tasks(*names: str) -> dict[str, Any]:
    return {name: {"type": "task", "flow": "f"} for name in names}


def test_the_graph_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
    graph = parse_graph(graph_definition(page.partition("```yaml\n")[2].partition("```")[0], None))
    assert {node.type for node in graph.nodes.values()} == set(NodeType)
    keys = set(GraphNode.__struct_fields__) - {"id", "retry"} | {
        f"retry.{key}" for key in Retry.__struct_fields__
    }
    assert set(re.findall(r"^\|[^|]*\| `([\w.]+)` \|", page, re.MULTILINE)) == keys


def test_a_graph_is_read_as_it_is_written() -> None:
    graph = parse_graph(monthly_close())
    assert graph.id == "monthly-close"
    assert graph.entry == "extract"
    assert list(graph.nodes) == ["extract", "split", "match_a", "match_b", "gather", "approve", "book"]
    extract = graph.nodes["extract"]
    assert (extract.type, extract.flow, extract.tag) == (NodeType.TASK, "extract", "cpu")
    assert extract.params == {"ym": "${input.ym}"}
    assert extract.retry == Retry(max_attempts=3, backoff_sec=5)
    assert extract.timeout_sec == 600
    assert graph.nodes["gather"].policy is JoinPolicy.ALL_SUCCESS
    assert graph.nodes["approve"].on_timeout is OnTimeout.FAIL
    assert graph.nodes["approve"].wait_key == "${input.ym}"
    assert graph.nodes["book"].external
    assert graph.edges[-2:] == (
        Edge(source="approve", target="book", when="nodes.approve.output.ok == true"),
        Edge(source="extract", target="book", on=EdgeOn.FAILURE),
    )
    assert [edge.source for edge in graph.incoming["book"]] == ["approve", "extract"]
    assert [edge.target for edge in graph.outgoing["split"]] == ["match_a", "match_b"]
    assert graph.order == tuple(graph.nodes)
    assert graph.forks == {"gather": "split"}
    assert graph.descendants("gather") == {"approve", "book"}
    assert graph.ancestors("gather") == {"extract", "split", "match_a", "match_b"}


def test_defaults() -> None:
    graph = parse_graph({"id": "g", "nodes": {"only": {"type": "task", "flow": "f"}}})
    only = graph.nodes["only"]
    assert (only.params, only.external, only.retry, only.timeout_sec, only.tag) == (
        {},
        False,
        Retry(),
        None,
        None,
    )
    assert (graph.entry, graph.order, graph.edges, graph.forks) == ("only", ("only",), (), {})
    joined = parse_graph(forked({"type": "join"})).nodes["j"]
    assert (joined.policy, joined.min_success, joined.cancel_rest) == (JoinPolicy.ALL_SUCCESS, None, True)


def test_json_and_yaml_say_the_same() -> None:
    definition = monthly_close()
    assert graph_definition(json.dumps(definition), "application/json; charset=utf-8") == definition
    assert graph_definition(json.dumps(definition).encode(), "application/vnd.x+json") == definition
    assert graph_definition(MONTHLY_CLOSE.encode(), None) == definition
    assert graph_definition(yaml.safe_dump(definition, sort_keys=False), "text/yaml") == definition


@every_row(
    ("text", "content_type", "message"),
    [
        ("a: 1\na: 2", "text/yaml", "graph, line 2, column 1: duplicate key 'a'"),
        ("nodes: {yes: 1}", "text/yaml", "YAML does not read the key 'yes' as a string; write it in quotes"),
        ("a: !!python/name:os.system x", "text/yaml", "is not allowed"),
        ("[1]", "text/yaml", "must be an object with id, nodes and edges"),
        ('{"a": 1, "a": 2}', "application/json", "graph: a: duplicate key 'a'"),
        ('{"a": ', "application/json", "graph, line 1, column 7"),
        ('{"a": NaN}', "application/json", "NaN is not a number that JSON has"),
        ('{"a": 1e999}', "application/json", "1e999 is too large"),
        ('{"a": 9223372036854775808}', "application/json", "has more than 64 bits"),
        ('{"a": ' + "9" * 5_000 + "}", "application/json", "has more than 64 bits"),
        ('{"a": "\\ud800"}', "application/json", "half of a surrogate pair"),
        ("[" * 100_000, "application/json", "nested more than 50 deep"),
        ("[" * 60 + "]" * 60, "application/json", "nested more than 50 deep"),
        ("7", "application/json", "must be an object with id, nodes and edges"),
    ],
)
def test_texts_that_are_no_definition_are_refused(text: str, content_type: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        graph_definition(text, content_type)
    assert message in caught.value.detail


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="graph, line 1, column 5: the file is not UTF-8"):
        graph_definition(b"id: \xff", "text/yaml")


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """`nodes.extract.flow` set, or removed with `...`."""

    def apply(definition: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = definition
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        key = int(last) if isinstance(place, list) else last
        if value is ...:
            del place[key]
        else:
            place[key] = value

    return apply


def edge(**fields: str) -> Callable[[dict[str, Any]], None]:
    renamed = {
        "from" if key == "source" else "to" if key == "target" else key: v for key, v in fields.items()
    }
    return lambda definition: definition["edges"].append(renamed)


@every_row(
    ("wrong", "message"),
    [
        (change("id", ...), "graph: id is missing; it must match [A-Za-z0-9_-]{1,64}"),
        (change("id", "a.b"), "id 'a.b' is not allowed"),
        (change("id", 7), "id '7' is not allowed"),
        (change("node", {}), "top level: unknown key 'node' (did you mean 'nodes'?)"),
        (change("nodes", {}), "nodes must be an object with at least one node"),
        (change("nodes", []), "nodes must be an object with at least one node"),
        (change("edges", {"a": "b"}), "edges must be a list of {from: a, to: b}"),
        (
            change("nodes.book", "task"),
            "node book must be an object like {type: task, flow: x}, got a string",
        ),
        (
            change("nodes.a b", {"type": "fork"}),
            "node 'a b': a node id must match [A-Za-z0-9_-]{1,64}",
        ),
        (
            change("nodes.book.type", ...),
            "node book: type is missing; write one of task, wait, sleep, repeat, execution, map, fork, join",
        ),
        (change("nodes.book.type", "tsak"), "node book: type 'tsak' is unknown (did you mean 'task'?)"),
        (change("nodes.book.type", ["task"]), "node book: type \"['task']\" is unknown"),
        (change("nodes.extract.flwo", "x"), "node extract: unknown key 'flwo' (did you mean 'flow'?)"),
        (
            change("nodes.approve.waitKey", "x"),
            "node approve: unknown key 'waitKey' (did you mean 'wait_key'?)",
        ),
        (change("nodes.extract.flow", ...), "node extract has neither flow nor external: true"),
        (change("nodes.extract.flow", ""), "node extract: flow: expected str of length >= 1"),
        (change("nodes.extract.flow", "f" * 201), "node extract: flow: expected str of length <= 200"),
        (change("nodes.extract.external", True), "node extract has both flow and external: true; keep one"),
        (change("nodes.book.tag", "cpu"), "node book: tag is only for tasks with a flow"),
        (change("nodes.extract.tag", "a.b"), "node extract: tag 'a.b' must match [A-Za-z0-9_-]{1,64}"),
        (change("nodes.extract.params", [1]), "node extract: params: expected object, got array"),
        (change("nodes.extract.timeout_sec", 0), "node extract: timeout_sec: expected float > 0"),
        (change("nodes.extract.timeout_sec", "5"), "node extract: timeout_sec: expected float, got str"),
        (change("nodes.extract.timeout_sec", 1e12), "node extract: timeout_sec: expected float <="),
        (change("nodes.extract.retry", 3), "node extract: retry: expected object, got int"),
        (
            change("nodes.extract.retry.max_attempts", 0),
            "node extract: retry: expected int >= 1, at max_attempts",
        ),
        (change("nodes.extract.retry.max_attempts", 101), "expected int <= 100, at max_attempts"),
        (change("nodes.extract.retry.max_attempts", True), "expected int, got bool, at max_attempts"),
        (change("nodes.extract.retry.backoff_sec", -1), "node extract: retry: expected float >= 0"),
        (
            change("nodes.extract.retry.attempts", 2),
            "node extract: retry: unknown key 'attempts' (did you mean",
        ),
        (
            change("nodes.approve.on_timeout", "stop"),
            "node approve: on_timeout: invalid value 'stop'; write one of fail, succeed",
        ),
        (change("nodes.approve.flow", "f"), "node approve: flow is only for task nodes, and this is a wait"),
        (
            change("nodes.split.timeout_sec", 5),
            "timeout_sec is only for task, wait and execution nodes",
        ),
        (
            change("nodes.split.policy", "ALL_DONE"),
            "node split: policy is only for join nodes, and this is a fork",
        ),
        (
            change("nodes.extract.prompt", "?"),
            "node extract: prompt is only for wait nodes, and this is a task",
        ),
        (
            change("nodes.gather.retry", {}),
            "retry is only for task, execution and map nodes, and this is a join",
        ),
        (
            change("nodes.gather.policy", "SOME"),
            "policy: invalid value 'SOME'; write one of ALL_SUCCESS, ANY_SUCCESS, ALL_DONE, CUSTOM",
        ),
        (change("nodes.gather.policy", "CUSTOM"), "node gather: policy CUSTOM requires min_success"),
        (change("nodes.gather.min_success", 1), "node gather: min_success is only for policy CUSTOM"),
        (
            change("nodes.gather", {"type": "join", "policy": "CUSTOM", "min_success": 3}),
            "but the join has 2 branches",
        ),
        (change("nodes.gather", {"type": "join", "policy": "CUSTOM", "min_success": 0}), "expected int >= 1"),
        (
            change("nodes.extract.params.ym", "${input.ym"),
            "node extract: params: '${input.ym' has no closing }",
        ),
        (
            change("nodes.approve.prompt", "${x}"),
            "node approve: prompt: '${x}' must begin with input, nodes, secrets or vars",
        ),
        (
            change("nodes.book.params", {"a": "${nodes.aprove.output}"}),
            "unknown node 'aprove' (did you mean",
        ),
        (change("nodes.match_a.params", {"a": "${nodes.match_b.output}"}), "match_b is not upstream"),
        (change("nodes.match_a.params", {"a": "${nodes.match_a.output}"}), "match_a is not upstream"),
        (change("edges.6.when", "nodes.approve.output.ok ="), "edge approve → book: when: "),
        (
            change("edges.6.when", "nodes.aprove.output.ok"),
            "nodes.aprove: unknown node 'aprove' (did you mean",
        ),
        (change("edges.6.when", "nodes.book.output.ok"), "nodes.book: book is not upstream"),
        (change("edges.6.when", True), "edge approve → book: when: expected str, got bool"),
        (
            change("edges.6.on", "error"),
            "edge approve → book: on: invalid value 'error'; write one of success, failure",
        ),
        (change("edges.6.if", "x"), "edge approve → book: unknown key 'if'"),
        (change("edges.6", "a -> b"), "edges[6] must be an object like {from: a, to: b}, got a string"),
        (change("edges.6.to", ...), "edges[6]: to is missing"),
        (change("edges.6.from", 1), "edges[6]: from: expected str, got int"),
        (
            edge(source="aprove", target="book"),
            "edge aprove → book: from: unknown node 'aprove' (did you mean",
        ),
        (edge(source="book", target="x"), "edge book → x: to: unknown node 'x'"),
        (edge(source="book", target="book"), "edge book → book connects a node to itself"),
        (edge(source="extract", target="split"), "edge extract → split (on: success) is a duplicate"),
        (edge(source="split", target="book", on="failure"), "edge split → book: a fork never fails"),
        (edge(source="gather", target="book", on="failure"), "edge gather → book: a join never fails"),
        (edge(source="book", target="extract"), "cycle: "),
        (change("nodes.alone", {"type": "fork"}), "nodes extract, alone have no incoming edge"),
    ],
)
def test_what_is_wrong_is_refused_by_name(wrong: Callable[[dict[str, Any]], None], message: str) -> None:
    definition = monthly_close()
    parse_graph(definition)
    wrong(definition)
    assert message in refusal(definition)


def test_a_cycle_is_shown_as_one_walks_it() -> None:
    definition: dict[str, Any] = {
        "id": "g",
        "nodes": tasks("a", "b", "c", "d"),
        "edges": chain("a", "b", "c", "d", "b"),
    }
    assert "cycle: b → c → d → b; remove one of its edges" in refusal(definition)


def test_a_graph_that_is_all_cycle_has_no_entry_and_says_so() -> None:
    definition: dict[str, Any] = {"id": "g", "nodes": tasks("a", "b"), "edges": chain("a", "b", "a")}
    assert "cycle: a → b → a" in refusal(definition)


def test_a_join_needs_a_fork_above_all_of_its_branches() -> None:
    definition = {
        "id": "g",
        "nodes": tasks("a", "b", "c") | {"j": {"type": "join"}},
        "edges": [*chain("a", "b", "j"), *chain("a", "c", "j")],
    }
    assert "node j: a join requires a fork above all of its branches (b, c)" in refusal(definition)
    assert "node j: a join requires a fork above it" in refusal({"id": "g", "nodes": {"j": {"type": "join"}}})


def forked(join: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "g",
        "nodes": {"f": {"type": "fork"}} | tasks("a", "b") | {"j": join},
        "edges": [*chain("f", "a", "j"), *chain("f", "b", "j")],
    }


def test_joins_belong_to_the_nearest_fork_above_all_of_their_branches() -> None:
    definition = {
        "id": "g",
        "nodes": {
            "outer": {"type": "fork"},
            "inner": {"type": "fork"},
            **tasks("a", "b", "c"),
            "inner_join": {"type": "join"},
            "outer_join": {"type": "join"},
        },
        "edges": [
            *chain("outer", "inner", "a", "inner_join", "outer_join"),
            *chain("inner", "b", "inner_join"),
            *chain("outer", "c", "outer_join"),
        ],
    }
    assert parse_graph(definition).forks == {"inner_join": "inner", "outer_join": "outer"}


def test_a_fork_that_can_be_gone_round_is_not_the_joins_own() -> None:
    definition = {
        "id": "g",
        "nodes": {
            "outer": {"type": "fork"},
            "inner": {"type": "fork"},
            **tasks("a", "b"),
            "j": {"type": "join"},
        },
        "edges": [*chain("outer", "inner", "a", "j"), *chain("inner", "b", "j"), *chain("outer", "a")],
    }
    assert parse_graph(definition).forks == {"j": "outer"}


def test_a_fork_may_lead_straight_to_its_join() -> None:
    definition = forked({"type": "join"})
    definition["edges"].append({"from": "f", "to": "j"})
    assert parse_graph(definition).forks == {"j": "f"}


def test_an_edge_reads_its_own_node_and_all_above_it() -> None:
    definition: dict[str, Any] = {"id": "g", "nodes": tasks("a", "b", "c"), "edges": chain("a", "b", "c")}
    definition["edges"][1]["when"] = "nodes.a.output == 1 && nodes.b.status == 'SUCCEEDED'"
    parse_graph(definition)
    definition["edges"][0]["when"] = "nodes.b.output == 1"
    assert "edge a → b: when: nodes.b: b is not upstream" in refusal(definition)


def test_a_name_that_cel_would_subtract_is_shown_in_quotes() -> None:
    definition: dict[str, Any] = {"id": "g", "nodes": tasks("match-a", "b"), "edges": chain("match-a", "b")}
    definition["edges"][0]["when"] = "nodes.match-a.output == 1"
    assert "(write nodes['match-a'])" in refusal(definition)
    definition["edges"][0]["when"] = "nodes['match-a'].output == 1"
    parse_graph(definition)


def test_one_node_may_lead_to_another_by_success_and_by_failure() -> None:
    definition: dict[str, Any] = {
        "id": "g",
        "nodes": tasks("a", "b"),
        "edges": [*chain("a", "b"), *chain("a", "b")],
    }
    definition["edges"][1]["on"] = "failure"
    assert [edge.on for edge in parse_graph(definition).incoming["b"]] == [EdgeOn.SUCCESS, EdgeOn.FAILURE]


def test_a_thousand_nodes_are_allowed_and_no_more() -> None:
    names = [f"n{i}" for i in range(1_001)]
    definition: dict[str, Any] = {"id": "g", "nodes": tasks(*names[:1_000]), "edges": chain(*names[:1_000])}
    assert parse_graph(definition).order == tuple(names[:1_000])
    definition = {"id": "g", "nodes": tasks(*names), "edges": chain(*names)}
    assert "1,001 nodes, 1,000 are allowed; the first one over the limit is n1000" in refusal(definition)


def test_all_problems_are_said_at_once_up_to_twenty() -> None:
    definition = monthly_close()
    definition["nodes"]["extract"]["flwo"] = 1
    definition["nodes"]["book"]["type"] = "x"
    definition["edges"].append({"from": "nobody", "to": "book"})
    text = refusal(definition)
    assert text.startswith("graph monthly-close: ")
    assert all(part in text for part in ("'flwo'", "node book: type", "edge nobody → book"))
    definition["nodes"] |= {f"n{i}": {"type": "x"} for i in range(25)}
    text = refusal(definition)
    assert text.count("; write one of task, wait, sleep, repeat, execution, map, fork, join") == 19
    assert text.endswith("; and 8 more")


@every_row(
    "definition", [None, [], "x", 1, {}, {"id": "g"}, {"nodes": None}, {"id": "g", "nodes": {"a": None}}]
)
def test_nonsense_is_refused(definition: Any) -> None:
    refusal(definition)


def test_null_is_not_given() -> None:
    definition = {
        "id": "g",
        "nodes": {"a": {"type": "task", "flow": "f", "tag": None, "params": None}},
        "edges": None,
    }
    assert parse_graph(definition).nodes["a"].params == {}


PARAMS = st.dictionaries(
    st.text(max_size=3).filter(lambda key: "${" not in key), st.integers(0, 2**53), max_size=2
)
RETRIES = st.fixed_dictionaries(
    {}, optional={"max_attempts": st.integers(1, 100), "backoff_sec": st.floats(0, 86_400)}
)
FLOW_TASKS = st.fixed_dictionaries(
    {"type": st.just("task"), "flow": st.sampled_from(["f", "g.h"])},
    optional={
        "tag": st.just("cpu"),
        "params": PARAMS,
        "retry": RETRIES,
        "timeout_sec": st.floats(0.1, 1_000),
    },
)
WAITS = st.fixed_dictionaries(
    {"type": st.just("wait")},
    optional={
        "prompt": st.just("?"),
        "wait_key": st.just("${input.k}"),
        "on_timeout": st.sampled_from(["fail", "succeed"]),
    },
)
JOINS = st.fixed_dictionaries(
    {"type": st.just("join")},
    optional={"policy": st.sampled_from(["ANY_SUCCESS", "ALL_DONE"]), "cancel_rest": st.booleans()},
)
NODES = st.one_of(
    FLOW_TASKS, st.just({"type": "task", "external": True}), WAITS, st.just({"type": "fork"}), JOINS
)


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Any graph without a cycle and with one entry, which is a fork so that joins may stand anywhere."""
    size = draw(st.integers(1, 12))
    walk = draw(st.permutations([f"n{i}" for i in range(size)]))
    nodes = {name: {"type": "fork"} if name == walk[0] else draw(NODES) for name in sorted(walk)}
    edges = []
    for place in range(1, size):
        sources = draw(st.sets(st.integers(0, place - 1), min_size=1, max_size=4))
        for source in sorted(sources):
            can_fail = nodes[walk[source]]["type"] in ("task", "wait")
            on = draw(st.sampled_from(["success", "failure"])) if can_fail else "success"
            edges.append({"from": walk[source], "to": walk[place], "on": on})
    draw(st.randoms()).shuffle(edges)
    return {"id": "g", "nodes": nodes, "edges": edges}


@given(definitions())
@settings(max_examples=50)
def test_the_order_leads_from_the_entry_to_every_node_along_the_edges(definition: dict[str, Any]) -> None:
    graph = parse_graph(definition)
    place = {name: index for index, name in enumerate(graph.order)}
    assert sorted(place) == sorted(graph.nodes)
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)
    assert graph.order[0] == graph.entry
    assert graph.descendants(graph.entry) == set(graph.nodes) - {graph.entry}


@given(definitions())
@settings(max_examples=50)
def test_a_graph_reads_again_as_itself(definition: dict[str, Any]) -> None:
    original = deepcopy(definition)
    graph = parse_graph(definition)
    assert definition == original
    again = definition_of(graph)
    assert parse_graph(again) == graph
    assert definition_of(parse_graph(again)) == again
    assert graph_definition(json.dumps(again), "application/json") == again
    assert graph_definition(yaml.safe_dump(again, sort_keys=False), "text/yaml") == again


@given(definitions())
@settings(max_examples=50)
def test_every_join_has_a_fork_that_is_above_all_of_its_branches(definition: dict[str, Any]) -> None:
    graph = parse_graph(definition)
    joins = {name for name, node in graph.nodes.items() if node.type is NodeType.JOIN}
    assert graph.forks.keys() == joins
    for join, fork in graph.forks.items():
        assert graph.nodes[fork].type is NodeType.FORK
        assert all(edge.source in graph.descendants(fork) | {fork} for edge in graph.incoming[join])


@given(definitions(), st.data())
@settings(max_examples=50)
def test_an_edge_back_up_is_a_cycle_that_is_shown(definition: dict[str, Any], data: st.DataObject) -> None:
    graph = parse_graph(definition)
    lower = data.draw(st.sampled_from(graph.order))
    if not graph.ancestors(lower):
        return
    upper = data.draw(st.sampled_from(sorted(graph.ancestors(lower))))
    definition["edges"].append({"from": lower, "to": upper})
    text = refusal(definition)
    walk = text.partition("cycle: ")[2].partition(";")[0].split(" → ")
    steps = {(edge["from"], edge["to"]) for edge in definition["edges"]}
    assert walk[0] == walk[-1]
    assert set(pairwise(walk)) <= steps


KEYS = ["id", "nodes", "edges", "type", "flow", "retry", "from", "to", "when", "g"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_value_is_a_graph_or_refused(value: Any) -> None:
    try:
        graph = parse_graph(value)
    except InvalidRequest:
        return
    assert isinstance(graph, Graph)
