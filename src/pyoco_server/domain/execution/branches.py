"""How far an execution's branches have come: the fate of every edge, and the gate of every join.

Nothing of this is stored. It follows from the nodes' states and the graph, so that whoever looks, whenever,
comes to the same answer.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from pyoco_server.domain.execution import conditions
from pyoco_server.domain.execution.events import Failure
from pyoco_server.domain.execution.graphs import Edge, EdgeOn, Graph, GraphNode, JoinPolicy, NodeType
from pyoco_server.domain.execution.state import Execution, Gate, NodeState, NodeStatus


class Fate(StrEnum):
    """What became of an edge, or of a node that was not reached."""

    OPEN = "open"
    TAKEN = "taken"
    NOT_TAKEN = "not taken"
    FAILED = "failed"
    """Nothing comes this way any more, because something before it failed."""
    CANCELED = "canceled"
    BROKEN = "broken"
    """Its condition cannot be judged."""


class Arrival(Struct, frozen=True):
    """A node that is to be ready, and what is wrong with the only way that leads to it."""

    node_id: str
    error: Failure | None = None


_DEAD_FIRST: Final = (Fate.FAILED, Fate.CANCELED, Fate.NOT_TAKEN)
"""Which of several reasons is told."""


class Branches:
    def __init__(self, state: Execution, graph: Graph) -> None:
        self._state = state
        self._graph = graph
        self._fates: dict[Edge, Fate] = {}
        self._broken: dict[Edge, str] = {}
        self.arrivals: list[Arrival] = []
        self.gates: dict[str, Gate] = {}
        """Of the joins that have not passed."""
        self._impossible: set[str] = set()
        for node_id in graph.order:
            self._visit(node_id)

    def taken_targets(self, node_id: str) -> tuple[str, ...]:
        """Where a node would lead if it succeeded now."""
        edges = self._graph.outgoing[node_id]
        return tuple(dict.fromkeys(edge.target for edge in edges if self._judge(edge) is Fate.TAKEN))

    def is_handled(self, node_id: str) -> bool:
        """Whether the failure of a node led along an edge of its own."""
        return any(
            self._fates[edge] in (Fate.TAKEN, Fate.BROKEN)
            for edge in self._graph.outgoing[node_id]
            if edge.on is EdgeOn.FAILURE
        )

    def is_saved(self, node_id: str) -> bool:
        """Whether a join below can pass, or has passed, without this node."""
        return any(
            self._graph.nodes[below].type is NodeType.JOIN and below not in self._impossible
            for below in self._graph.descendants(node_id)
        )

    # One node after the other, each after all that lead to it.

    def _visit(self, node_id: str) -> None:
        node = self._state.nodes[node_id]
        fate = self._reach(node_id) if node.status is NodeStatus.IDLE else Fate.OPEN
        edges = self._graph.outgoing[node_id]
        handled = node.status is NodeStatus.FAILED and any(
            self._judge(edge) in (Fate.TAKEN, Fate.BROKEN) for edge in edges if edge.on is EdgeOn.FAILURE
        )
        for edge in edges:
            self._fates[edge] = self._fate(edge, node, fate, is_handled=handled)

    def _fate(self, edge: Edge, node: NodeState, reach: Fate, *, is_handled: bool) -> Fate:
        match node.status:
            case NodeStatus.SUCCEEDED:
                return self._judge(edge) if edge.on is EdgeOn.SUCCESS else Fate.NOT_TAKEN
            case NodeStatus.FAILED:
                if edge.on is EdgeOn.FAILURE:
                    return self._judge(edge)
                return Fate.NOT_TAKEN if is_handled else Fate.FAILED
            case NodeStatus.CANCELED:
                return Fate.CANCELED
        return reach

    def _judge(self, edge: Edge) -> Fate:
        if edge.when is None:
            return Fate.TAKEN
        try:
            holds = conditions.holds(edge.when, input=self._state.input, nodes=self._known)
        except conditions.ConditionFailed as error:
            self._broken[edge] = str(error)
            return Fate.BROKEN
        return Fate.TAKEN if holds else Fate.NOT_TAKEN

    @cached_property
    def _known(self) -> dict[str, Any]:
        return known_nodes(self._state)

    def _reach(self, node_id: str) -> Fate:
        """Of a node that is IDLE: still open, or the reason why nothing will come."""
        spec = self._graph.nodes[node_id]
        if spec.type is NodeType.JOIN:
            return self._reach_join(spec)
        edges = self._graph.incoming[node_id]
        fates = [self._fates[edge] for edge in edges]
        if not edges or Fate.TAKEN in fates:
            self.arrivals.append(Arrival(node_id))
        elif Fate.BROKEN in fates:
            edge = edges[fates.index(Fate.BROKEN)]
            self.arrivals.append(Arrival(node_id, _broken_condition(edge, self._broken[edge])))
        elif Fate.OPEN not in fates:
            return _worst(fates)
        return Fate.OPEN

    def _reach_join(self, spec: GraphNode) -> Fate:
        ends = self._branch_ends(spec.id)
        gate = judge_gate(spec, ends)
        self.gates[spec.id] = gate
        if gate.is_passable:
            self.arrivals.append(Arrival(spec.id))
        elif not can_pass(spec, ends):
            self._impossible.add(spec.id)
            return _worst(ends.values())
        return Fate.OPEN

    def _branch_ends(self, join_id: str) -> dict[str, Fate]:
        """The fate of each branch, by the node it ends with; that node may have more than one edge here."""
        by_source: dict[str, list[Fate]] = {}
        for edge in self._graph.incoming[join_id]:
            by_source.setdefault(edge.source, []).append(self._fates[edge])
        return {source: _of_branch(fates) for source, fates in by_source.items()}


def _of_branch(fates: list[Fate]) -> Fate:
    for arrived in (Fate.TAKEN, Fate.OPEN):
        if arrived in fates:
            return arrived
    return Fate.FAILED if Fate.BROKEN in fates else _worst(fates)


def _worst(fates: Iterable[Fate]) -> Fate:
    known = set(fates)
    return next((fate for fate in _DEAD_FIRST if fate in known), Fate.NOT_TAKEN)


def _broken_condition(edge: Edge, message: str) -> Failure:
    return Failure(
        f"the condition of the edge {edge.source} -> {edge.target} ({edge.when}) cannot be judged: {message}",
        "CONDITION_FAILED",
    )


def judge_gate(spec: GraphNode, ends: Mapping[str, Fate]) -> Gate:
    """A branch whose edge was not taken is not expected; one that failed or was cancelled counts as that."""
    expected = tuple(branch for branch, fate in ends.items() if fate is not Fate.NOT_TAKEN)
    completed = tuple(branch for branch, fate in ends.items() if fate is Fate.TAKEN)
    is_over = Fate.OPEN not in ends.values()
    passable = {
        JoinPolicy.ALL_SUCCESS: bool(expected) and completed == expected,
        JoinPolicy.ANY_SUCCESS: bool(completed),
        JoinPolicy.ALL_DONE: bool(expected) and is_over,
        JoinPolicy.CUSTOM: len(completed) >= (spec.min_success or 1),
    }
    return Gate(
        policy=spec.policy.value,
        expected_branches=expected,
        completed_branches=completed,
        failed_branches=tuple(branch for branch, fate in ends.items() if fate is Fate.FAILED),
        canceled_branches=tuple(branch for branch, fate in ends.items() if fate is Fate.CANCELED),
        is_passable=passable[spec.policy],
    )


def can_pass(spec: GraphNode, ends: Mapping[str, Fate]) -> bool:
    """Whether a join that does not pass now may still pass later."""
    fates = list(ends.values())
    still_open, completed = fates.count(Fate.OPEN), fates.count(Fate.TAKEN)
    match spec.policy:
        case JoinPolicy.ALL_SUCCESS:
            return still_open > 0 and not {Fate.FAILED, Fate.CANCELED} & set(fates)
        case JoinPolicy.CUSTOM:
            return completed + still_open >= (spec.min_success or 1)
        case _:
            return still_open > 0


def known_nodes(state: Execution) -> dict[str, Any]:
    """What conditions and templates may read of the nodes."""
    return {
        node_id: {
            "status": node.status.value,
            "output": node.output,
            "error": None
            if node.error is None
            else {"code": node.error.code, "message": node.error.message, "details": node.error.details},
        }
        for node_id, node in state.nodes.items()
    }


def between(graph: Graph, fork_id: str, join_id: str) -> frozenset[str]:
    """The nodes of the branches that a fork opened and a join gathers."""
    return graph.descendants(fork_id) & graph.ancestors(join_id)
