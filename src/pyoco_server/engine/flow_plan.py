"""How a flow is run: which tasks in which order, what they wait for, and which give the result.

A plan is made once for a flow and used by all of its runs, as long as the flow does not change.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from pyoco.core.models import Flow, Task
from pyoco.dsl.nodes import SubFlowNode, SwitchNode, TaskNode

from pyoco_server.engine.tasks import end_forks_with_their_task, prepare_tasks

Dependencies = dict[str, tuple[str, ...]]


class Plan(Struct, frozen=True, gc=False):
    program: Any
    """What the engine runs: the flow, or a view of it."""
    dependencies: Dependencies
    last: frozenset[str] | None
    """The tasks whose outputs are the result; None: it depends on the run."""


class _Planned(Struct, frozen=True):
    shape: list[tuple[Any, ...]]
    plan: Plan
    functions: list[Any]
    """Kept, so that no other function gets the id of one of these."""


_PLANNED = "_pyoco_server_plan"


def plan_of(flow: Flow) -> Plan:
    """Prepares the tasks, too. Raises ExecutionFailed for a flow that cannot be run."""
    planned: _Planned | None = vars(flow).get(_PLANNED)
    if planned is not None and planned.shape == _shape(flow):
        return planned.plan
    prepare_tasks(flow)
    end_forks_with_their_task(flow)
    if flow.has_control_flow():  # it has no cheap shape
        return Plan(flow, task_graph_of(flow), None)
    plan = Plan(without_thread_pool(flow), task_graph_of(flow), frozenset(_last_tasks(flow)))
    functions = [task.func for task in flow.tasks]
    vars(flow)[_PLANNED] = _Planned(_shape(flow), plan, functions)
    return plan


def _shape(flow: Flow) -> list[tuple[Any, ...]]:
    """Everything a plan is made from. Cheap: it is read for every run."""
    return [
        (
            flow.has_control_flow(),
            id(task),
            id(task.func),
            task.name,
            task.fail_policy,
            task.timeout_sec,
            task.trigger_policy,
            frozenset(task.dependencies),
            frozenset(task.dependents),
        )
        for task in flow.tasks
    ]


def _last_tasks(flow: Flow) -> set[str]:
    """A task object may be part of several flows: only dependents inside this one count."""
    return {task.name for task in flow.tasks if not task.dependents & flow.tasks}


def without_thread_pool(flow: Flow) -> Any:
    """A view of `flow` that the engine runs inline, or `flow` itself if it needs the thread pool.

    pyoco starts a pool of eight threads for every run of a flow without control flow, which costs more than
    the rest of a small run. A flow with control flow runs in the calling thread, with the same code per task.
    So a chain is presented as a program of its tasks in order. Where the two modes would differ (timeouts,
    isolated failures, any-of joins), the pool stays.
    """
    if flow.has_control_flow():
        return flow
    order = _chain(flow)
    return flow if order is None else _InlineFlow(flow, order)


class _InlineFlow:
    """A chain, with the part of the flow interface that the engine uses."""

    def __init__(self, flow: Flow, order: list[Task]) -> None:
        self.name = flow.name
        self.tasks = flow.tasks
        self._program = SubFlowNode([TaskNode(task) for task in order])

    def has_control_flow(self) -> bool:
        return True

    def build_program(self) -> SubFlowNode:
        return self._program


def _chain(flow: Flow) -> list[Task] | None:
    """The tasks in their only possible order; None if the flow is not a plain chain."""
    if not flow.tasks or not all(_is_plain(task) for task in flow.tasks):
        return None
    inside = {task: task.dependencies & flow.tasks for task in flow.tasks}
    if any(task.dependencies - flow.tasks for task in flow.tasks):
        return None  # depends on a task of another flow: the engine has its own error for that
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


def task_graph_of(flow: Flow) -> Dependencies:
    """The dependencies of each task, by name. With control flow: the order in which it is written."""
    if flow.has_control_flow():
        return _ProgramOrder().of(flow.build_program().steps)
    # A task object may be part of several flows: only dependencies inside this one count.
    return {
        task.name: tuple(sorted(before.name for before in task.dependencies & flow.tasks))
        for task in sorted(flow.tasks, key=lambda task: str(task.name))
    }


class _ProgramOrder:
    """Walks a program once, in order. Only the first occurrence of a task counts."""

    def __init__(self) -> None:
        self._found: Dependencies = {}

    def of(self, steps: Iterable[Any]) -> Dependencies:
        self._sequence(steps, ())
        return self._found

    def _sequence(self, steps: Iterable[Any], before: tuple[str, ...]) -> tuple[str, ...]:
        """The names that the next step depends on."""
        for step in steps:
            before = self._step(step, before)
        return before

    def _step(self, step: Any, before: tuple[str, ...]) -> tuple[str, ...]:
        if isinstance(step, TaskNode):
            self._found.setdefault(step.task.name, before)
            return (step.task.name,)
        if isinstance(step, SwitchNode):
            ends = [self._sequence(case.target.steps, before) for case in step.cases]
            # If no case applies, the next step follows what came before.
            return tuple(dict.fromkeys(name for end in [*ends, before] for name in end))
        inside = step.body.steps if hasattr(step, "body") else getattr(step, "steps", ())
        return self._sequence(inside, before)
