"""The types of a graph, and parsing of the nodes and edges of a definition; graphs.py reads a whole one."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.executions import conditions, interpolation
from pyoco_server.domain.inputs import MAX_FLOW_NAME, Priority, is_tag, nearest, unix_time
from pyoco_server.domain.runs.jobs import MAX_DELAY_SEC, MAX_TIMESTAMP


class NodeType(StrEnum):
    TASK = "task"
    WAIT = "wait"
    FORK = "fork"
    JOIN = "join"


class JoinPolicy(StrEnum):
    ALL_SUCCESS = "ALL_SUCCESS"
    ANY_SUCCESS = "ANY_SUCCESS"
    ALL_DONE = "ALL_DONE"
    CUSTOM = "CUSTOM"


class EdgeOn(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


class Then(StrEnum):
    """The end of an execution with a taken failure edge."""

    CONTINUE = "continue"
    FAIL = "fail"


class OnTimeout(StrEnum):
    FAIL = "fail"
    SUCCEED = "succeed"


class Retry(Struct, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    backoff_sec: Annotated[float, Meta(ge=0, le=86_400)] = 0


class GraphNode(Struct, frozen=True, kw_only=True):
    id: str
    type: NodeType
    flow: str | None = None
    tag: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    external: bool = False
    retry: Retry = Retry()
    timeout_sec: float | None = None
    delay_sec: float | None = None
    """This and the next three: of the run of every attempt."""
    run_at: float | None = None
    start_within_sec: float | None = None
    priority: Priority | None = None
    prompt: str | None = None
    wait_key: str | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    policy: JoinPolicy = JoinPolicy.ALL_SUCCESS
    min_success: int | None = None
    cancel_rest: bool = True


class Edge(Struct, frozen=True, kw_only=True):
    source: str
    target: str
    on: EdgeOn = EdgeOn.SUCCESS
    then: Then = Then.CONTINUE
    """For a failure edge: whether the failure is handled, or the execution fails in the end."""
    when: str | None = None


class Graph(Struct, frozen=True, kw_only=True):
    id: str
    nodes: Mapping[str, GraphNode]
    """In order of declaration."""
    edges: tuple[Edge, ...]
    entry: str
    incoming: Mapping[str, tuple[Edge, ...]]
    outgoing: Mapping[str, tuple[Edge, ...]]
    order: tuple[str, ...]
    """Topological order, with ties in order of declaration."""
    forks: Mapping[str, str]
    """For each join, the nearest fork above all of its branches."""

    def descendants(self, node_id: str) -> frozenset[str]:
        """All nodes reachable from this one, without itself."""
        return _reached(node_id, lambda node: (edge.target for edge in self.outgoing[node]))

    def ancestors(self, node_id: str) -> frozenset[str]:
        """All nodes from which this one is reachable, without itself."""
        return _reached(node_id, lambda node: (edge.source for edge in self.incoming[node]))


def _reached(start: str, step: Any) -> frozenset[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        nodes: Iterable[str] = step(waiting.pop())
        new = [node for node in nodes if node not in found]
        found.update(new)
        waiting.extend(new)
    return frozenset(found)


# Parsing. Problems are collected, not raised.

NAME_RULE = "[A-Za-z0-9_-]{1,64}"
MAX_TIMEOUT_SEC = 10 * 366 * 86_400
"""Ten years; a longer time is a mistake and could exceed the date range."""
ENOUGH_PROBLEMS = 100
"""Parsing stops at this number of problems."""
_GIVEN_UP = object()

Problems = list[str]

TASK, WAIT, JOIN = NodeType.TASK, NodeType.WAIT, NodeType.JOIN


class _Key(Struct, frozen=True):
    of: Any
    types: tuple[NodeType, ...]


_Timeout = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SEC)]
_NODE_KEYS = {
    "flow": _Key(Annotated[str, Meta(min_length=1, max_length=MAX_FLOW_NAME)], (TASK,)),
    "tag": _Key(str, (TASK,)),
    "params": _Key(dict[str, Any], (TASK,)),
    "external": _Key(bool, (TASK,)),
    "retry": _Key(dict[str, Any], (TASK,)),
    "timeout_sec": _Key(_Timeout, (TASK, WAIT)),
    "delay_sec": _Key(Annotated[float, Meta(ge=0, le=MAX_DELAY_SEC)], (TASK,)),
    "run_at": _Key(Annotated[float, Meta(ge=0, le=MAX_TIMESTAMP)] | str, (TASK,)),
    "start_within_sec": _Key(Annotated[float, Meta(gt=0, le=MAX_DELAY_SEC)], (TASK,)),
    "priority": _Key(Priority, (TASK,)),
    "prompt": _Key(str, (WAIT,)),
    "wait_key": _Key(str, (WAIT,)),
    "on_timeout": _Key(OnTimeout, (WAIT,)),
    "policy": _Key(JoinPolicy, (JOIN,)),
    "min_success": _Key(Annotated[int, Meta(ge=1)], (JOIN,)),
    "cancel_rest": _Key(bool, (JOIN,)),
}
_EDGE_KEYS = {"from": str, "to": str, "on": EdgeOn, "then": Then, "when": str}


def read_node(node_id: str, given: Any, problems: Problems) -> GraphNode | None:
    """None if the type is unknown."""
    where = f"node {node_id}"
    if not is_tag(node_id):
        problems.append(f"node {_shown(node_id)}: a node id must match {NAME_RULE}")
        return None
    if not isinstance(given, Mapping):
        problems.append(f"{where} must be an object like {{type: task, flow: x}}, got {_kind(given)}")
        return None
    kind = _node_type(where, given, problems)
    if kind is None:
        return None
    check_keys(where, given, ("type", *_NODE_KEYS), problems)
    fields = {
        key: value
        for key, rule in _NODE_KEYS.items()
        if given.get(key) is not None
        and (value := _field(where, kind, key, rule, given[key], problems)) is not _GIVEN_UP
    }
    retry = _retry(where, fields.pop("retry", {}), problems)
    if "run_at" in fields:
        fields["run_at"] = _time(where, fields["run_at"], problems)
    node = GraphNode(id=node_id, type=kind, retry=retry, **fields)
    _CHECKS[kind](where, node, given, problems)
    return node


def read_edge(
    place: str, given: Any, nodes: Iterable[str], problems: Problems, *, is_stored: bool = False
) -> Edge | None:
    """None unless it connects two nodes. The condition of a stored edge was checked before."""
    if not isinstance(given, Mapping):
        problems.append(f"{place} must be an object like {{from: a, to: b}}, got {_kind(given)}")
        return None
    where = _edge_name(place, given)
    check_keys(where, given, _EDGE_KEYS, problems)
    fields = {
        key: converted(f"{where}: {key}", given[key], of, problems)
        for key, of in _EDGE_KEYS.items()
        if given.get(key) is not None
    }
    if not _check_ends(where, fields, nodes, problems):
        return None
    when = fields.get("when") if is_stored else _when(where, fields.get("when"), nodes, problems)
    on, then = fields.get("on", EdgeOn.SUCCESS), fields.get("then", Then.CONTINUE)
    if on is EdgeOn.SUCCESS and "then" in fields:
        problems.append(f"{where}: then is only for edges with on: failure; remove it or add on: failure")
    return Edge(
        source=fields["from"],
        target=fields["to"],
        on=on if isinstance(on, EdgeOn) else EdgeOn.SUCCESS,
        then=then if isinstance(then, Then) else Then.CONTINUE,
        when=when,
    )


def edge_name(edge: Edge) -> str:
    return f"edge {edge.source} → {edge.target}"


def check_keys(where: str, given: Mapping[Any, Any], known: Iterable[str], problems: Problems) -> None:
    known = tuple(known)
    for key in given:
        if len(problems) >= ENOUGH_PROBLEMS:
            return
        if key not in known:
            problems.append(f"{where}: unknown key {_shown(str(key))}{nearest(str(key), known)}")


def converted(where: str, value: Any, of: Any, problems: Problems) -> Any:
    """The value as type `of`, or a marker that equals nothing."""
    try:
        return msgspec.convert(value, of)
    except msgspec.ValidationError as error:
        problems.append(f"{where}: {_plain(str(error))}")
        return _GIVEN_UP


def _node_type(where: str, given: Mapping[str, Any], problems: Problems) -> NodeType | None:
    kind = given.get("type")
    types = {node_type.value: node_type for node_type in NodeType}
    if isinstance(kind, str) and kind in types:
        return types[kind]
    said = (
        "type is missing"
        if kind is None
        else f"type {_shown(str(kind))} is unknown{nearest(str(kind), types)}"
    )
    problems.append(f"{where}: {said}; write one of {', '.join(types)}")
    return None


def _field(where: str, kind: NodeType, key: str, rule: _Key, value: Any, problems: Problems) -> Any:
    if kind not in rule.types:
        of = " and ".join(rule.types)
        problems.append(
            f"{where}: {key} is only for {of} nodes, and this is a {kind}; remove it or change the type"
        )
        return _GIVEN_UP
    return converted(f"{where}: {key}", value, rule.of, problems)


def _retry(where: str, given: dict[str, Any], problems: Problems) -> Retry:
    check_keys(f"{where}: retry", given, Retry.__struct_fields__, problems)
    known = {
        key: value for key, value in given.items() if key in Retry.__struct_fields__ and value is not None
    }
    retry = converted(f"{where}: retry", known, Retry, problems)
    return retry if isinstance(retry, Retry) else Retry()


def _time(where: str, value: float | str, problems: Problems) -> float | None:
    try:
        return unix_time(value)
    except ValueError as error:
        problems.append(f"{where}: run_at {error}")
        return None


def _check_task(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    if node.flow and node.external:
        problems.append(f"{where} has both flow and external: true; keep one")
    if node.external and node.tag is not None:
        problems.append(
            f"{where}: tag is only for tasks with a flow; an external task does not run on a worker"
        )
    if not node.external and given.get("flow") is None:
        problems.append(f"{where} has neither flow nor external: true; add one of them")
    if node.tag is not None and not is_tag(node.tag):
        problems.append(f"{where}: tag {_shown(node.tag)} must match {NAME_RULE}")
    _check_start(where, node, problems)


def _check_start(where: str, node: GraphNode, problems: Problems) -> None:
    for key in ("delay_sec", "run_at", "start_within_sec", "priority"):
        if node.external and getattr(node, key) is not None:
            problems.append(f"{where}: {key} is only for tasks with a flow; an external task has no run")
    if node.delay_sec is not None and node.run_at is not None:
        problems.append(f"{where} has both delay_sec and run_at; keep one")
    if node.delay_sec is not None and node.timeout_sec is not None and node.timeout_sec <= node.delay_sec:
        problems.append(
            f"{where}: timeout_sec includes the delay and is over before it; make it longer than delay_sec"
        )


def _check_join(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    if given.get("policy") == JoinPolicy.CUSTOM and given.get("min_success") is None:
        problems.append(
            f"{where}: policy CUSTOM requires min_success, the number of branches that must succeed"
        )
    if node.min_success is not None and node.policy is not JoinPolicy.CUSTOM:
        problems.append(f"{where}: min_success is only for policy CUSTOM, and this is {node.policy}")


def _check_nothing(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    """A wait or fork with valid keys is always valid."""


_CHECKS = {
    NodeType.TASK: _check_task,
    NodeType.JOIN: _check_join,
    NodeType.WAIT: _check_nothing,
    NodeType.FORK: _check_nothing,
}


def templates_of(node: GraphNode) -> dict[str, Any]:
    """The fields of a node with templates."""
    return {"params": node.params, "prompt": node.prompt, "wait_key": node.wait_key}


def nodes_read_by(node: GraphNode, problems: Problems) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for key, value in templates_of(node).items():
        try:
            found |= interpolation.check(value, allows_secrets=key == "params")
        except interpolation.TemplateError as error:
            problems.append(f"node {node.id}: {key}: {error}")
    return found


def _edge_name(place: str, given: Mapping[str, Any]) -> str:
    source, target = given.get("from"), given.get("to")
    if isinstance(source, str) and isinstance(target, str):
        return f"edge {source[:64]} → {target[:64]}"
    return place


def _check_ends(where: str, fields: dict[str, Any], nodes: Iterable[str], problems: Problems) -> bool:
    right = True
    for key in ("from", "to"):
        name = fields.get(key)
        if name is None:
            problems.append(f"{where}: {key} is missing; write {{from: a, to: b}}")
        elif isinstance(name, str) and name not in nodes:
            problems.append(f"{where}: {key}: unknown node {_shown(name)}{nearest(name, nodes)}")
        elif isinstance(name, str):
            continue
        right = False
    if right and fields["from"] == fields["to"]:
        problems.append(f"{where} connects a node to itself; use retry to repeat a task")
        return False
    return right


def _when(where: str, expr: Any, nodes: Iterable[str], problems: Problems) -> str | None:
    if not isinstance(expr, str):
        return None
    try:
        conditions.check(expr)
    except ConditionError as error:
        problems.append(f"{where}: when: {error}{_quoting_hint(expr, nodes)}")
        return None
    return expr


def _quoting_hint(expr: str, nodes: Iterable[str]) -> str:
    """A hint for `nodes.a-b`, which is a subtraction in CEL."""
    named = next((name for name in nodes if not name.isidentifier() and f"nodes.{name}" in expr), None)
    return f" (write nodes['{named}'])" if named else ""


def _plain(message: str) -> str:
    return message.replace("`", "").replace(" - at $.", ", at ").replace("Expected", "expected", 1)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:64] + "…")  # noqa: PLR2004 - the longest name that is right
