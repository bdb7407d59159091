"""A reaction while it is made."""

from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution import templates
from pyoco_server.domain.execution.branches import Branches, Judgements, KnownNodes
from pyoco_server.domain.execution.conditions import Allowance
from pyoco_server.domain.execution.evolve import evolve
from pyoco_server.domain.execution.graphs import Graph
from pyoco_server.domain.execution.node_runs import RunFact, run_id_of
from pyoco_server.domain.execution.state import Execution, NodeState, NodeStatus

MAX_RENDERED: Final = 8 * 1024 * 1024
"""Bytes of params in one reaction; the nodes that are left begin with the next one."""


class Draft:
    def __init__(
        self,
        state: Execution,
        graph: Graph,
        runs: Mapping[str, RunFact | None],
        now: float,
        grace_sec: float,
        allowance: Allowance | None = None,
    ) -> None:
        self.state = state
        """With all events so far."""
        self.graph = graph
        self.runs = runs
        self.now = now
        self.grace_sec = grace_sec
        self.events: list[e.Payload] = []
        self.started: set[str] = set()
        """Runs of attempts that begin with this commit: nobody can have dispatched them."""
        self.abandoned: dict[str, str] = {}
        """Runs of attempts that end with this commit although they may go on, and why."""
        self.timers: list[float] = []
        self.rendered: set[str] = set()
        """Runs whose params have been found to be right."""
        self.has_more = False
        """There is more to begin than one reaction may render."""
        self._rendered_bytes = 0
        self._seen: tuple[Execution, Branches] | None = None
        self._allowance = allowance
        self._judgements = Judgements(allowance)

    def emit(self, *payloads: e.Payload) -> None:
        for payload in payloads:
            event = e.Event(
                sequence=self.state.version + 1,
                execution_id=self.state.execution_id,
                occurred_at=self.now,
                actor=e.ORCHESTRATOR,
                payload=payload,
            )
            after = evolve(self.state, event)
            assert after is not None  # noqa: S101 - there was a state
            self.state = after
            self.events.append(payload)

    def branches(self) -> Branches:
        if self._seen is None or self._seen[0] is not self.state:
            self._seen = self.state, Branches(self.state, self.graph, self._judgements)
        return self._seen[1]

    def nodes(self, *statuses: NodeStatus) -> list[tuple[str, NodeState]]:
        return [(node_id, node) for node_id, node in self.state.nodes.items() if node.status in statuses]

    @property
    def has_live_nodes(self) -> bool:
        return any(node.status.is_live for node in self.state.nodes.values())

    def is_due(self, at: float | None) -> bool:
        """Whether a moment has come; one that has not is a reason to look again then."""
        if at is None:
            return False
        if at > self.now:
            self.timers.append(at)
        return at <= self.now

    def fact(self, node_id: str, node: NodeState) -> tuple[bool, RunFact | None]:
        """Whether anything is known of the node's run, and what. Only runs of our own making count."""
        if node.run_id is None or not self.is_run(node_id, node) or node.run_id not in self.runs:
            return False, None
        return True, self.runs[node.run_id]

    def is_run(self, node_id: str, node: NodeState) -> bool:
        """An outside worker may name any run; only one that a flow of the graph is carried out by is ours."""
        if node.run_id is None or self.graph.nodes[node_id].flow is None:
            return False
        return node.run_id == run_id_of(self.state.execution_id, node_id, node.attempt)

    def abandon(self, node_id: str, node: NodeState, reason: str) -> None:
        if node.run_id is not None and self.is_run(node_id, node):
            self.abandoned[node.run_id] = reason

    @property
    def is_full(self) -> bool:
        """Whether what is left to render has to wait for the next reaction."""
        self.has_more = self.has_more or self._rendered_bytes >= MAX_RENDERED
        return self._rendered_bytes >= MAX_RENDERED

    def render(self, value: Any) -> Any:
        """Raises TemplateFailed."""
        rendered, size = templates.rendered(value, input=self.state.input, nodes=KnownNodes(self.state))
        self._rendered_bytes += size
        if self._allowance is not None:
            self._allowance.take(size // templates.BYTES_PER_STEP)
        return rendered
