"""Nodes that begin: tasks get a run, waits wait, forks and joins pass on."""

from typing import Final

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution import templates
from pyoco_server.domain.execution.branches import Branches
from pyoco_server.domain.execution.decide import fail
from pyoco_server.domain.execution.graphs import GraphNode, NodeType
from pyoco_server.domain.execution.node_runs import run_id_of
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.state import NodeState, NodeStatus

MAX_PROMPT: Final = 4_000
MAX_KEY: Final = 256
"""Of a wait: with a longer key, or an empty one, no command could resume it."""


def make_ready(draft: Draft, branches: Branches) -> None:
    for arrival in branches.arrivals:
        draft.emit(e.NodeReady(node_id=arrival.node_id))
        if arrival.error is not None:
            _fail_at_start(draft, arrival.node_id, arrival.error)


def carry_on(draft: Draft) -> None:
    """Begin what is ready; a control node that somebody else has begun is carried on all the same."""
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
    """Of a run that is still to be dispatched: what its params read of others may be gone by now."""
    is_known, fact = draft.fact(node_id, node)
    if not is_known or fact is not None or node.stop_requested_at is not None:
        return
    assert node.run_id is not None  # noqa: S101 - something is known of it
    if node.run_id in draft.rendered or draft.is_full:
        return
    try:
        draft.render(spec.params)
    except templates.TemplateFailed as error:
        _fail_begun(draft, node_id, e.Failure(str(error), "TEMPLATE_FAILED"))
        return
    draft.rendered.add(node.run_id)


def _begin_run(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if draft.is_full:
        return
    attempt = node.attempt + 1
    try:
        draft.render(spec.params)
    except templates.TemplateFailed as error:
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
    except templates.TemplateFailed as error:
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
    """Trying again would not help: the graph or its input is wrong."""
    draft.emit(e.NodeStarted(node_id=node_id, attempt=draft.state.nodes[node_id].attempt + 1))
    _fail_begun(draft, node_id, error)


def _fail_begun(draft: Draft, node_id: str, error: e.Failure) -> None:
    node, spec = draft.state.nodes[node_id], draft.graph.nodes[node_id]
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=True))
