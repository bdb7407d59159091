"""The graph of a flow.yaml, in the grammar of the installed pyoco."""

import importlib
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from pyoco.core.models import Flow, Task
from pyoco.dsl.syntax import TaskWrapper, switch
from pyoco.schemas.config import PyocoConfig

from pyoco_server.engine import graph_blocks, graph_python
from pyoco_server.errors import InvalidRequest

_pyoco_graph: Any = importlib.import_module("pyoco.dsl.graph") if find_spec("pyoco.dsl.graph") else None
HAS_BLOCKS = _pyoco_graph is not None
HAS_NAMED_NODES = HAS_BLOCKS and "node_name" in {field.name for field in fields(_pyoco_graph.TaskTerm)}


def check_graph(config: PyocoConfig, allowed_env: tuple[str, ...] = ()) -> set[str]:
    """The names of the tasks in the graph. Raises InvalidRequest for a graph that can be no flow.

    Which tasks there are is only known on the worker: here each name stands for a task that does nothing.
    """
    names = _tasks_in(config, allowed_env)
    build_flow(config, {name: Task(func=_nothing, name=name) for name in names}, "check")
    return names


def build_flow(config: PyocoConfig, tasks: Mapping[str, Task], flow_name: str) -> Flow:
    """The flow of a graph whose names are all in `tasks`. The grammar comes first, pyoco after it."""
    names = _tasks_in(config)
    try:
        if HAS_BLOCKS:
            return _pyoco_graph.build_flow_from_graph(
                graph=config.flow.graph, tasks=dict(tasks), pipes=config.pipes, flow_name=flow_name
            )
        return _built_with_operators(config.flow.graph, {name: tasks[name] for name in names}, flow_name)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"flow.graph: {error}") from error


def _tasks_in(config: PyocoConfig, allowed_env: tuple[str, ...] | None = None) -> set[str]:
    if HAS_BLOCKS:
        return graph_blocks.tasks_in(
            config.flow.graph, config.pipes, named_nodes=HAS_NAMED_NODES, allowed_env=allowed_env
        )
    return graph_python.tasks_in(config.flow.graph, allowed_env)


def _built_with_operators(graph: str, tasks: Mapping[str, Task], flow_name: str) -> Flow:
    flow = Flow(name=flow_name)
    for task in tasks.values():
        flow.add_task(task)
    wrapped = {name: TaskWrapper(task) for name, task in tasks.items()}
    graph_python.build(graph, {**wrapped, graph_python.FLOW: flow, graph_python.SWITCH: switch})
    return flow


def _nothing() -> None:
    pass
