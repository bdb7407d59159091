"""Progress of an execution's branches: the fate of every edge and the gate of every join.

Nothing of this is stored. It is derived from the states of the nodes and the graph, so every evaluation gives
the same result.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final

from msgspec import Struct

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.cel.values import Allowance, ConditionFailed
from pyoco_server.domain.executions import conditions
from pyoco_server.domain.executions.events import Failure
from pyoco_server.domain.executions.graphs import Edge, EdgeOn, Graph, GraphNode, JoinPolicy, NodeType, Then
from pyoco_server.domain.executions.model import Execution, Gate, NodeState, NodeStatus
from pyoco_server.domain.executions.stored import Opened, Stored


class Fate(StrEnum):
    """The state of an edge, or of a node that was not reached."""

    OPEN = "open"
    TAKEN = "taken"
    NOT_TAKEN = "not taken"
    FAILED = "failed"
    """Unreachable because of a failure upstream."""
    CANCELED = "canceled"
    BROKEN = "broken"
    """Its condition cannot be evaluated."""


class Arrival(Struct, frozen=True):
    """A node to become ready, with the error of its only incoming edge, if any."""

    node_id: str
    error: Failure | None = None


_DEAD_FIRST: Final = (Fate.FAILED, Fate.CANCELED, Fate.NOT_TAKEN)
"""Precedence of reasons."""


class Judgements:
    """Cached condition results of one reaction; a result is valid until a node it read changes."""

    def __init__(self, allowance: Allowance | None = None, opened: Opened | None = None) -> None:
        self.allowance = allowance
        self.opened = opened or Opened()
        self._known: dict[str, tuple[list[NodeState | None], bool | str]] = {}

    def holds(self, expr: str, state: Execution, values: conditions.GraphValues) -> bool:
        """Raises ConditionFailed."""
        read = [state.nodes.get(node_id) for node_id in conditions.nodes_in(expr)]
        known = self._known.get(expr)
        if known is None or any(node is not before for node, before in zip(read, known[0], strict=True)):
            known = self._known[expr] = read, _outcome(expr, values)
        if isinstance(known[1], str):
            raise ConditionFailed(known[1])
        return known[1]


def _outcome(expr: str, values: conditions.GraphValues) -> bool | str:
    try:
        return values.holds(expr)
    except ConditionFailed as error:
        return str(error)


class Branches:
    def __init__(self, state: Execution, graph: Graph, judgements: Judgements | None = None) -> None:
        self._state = state
        self._graph = graph
        self._judgements = judgements or Judgements()
        self._fates: dict[Edge, Fate] = {}
        self._broken: dict[Edge, str] = {}
        self.arrivals: list[Arrival] = []
        self.gates: dict[str, Gate] = {}
        """Gates of joins that have not passed."""
        self._impossible: set[str] = set()
        self._decided = {graph.entry}
        """Nodes with a decided incoming edge. Other IDLE nodes need no evaluation."""
        for node_id in graph.order:
            node = state.nodes[node_id]
            if node.status is not NodeStatus.IDLE or node_id in self._decided:
                self._visit(node_id, node)

    def taken_targets(self, node_id: str) -> tuple[str, ...]:
        """Targets of the edges taken if the node succeeded now."""
        edges = self._graph.outgoing[node_id]
        return tuple(dict.fromkeys(edge.target for edge in edges if self._judge(edge) is Fate.TAKEN))

    def became_of(self, edge: Edge) -> Fate:
        """The fate of any edge, including edges taken earlier."""
        node = self._state.nodes[edge.source]
        reach = self._fate_of(edge)
        return self._fate(edge, node, reach, is_handled=self.is_handled(edge.source))

    def is_handled(self, node_id: str) -> bool:
        """Whether a failure edge handles the failure of a node."""
        return any(
            self._fate_of(edge) in (Fate.TAKEN, Fate.BROKEN)
            for edge in self._graph.outgoing[node_id]
            if edge.on is EdgeOn.FAILURE
        )

    def is_fatal(self, node_id: str) -> bool:
        """Whether a taken failure edge fails the execution in the end."""
        return any(
            edge.then is Then.FAIL and self._fate_of(edge) is Fate.TAKEN
            for edge in self._graph.outgoing[node_id]
            if edge.on is EdgeOn.FAILURE
        )

    def is_saved(self, node_id: str) -> bool:
        """Whether a downstream join can pass, or has passed, without this node."""
        return any(
            self._graph.nodes[below].type is NodeType.JOIN and self._can_save(below)
            for below in self._graph.descendants(node_id)
        )

    def _can_save(self, join_id: str) -> bool:
        ended_otherwise = self._state.nodes[join_id].status in (NodeStatus.FAILED, NodeStatus.CANCELED)
        return join_id not in self._impossible and not ended_otherwise

    # In topological order.

    def _visit(self, node_id: str, node: NodeState) -> None:
        fate = self._reach(node_id) if node.status is NodeStatus.IDLE else Fate.OPEN
        edges = self._graph.outgoing[node_id]
        handled = node.status is NodeStatus.FAILED and any(
            self._judge(edge) in (Fate.TAKEN, Fate.BROKEN) for edge in edges if edge.on is EdgeOn.FAILURE
        )
        for edge in edges:
            if node.status is NodeStatus.FAILED or self._is_idle(edge.target):
                self._decide(edge, self._fate(edge, node, fate, is_handled=handled))

    def _is_idle(self, node_id: str) -> bool:
        """Only edges to these nodes can have an effect."""
        return self._state.nodes[node_id].status is NodeStatus.IDLE

    def _decide(self, edge: Edge, fate: Fate) -> None:
        if fate is not Fate.OPEN:
            self._fates[edge] = fate
            self._decided.add(edge.target)

    def _fate_of(self, edge: Edge) -> Fate:
        return self._fates.get(edge, Fate.OPEN)

    def _fate(self, edge: Edge, node: NodeState, reach: Fate, *, is_handled: bool) -> Fate:
        match node.status:
            case NodeStatus.SUCCEEDED:
                return self._judge(edge) if edge.on is EdgeOn.SUCCESS else Fate.NOT_TAKEN
            case NodeStatus.FAILED:
                if not is_handled:
                    return Fate.FAILED
                return self._judge(edge) if edge.on is EdgeOn.FAILURE else Fate.NOT_TAKEN
            case NodeStatus.CANCELED:
                return Fate.CANCELED
        return reach

    def _judge(self, edge: Edge) -> Fate:
        if edge.when is None:
            return Fate.TAKEN
        try:
            holds = self._judgements.holds(edge.when, self._state, self._values)
        except (ConditionFailed, ConditionError) as error:
            self._broken[edge] = str(error)
            return Fate.BROKEN
        return Fate.TAKEN if holds else Fate.NOT_TAKEN

    @cached_property
    def _values(self) -> conditions.GraphValues:
        judgements = self._judgements
        return conditions.GraphValues(
            self._state.input,
            KnownNodes(self._state),
            judgements.allowance,
            Stored(self._state, judgements.opened),
        )

    def _reach(self, node_id: str) -> Fate:
        """The fate of an IDLE node: open, or the reason why it is unreachable."""
        spec = self._graph.nodes[node_id]
        if spec.type is NodeType.JOIN:
            return self._reach_join(spec)
        edges = self._graph.incoming[node_id]
        fates = [self._fate_of(edge) for edge in edges]
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
            if (broken := self._broken_branch(spec.id, ends)) is None:
                self._impossible.add(spec.id)
                return _worst(ends.values())
            self.arrivals.append(Arrival(spec.id, _broken_condition(broken, self._broken[broken])))
        return Fate.OPEN

    def _broken_branch(self, join_id: str, ends: Mapping[str, Fate]) -> Edge | None:
        """A broken edge that the join required.

        No node failed on that branch, so the join has to fail to report it.
        """
        edges = self._graph.incoming[join_id]
        return next(
            (
                edge
                for edge in edges
                if self._fate_of(edge) is Fate.BROKEN and ends[edge.source] is Fate.FAILED
            ),
            None,
        )

    def _branch_ends(self, join_id: str) -> dict[str, Fate]:
        """The fate of each branch by its last node, which may have several edges to the join."""
        by_source: dict[str, list[Fate]] = {}
        for edge in self._graph.incoming[join_id]:
            by_source.setdefault(edge.source, []).append(self._fate_of(edge))
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
        f"cannot evaluate the condition of the edge {edge.source} -> {edge.target} ({edge.when}): {message}",
        "CONDITION_FAILED",
    )


def judge_gate(spec: GraphNode, ends: Mapping[str, Fate]) -> Gate:
    """A branch whose edge was not taken is not expected; failed and cancelled branches count as such."""
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


class EdgeState(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    source: str
    target: str
    on: EdgeOn
    fate: Fate


def edge_states(state: Execution, graph: Graph, opened: Opened | None = None) -> list[EdgeState]:
    """The fate of every edge, in the order of the graph. Raises Lacking."""
    is_made = len(state.nodes) == len(graph.nodes)
    branches = Branches(state, graph, Judgements(opened=opened)) if is_made else None
    return [
        EdgeState(edge.source, edge.target, edge.on, branches.became_of(edge) if branches else Fate.OPEN)
        for edge in graph.edges
    ]


class KnownNodes(Mapping[str, Mapping[str, Any]]):
    """The nodes as visible to conditions and templates, built on access because few are read."""

    def __init__(self, state: Execution) -> None:
        self._nodes = state.nodes

    def __getitem__(self, node_id: str) -> Mapping[str, Any]:
        node = self._nodes[node_id]
        error = node.error
        return {
            "status": node.status.value,
            "output": node.output,
            "error": None
            if error is None
            else {"code": error.code, "message": error.message, "details": error.details},
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def between(graph: Graph, joins: Iterable[str]) -> frozenset[str]:
    """The nodes between a fork and one of these joins.

    One bit per join, propagated up from it and down from its fork: two passes for any number of joins.
    """
    bits = {join_id: 1 << index for index, join_id in enumerate(joins)}
    opened: dict[str, int] = {}
    for join_id, bit in bits.items():
        opened[graph.forks[join_id]] = opened.get(graph.forks[join_id], 0) | bit
    above: dict[str, int] = {}
    for node_id in reversed(graph.order):
        above[node_id] = _union(
            above[edge.target] | bits.get(edge.target, 0) for edge in graph.outgoing[node_id]
        )
    below: dict[str, int] = {}
    for node_id in graph.order:
        below[node_id] = _union(
            below[edge.source] | opened.get(edge.source, 0) for edge in graph.incoming[node_id]
        )
    return frozenset(node_id for node_id in graph.order if above[node_id] & below[node_id])


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)
