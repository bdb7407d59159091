"""Graphs: read from YAML or JSON and validated as a whole; immutable.

All problems of a definition are reported together, each with its node or edge.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, Never

from msgspec import Struct

from pyoco_server.domain.executions import conditions
from pyoco_server.domain.executions.graph_model import (
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
from pyoco_server.domain.executions.graph_parts import (
    ENOUGH_PROBLEMS,
    NAME_RULE,
    Problems,
    check_keys,
    edge_name,
    nodes_read_by,
    read_edge,
    read_node,
)
from pyoco_server.domain.inputs import is_tag, nearest
from pyoco_server.errors import InvalidRequest

# Structure of a graph: entry, order, and the fork of each join.
#
# Sets of nodes are bits of an integer, one per node in topological order: a thousand nodes take sixteen
# machine words, so all ancestors and dominators of the largest graph take a few milliseconds.

Edges = Mapping[str, tuple[Edge, ...]]


def by_end(nodes: Iterable[str], edges: Sequence[Edge]) -> tuple[Edges, Edges]:
    """Incoming and outgoing edges of each node, in order of declaration."""
    incoming: dict[str, list[Edge]] = {node: [] for node in nodes}
    outgoing: dict[str, list[Edge]] = {node: [] for node in incoming}
    for edge in edges:
        incoming[edge.target].append(edge)
        outgoing[edge.source].append(edge)
    return _frozen(incoming), _frozen(outgoing)


def _frozen(edges: Mapping[str, list[Edge]]) -> Edges:
    return {node: tuple(found) for node, found in edges.items()}


def entries(incoming: Edges) -> list[str]:
    """Nodes without incoming edges.

    In a graph without cycles every path back from a node ends in one of them; so if there is exactly one,
    every node is reachable from it.
    """
    return [node for node, edges in incoming.items() if not edges]


def topological_order(incoming: Edges, outgoing: Edges) -> tuple[str, ...]:
    """Topological order with ties in order of declaration. Nodes on or after a cycle are omitted."""
    names = list(incoming)
    place = {name: index for index, name in enumerate(names)}
    missing = {node: len(edges) for node, edges in incoming.items()}
    free = [place[node] for node in entries(incoming)]
    heapify(free)
    order = []
    while free:
        node = names[heappop(free)]
        order.append(node)
        for edge in outgoing[node]:
            missing[edge.target] -= 1
            if not missing[edge.target]:
                heappush(free, place[edge.target])
    return tuple(order)


def find_cycle(incoming: Edges, order: Sequence[str]) -> list[str]:
    """A cycle among the nodes that are not in the order, with its first node at both ends."""
    left = incoming.keys() - set(order)
    node = next(name for name in incoming if name in left)
    seen: dict[str, None] = {}
    while node not in seen:
        seen[node] = None
        node = next(edge.source for edge in incoming[node] if edge.source in left)
    backwards = list(seen)[list(seen).index(node) :]
    return [node, *reversed(backwards)]


class Above(Struct, frozen=True):
    """The ancestors and dominators of each node."""

    order: tuple[str, ...]
    ancestors: dict[str, int]
    dominators: dict[str, int]

    def is_above(self, upper: str, lower: str) -> bool:
        """Whether `upper` is an ancestor of `lower`; a node is not its own ancestor."""
        return upper != lower and bool(self.ancestors[lower] >> self._bit(upper) & 1)

    def nearest_fork(self, sources: Iterable[str], forks: Sequence[str]) -> str | None:
        """The last fork that is an ancestor of, or equal to, each source of a join's edges.

        A dominating fork takes precedence, because it opens every branch of the join.
        """
        common = dominating = -1
        for source in sources:
            common &= self.ancestors[source]
            dominating &= self.dominators[source]
        above = [fork for fork in forks if common >> self._bit(fork) & 1]
        certain = [fork for fork in above if dominating >> self._bit(fork) & 1]
        return max(certain or above, key=self._bit, default=None)

    def _bit(self, node: str) -> int:
        return self.ancestors[node].bit_length() - 1


def above(order: tuple[str, ...], incoming: Edges) -> Above:
    """Sets include the node itself as their highest bit."""
    ancestors: dict[str, int] = {}
    dominators: dict[str, int] = {}
    for index, node in enumerate(order):
        reached, certain = 0, -1 if incoming[node] else 0
        for edge in incoming[node]:
            reached |= ancestors[edge.source]
            certain &= dominators[edge.source]
        ancestors[node] = reached | 1 << index
        dominators[node] = certain | 1 << index
    return Above(order, ancestors, dominators)


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
    "parse_graph",
]

MAX_NODES = 1_000
MAX_PROBLEMS = 20
_TOP_KEYS = ("id", "nodes", "edges")


def parse_graph(definition: object, *, is_stored: bool = False) -> Graph:
    """Raises InvalidRequest with every invalid node and edge and how to fix it.

    A stored definition was validated by the version that registered it. A condition that is refused today
    does not make it unreadable; the edge fails when it is evaluated.
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
    """The definition of this graph, without default values."""
    return {
        "id": graph.id,
        "nodes": {node.id: _node_definition(node) for node in graph.nodes.values()},
        "edges": [_edge_definition(edge) for edge in graph.edges],
    }


def _node_definition(node: GraphNode) -> dict[str, Any]:
    given = _without_defaults(node, GraphNode(id=node.id, type=node.type))
    if "retry" in given:
        given["retry"] = _without_defaults(node.retry, Retry())
    if node.node is not None:
        given["node"] = {key: value for key, value in _node_definition(node.node).items() if key != "id"}
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
        problem = "is missing" if graph_id is None else f"{str(graph_id)[:64]!r} is not allowed"
        problems.append(f"id {problem}; it must match {NAME_RULE}")
        return "graph"
    return f"graph {graph_id}"


def _nodes(given: Any, problems: Problems) -> dict[str, GraphNode]:
    if not isinstance(given, Mapping) or not given:
        problems.append("nodes must be an object with at least one node: {first: {type: task, flow: x}}")
        return {}
    if len(given) > MAX_NODES:
        after = list(given)[MAX_NODES]
        problems.append(
            f"{len(given):,} nodes, {MAX_NODES:,} are allowed; the first one over the limit is {after}"
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
            problems.append(
                f"{edge_name(edge)} (on: {edge.on}) is a duplicate; combine the conditions with ||"
            )
        seen.add(key)
        kind = nodes[edge.source].type
        if edge.on is EdgeOn.FAILURE and kind in (NodeType.FORK, NodeType.JOIN):
            problems.append(
                f"{edge_name(edge)}: a {kind} never fails, so on: failure is never taken; "
                "start the edge at the task or wait that can fail"
            )


def _assembled(
    graph_id: str, nodes: dict[str, GraphNode], edges: tuple[Edge, ...], problems: Problems
) -> Graph | None:
    undoes = _undoes(nodes, edges, problems)
    incoming, outgoing = by_end((name for name in nodes if name not in undoes), edges)
    order = topological_order(incoming, outgoing)
    found = entries(incoming)
    if len(found) > 1:
        problems.append(
            f"nodes {', '.join(found[:MAX_PROBLEMS])} have no incoming edge, but only one entry is allowed: "
            "add an edge to all but one"
        )
    if len(order) < len(incoming):
        cycle = " → ".join(find_cycle(incoming, order))
        problems.append(f"cycle: {cycle}; remove one of its edges (use retry to repeat a task)")
        return None
    ranks = above(order, incoming)
    forks = _forks({name: nodes[name] for name in incoming}, incoming, ranks, problems)
    if not found:
        problems.append("no node is left as the entry; a node that undoes another is none")
        return None
    _check_branches({name: nodes[name] for name in incoming}, incoming, problems)
    return Graph(
        id=graph_id,
        nodes=nodes,
        edges=edges,
        entry=found[0],
        incoming={**incoming, **dict.fromkeys(undoes, ())},
        outgoing={**outgoing, **dict.fromkeys(undoes, ())},
        order=order,
        forks=forks,
        undoes=undoes,
    )


def _undoes(nodes: Mapping[str, GraphNode], edges: Sequence[Edge], problems: Problems) -> dict[str, str]:
    """The node that each undo node undoes. Invalid ones are left out."""
    ends = {end for edge in edges for end in (edge.source, edge.target)}
    found: dict[str, str] = {}
    for node in nodes.values():
        if node.undo is None:
            continue
        if problem := _undo_problem(node, nodes, ends, found):
            problems.append(f"node {node.id}: undo: {problem}")
        else:
            found[node.undo] = node.id
    return found


def _undo_problem(
    node: GraphNode, nodes: Mapping[str, GraphNode], ends: Collection[str], found: Mapping[str, str]
) -> str | None:
    name = str(node.undo)
    if name not in nodes:
        return f"unknown node {name[:64]!r}{nearest(name, nodes)}"
    if name in found:
        return f"{name} undoes {found[name]} already; add a node of its own"
    if nodes[name].type is not NodeType.TASK:
        return f"{name} is a {nodes[name].type}; only a task can undo a node"
    if nodes[name].undo is not None:
        return f"{name} cannot be undone itself; remove its undo"
    return f"{name} has edges; a node that undoes another has none" if name in ends else None


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
            problems.append(
                f"node {node.id}: a join requires a fork above {branches}; add one where they split"
            )
        else:
            found[node.id] = fork
    return found


def _check_branches(nodes: Mapping[str, GraphNode], incoming: Edges, problems: Problems) -> None:
    for node in nodes.values():
        branches = len(incoming[node.id])
        if node.min_success is not None and node.min_success > branches:
            problems.append(
                f"node {node.id}: min_success is {node.min_success}, but the join has {branches} branches"
            )


def _check_reads(graph: Graph, problems: Problems) -> None:
    """A node or an edge may read only nodes upstream."""
    nodes, ranks = graph.nodes, above(graph.order, graph.incoming)
    for node in nodes.values():
        if len(problems) >= ENOUGH_PROBLEMS:
            return
        for read in sorted(nodes_read_by(node, problems)):
            if problem := _not_readable(read, nodes, is_there=_is_there(graph, ranks, read, node.id)):
                problems.append(f"node {node.id}: ${{nodes.{read}…}}: {problem}")
    for edge in graph.edges:
        if len(problems) >= ENOUGH_PROBLEMS:
            return
        for read in sorted(conditions.nodes_in(edge.when) if edge.when else ()):
            is_there = read == edge.source or _is_there(graph, ranks, read, edge.source)
            if problem := _not_readable(read, nodes, is_there=is_there):
                problems.append(f"{edge_name(edge)}: when: nodes.{read}: {problem}")


def _is_there(graph: Graph, ranks: Above, read: str, at: str) -> bool:
    """Whether a node has its output when `at` starts. An undo node starts after the node that it undoes."""
    undone = graph.undoes.get(at)
    if read in graph.undoes or read not in graph.nodes:
        return False
    return read == undone or ranks.is_above(read, undone or at)


def _not_readable(read: str, nodes: Mapping[str, GraphNode], *, is_there: bool) -> str | None:
    if read not in nodes:
        return f"unknown node {read[:64]!r}{nearest(read, nodes)}"
    return (
        None if is_there else f"{read} is not upstream, so its output is not available; add an edge from it"
    )


def _refuse(where: str, problems: Problems) -> Never:
    shown = "; ".join(problems[:MAX_PROBLEMS])
    left = len(problems) - MAX_PROBLEMS
    more = "" if left <= 0 else f"; and {left if len(problems) < ENOUGH_PROBLEMS else 'many'} more"
    raise InvalidRequest(f"{where}: {shown}{more}")
