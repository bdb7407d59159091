"""Flows that are a chain, run without the engine's thread pool.

pyoco starts a pool of eight threads for every run of a flow without control flow, which costs more than
everything else about a small run. A flow *with* control flow it runs in the calling thread, task by task,
with the same code per task. A chain is the same either way: so a chain is handed over as a program of its
tasks in order. Where the two ways would differ (timeouts, isolated failures, any-of joins), the pool stays.
"""

from typing import Any

from pyoco.core.models import Flow, Task
from pyoco.dsl.nodes import SubFlowNode, TaskNode


def without_thread_pool(flow: Flow) -> Any:
    """A view of `flow` that the engine runs inline, or `flow` itself if only the pool does it right."""
    if flow.has_control_flow():
        return flow
    order = _chain(flow)
    return flow if order is None else _InlineFlow(flow, order)


class _InlineFlow:
    """What the engine asks of a flow, answered for a chain."""

    def __init__(self, flow: Flow, order: list[Task]) -> None:
        self.name = flow.name
        self.tasks = flow.tasks
        self._order = order

    def has_control_flow(self) -> bool:
        return True

    def build_program(self) -> SubFlowNode:
        return SubFlowNode([TaskNode(task) for task in self._order])


def _chain(flow: Flow) -> list[Task] | None:
    """The tasks in their only possible order; None if the flow is not a plain chain."""
    if not flow.tasks or not all(_is_plain(task) for task in flow.tasks):
        return None
    inside = {task: task.dependencies & flow.tasks for task in flow.tasks}
    if any(task.dependencies - flow.tasks for task in flow.tasks):
        return None  # waits for a task of another flow: the engine has its own way to fail there
    first = [task for task, before in inside.items() if not before]
    followers: dict[Task, Task] = {}
    for task, before in inside.items():
        if len(before) > 1 or before & followers.keys():
            return None
        followers.update(dict.fromkeys(before, task))
    if len(first) != 1:
        return None
    order = first
    while order[-1] in followers:
        order.append(followers[order[-1]])
    return order if len(order) == len(flow.tasks) else None


def _is_plain(task: Task) -> bool:
    return task.fail_policy == "stop" and not task.timeout_sec and task.trigger_policy == "ALL"
