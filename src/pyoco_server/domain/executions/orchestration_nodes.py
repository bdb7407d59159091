"""Reactions on nodes: starting, ending and stopping them, and joins."""

from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.domain.cel.values import Allowance
from pyoco_server.domain.executions import events as e, interpolation
from pyoco_server.domain.executions.branches import Branches, Judgements, KnownNodes, between
from pyoco_server.domain.executions.decide import fail, interrupt, resume
from pyoco_server.domain.executions.evolve import evolve
from pyoco_server.domain.executions.graphs import Graph, GraphNode, JoinPolicy, NodeType, OnTimeout
from pyoco_server.domain.executions.model import (
    MAX_HELD_BYTES,
    Execution,
    NodeState,
    NodeStatus,
    Phase,
    json_size,
    too_large,
)
from pyoco_server.domain.executions.records import RunFact, run_id_of
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.secrets.references import References

# The draft of a reaction.

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
    ) -> None:
        self.state = state
        """The state after all events so far."""
        self.graph = graph
        self.runs = runs
        self.now = now
        self.grace_sec = grace_sec
        self.events: list[e.Payload] = []
        self.started: set[str] = set()
        """Runs of attempts started by this commit, which cannot have been dispatched."""
        self.abandoned: dict[str, str] = {}
        """Runs of attempts ended by this commit that may still be active, with the reason."""
        self.timers: list[float] = []
        self.rendered: set[str] = set()
        """Runs with verified params."""
        self.has_more = False
        """More nodes to start than one reaction may render."""
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
        """Whether a time has passed; if not, the reaction is repeated then."""
        if at is None:
            return False
        if at > self.now:
            self.timers.append(at)
        return at <= self.now

    def fact(self, node_id: str, node: NodeState) -> tuple[bool, RunFact | None]:
        """Whether the node's run is known, and its facts. Only for runs that we dispatched."""
        if node.run_id is None or not self.is_run(node_id, node) or node.run_id not in self.runs:
            return False, None
        return True, self.runs[node.run_id]

    def is_run(self, node_id: str, node: NodeState) -> bool:
        """Whether we dispatched the run; an external worker may report any run id."""
        if node.run_id is None or self.graph.nodes[node_id].flow is None:
            return False
        return node.run_id == run_id_of(self.state.execution_id, node_id, node.attempt)

    def abandon(self, node_id: str, node: NodeState, reason: str) -> None:
        if node.run_id is not None and self.is_run(node_id, node):
            self.abandoned[node.run_id] = reason

    @property
    def is_full(self) -> bool:
        """Whether the remaining rendering has to wait for the next reaction."""
        self.has_more = self.has_more or self._rendered_bytes >= MAX_RENDERED
        return self._rendered_bytes >= MAX_RENDERED

    def render(self, value: Any) -> Any:
        """Raises TemplateFailed."""
        return self._render(value).value

    def render_params(self, params: dict[str, Any]) -> tuple[dict[str, Any], References | None]:
        """And where they name secrets and variables. Raises TemplateFailed."""
        rendered = self._render(params)
        return rendered.value, rendered.references or None

    def _render(self, value: Any) -> interpolation.Rendered:
        rendered = interpolation.rendered(value, input=self.state.input, nodes=KnownNodes(self.state))
        self._rendered_bytes += rendered.size
        if self._allowance is not None:
            self._allowance.take(rendered.size // interpolation.BYTES_PER_STEP)
        return rendered


MAX_PROMPT: Final = 4_000
MAX_KEY: Final = 256
"""Limit of a wait_key; no command could resume a node with a longer or empty one."""


def make_ready(draft: Draft, branches: Branches) -> None:
    for arrival in branches.arrivals:
        draft.emit(e.NodeReady(node_id=arrival.node_id))
        if arrival.error is not None:
            _fail_at_start(draft, arrival.node_id, arrival.error)


def carry_on(draft: Draft) -> None:
    """Start ready nodes; a control node started by another party is continued."""
    for node_id, node in draft.nodes(NodeStatus.READY, NodeStatus.RUNNING):
        spec = draft.graph.nodes[node_id]
        if spec.type is NodeType.TASK:
            _carry_on_task(draft, node_id, node, spec)
        elif node.stop_requested_at is None:
            _carry_on_control(draft, node_id, node, spec)


def _carry_on_task(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.status is not NodeStatus.READY:
        _check_params(draft, node_id, node, spec)
    elif not spec.external and (node.retry_at is None or draft.is_due(node.retry_at)):
        _begin_run(draft, node_id, node, spec)


def _check_params(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    """Verify the params of a run that is not dispatched yet; values it reads may have changed."""
    is_known, fact = draft.fact(node_id, node)
    if not is_known or fact is not None or node.stop_requested_at is not None:
        return
    assert node.run_id is not None  # noqa: S101 - something is known of it
    if node.run_id in draft.rendered or draft.is_full:
        return
    try:
        draft.render(spec.params)
    except interpolation.TemplateFailed as error:
        _fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    draft.rendered.add(node.run_id)


def _begin_run(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if draft.is_full:
        return
    attempt = node.attempt + 1
    try:
        draft.render(spec.params)
    except interpolation.TemplateFailed as error:
        _fail_at_start(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    run_id = run_id_of(draft.state.execution_id, node_id, attempt)
    draft.started.add(run_id)
    draft.rendered.add(run_id)
    draft.emit(e.NodeStarted(node_id=node_id, attempt=attempt, run_id=run_id))


def _carry_on_control(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.status is NodeStatus.READY:
        draft.emit(e.NodeStarted(node_id=node_id, attempt=node.attempt + 1))
    match spec.type:
        case NodeType.FORK:
            branch_ids = draft.branches().taken_targets(node_id)
            draft.emit(e.ForkOpened(node_id=node_id, branch_ids=branch_ids), e.NodeSucceeded(node_id=node_id))
        case NodeType.JOIN:
            draft.emit(e.JoinPassed(node_id=node_id), e.NodeSucceeded(node_id=node_id))
        case NodeType.WAIT:
            _begin_wait(draft, node_id, spec)


def _begin_wait(draft: Draft, node_id: str, spec: GraphNode) -> None:
    try:
        key, prompt = draft.render([spec.wait_key, spec.prompt])
    except interpolation.TemplateFailed as error:
        _fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    if key is not None and not 1 <= len(str(key)) <= MAX_KEY:
        problem = f"wait_key has {len(str(key)):,} characters; 1 to {MAX_KEY} are allowed"
        _fail_begun(draft, node_id, e.Failure(problem, "TEMPLATE_FAILED"))
        return
    draft.emit(
        e.NodeWaiting(
            node_id=node_id,
            wait_key=None if key is None else str(key),
            prompt=None if prompt is None else e.shortened(str(prompt), MAX_PROMPT),
            deadline=None if spec.timeout_sec is None else draft.now + spec.timeout_sec,
        )
    )


def _fail_at_start(draft: Draft, node_id: str, error: e.Failure) -> None:
    """Fail without retry: the graph or its input is invalid."""
    draft.emit(e.NodeStarted(node_id=node_id, attempt=draft.state.nodes[node_id].attempt + 1))
    _fail_begun(draft, node_id, error)


def _fail_begun(draft: Draft, node_id: str, error: e.Failure) -> None:
    node, spec = draft.state.nodes[node_id], draft.graph.nodes[node_id]
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=True))


# Nodes that end, by their run, a timeout or a stop request.

NOT_NEEDED: Final = "the join has passed without this branch"


def end_nodes(draft: Draft) -> None:
    for node_id, node in draft.nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
        if node.stop_requested_at is None:
            _end_node(draft, node_id, node, draft.graph.nodes[node_id])


def _end_node(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    _, fact = draft.fact(node_id, node)
    if fact is not None and _tells_the_end(fact, node):
        _end_by_run(draft, node_id, node, spec, fact)
    elif spec.type is NodeType.TASK and draft.is_due(_time_limit(node, spec)):
        _time_out(draft, node_id, node, spec)
    elif node.status is NodeStatus.WAITING and draft.is_due(node.deadline):
        _end_wait(draft, node_id, node, spec)


def _tells_the_end(fact: RunFact, node: NodeState) -> bool:
    """A waiting node does not end with its run; it has to be resumed first."""
    is_held_back = node.status is NodeStatus.WAITING and fact.status is RunStatus.COMPLETED
    return fact.status.is_terminal and not is_held_back


def _end_by_run(draft: Draft, node_id: str, node: NodeState, spec: GraphNode, fact: RunFact) -> None:
    if fact.status is not RunStatus.COMPLETED:
        draft.emit(*fail(node_id, node, spec, _failure(fact), draft.now))
    else:
        _succeed(draft, node_id, node, spec, fact.result)


def _succeed(draft: Draft, node_id: str, node: NodeState, spec: GraphNode, output: Any) -> None:
    """With an output that the execution has no room for, the node fails; another attempt would not help."""
    if draft.state.held_bytes + json_size(output) <= MAX_HELD_BYTES:
        draft.emit(e.NodeSucceeded(node_id=node_id, output=output))
        return
    error = e.Failure(too_large(draft.state), "EXECUTION_TOO_LARGE")
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=True))


def _failure(fact: RunFact) -> e.Failure:
    if fact.status is RunStatus.CANCELLED:
        return e.Failure("its run was cancelled", "RUN_CANCELLED")
    return e.Failure(e.shortened(fact.error or "the run failed", e.MAX_ERROR), fact.code)


def _time_limit(node: NodeState, spec: GraphNode) -> float | None:
    if node.started_at is None or spec.timeout_sec is None:
        return None
    return node.started_at + spec.timeout_sec


def _time_out(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    error = e.Failure(f"timed out after {spec.timeout_sec:g} s", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now))
    draft.abandon(node_id, node, error.message)


def _end_wait(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if spec.type is NodeType.WAIT and spec.on_timeout is OnTimeout.SUCCEED:
        draft.emit(*resume(node_id, spec, None))
        return
    error = e.Failure("nobody resumed it before its deadline", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=spec.type is NodeType.WAIT))
    draft.abandon(node_id, node, error.message)


def stop(draft: Draft, node_id: str, reason: str) -> None:
    """Interrupt a running node; cancel any other immediately."""
    node = draft.state.nodes[node_id]
    if not node.status.is_live or node.stop_requested_at is not None:
        return
    draft.emit(e.NodeCancelRequested(node_id=node_id, reason=reason))
    if node.status is NodeStatus.RUNNING:
        draft.emit(interrupt(node_id, node, reason))
    else:
        draft.emit(e.NodeCanceled(node_id=node_id, reason=reason))
        draft.abandon(node_id, node, reason)


def end_stopped(draft: Draft) -> None:
    """Cancel a stopping node when its run has ended or never existed, or after the grace period."""
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is not None:
            is_known, fact = draft.fact(node_id, node)
            has_ended = is_known and (fact is None or fact.status.is_terminal)
            never_was = node.run_id in draft.started
            if fact is not None and _is_kept(draft, fact):
                _end_for_good(draft, node_id, node, fact)
            elif has_ended or never_was or draft.is_due(node.stop_requested_at + draft.grace_sec):
                draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or NOT_NEEDED))


def _is_kept(draft: Draft, fact: RunFact) -> bool:
    """While the execution fails, a run that ended by itself still counts, for a rerun."""
    return draft.state.phase is Phase.FAILING and fact.status in (RunStatus.COMPLETED, RunStatus.FAILED)


def _end_for_good(draft: Draft, node_id: str, node: NodeState, fact: RunFact) -> None:
    spec = draft.graph.nodes[node_id]
    if fact.status is RunStatus.COMPLETED:
        _succeed(draft, node_id, node, spec, fact.result)
        return
    draft.emit(*fail(node_id, node, spec, _failure(fact), draft.now, is_final=True))


# Joins: arrived and obsolete branches.


def stop_unneeded(draft: Draft) -> None:
    """Cancel the remaining branches of a join that has passed."""
    nodes = draft.state.nodes
    passed = [
        join_id for join_id in _early_joins(draft.graph) if nodes[join_id].status is NodeStatus.SUCCEEDED
    ]
    if not passed:
        return
    unneeded = between(draft.graph, passed)
    for node_id, _ in draft.nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
        if node_id in unneeded:
            stop(draft, node_id, NOT_NEEDED)


def _early_joins(graph: Graph) -> list[str]:
    """Joins that may pass before all branches have ended, and then cancel the rest."""
    return [
        join_id
        for join_id in graph.forks
        if (spec := graph.nodes[join_id]).cancel_rest
        and spec.policy in (JoinPolicy.ANY_SUCCESS, JoinPolicy.CUSTOM)
    ]


def update_gates(draft: Draft, branches: Branches) -> None:
    for join_id, gate in branches.gates.items():
        known = draft.state.nodes[join_id].gate
        has_news = gate.completed_branches or gate.failed_branches or gate.canceled_branches
        if known != gate and (known is not None or has_news):
            draft.emit(
                e.JoinGateUpdated(
                    node_id=join_id,
                    policy=gate.policy,
                    expected_branches=gate.expected_branches,
                    completed_branches=gate.completed_branches,
                    failed_branches=gate.failed_branches,
                    canceled_branches=gate.canceled_branches,
                    is_passable=gate.is_passable,
                )
            )
