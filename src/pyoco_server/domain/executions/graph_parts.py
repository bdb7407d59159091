"""Parse nodes and edges; graphs.py reads a whole definition. Problems are collected, not raised."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.executions import conditions, interpolation
from pyoco_server.domain.executions.graph_maps import check_map
from pyoco_server.domain.executions.graph_model import (
    MAX_ITEMS,
    Edge,
    EdgeOn,
    GraphNode,
    JoinPolicy,
    NodeType,
    OnTimeout,
    Retry,
    Then,
)
from pyoco_server.domain.inputs import MAX_DELAY_SEC, MAX_FLOW_NAME, Priority, is_tag, nearest, unix_time
from pyoco_server.domain.runs.jobs import MAX_TIMESTAMP

NAME_RULE = "[A-Za-z0-9_-]{1,64}"
MAX_TIMEOUT_SEC = 10 * 366 * 86_400
"""Ten years; a longer time is a mistake and could exceed the date range."""
ENOUGH_PROBLEMS = 100
"""Parsing stops at this number of problems."""
_GIVEN_UP = object()

Problems = list[str]

TASK, WAIT, JOIN, SLEEP = NodeType.TASK, NodeType.WAIT, NodeType.JOIN, NodeType.SLEEP
REPEAT, EXECUTION, MAP = NodeType.REPEAT, NodeType.EXECUTION, NodeType.MAP
MAX_ITERATIONS = 10_000


class _Key(Struct, frozen=True):
    of: Any
    types: tuple[NodeType, ...]


_Timeout = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SEC)]
_Items = Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
_Percentage = Annotated[str, Meta(pattern=r"^(100|[0-9]{1,2}(\.[0-9]{1,3})?)%$")]
_NODE_KEYS = {
    "flow": _Key(Annotated[str, Meta(min_length=1, max_length=MAX_FLOW_NAME)], (TASK,)),
    "tag": _Key(str, (TASK,)),
    "params": _Key(dict[str, Any], (TASK,)),
    "external": _Key(bool, (TASK,)),
    "retry": _Key(dict[str, Any], (TASK, EXECUTION, MAP)),
    "timeout_sec": _Key(_Timeout, (TASK, WAIT, EXECUTION)),
    "delay_sec": _Key(Annotated[float, Meta(ge=0, le=MAX_DELAY_SEC)], (TASK,)),
    "run_at": _Key(Annotated[float, Meta(ge=0, le=MAX_TIMESTAMP)] | str, (TASK,)),
    "start_within_sec": _Key(Annotated[float, Meta(gt=0, le=MAX_DELAY_SEC)], (TASK,)),
    "priority": _Key(Priority, (TASK,)),
    "prompt": _Key(str, (WAIT,)),
    "wait_key": _Key(str, (WAIT,)),
    "on_timeout": _Key(OnTimeout, (WAIT,)),
    "message": _Key(str, (WAIT,)),
    "when": _Key(str, (WAIT,)),
    "policy": _Key(JoinPolicy, (JOIN,)),
    "min_success": _Key(Annotated[int, Meta(ge=1)], (JOIN,)),
    "cancel_rest": _Key(bool, (JOIN,)),
    "for_sec": _Key(float | str, (SLEEP,)),
    "until": _Key(float | str, (SLEEP, REPEAT)),
    "node": _Key(dict[str, Any], (REPEAT, MAP)),
    "max": _Key(Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)], (REPEAT,)),
    "graph": _Key(str, (EXECUTION, MAP)),
    "input": _Key(Any, (EXECUTION, MAP)),
    "over": _Key(str | list[Any], (MAP,)),
    "max_parallel": _Key(Annotated[int, Meta(ge=1, le=1_000)], (MAP,)),
    "tolerate": _Key(Annotated[int, Meta(ge=0)] | _Percentage, (MAP,)),
    "batch": _Key(_Items, (MAP,)),
    "max_items": _Key(_Items, (MAP,)),
    "undo": _Key(str, (TASK, WAIT, REPEAT, EXECUTION, MAP)),
    "every_sec": _Key(Annotated[float, Meta(ge=0, le=MAX_TIMEOUT_SEC)], (REPEAT,)),
}
_EDGE_KEYS = {"from": str, "to": str, "on": EdgeOn, "then": Then, "when": str}


def read_node(node_id: str, given: Any, problems: Problems, place: str = "") -> GraphNode | None:
    """None if the type is unknown. `place`: inside another node."""
    where = f"node {node_id}{place}"
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
        fields["run_at"] = _time(f"{where}: run_at", fields["run_at"], problems)
    if isinstance(inner := fields.pop("node", None), Mapping):
        fields["node"] = _inner(node_id, inner, problems)
    node = GraphNode(id=node_id, type=kind, retry=retry, **fields)
    _CHECKS[kind](where, node, given, problems)
    return node


def _inner(node_id: str, given: Mapping[str, Any], problems: Problems) -> GraphNode | None:
    """The task inside a node, whose type may be left out."""
    if given.get("type", TASK) != TASK:
        problems.append(f"node {node_id}: node must be a task with a flow, and this is a {given['type']}")
        return None
    if given.get("undo") is not None:
        problems.append(f"node {node_id}: undo belongs to the node, not to the task inside")
    if given.get("external"):
        problems.append(f"node {node_id}: node must have a flow; an external task has no run")
    return read_node(node_id, {**given, "type": TASK.value}, problems, ": node")


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
        problems.append(f"{where}: {_plain(str(error))}{_choice(of)}")
        return _GIVEN_UP


def _choice(of: Any) -> str:
    is_enum = isinstance(of, type) and issubclass(of, StrEnum)
    return f"; write one of {', '.join(of)}" if is_enum else ""


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
        *most, last = rule.types
        of = f"{', '.join(most)} and {last}" if most else last
        problems.append(
            f"{where}: {key} is only for {of} nodes, and this is {a(kind)}; remove it or change the type"
        )
        return _GIVEN_UP
    return converted(f"{where}: {key}", value, rule.of, problems)


def a(kind: NodeType) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


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
        problems.append(f"{where} {error}")
        return None


def time_of_sleep(value: object) -> float:
    """The `until` of a sleep. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"is {_kind(value)}; write RFC 3339 with an offset, or Unix seconds")  # noqa: TRY004 - the text of it
    at = unix_time(value)
    if not 0 <= at <= MAX_TIMESTAMP:
        raise ValueError(f"must be from 0 to {MAX_TIMESTAMP:,} in Unix seconds")
    return at


def seconds_of_sleep(value: object) -> float:
    """The `for_sec` of a sleep. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TIMEOUT_SEC:
        raise ValueError(f"must be a number of seconds from 0 to {MAX_TIMEOUT_SEC:,}")
    return float(value)


def _check_sleep(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    if (given.get("for_sec") is None) == (given.get("until") is None):
        problems.append(f"{where}: a sleep has either for_sec or until")
    for key, value, read in (
        ("for_sec", node.for_sec, seconds_of_sleep),
        ("until", node.until, time_of_sleep),
    ):
        if value is None or (isinstance(value, str) and "${" in value):
            continue
        try:
            read(value)
        except ValueError as error:
            problems.append(f"{where}: {key} {error}")


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


def _check_wait(where: str, node: GraphNode, _: Mapping[str, Any], problems: Problems) -> None:
    if node.message is not None and not is_tag(node.message):
        problems.append(f"{where}: message {_shown(node.message)} must match {NAME_RULE}")
    if node.message is not None and node.wait_key is not None:
        problems.append(f"{where}: wait_key is for a resume, and message for a message; keep one")
    if node.when is None:
        return
    if node.message is None:
        problems.append(f"{where}: when needs message, whose data it reads")
    try:
        conditions.of_data(node.when)
    except ConditionError as error:
        problems.append(f"{where}: when: {error}")


def _check_repeat(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    problems.extend(
        f"{where}: {key} is missing" for key in ("node", "until", "max") if given.get(key) is None
    )
    if given.get("until") is None:
        return
    if not isinstance(node.until, str):
        problems.append(f'{where}: until of a repeat is a condition in CEL, such as "output.done"')
        return
    try:
        conditions.of_output(node.until)
    except ConditionError as error:
        problems.append(f"{where}: until: {error}")


def _check_execution(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    """Whether its graph exists is checked where graphs are stored."""
    if given.get("graph") is None:
        problems.append(f"{where}: graph is missing; it names the graph to execute")
    elif node.graph is not None and not is_tag(node.graph):
        problems.append(f"{where}: graph {_shown(node.graph)} must match {NAME_RULE}")


def _check_map(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    check_map(where, node, given, problems)
    if node.graph is not None:
        _check_execution(where, node, given, problems)


def _check_nothing(where: str, node: GraphNode, given: Mapping[str, Any], problems: Problems) -> None:
    """A fork with valid keys is always valid."""


_CHECKS = {
    NodeType.TASK: _check_task,
    NodeType.JOIN: _check_join,
    NodeType.WAIT: _check_wait,
    NodeType.FORK: _check_nothing,
    NodeType.SLEEP: _check_sleep,
    NodeType.REPEAT: _check_repeat,
    NodeType.EXECUTION: _check_execution,
    NodeType.MAP: _check_map,
}


def templates_of(node: GraphNode) -> dict[str, Any]:
    """The fields of a node with templates."""
    return {
        "params": node.work.params,
        "input": node.input,
        "over": node.over,
        "prompt": node.prompt,
        "wait_key": node.wait_key,
        "for_sec": node.for_sec,
        "until": node.until if node.type is SLEEP else None,
    }


def _locals_of(node: GraphNode) -> tuple[str, ...]:
    """What the work of a node can read, beside the values of the execution."""
    if node.type is REPEAT:
        return ("iteration",)
    if node.type is MAP:
        return ("item" if node.batch is None else "items", "index")
    return ()


def nodes_read_by(node: GraphNode, problems: Problems) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for key, value in templates_of(node).items():
        try:
            local = _locals_of(node) if key in ("params", "input") else ()
            found |= interpolation.check(value, allows_secrets=key == "params", local=local)
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
    plain = message.replace("`", "").replace(" - at $.", ", at ").replace("Expected", "expected", 1)
    return plain.replace("Invalid enum value", "invalid value", 1)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:64] + "…")  # noqa: PLR2004 - the longest name that is right
