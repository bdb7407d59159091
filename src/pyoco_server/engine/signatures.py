"""What pyoco asks of every task on every run, answered once: which parameters its function has."""

import inspect
from types import FunctionType

from pyoco.core.models import Flow, Task

from pyoco_server.engine.awaiting import awaited, is_async
from pyoco_server.errors import ExecutionFailed


def prepare_tasks(flow: Flow) -> None:
    """Before a flow runs. Raises ExecutionFailed for a task whose function cannot be one."""
    for task in flow.tasks:
        function = task.func
        if type(function) is not FunctionType or "__signature__" not in function.__dict__:
            _prepare(task)


def check_tasks(flow: Flow) -> None:
    """When a flow is loaded. Raises ExecutionFailed."""
    for task in flow.tasks:
        if problem := _problem_with(task):
            raise ExecutionFailed(problem)


def _prepare(task: Task) -> None:
    """`inspect.signature` takes longer than a tiny task; of a function that carries one it answers that."""
    if problem := _problem_with(task):
        raise ExecutionFailed(problem)
    if is_async(task.func):
        task.func = awaited(task.func)
    elif type(task.func) is FunctionType:
        task.func.__signature__ = inspect.signature(task.func)  # type: ignore[attr-defined]


def _problem_with(task: Task) -> str | None:
    """A function that yields does nothing when it is called."""
    for function in (task.func, getattr(task.func, "__call__", None)):  # noqa: B004 - of a callable object
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            kind = "an async generator" if inspect.isasyncgenfunction(function) else "a generator"
            return f"task {task.name!r} is {kind} function (it has a yield): return a list instead"
    return None
