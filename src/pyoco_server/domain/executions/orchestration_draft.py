"""The draft of a reaction: the state with the events so far, and what nodes of every kind do to it."""

from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.domain.cel.values import Allowance
from pyoco_server.domain.executions import events as e, interpolation
from pyoco_server.domain.executions.branches import Branches, Judgements, KnownNodes
from pyoco_server.domain.executions.decide import fail, marked
from pyoco_server.domain.executions.evolve import evolve
from pyoco_server.domain.executions.graphs import Graph, GraphNode, NodeType
from pyoco_server.domain.executions.model import (
    MAX_HELD_BYTES,
    Execution,
    MapState,
    NodeState,
    NodeStatus,
    json_size,
    too_large,
)
from pyoco_server.domain.executions.records import CancelRun, DispatchRun, RunFact, StartChild, Work, work_of
from pyoco_server.domain.executions.stored import Opened, Stored
from pyoco_server.domain.large_values import Place, moved
from pyoco_server.domain.runs.model import RunStatus

MAX_RENDERED: Final = 8 * 1024 * 1024
"""Limit of rendered params per reaction in bytes; remaining nodes start in the next one."""


class Draft:
    def __init__(
        self,
        state: Execution,
        graph: Graph,
        runs: Mapping[str, RunFact | None],
        now: float,
        grace_sec: float,
        allowance: Allowance | None = None,
        *,
        opened: Opened | None = None,
    ) -> None:
        self.state = state
        """The state after all events so far."""
        self.graph = graph
        self.runs = runs
        self.now = now
        self.grace_sec = grace_sec
        self.events: list[e.Payload] = []
        self.started: set[str] = set()
        """Work of attempts started by this commit, which cannot have been dispatched."""
        self.abandoned: list[CancelRun] = []
        """Work of attempts ended by this commit that may still be active."""
        self.timers: list[float] = []
        self.items: dict[str, DispatchRun | StartChild] = {}
        """Work of items of maps that may start, rendered."""
        self.in_question: dict[str, tuple[MapState, list[Any]]] = {}
        """Items of each map that may have work."""
        self.rendered: set[str] = set()
        """Work with verified params."""
        self.has_more = False
        """More nodes to start than one reaction may render."""
        self._rendered_bytes = 0
        self._seen: tuple[Execution, Branches] | None = None
        self._allowance = allowance
        self.opened = opened or Opened()
        self._judgements = Judgements(allowance, self.opened)

    def emit(self, *payloads: e.Payload) -> None:
        for payload in marked(self.graph, payloads):
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

    def plain_nodes(self, *statuses: NodeStatus) -> list[tuple[str, NodeState]]:
        """Without undo nodes, which nothing stops."""
        return [found for found in self.nodes(*statuses) if found[0] not in self.graph.undoes]

    @property
    def has_live_nodes(self) -> bool:
        """Undo nodes do not count: they begin when all others have ended."""
        undoes = self.graph.undoes
        return any(node.status.is_live for name, node in self.state.nodes.items() if name not in undoes)

    def is_due(self, at: float | None) -> bool:
        """Whether a time has passed; if not, the reaction is repeated then."""
        if at is None:
            return False
        if at > self.now:
            self.timers.append(at)
        return at <= self.now

    def fact(self, node_id: str, node: NodeState) -> tuple[bool, RunFact | None]:
        """Whether the node's work is known, and its facts. Only for work that we dispatched."""
        work = self.work(node_id, node)
        if work is None or work.id not in self.runs:
            return False, None
        return True, self.runs[work.id]

    def work(self, node_id: str, node: NodeState) -> Work | None:
        """The work that we dispatched; an external worker may report any run id."""
        if node.work_id is None:
            return None
        work = work_of(self.state.execution_id, self.graph.nodes[node_id], node.attempt, node.iteration)
        return work if work is not None and work.id == node.work_id else None

    def abandon(self, node_id: str, node: NodeState, reason: str) -> None:
        if (work := self.work(node_id, node)) is not None:
            self.abandoned.append(CancelRun(run_id=work.id, reason=reason, is_execution=work.is_execution))

    @property
    def is_full(self) -> bool:
        """Whether the remaining rendering has to wait for the next reaction."""
        self.has_more = self.has_more or self._rendered_bytes >= MAX_RENDERED
        return self._rendered_bytes >= MAX_RENDERED

    def render(self, value: Any) -> Any:
        """For a value that the orchestrator uses itself. Raises TemplateFailed."""
        rendered = self._render(value)
        if rendered.values:
            raise interpolation.TemplateFailed("the value is too large: it is stored beside its run")
        return rendered.value

    def render_work(self, node_id: str) -> interpolation.Rendered:
        """The params of its run, or the input of its execution. Raises TemplateFailed."""
        spec = self.graph.nodes[node_id]
        iteration = self.iteration(node_id)
        wanted = spec.input if spec.type is NodeType.EXECUTION else spec.work.params
        return self._render(wanted, {} if iteration is None else {"iteration": iteration})

    def render_with(
        self, value: Any, local: Mapping[str, Any], noted: Mapping[str, tuple[Place, ...]]
    ) -> interpolation.Rendered:
        """The same for an item of a map. `noted`: stored values in `local`. Raises TemplateFailed."""
        return self._render(value, local, noted)

    @property
    def stored(self) -> Stored:
        return Stored(self.state, self.opened)

    def iteration(self, node_id: str) -> int | None:
        """Of a repeat."""
        is_repeat = self.graph.nodes[node_id].type is NodeType.REPEAT
        return (self.state.nodes[node_id].iteration or 1) if is_repeat else None

    @property
    def allowance(self) -> Allowance | None:
        return self._allowance

    def _render(
        self,
        value: Any,
        local: Mapping[str, Any] | None = None,
        noted: Mapping[str, tuple[Place, ...]] | None = None,
    ) -> interpolation.Rendered:
        rendered = interpolation.rendered(
            value,
            input=self.state.input,
            nodes=KnownNodes(self.state),
            local=local,
            stored=Stored(self.state, self.opened, noted),
        )
        self._rendered_bytes += rendered.size
        if self._allowance is not None:
            self._allowance.take(rendered.size // interpolation.BYTES_PER_STEP)
        return rendered


ASKED: Final = "ASKED"
"""Code of a fact: this process has cancelled the work, and need not do so again."""


def failure_of(fact: RunFact) -> e.Failure:
    if fact.status is RunStatus.CANCELLED and fact.is_execution:
        return e.Failure("its execution was cancelled", "EXECUTION_CANCELED")
    if fact.status is RunStatus.CANCELLED:
        return e.Failure("its run was cancelled", "RUN_CANCELLED")
    return e.Failure(e.shortened(fact.error or "the run failed", e.MAX_ERROR), fact.code)


def fail_at_start(draft: Draft, node_id: str, error: e.Failure) -> None:
    """Fail without retry: the graph or its input is invalid."""
    draft.emit(e.NodeStarted(node_id=node_id, attempt=draft.state.nodes[node_id].attempt + 1))
    fail_begun(draft, node_id, error)


def fail_begun(draft: Draft, node_id: str, error: e.Failure) -> None:
    node, spec = draft.state.nodes[node_id], draft.graph.nodes[node_id]
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=True))


def succeed_by(draft: Draft, node_id: str, node: NodeState, spec: GraphNode, fact: RunFact) -> None:
    """With the result of its run or child execution."""
    succeed(draft, node_id, node, spec, fact.result, moved(fact.values, "output"))


def succeed(
    draft: Draft,
    node_id: str,
    node: NodeState,
    spec: GraphNode,
    output: Any,
    values: tuple[Place, ...] = (),
) -> None:
    """With an output that the execution has no room for, the node fails; another attempt would not help."""
    if draft.state.held_bytes + json_size(output) <= MAX_HELD_BYTES:
        draft.emit(e.NodeSucceeded(node_id=node_id, output=output, values=values))
        return
    error = e.Failure(too_large(draft.state), "EXECUTION_TOO_LARGE")
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=True))
