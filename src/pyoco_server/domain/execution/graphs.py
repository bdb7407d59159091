"""Graphs: what an execution carries out. Read from YAML or JSON, checked as a whole, never changed after.

Everything that is wrong with a definition is said at once, each problem with the name of its node or edge.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Never

from msgspec import Struct

from pyoco_server.domain.execution import conditions
from pyoco_server.domain.execution.graph_model import (
    Edge,
    EdgeOn,
    Graph,
    GraphNode,
    JoinPolicy,
    NodeType,
    OnTimeout,
    Retry,
    Then,
)
from pyoco_server.domain.execution.graph_parts import (
    ENOUGH_PROBLEMS,
    NAME_RULE,
    Problems,
    check_keys,
    edge_name,
    nodes_read_by,
    read_edge,
    read_node,
)
from pyoco_server.domain.execution.graph_shape import (
    Above,
    Edges,
    above,
    by_end,
    entries,
    find_cycle,
    topological_order,
)
from pyoco_server.domain.execution.graph_text import graph_definition
from pyoco_server.domain.names import is_tag
from pyoco_server.domain.suggestions import nearest
from pyoco_server.errors import InvalidRequest

__all__ = [
    "Edge",
    "EdgeOn",
    "Graph",
    "GraphNode",
    "JoinPolicy",
    "NodeType",
    "OnTimeout",
    "Retry",
    "Then",
    "definition_of",
    "graph_definition",
    "parse_graph",
]

MAX_NODES = 1_000
MAX_PROBLEMS = 20
_TOP_KEYS = ("id", "nodes", "edges")


def parse_graph(definition: object, *, is_stored: bool = False) -> Graph:
    """Raises InvalidRequest, whose text names every node and edge that is wrong and what to do about it.

    A stored definition was checked by the version that registered it. A condition that is refused today does
    not make it unreadable: that edge fails when it is reached.
    """
    problems: Problems = []
    if not isinstance(definition, Mapping):
        _refuse("graph", ["must be an object with id, nodes and edges"])
    where = _graph_name(definition, problems)
    check_keys("top level", definition, _TOP_KEYS, problems)
    nodes = _nodes(definition.get("nodes"), problems)
    edges = _edges(definition.get("edges"), nodes, problems, is_stored=is_stored)
    if problems:
        _refuse(where, problems)
    graph = _assembled(str(definition["id"]), nodes, edges, problems)
    if graph is not None and not is_stored:
        _check_reads(graph, problems)
    if graph is None or problems:
        _refuse(where, problems)
    return graph


def definition_of(graph: Graph) -> dict[str, Any]:
    """The definition that reads as this graph, with nothing in it that is a default."""
    return {
        "id": graph.id,
        "nodes": {node.id: _node_definition(node) for node in graph.nodes.values()},
        "edges": [_edge_definition(edge) for edge in graph.edges],
    }


def _node_definition(node: GraphNode) -> dict[str, Any]:
    given = _without_defaults(node, GraphNode(id=node.id, type=node.type))
    if "retry" in given:
        given["retry"] = _without_defaults(node.retry, Retry())
    return {"type": node.type.value, **given}


def _edge_definition(edge: Edge) -> dict[str, Any]:
    given = _without_defaults(edge, Edge(source=edge.source, target=edge.target))
    return {"from": edge.source, "to": edge.target, **given}


def _without_defaults(given: Struct, plain: Struct) -> dict[str, Any]:
    values = {name: getattr(given, name) for name in given.__struct_fields__}
    changed = {name: value for name, value in values.items() if value != getattr(plain, name)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in changed.items()}


def _graph_name(definition: Mapping[Any, Any], problems: Problems) -> str:
    graph_id = definition.get("id")
    if not isinstance(graph_id, str) or not is_tag(graph_id):
        said = "is missing" if graph_id is None else f"{str(graph_id)[:64]!r} is not allowed"
        problems.append(f"id {said}; it must match {NAME_RULE}")
        return "graph"
    return f"graph {graph_id}"


def _nodes(given: Any, problems: Problems) -> dict[str, GraphNode]:
    if not isinstance(given, Mapping) or not given:
        problems.append("nodes must be an object with at least one node: {first: {type: task, flow: x}}")
        return {}
    if len(given) > MAX_NODES:
        after = list(given)[MAX_NODES]
        problems.append(
            f"there are {len(given):,} nodes, {MAX_NODES:,} are allowed; the first too many is {after}"
        )
        return {}
    nodes = {
        name: read_node(str(name), value, problems) if len(problems) < ENOUGH_PROBLEMS else None
        for name, value in given.items()
    }
    return {str(name): node or GraphNode(id=str(name), type=NodeType.TASK) for name, node in nodes.items()}


def _edges(
    given: Any, nodes: Mapping[str, GraphNode], problems: Problems, *, is_stored: bool
) -> tuple[Edge, ...]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        problems.append("edges must be a list of {from: a, to: b}")
        return ()
    if not nodes:
        return ()
    read = [
        read_edge(f"edges[{place}]", edge, nodes, problems, is_stored=is_stored)
        for place, edge in enumerate(given)
        if len(problems) < ENOUGH_PROBLEMS
    ]
    edges = tuple(edge for edge in read if edge is not None)
    _check_edges(edges, nodes, problems)
    return edges


def _check_edges(edges: tuple[Edge, ...], nodes: Mapping[str, GraphNode], problems: Problems) -> None:
    seen = set()
    for edge in edges:
        if (key := (edge.source, edge.target, edge.on)) in seen:
            problems.append(f"{edge_name(edge)} (on: {edge.on}) is there twice; join the conditions with ||")
        seen.add(key)
        kind = nodes[edge.source].type
        if edge.on is EdgeOn.FAILURE and kind in (NodeType.FORK, NodeType.JOIN):
            problems.append(
                f"{edge_name(edge)}: a {kind} never fails, so on: failure is never taken; "
                "let the edge begin at the task or wait that can fail"
            )


def _assembled(
    graph_id: str, nodes: dict[str, GraphNode], edges: tuple[Edge, ...], problems: Problems
) -> Graph | None:
    incoming, outgoing = by_end(nodes, edges)
    order = topological_order(incoming, outgoing)
    found = entries(incoming)
    if len(found) > 1:
        problems.append(
            f"nodes {', '.join(found[:MAX_PROBLEMS])} have no incoming edge; one node is the entry: "
            "lead an edge to all but one"
        )
    if len(order) < len(nodes):
        cycle = " → ".join(find_cycle(incoming, order))
        problems.append(f"there is a cycle: {cycle}; remove one of its edges (a task repeats by retry)")
        return None
    ranks = above(order, incoming)
    forks = _forks(nodes, incoming, ranks, problems)
    _check_branches(nodes, incoming, problems)
    return Graph(
        id=graph_id,
        nodes=nodes,
        edges=edges,
        entry=found[0],
        incoming=incoming,
        outgoing=outgoing,
        order=order,
        forks=forks,
    )


def _forks(
    nodes: Mapping[str, GraphNode], incoming: Edges, ranks: Above, problems: Problems
) -> dict[str, str]:
    forks = [node.id for node in nodes.values() if node.type is NodeType.FORK]
    found = {}
    for node in nodes.values():
        if node.type is not NodeType.JOIN:
            continue
        sources = [edge.source for edge in incoming[node.id]]
        fork = ranks.nearest_fork(sources, forks) if sources else None
        if fork is None:
            branches = f"all of its branches ({', '.join(sources)})" if sources else "it"
            problems.append(f"node {node.id}: a join needs a fork above {branches}; add one where they part")
        else:
            found[node.id] = fork
    return found


def _check_branches(nodes: Mapping[str, GraphNode], incoming: Edges, problems: Problems) -> None:
    for node in nodes.values():
        branches = len(incoming[node.id])
        if node.min_success is not None and node.min_success > branches:
            problems.append(
                f"node {node.id}: min_success is {node.min_success}, but {branches} branches lead here"
            )


def _check_reads(graph: Graph, problems: Problems) -> None:
    """What a node or an edge reads of other nodes must be there by then."""
    nodes, ranks = graph.nodes, above(graph.order, graph.incoming)
    for node in nodes.values():
        if len(problems) >= ENOUGH_PROBLEMS:
            return
        for read in sorted(nodes_read_by(node, problems)):
            if problem := _not_readable(
                read, nodes, is_there=read in nodes and ranks.is_above(read, node.id)
            ):
                problems.append(f"node {node.id}: ${{nodes.{read}…}}: {problem}")
    for edge in graph.edges:
        if len(problems) >= ENOUGH_PROBLEMS:
            return
        for read in sorted(conditions.nodes_in(edge.when) if edge.when else ()):
            is_there = read == edge.source or (read in nodes and ranks.is_above(read, edge.source))
            if problem := _not_readable(read, nodes, is_there=is_there):
                problems.append(f"{edge_name(edge)}: when: nodes.{read}: {problem}")


def _not_readable(read: str, nodes: Mapping[str, GraphNode], *, is_there: bool) -> str | None:
    if read not in nodes:
        return f"there is no node {read[:64]!r}{nearest(read, nodes)}"
    return (
        None
        if is_there
        else f"{read} is not upstream, so it has no output by then; add edges that lead from it"
    )


def _refuse(where: str, problems: Problems) -> Never:
    shown = "; ".join(problems[:MAX_PROBLEMS])
    left = len(problems) - MAX_PROBLEMS
    more = "" if left <= 0 else f"; and {left if len(problems) < ENOUGH_PROBLEMS else 'many'} more"
    raise InvalidRequest(f"{where}: {shown}{more}")
