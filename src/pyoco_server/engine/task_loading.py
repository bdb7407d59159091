"""The tasks of a flow.yaml on a worker: its own callables, plug-ins, and PYOCO_DISCOVERY_MODULES."""

import importlib
from copy import copy
from typing import Any

from pyoco.core.models import Task
from pyoco.discovery.loader import TaskLoader
from pyoco.dsl.syntax import TaskWrapper
from pyoco.schemas.config import PyocoConfig

from pyoco_server.errors import ExecutionFailed


def load_tasks(config: PyocoConfig, allowed_modules: tuple[str, ...]) -> dict[str, Task]:
    """Raises ExecutionFailed with the name of the task that is not allowed or cannot be loaded."""
    for name, task in config.tasks.items():
        if task.callable is not None:
            _check_callable(name, task.callable, allowed_modules)
    loader = _FreshTasks(config)
    try:
        loader.load()
    except Exception as error:
        raise ExecutionFailed(f"the tasks could not be loaded: {type(error).__name__}: {error}") from error
    found: dict[str, Task] = loader.tasks
    return found


def is_allowed(module: str, allowed_modules: tuple[str, ...]) -> bool:
    """Whether a file may name this module: all, when nothing is listed; a package stands for all in it."""
    return not allowed_modules or any(f"{module}.".startswith(f"{allowed}.") for allowed in allowed_modules)


def _check_callable(name: str, target: str, allowed_modules: tuple[str, ...]) -> None:
    """Import it first: pyoco only prints when that fails, and goes on without the task."""
    module, _, attribute = target.partition(":")
    if not is_allowed(module, allowed_modules):
        raise ExecutionFailed(
            f"tasks.{name}.callable: this worker may not run {target!r}; "
            f"PYOCO_WORKER_ALLOWED_MODULES allows {', '.join(allowed_modules)}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the module's own code
        raise ExecutionFailed(
            f"tasks.{name}.callable: {target!r} could not be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(found) and not isinstance(found, (Task, TaskWrapper)):
        raise ExecutionFailed(f"tasks.{name}.callable: {target!r} is not a function")


class _FreshTasks(TaskLoader):  # type: ignore[misc]  # pyoco ships no types
    """Copies the tasks it finds in modules and plug-ins.

    pyoco writes a file's inputs and a graph's dependencies into the task objects. Those of a module live as
    long as the worker, so that the next run would inherit them.
    """

    def _register_task(self, name: str, task: Any) -> None:
        super()._register_task(name, _fresh(task))


def _fresh(task: Task) -> Task:
    fresh = copy(task)
    fresh.dependencies, fresh.dependents = set(), set()
    fresh.inputs, fresh.outputs = dict(task.inputs), list(task.outputs)
    return fresh
