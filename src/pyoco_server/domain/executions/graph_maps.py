"""Checks of map nodes; graph_parts.py has the others."""

from collections.abc import Mapping
from typing import Any

from pyoco_server.domain.executions import interpolation
from pyoco_server.domain.executions.graph_model import GraphNode


def check_map(where: str, node: GraphNode, given: Mapping[str, Any], problems: list[str]) -> None:
    if (given.get("node") is None) == (given.get("graph") is None):
        problems.append(f"{where}: a map has either node, a task, or graph")
    if node.node is not None and given.get("retry") is not None:
        problems.append(f"{where}: retry belongs to the task inside; move it to node")
    if node.graph is None and node.input is not None:
        problems.append(f"{where}: input is for graph; a task has params")
    _check_over(where, node.over, given, problems)


def _check_over(where: str, over: object, given: Mapping[str, Any], problems: list[str]) -> None:
    if given.get("over") is None:
        problems.append(f"{where}: over is missing; it names the list, such as ${{input.files}}")
    try:
        is_wrong = isinstance(over, str) and not interpolation.is_reference(over)
        is_mixed = isinstance(over, list) and interpolation.has_references(over)
    except interpolation.TemplateError:
        return  # reported for all templates
    if is_wrong:
        problems.append(f"{where}: over must be one reference, such as ${{nodes.a.output}}, or a list")
    if is_mixed:
        problems.append(f"{where}: over must be one reference or a list without ${{…}}")
