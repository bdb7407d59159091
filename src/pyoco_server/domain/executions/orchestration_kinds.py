"""What each kind of node does: `carry_on` while it is READY or RUNNING, `end` while it is RUNNING or WAITING.

Both are called in every reaction and add what is missing, so that they may be repeated at any time.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.cel.values import ConditionFailed
from pyoco_server.domain.executions import events as e, interpolation
from pyoco_server.domain.executions.conditions import OutputValues
from pyoco_server.domain.executions.decide import fail, resume
from pyoco_server.domain.executions.graph_parts import seconds_of_sleep, time_of_sleep
from pyoco_server.domain.executions.graphs import GraphNode, NodeType, OnTimeout
from pyoco_server.domain.executions.model import NodeState, NodeStatus
from pyoco_server.domain.executions.orchestration_draft import (
    Draft,
    fail_at_start,
    fail_begun,
    failure_of,
    succeed,
    succeed_by,
)
from pyoco_server.domain.executions.orchestration_map import carry_on_map, end_map
from pyoco_server.domain.executions.records import RunFact, work_of
from pyoco_server.domain.executions.stored import Stored
from pyoco_server.domain.large_values import moved
from pyoco_server.domain.runs.model import RunStatus

Step = Callable[[Draft, str, NodeState, GraphNode], None]


class Kind(Struct, frozen=True):
    carry_on: Step
    end: Step


# Tasks and executions: one run or child execution per attempt.


def _carry_on_task(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.status is not NodeStatus.READY:
        _check_params(draft, node_id, node)
    elif not spec.external and (node.retry_at is None or draft.is_due(node.retry_at)):
        _begin_run(draft, node_id, node)


def _check_params(draft: Draft, node_id: str, node: NodeState) -> None:
    """Verify the params of work that is not dispatched yet; values it reads may have changed."""
    is_known, fact = draft.fact(node_id, node)
    if not is_known or fact is not None or node.stop_requested_at is not None:
        return
    assert node.work_id is not None  # noqa: S101 - something is known of it
    if node.work_id in draft.rendered or draft.is_full:
        return
    try:
        draft.render_work(node_id)
    except interpolation.TemplateFailed as error:
        fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    draft.rendered.add(node.work_id)


def _begin_run(draft: Draft, node_id: str, node: NodeState) -> None:
    if draft.is_full:
        return
    attempt = node.attempt + 1
    try:
        draft.render_work(node_id)
    except interpolation.TemplateFailed as error:
        fail_at_start(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    iteration = draft.iteration(node_id)
    work = work_of(draft.state.execution_id, draft.graph.nodes[node_id], attempt, iteration)
    assert work is not None  # noqa: S101 - it is not external
    draft.started.add(work.id)
    draft.rendered.add(work.id)
    draft.emit(
        e.NodeStarted(
            node_id=node_id,
            attempt=attempt,
            run_id=None if work.is_execution else work.id,
            child_execution_id=work.id if work.is_execution else None,
            iteration=iteration,
        )
    )


def _end_task(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    _, fact = draft.fact(node_id, node)
    if fact is not None and _tells_the_end(fact, node):
        _end_by_run(draft, node_id, node, spec, fact)
    elif draft.is_due(_time_limit(node, spec)):
        _time_out(draft, node_id, node, spec)
    else:
        _end_wait(draft, node_id, node, spec)


def _tells_the_end(fact: RunFact, node: NodeState) -> bool:
    """A waiting node does not end with its run; it has to be resumed first."""
    is_held_back = node.status is NodeStatus.WAITING and fact.status is RunStatus.COMPLETED
    return fact.status.is_terminal and not is_held_back


def _end_by_run(draft: Draft, node_id: str, node: NodeState, spec: GraphNode, fact: RunFact) -> None:
    if fact.status is not RunStatus.COMPLETED:
        draft.emit(*fail(node_id, node, spec, failure_of(fact), draft.now))
    else:
        succeed_by(draft, node_id, node, spec, fact)


def _time_limit(node: NodeState, spec: GraphNode) -> float | None:
    if node.started_at is None or spec.work.timeout_sec is None:
        return None
    return node.started_at + spec.work.timeout_sec


def _time_out(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    error = e.Failure(f"timed out after {spec.work.timeout_sec:g} s", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now))
    draft.abandon(node_id, node, error.message)


def _end_wait(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    """A task may wait, too, if somebody asked for it."""
    if node.status is not NodeStatus.WAITING or not draft.is_due(node.deadline):
        return
    if spec.type is NodeType.WAIT and spec.on_timeout is OnTimeout.SUCCEED:
        draft.emit(*resume(node_id, spec, None))
        return
    error = e.Failure("nobody resumed it before its deadline", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=spec.type is NodeType.WAIT))
    draft.abandon(node_id, node, error.message)


# Repeat: a task, again and again. In a pause it is WAITING with `wake_at`, then READY for the next iteration.


def _end_repeat(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.status is NodeStatus.WAITING and node.wake_at is not None:
        if draft.is_due(node.wake_at):
            draft.emit(e.NodeReady(node_id=node_id, iteration=(node.iteration or 1) + 1))
        return
    _, fact = draft.fact(node_id, node)
    if fact is None or node.status is not NodeStatus.RUNNING or fact.status is not RunStatus.COMPLETED:
        _end_task(draft, node_id, node, spec)
        return
    _end_iteration(draft, node_id, spec, fact)


def _end_iteration(draft: Draft, node_id: str, spec: GraphNode, fact: RunFact) -> None:
    iteration = draft.iteration(node_id)
    try:
        is_over = is_last_run(draft, spec, fact)
    except (ConditionFailed, ConditionError) as error:
        fail_begun(draft, node_id, e.Failure(f"until: {error}", "CONDITION_FAILED"))
        return
    if is_over:
        succeed_by(draft, node_id, draft.state.nodes[node_id], spec, fact)
    elif iteration == spec.max:
        problem = f"until does not hold after {iteration} iterations"
        fail_begun(draft, node_id, e.Failure(problem, "REPEAT_LIMIT"))
    else:
        wake_at = draft.now + spec.every_sec
        draft.emit(e.NodeWaiting(node_id=node_id, wake_at=wake_at, iteration=iteration))


def is_last_run(draft: Draft, spec: GraphNode, fact: RunFact) -> bool:
    """Whether the node ends with this completed run. Raises ConditionFailed, ConditionError, TooHeavy."""
    if spec.type is not NodeType.REPEAT:
        return True
    stored = Stored(None, draft.opened, {"output": moved(fact.values, "output")})
    return OutputValues(fact.result, draft.allowance, stored).holds(str(spec.until))


# Nodes without a run.


def _control(begin: Step) -> Step:
    """Started here; one that another party started is continued."""

    def carry_on(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
        if node.stop_requested_at is not None:
            return
        if node.status is NodeStatus.READY:
            draft.emit(e.NodeStarted(node_id=node_id, attempt=node.attempt + 1))
        begin(draft, node_id, node, spec)

    return carry_on


def _open_fork(draft: Draft, node_id: str, _: NodeState, __: GraphNode) -> None:
    branch_ids = draft.branches().taken_targets(node_id)
    draft.emit(e.ForkOpened(node_id=node_id, branch_ids=branch_ids), e.NodeSucceeded(node_id=node_id))


def _pass_join(draft: Draft, node_id: str, _: NodeState, __: GraphNode) -> None:
    draft.emit(e.JoinPassed(node_id=node_id), e.NodeSucceeded(node_id=node_id))


MAX_PROMPT: Final = 4_000
MAX_KEY: Final = 256
"""Limit of a wait_key; no command could resume a node with a longer or empty one."""


def _begin_wait(draft: Draft, node_id: str, _: NodeState, spec: GraphNode) -> None:
    try:
        key, prompt = draft.render([spec.wait_key, spec.prompt])
    except interpolation.TemplateFailed as error:
        fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    if key is not None and not 1 <= len(str(key)) <= MAX_KEY:
        problem = f"wait_key has {len(str(key)):,} characters; 1 to {MAX_KEY} are allowed"
        fail_begun(draft, node_id, e.Failure(problem, "TEMPLATE_FAILED"))
        return
    draft.emit(
        e.NodeWaiting(
            node_id=node_id,
            wait_key=None if key is None else str(key),
            prompt=None if prompt is None else e.shortened(str(prompt), MAX_PROMPT),
            message=spec.message,
            deadline=None if spec.timeout_sec is None else draft.now + spec.timeout_sec,
        )
    )


def _end_message(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    """A wait for a message takes the oldest one that is for it; one that came in time beats the deadline."""
    found = next((one for one in draft.state.messages if node_id in one.node_ids), None)
    if node.status is not NodeStatus.WAITING or found is None:
        _end_wait(draft, node_id, node, spec)
        return
    draft.emit(e.NodeResumed(node_id=node_id, data=found.data, message_sequence=found.sequence))
    succeed(draft, node_id, draft.state.nodes[node_id], spec, found.data)


# Sleep.


def _begin_sleep(draft: Draft, node_id: str, _: NodeState, spec: GraphNode) -> None:
    try:
        wake_at = _wake_time(draft, node_id, spec)
    except (interpolation.TemplateFailed, ValueError) as error:
        fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    draft.emit(e.NodeWaiting(node_id=node_id, wake_at=wake_at))


def _wake_time(draft: Draft, node_id: str, spec: GraphNode) -> float:
    """Raises TemplateFailed or ValueError."""
    key = "for_sec" if spec.until is None else "until"
    value = draft.render(getattr(spec, key))
    try:
        if key == "until":
            return time_of_sleep(value)
        return (draft.state.nodes[node_id].started_at or draft.now) + seconds_of_sleep(value)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error


def _end_sleep(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.status is NodeStatus.WAITING and draft.is_due(node.wake_at):
        draft.emit(*resume(node_id, spec, None))
    else:
        _end_wait(draft, node_id, node, spec)


KINDS: Final[dict[NodeType, Kind]] = {
    NodeType.TASK: Kind(_carry_on_task, _end_task),
    NodeType.WAIT: Kind(_control(_begin_wait), _end_message),
    NodeType.EXECUTION: Kind(_carry_on_task, _end_task),
    NodeType.MAP: Kind(carry_on_map, end_map),
    NodeType.REPEAT: Kind(_carry_on_task, _end_repeat),
    NodeType.SLEEP: Kind(_control(_begin_sleep), _end_sleep),
    NodeType.FORK: Kind(_control(_open_fork), _end_wait),
    NodeType.JOIN: Kind(_control(_pass_join), _end_wait),
}
