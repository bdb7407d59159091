"""How a flow is run: which tasks in which order, what they wait for, and which give the result.

A plan is made once for a flow and used by all of its runs, as long as the flow does not change.

A flow of which pyoco would leave out a part without an error has no plan: its run would be COMPLETED although
some tasks never ran. Part of that can be seen in the flow. The rest is lost while it is written (`flow >>
function`, two tasks of one name): `Flow` and the operators keep a note of it, once this module is imported.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from pyoco.core.models import Flow, Task
from pyoco.dsl.nodes import DEFAULT_CASE_VALUE, CaseNode, SubFlowNode, SwitchNode, TaskNode
from pyoco.dsl.syntax import Branch, FlowFragment, Parallel

from pyoco_server.engine.tasks import end_forks_with_their_task, prepare_tasks
from pyoco_server.errors import ExecutionFailed

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
    if problem := problem_with(flow):
        raise ExecutionFailed(f"flow {flow.name!r}: {problem}")
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


# What would be left out

OUTPUT_ROOTS = ("scratch", "results", "params")
"""Where pyoco keeps the `outputs` of a task; it ignores all others."""
MAX_NAMES = 5

_LEFT_OUT = "_pyoco_server_left_out"
_TWICE = "_pyoco_server_twice"
_BEHIND = "_pyoco_server_behind"
_IN_A_FLOW = "_pyoco_server_in_a_flow"


def problem_with(flow: Flow) -> str | None:
    """What would never run, and what to do; None: every task has its place."""
    return left_out_of(flow) or _stuck_in(flow)


def left_out_of(flow: Flow) -> str | None:
    """What would never run, and no error would report it."""
    return next(_left_out_of(flow), None)


def forget_notes(task: Task) -> None:
    """A copy of a task is not where the original was written."""
    vars(task).pop(_BEHIND, None)


def _left_out_of(flow: Flow) -> Iterator[str]:
    program = list(_steps_in(flow.build_program().steps))
    if left_out := vars(flow).get(_LEFT_OUT):
        yield f"{_listed(left_out)} would never run: only tasks and chains of tasks can follow `>>`"
    if twice := _names_used_twice(flow, program):
        yield f"two tasks have the name {_quoted(twice[:1])}, and one of them would never run: rename it"
    if not flow.tasks:
        yield "it has no tasks; add them with `flow >> task`"
    if flow.has_control_flow():
        yield from _problems_with_program(flow, program)
    if lost := _lost_before(flow):
        yield (
            f"{_tasks(lost)} would never run: `(a & b) >> c` inside of a chain keeps c alone; "
            "write `flow >> (a & b) >> c`"
        )
    yield from _problems_with_outputs(flow)


def _problems_with_program(flow: Flow, program: list[Any]) -> Iterator[str]:
    placed = {step.task.name for step in program if isinstance(step, TaskNode)}
    if missing := sorted(task.name for task in flow.tasks if task.name not in placed):
        yield (
            f"{_tasks(missing)} would never run: beside a switch or a loop, pyoco leaves out tasks in "
            "parallel (`a & b`, a list) and tasks added one by one; write them one after the other, or into "
            "a flow of their own"
        )
    for step in program:
        if isinstance(step, SwitchNode):
            yield from _problems_with_cases(step)


def _problems_with_cases(switch: SwitchNode) -> Iterator[str]:
    known: list[Any] = []
    for case in switch.cases:
        if isinstance(case.value, CaseNode):
            value, names = _spelled_out(case)
            text = f'"{value}" >> ({" >> ".join(names)})'
            yield f"{_tasks(names[:-1])} would never run: write a case of several tasks as `{text}`"
        elif case.value in known:
            value = "*" if case.value == DEFAULT_CASE_VALUE else case.value
            yield f"{_tasks(_names_in(case))} would never run: a switch has two cases {value!r}; keep one"
        known.append(case.value)


def _spelled_out(case: CaseNode) -> tuple[Any, list[str]]:
    """`"A" >> a >> b` makes a case of `a` the value of a case of `b`."""
    if not isinstance(case.value, CaseNode):
        return case.value, _names_in(case)
    value, names = _spelled_out(case.value)
    return value, [*names, *_names_in(case)]


def _names_in(case: CaseNode) -> list[str]:
    return [step.task.name for step in _steps_in(case.target.steps) if isinstance(step, TaskNode)]


def _problems_with_outputs(flow: Flow) -> Iterator[str]:
    for task in flow.tasks:
        for path in task.outputs:
            if problem := output_problem(path):
                yield f"task {task.name!r}: outputs: {problem}"


def output_problem(path: str) -> str | None:
    if path.partition(".")[0] in OUTPUT_ROOTS:
        return None
    return f"{path!r} would not be kept: it must begin with {', '.join(f'{root}.' for root in OUTPUT_ROOTS)}"


def _steps_in(steps: Iterable[Any]) -> Iterator[Any]:
    """All steps, at any depth."""
    for step in steps:
        yield step
        if isinstance(step, SwitchNode):
            for case in step.cases:
                yield from _steps_in(case.target.steps)
        else:
            yield from _steps_in(step.body.steps if hasattr(step, "body") else getattr(step, "steps", ()))


def _names_used_twice(flow: Flow, program: list[Any]) -> list[str]:
    """Tasks are compared by their names: pyoco drops the second."""
    by_name = {task.name: task for task in flow.tasks}
    used = [step.task for step in program if isinstance(step, TaskNode)]
    found = {task.name for task in used if by_name.setdefault(task.name, task) is not task}
    return sorted(found | vars(flow).get(_TWICE, set()))


def _never_ready(flow: Flow) -> set[Task]:
    """The tasks whose dependencies can never be met."""
    waiting, done = set(flow.tasks), set[Task]()
    while ready := {task for task in waiting if _is_ready(task, done)}:
        done |= ready
        waiting -= ready
    return waiting


def _is_ready(task: Task, done: set[Task]) -> bool:
    if not task.dependencies:
        return True
    return bool(task.dependencies & done if task.trigger_policy == "ANY" else task.dependencies <= done)


def _stuck_in(flow: Flow) -> str | None:
    """The engine reports it, too, but names no task."""
    stuck = set[Task]() if flow.has_control_flow() else _never_ready(flow)
    for task in sorted(stuck, key=_name):
        if outside := task.dependencies - flow.tasks:
            return (
                f"task {task.name!r} would never run: it depends on {_tasks(sorted(map(_name, outside)))}, "
                "which this flow does not have; add what it depends on, or use a copy of the task here"
            )
    names = sorted(map(_name, stuck))
    if not names:
        return None
    waits = "they wait for each other" if len(names) > 1 else "it waits for itself"
    return f"{_tasks(names)} would never run: {waits}; use a task once in a flow"


def _name(task: Task) -> str:
    return str(task.name)


def _lost_before(flow: Flow) -> list[str]:
    """Written in front of a task with `&` or `|`, but in no flow."""
    before = (one for task in flow.tasks for one in vars(task).get(_BEHIND, ()))
    return sorted({one.name for one in before if one not in flow.tasks and _IN_A_FLOW not in vars(one)})


def _tasks(names: list[str]) -> str:
    return f"{'task' if len(names) == 1 else 'tasks'} {_quoted(names)}"


def _quoted(names: Iterable[str]) -> str:
    return _listed([repr(name) for name in names])


def _listed(things: list[str]) -> str:
    more = f" and {len(things) - MAX_NAMES} more" if len(things) > MAX_NAMES else ""
    return ", ".join(things[:MAX_NAMES]) + more


# Notes

_append, _add_task = Flow.__rshift__, Flow.add_task


def _noted_append(flow: Flow, other: Any) -> Any:
    if left_out := list(_ignored_by_append(other)):
        vars(flow).setdefault(_LEFT_OUT, []).extend(left_out)
        vars(flow).pop(_PLANNED, None)
    return _append(flow, other)


def _ignored_by_append(other: Any) -> Iterator[str]:
    if isinstance(other, (list, tuple)):
        for item in other:
            if not _is_task(item):
                yield _what(item)
    elif not _is_task(other) and not hasattr(other, "to_subflow"):
        yield _what(other)


def _is_task(thing: Any) -> bool:
    return isinstance(thing, Task) or hasattr(thing, "task")


def _what(thing: Any) -> str:
    if isinstance(thing, FlowFragment):
        return f"{_tasks([task.name for task in thing.task_nodes()])} (a chain inside of a list)"
    if isinstance(thing, (list, tuple)):
        return (
            f"a list inside of a list: {_quoted(str(getattr(_task_of(one), 'name', one)) for one in thing)}"
        )
    if isinstance(thing, Flow):
        return f"the flow {thing.name!r}"
    if callable(thing):
        return f"the function {getattr(thing, '__name__', '?')!r} (without @task)"
    return f"a value of type {type(thing).__name__}"


def _task_of(thing: Any) -> Any:
    return getattr(thing, "task", thing)


def _noted_add_task(flow: Flow, task: Task) -> None:
    vars(task)[_IN_A_FLOW] = True
    if task in flow.tasks and not any(known is task for known in flow.tasks):
        vars(flow).setdefault(_TWICE, set()).add(task.name)
    _add_task(flow, task)


def _noting(join: Any) -> Any:
    """`(a & b) >> c` returns c alone."""

    def noted(sources: list[Any], other: Any) -> Any:
        before = [_task_of(source) for source in sources if _is_task(source)]
        for task in _first_tasks(other):
            vars(task).setdefault(_BEHIND, []).extend(before)
        return join(sources, other)

    return noted


def _first_tasks(other: Any) -> list[Task]:
    if isinstance(other, FlowFragment):
        return [*other.task_nodes()[:1]]
    return [_task_of(item) for item in other if _is_task(item)] if isinstance(other, (list, tuple)) else []


Flow.__rshift__, Flow.add_task = _noted_append, _noted_add_task
for _join in (Parallel, Branch):
    _join.__rshift__ = _noting(_join.__rshift__)
