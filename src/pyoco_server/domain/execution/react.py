"""The orchestrator's mind: what is missing now. Level-triggered and pure.

`react` looks at the state, the graph and what is known of the runs, and says what has to be appended and what
has to be done in the world. Asking twice, late, or on two machines at once changes nothing: the events of the
loser are refused by the log, the runs' ids follow from (execution, node, attempt).
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution import templates
from pyoco_server.domain.execution.branches import Branches, KnownNodes, between
from pyoco_server.domain.execution.decide import CANCELED, fail, interrupt, resume
from pyoco_server.domain.execution.evolve import evolve
from pyoco_server.domain.execution.graphs import Graph, GraphNode, JoinPolicy, NodeType, OnTimeout
from pyoco_server.domain.execution.state import Execution, NodeState, NodeStatus, Phase
from pyoco_server.domain.runs import RunStatus

MAX_PROMPT: Final = 4_000
SIBLING_FAILED: Final = "another node failed"
MAX_KEY: Final = 256
"""Of a wait: with a longer key, or an empty one, no command could resume it."""
NOT_NEEDED: Final = "the join has passed without this branch"


class RunFact(Struct, frozen=True):
    """What is known of a node's run."""

    status: RunStatus
    result: Any = None
    error: str | None = None
    code: str = "RUN_FAILED"
    """Of the failure, if it is one."""


class DispatchRun(Struct, frozen=True, kw_only=True):
    run_id: str
    node_id: str
    flow: str
    tag: str | None
    params: dict[str, Any]


class CancelRun(Struct, frozen=True, kw_only=True):
    run_id: str
    reason: str


class Reaction(Struct, frozen=True, kw_only=True):
    events: tuple[e.Payload, ...] = ()
    """One commit; empty when nothing is to be said."""
    state: Execution
    """As it is with these events."""
    dispatches: tuple[DispatchRun, ...] = ()
    cancels: tuple[CancelRun, ...] = ()
    wake_at: float | None = None
    """When time alone would change the answer."""


@lru_cache(maxsize=4_096)
def run_id_of(execution_id: str, node_id: str, attempt: int) -> str:
    return str(uuid5(NAMESPACE_URL, f"pyoco:run:{execution_id}:{node_id}:{attempt}"))


def react(
    state: Execution,
    graph: Graph,
    runs: Mapping[str, RunFact | None],
    now: float,
    grace_sec: float,
) -> Reaction:
    """`runs`: what was read of the runs by id, None for one that does not exist. Others are left alone."""
    return _Reacting(state, graph, runs, now, grace_sec).run()


class _Reacting:
    def __init__(
        self,
        state: Execution,
        graph: Graph,
        runs: Mapping[str, RunFact | None],
        now: float,
        grace_sec: float,
    ) -> None:
        self._state = state
        self._graph = graph
        self._runs = runs
        self._now = now
        self._grace_sec = grace_sec
        self._events: list[e.Payload] = []
        self._started: set[str] = set()
        """Runs of attempts that begin with this commit: nobody can have dispatched them."""
        self._abandoned: dict[str, str] = {}
        """Runs of attempts that end with this commit although they may go on, and why."""
        self._timers: list[float] = []
        self._seen: tuple[Execution, Branches] | None = None

    def run(self) -> Reaction:
        steps: dict[Phase, Callable[[], None]] = {
            Phase.STARTED: self._go_on,
            Phase.FAILING: self._finish_failing,
            Phase.CANCELLING: self._finish_cancel,
        }
        while (step := steps.get(self._state.phase)) is not None:
            known = len(self._events)
            self._timers.clear()
            step()
            if len(self._events) == known:
                break
        return Reaction(
            events=tuple(self._events),
            state=self._state,
            dispatches=tuple(self._dispatches()),
            cancels=tuple(self._cancels()),
            wake_at=min(self._timers, default=None) if not self._state.is_terminal else None,
        )

    def _emit(self, *payloads: e.Payload) -> None:
        for payload in payloads:
            event = e.Event(
                sequence=self._state.version + 1,
                execution_id=self._state.execution_id,
                occurred_at=self._now,
                actor=e.ORCHESTRATOR,
                payload=payload,
            )
            after = evolve(self._state, event)
            assert after is not None  # noqa: S101 - there was a state
            self._state = after
            self._events.append(payload)

    def _branches(self) -> Branches:
        if self._seen is None or self._seen[0] is not self._state:
            self._seen = self._state, Branches(self._state, self._graph)
        return self._seen[1]

    def _nodes(self, *statuses: NodeStatus) -> list[tuple[str, NodeState]]:
        return [(node_id, node) for node_id, node in self._state.nodes.items() if node.status in statuses]

    def _is_due(self, at: float | None) -> bool:
        """Whether a moment has come; one that has not is a reason to look again then."""
        if at is None:
            return False
        if at > self._now:
            self._timers.append(at)
        return at <= self._now

    def _fact(self, node_id: str, node: NodeState) -> tuple[bool, RunFact | None]:
        """Whether anything is known of the node's run, and what. Only runs of our own making count."""
        if node.run_id is None or not self._is_run(node_id, node) or node.run_id not in self._runs:
            return False, None
        return True, self._runs[node.run_id]

    def _is_run(self, node_id: str, node: NodeState) -> bool:
        """An outside worker may name any run; only one that a flow of the graph is carried out by is ours."""
        if node.run_id is None or self._graph.nodes[node_id].flow is None:
            return False
        return node.run_id == run_id_of(self._state.execution_id, node_id, node.attempt)

    # While nothing stops it

    def _go_on(self) -> None:
        known = len(self._events)
        self._end_nodes()
        self._stop_unneeded()
        self._end_stopped()
        branches = self._branches()
        self._update_gates(branches)
        if self._fail_if_lost(branches):
            return
        self._make_ready(branches)
        for node_id, node in self._nodes(NodeStatus.READY, NodeStatus.RUNNING):
            self._carry_on(node_id, node)
        if len(self._events) == known:
            self._complete_if_over()

    def _end_nodes(self) -> None:
        for node_id, node in self._nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
            if node.stop_requested_at is not None:
                continue
            spec = self._graph.nodes[node_id]
            _, fact = self._fact(node_id, node)
            if fact is not None and self._tells_the_end(fact, node):
                self._end_by_run(node_id, node, spec, fact)
            elif spec.type is NodeType.TASK and self._is_due(_plus(node.started_at, spec.timeout_sec)):
                self._time_out(node_id, node, spec)
            elif node.status is NodeStatus.WAITING and self._is_due(node.deadline):
                self._end_wait(node_id, node, spec)

    def _tells_the_end(self, fact: RunFact, node: NodeState) -> bool:
        """A node that was put to wait is not done with its run: somebody has to resume it first."""
        is_held_back = node.status is NodeStatus.WAITING and fact.status is RunStatus.COMPLETED
        return fact.status.is_terminal and not is_held_back

    def _time_out(self, node_id: str, node: NodeState, spec: GraphNode) -> None:
        error = e.Failure(f"it had not ended {spec.timeout_sec:g} s after its start", "TIMEOUT")
        self._emit(*fail(node_id, node, spec, error, self._now))
        self._abandon(node_id, node, error.message)

    def _abandon(self, node_id: str, node: NodeState, reason: str) -> None:
        if node.run_id is not None and self._is_run(node_id, node):
            self._abandoned[node.run_id] = reason

    def _end_by_run(self, node_id: str, node: NodeState, spec: GraphNode, fact: RunFact) -> None:
        if fact.status is not RunStatus.COMPLETED:
            self._emit(*fail(node_id, node, spec, _failure(fact), self._now))
        else:
            self._emit(e.NodeSucceeded(node_id=node_id, output=fact.result))

    def _end_wait(self, node_id: str, node: NodeState, spec: GraphNode) -> None:
        if spec.type is NodeType.WAIT and spec.on_timeout is OnTimeout.SUCCEED:
            self._emit(*resume(node_id, spec, None))
            return
        error = e.Failure("nobody resumed it before its deadline", "TIMEOUT")
        self._emit(*fail(node_id, node, spec, error, self._now, is_final=spec.type is NodeType.WAIT))
        self._abandon(node_id, node, error.message)

    def _stop_unneeded(self) -> None:
        """After a join that needed only some of its branches, the others are cancelled."""
        passed = [join_id for join_id in self._early_joins() if self._has_passed(join_id)]
        if not passed:
            return
        unneeded = between(self._graph, passed)
        for node_id, _ in self._nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
            if node_id in unneeded:
                self._stop(node_id, NOT_NEEDED)

    def _early_joins(self) -> list[str]:
        """Joins that may pass before all of their branches have ended, and cancel the rest then."""
        return [
            join_id
            for join_id in self._graph.forks
            if (spec := self._graph.nodes[join_id]).cancel_rest
            and spec.policy in (JoinPolicy.ANY_SUCCESS, JoinPolicy.CUSTOM)
        ]

    def _has_passed(self, join_id: str) -> bool:
        return self._state.nodes[join_id].status is NodeStatus.SUCCEEDED

    def _stop(self, node_id: str, reason: str) -> None:
        node = self._state.nodes[node_id]
        if not node.status.is_live or node.stop_requested_at is not None:
            return
        self._emit(e.NodeCancelRequested(node_id=node_id, reason=reason))
        if node.status is NodeStatus.RUNNING:
            self._emit(interrupt(node_id, node, reason))
        else:
            self._emit(e.NodeCanceled(node_id=node_id, reason=reason))
            self._abandon(node_id, node, reason)

    def _end_stopped(self) -> None:
        """What was told to stop is cancelled when its run has ended or never was, or when its time is up."""
        for node_id, node in self._nodes(NodeStatus.RUNNING):
            if node.stop_requested_at is not None:
                is_known, fact = self._fact(node_id, node)
                has_ended = is_known and (fact is None or fact.status.is_terminal)
                never_was = node.run_id in self._started
                if has_ended or never_was or self._is_due(node.stop_requested_at + self._grace_sec):
                    self._emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or NOT_NEEDED))

    def _update_gates(self, branches: Branches) -> None:
        for join_id, gate in branches.gates.items():
            known = self._state.nodes[join_id].gate
            has_news = gate.completed_branches or gate.failed_branches or gate.canceled_branches
            if known != gate and (known is not None or has_news):
                self._emit(
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

    def _make_ready(self, branches: Branches) -> None:
        for arrival in branches.arrivals:
            self._emit(e.NodeReady(node_id=arrival.node_id))
            if arrival.error is not None:
                self._fail_at_start(arrival.node_id, arrival.error)

    def _fail_at_start(self, node_id: str, error: e.Failure) -> None:
        """Trying again would not help: the graph or its input is wrong."""
        self._emit(e.NodeStarted(node_id=node_id, attempt=self._state.nodes[node_id].attempt + 1))
        self._fail_begun(node_id, error)

    def _fail_begun(self, node_id: str, error: e.Failure) -> None:
        spec = self._graph.nodes[node_id]
        self._emit(*fail(node_id, self._state.nodes[node_id], spec, error, self._now, is_final=True))

    def _carry_on(self, node_id: str, node: NodeState) -> None:
        """Begin what is ready; a control node that somebody else has begun is carried on all the same."""
        spec = self._graph.nodes[node_id]
        is_ready = node.status is NodeStatus.READY
        if spec.type is NodeType.TASK:
            if not is_ready:
                self._check_params(node_id, node, spec)
            elif not spec.external and (node.retry_at is None or self._is_due(node.retry_at)):
                self._begin_run(node_id, node, spec)
        elif node.stop_requested_at is None:
            if is_ready:
                self._emit(e.NodeStarted(node_id=node_id, attempt=node.attempt + 1))
            self._pass_control(node_id, spec)

    def _pass_control(self, node_id: str, spec: GraphNode) -> None:
        match spec.type:
            case NodeType.FORK:
                branch_ids = self._branches().taken_targets(node_id)
                self._emit(
                    e.ForkOpened(node_id=node_id, branch_ids=branch_ids), e.NodeSucceeded(node_id=node_id)
                )
            case NodeType.JOIN:
                self._emit(e.JoinPassed(node_id=node_id), e.NodeSucceeded(node_id=node_id))
            case NodeType.WAIT:
                self._begin_wait(node_id, spec)

    def _begin_wait(self, node_id: str, spec: GraphNode) -> None:
        try:
            key, prompt = self._render([spec.wait_key, spec.prompt])
        except templates.TemplateFailed as error:
            self._fail_begun(node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
            return
        if key is not None and not 1 <= len(str(key)) <= MAX_KEY:
            problem = f"wait_key has {len(str(key)):,} characters; 1 to {MAX_KEY} are allowed"
            self._fail_begun(node_id, e.Failure(problem, "TEMPLATE_FAILED"))
            return
        self._emit(
            e.NodeWaiting(
                node_id=node_id,
                wait_key=None if key is None else str(key),
                prompt=None if prompt is None else e.shortened(str(prompt), MAX_PROMPT),
                deadline=_plus(self._now, spec.timeout_sec),
            )
        )

    def _begin_run(self, node_id: str, node: NodeState, spec: GraphNode) -> None:
        attempt = node.attempt + 1
        try:
            self._render(spec.params)
        except templates.TemplateFailed as error:
            self._fail_at_start(node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
            return
        run_id = run_id_of(self._state.execution_id, node_id, attempt)
        self._started.add(run_id)
        self._emit(e.NodeStarted(node_id=node_id, attempt=attempt, run_id=run_id))

    def _check_params(self, node_id: str, node: NodeState, spec: GraphNode) -> None:
        """Of a run that is still to be dispatched: what its params read of others may be gone by now."""
        is_known, fact = self._fact(node_id, node)
        if not is_known or fact is not None or node.stop_requested_at is not None:
            return
        try:
            self._render(spec.params)
        except templates.TemplateFailed as error:
            self._fail_begun(node_id, e.Failure(str(error), "TEMPLATE_FAILED"))

    def _render(self, value: Any) -> Any:
        return templates.render(value, input=self._state.input, nodes=KnownNodes(self._state))

    def _fail_if_lost(self, branches: Branches) -> bool:
        lost = [
            (node_id, node)
            for node_id, node in self._nodes(NodeStatus.FAILED)
            if not branches.is_handled(node_id) and not branches.is_saved(node_id)
        ]
        if not lost:
            return False
        node_id, node = min(lost, key=lambda found: found[1].ended_at or 0.0)
        error = node.error or e.Failure("the node failed")
        self._emit(e.ExecutionFailRequested(failed_node_id=node_id, error=error))
        for live, _ in self._nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
            self._stop(live, SIBLING_FAILED)
        return True

    def _complete_if_over(self) -> None:
        if any(node.status.is_live for node in self._state.nodes.values()):
            return
        if self._branches().arrivals:
            return
        results = {
            node_id: node.output
            for node_id, node in self._nodes(NodeStatus.SUCCEEDED)
            if not self._graph.outgoing[node_id]
        }
        self._emit(e.ExecutionCompleted(result=results))

    # While it ends otherwise

    def _finish_failing(self) -> None:
        for node_id, _ in self._nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
            self._stop(node_id, SIBLING_FAILED)
        self._end_stopped()
        if not any(node.status.is_live for node in self._state.nodes.values()):
            state = self._state
            assert state.failed_node_id is not None and state.error is not None  # noqa: S101, PT018
            self._emit(e.ExecutionFailed(failed_node_id=state.failed_node_id, error=state.error))

    def _finish_cancel(self) -> None:
        reason = self._state.cancel_reason
        of_nodes = e.shortened(reason or CANCELED, e.MAX_REASON)
        for node_id, node in self._nodes(NodeStatus.IDLE, NodeStatus.READY, NodeStatus.WAITING):
            self._emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or of_nodes))
        for node_id, node in self._nodes(NodeStatus.RUNNING):
            if node.stop_requested_at is None:
                self._emit(interrupt(node_id, node, of_nodes))
        self._end_stopped()
        if not self._nodes(NodeStatus.RUNNING):
            self._emit(e.ExecutionCanceled(reason=reason))

    # In the world

    def _dispatches(self) -> list[DispatchRun]:
        """Runs of nodes that have begun and do not exist yet."""
        found = []
        for node_id, node in self._nodes(NodeStatus.RUNNING):
            if node.stop_requested_at is not None or not self._is_run(node_id, node):
                continue
            is_known, fact = self._fact(node_id, node)
            if node.run_id in self._started or (is_known and fact is None):
                found.append(self._dispatch(node_id, node))
        return found

    def _dispatch(self, node_id: str, node: NodeState) -> DispatchRun:
        spec = self._graph.nodes[node_id]
        assert node.run_id is not None and spec.flow is not None  # noqa: S101, PT018
        return DispatchRun(
            run_id=node.run_id,
            node_id=node_id,
            flow=spec.flow,
            tag=spec.tag,
            params=self._render(spec.params),
        )

    def _cancels(self) -> list[CancelRun]:
        """Runs that nobody waits for any more: their node is to stop, has ended, or is in another attempt."""
        reasons = dict(self._abandoned)
        needed = set()
        for node_id, node in self._nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
            if node.run_id is not None and self._is_run(node_id, node):
                if node.stop_requested_at is None and not self._state.is_terminal:
                    needed.add(node.run_id)
                else:
                    reasons[node.run_id] = node.stop_reason or CANCELED
        for run_id in self._runs:
            if run_id not in needed:
                reasons.setdefault(run_id, "nothing waits for it any more")
        return [
            CancelRun(run_id=run_id, reason=reason)
            for run_id, reason in reasons.items()
            if self._may_go_on(run_id)
        ]

    def _may_go_on(self, run_id: str) -> bool:
        """Whether a run is worth a cancel: one of which nothing is known is.

        So is one that is CANCELLING: who asked for it may have died before it ended a run without a worker.
        """
        if run_id not in self._runs:
            return True
        fact = self._runs[run_id]
        return fact is not None and not fact.status.is_terminal


def _plus(at: float | None, seconds: float | None) -> float | None:
    return None if at is None or seconds is None else at + seconds


def _failure(fact: RunFact) -> e.Failure:
    if fact.status is RunStatus.CANCELLED:
        return e.Failure("its run was cancelled", "RUN_CANCELLED")
    return e.Failure(e.shortened(fact.error or "its run failed", e.MAX_ERROR), fact.code)
