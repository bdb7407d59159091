"""flow.yaml: checked by the gateway; checked again and turned into a flow by the worker.

The allowed keys come from pyoco's own dataclasses, so keys of newer versions (`pipes`, `tasks.*.use`) are
allowed from that version on. The graph has the grammar of the installed pyoco. Tasks are callables named in
the file, plug-ins, and those of PYOCO_DISCOVERY_MODULES.
"""

import hashlib
import importlib
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.util import find_spec
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from pyoco.core.models import Flow, Task
from pyoco.discovery.loader import TaskLoader
from pyoco.dsl.syntax import TaskWrapper, switch
from pyoco.schemas.config import PyocoConfig

from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.strict_yaml import Path, YamlDocument, decode, read_yaml, shown
from pyoco_server.engine import flow_graph_06, flow_graph_07
from pyoco_server.engine.flow_expressions import check_references
from pyoco_server.engine.flow_plan import forget_notes, output_problem, problem_with
from pyoco_server.errors import ExecutionFailed, InvalidRequest, WorkflowTooLarge

FORBIDDEN = {
    "flows": "is not allowed: a file holds one flow; write `flow:` with `graph` and `defaults`, "
    "and give the name as flow_name",
    "discovery": "is not allowed: a file does not choose what a worker imports; name tasks under `tasks:`, "
    "or set PYOCO_DISCOVERY_MODULES on the worker",
}

_FILLED_IN = {"version": 1, "tasks": {}}
"""Defaults, as in pyoco's own reader."""

_CALLABLE = re.compile(r"(?!.*__)[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_policy(document: YamlDocument) -> PyocoConfig:
    """The file as pyoco's configuration. Raises InvalidRequest with the place of the problem."""
    if not isinstance(document.value, dict):
        document.refuse((), "must be an object with the key `flow`")
    for key, instead in FORBIDDEN.items():
        if key in document.value:
            document.refuse((key,), instead)
    config = _record(document, (), _FILLED_IN | document.value, PyocoConfig)
    if not config.flow.graph.strip():
        document.refuse(("flow", "graph"), "is empty")
    for name, task in config.tasks.items():
        _check_task(document, ("tasks", name), task)
    return config


def _check_task(document: YamlDocument, path: Path, task: Any) -> None:
    if not path[-1]:
        document.refuse(path, "has an empty name")
    use = getattr(task, "use", None)
    if task.callable is not None and use is not None:
        document.refuse(path, "has both `callable` and `use`; keep one")
    if task.callable is not None and not _CALLABLE.fullmatch(task.callable):
        document.refuse((*path, "callable"), f"must be module:function, got {shown(task.callable)}")
    if use is not None and not use.strip():
        document.refuse((*path, "use"), "is empty")
    for output in task.outputs:
        if problem := output_problem(output):
            document.refuse((*path, "outputs"), problem)


def _record(document: YamlDocument, path: Path, value: Any, record: type) -> Any:
    """An object with the fields of one of pyoco's dataclasses."""
    if not isinstance(value, dict):
        document.refuse(path, f"must be an object, got {_kind(value)}")
    known = {field.name: field for field in fields(record)}
    for key in value:
        if key not in known:
            document.refuse((*path, key), f"is not a key of flow.yaml{nearest(key, known)}; {_listed(known)}")
    for name, field in known.items():
        if name not in value and _is_required(field):
            document.refuse((*path, name), "is missing")
    hints = get_type_hints(record)
    return record(**{key: _typed(document, (*path, key), item, hints[key]) for key, item in value.items()})


def _typed(document: YamlDocument, path: Path, value: Any, hint: Any) -> Any:
    hint = _without_none(hint)
    if is_dataclass(hint):
        return _record(document, path, value, hint)  # type: ignore[arg-type]  # is_dataclass is also true of instances
    if get_origin(hint) is dict and isinstance(value, dict):
        of_items = get_args(hint)[1]
        return {key: _typed(document, (*path, key), item, of_items) for key, item in value.items()}
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        document.refuse(path, f"has a wrong type: {error}")


def _without_none(hint: Any) -> Any:
    """`Optional[X]` as `X`: null is not allowed, a key can be left out."""
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _listed(known: Iterable[str]) -> str:
    return "known here: " + ", ".join(known)


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list"}
    return names.get(type(value), "a number")


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
    """Whether a file may name this module. An empty list allows all; a package includes its modules."""
    return not allowed_modules or any(f"{module}.".startswith(f"{allowed}.") for allowed in allowed_modules)


def _check_callable(name: str, target: str, allowed_modules: tuple[str, ...]) -> None:
    """Import it first: if that fails, pyoco only prints a message and continues without the task."""
    module, _, attribute = target.partition(":")
    if not is_allowed(module, allowed_modules):
        raise ExecutionFailed(
            f"tasks.{name}.callable: this worker may not run {target!r}; "
            f"PYOCO_WORKER_ALLOWED_MODULES allows {', '.join(allowed_modules)}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs code of the module
        raise ExecutionFailed(
            f"tasks.{name}.callable: {target!r} could not be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(found) and not isinstance(found, (Task, TaskWrapper)):
        raise ExecutionFailed(f"tasks.{name}.callable: {target!r} is not a function")


class _FreshTasks(TaskLoader):  # type: ignore[misc]  # pyoco ships no types
    """Copies the tasks of modules and plug-ins.

    pyoco writes a file's inputs and a graph's dependencies into the task objects. Those of a module live as
    long as the worker, so the next run would inherit them.
    """

    def _register_task(self, name: str, task: Any) -> None:
        super()._register_task(name, _fresh(task))


def _fresh(task: Task) -> Task:
    fresh = copy(task)
    fresh.dependencies, fresh.dependents = set(), set()
    fresh.inputs, fresh.outputs = dict(task.inputs), list(task.outputs)
    forget_notes(fresh)
    return fresh


_pyoco_graph: Any = importlib.import_module("pyoco.dsl.graph") if find_spec("pyoco.dsl.graph") else None
HAS_BLOCKS = _pyoco_graph is not None
HAS_NAMED_NODES = HAS_BLOCKS and "node_name" in {field.name for field in fields(_pyoco_graph.TaskTerm)}


def check_graph(config: PyocoConfig, allowed_env: tuple[str, ...] = ()) -> set[str]:
    """The names of the tasks in the graph. Raises InvalidRequest for an invalid graph.

    Only the worker knows the tasks: here each name is a task that does nothing.
    """
    names = _tasks_in(config, allowed_env)
    build_flow(config, {name: Task(func=_nothing, name=name) for name in names}, "check")
    return names


def build_flow(config: PyocoConfig, tasks: Mapping[str, Task], flow_name: str) -> Flow:
    """The flow of a graph whose names are all in `tasks`. The grammar is checked before pyoco reads it."""
    try:
        flow = _built(config, tasks, flow_name)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InvalidRequest(f"flow.graph: {error}") from error
    if problem := problem_with(flow):
        raise InvalidRequest(f"flow.graph: {problem}")
    return flow


def _built(config: PyocoConfig, tasks: Mapping[str, Task], flow_name: str) -> Flow:
    names = _tasks_in(config)
    if HAS_BLOCKS:
        return _pyoco_graph.build_flow_from_graph(
            graph=config.flow.graph, tasks=dict(tasks), pipes=config.pipes, flow_name=flow_name
        )
    return _built_with_operators(config.flow.graph, {name: tasks[name] for name in names}, flow_name)


def _tasks_in(config: PyocoConfig, allowed_env: tuple[str, ...] | None = None) -> set[str]:
    if HAS_BLOCKS:
        return flow_graph_07.tasks_in(
            config.flow.graph, config.pipes, named_nodes=HAS_NAMED_NODES, allowed_env=allowed_env
        )
    return flow_graph_06.tasks_in(config.flow.graph, allowed_env)


def _built_with_operators(graph: str, tasks: Mapping[str, Task], flow_name: str) -> Flow:
    flow = Flow(name=flow_name)
    for task in tasks.values():
        flow.add_task(task)
    wrapped = {name: TaskWrapper(task) for name, task in tasks.items()}
    flow_graph_06.build(graph, {**wrapped, flow_graph_06.FLOW: flow, flow_graph_06.SWITCH: switch})
    return flow


def _nothing() -> None:
    pass


class FlowYaml(Struct, frozen=True):
    """An accepted file."""

    text: str
    sha256: str
    bytes: int
    defaults: dict[str, Any]


class LoadedFlow(Struct, frozen=True):
    flow: Any
    defaults: dict[str, Any]


def check_flow_yaml(data: bytes, max_bytes: int, allowed_env: tuple[str, ...] = ()) -> FlowYaml:
    """The checks of the gateway. Raises WorkflowTooLarge or InvalidRequest."""
    if len(data) > max_bytes:
        raise WorkflowTooLarge(f"flow.yaml has {len(data):,} bytes; {max_bytes:,} are allowed")
    text = decode(data)
    config = _read(text, allowed_env)
    check_graph(config, allowed_env)
    _check_size(config.flow.defaults, max_bytes)
    return FlowYaml(text, hashlib.sha256(data).hexdigest(), len(data), config.flow.defaults)


def load_flow(text: str, flow_name: str, allowed_modules: tuple[str, ...] = ()) -> Flow:
    """The flow of a file, on a worker."""
    return load_flow_and_defaults(text, flow_name, allowed_modules).flow


def load_flow_and_defaults(
    text: str, flow_name: str, allowed_modules: tuple[str, ...] = (), allowed_env: tuple[str, ...] = ()
) -> LoadedFlow:
    """Repeats all checks, because others than the gateway may write to the queue.

    Raises InvalidRequest for the file, and ExecutionFailed for a task that this worker does not have.
    """
    config = _read(text, allowed_env)
    used = check_graph(config, allowed_env)
    tasks = load_tasks(config, allowed_modules)
    for name in sorted(used - tasks.keys()):
        raise ExecutionFailed(
            f"flow.graph: the task {name!r} is not defined{nearest(name, tasks)}; add tasks.{name} with a "
            "callable, or give this worker a plug-in or PYOCO_DISCOVERY_MODULES that has it"
        )
    return LoadedFlow(build_flow(config, tasks, flow_name), config.flow.defaults)


def _read(text: str, allowed_env: tuple[str, ...]) -> PyocoConfig:
    document = read_yaml(text)
    config = check_policy(document)
    check_references(document, config, allowed_env)
    return config


def _check_size(defaults: dict[str, Any], max_bytes: int) -> None:
    """The values are sent with the job, as JSON. Aliases and escapes can make them larger than the file."""
    size = len(msgspec.json.encode(defaults))
    if size > max_bytes:
        raise WorkflowTooLarge(f"flow.defaults has {size:,} bytes as JSON; {max_bytes:,} are allowed")
