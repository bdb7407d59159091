"""Graphs in graphs: which graphs a graph executes, and how deep."""

from collections.abc import Iterable, Mapping
from typing import Final

from pyoco_server.domain.executions.graph_model import Graph

MAX_DEPTH: Final = 8
"""Graphs from the outermost to the innermost, both included."""
MAX_GRAPHS: Final = 100
"""Different graphs below one graph."""


def graphs_in(graph: Graph) -> dict[str, str]:
    """The graphs that it executes itself, by node."""
    return {node.id: node.graph for node in graph.nodes.values() if node.graph is not None}


def problems_of(graph: Graph, below: Mapping[str, Graph | None]) -> list[str]:
    """`below`: the graphs below it; None for one that is not registered."""
    if len(below) > MAX_GRAPHS:
        return [f"more than {MAX_GRAPHS} graphs are nested below it"]
    chains = _Chains(graph.id, below)
    found = ((node_id, chains.problem(graph_id)) for node_id, graph_id in graphs_in(graph).items())
    return [f"node {node_id}: {problem}" for node_id, problem in found if problem is not None]


class _Problem(Exception):
    pass


class _Chains:
    """The longest chain of graphs below each graph."""

    def __init__(self, outermost: str, below: Mapping[str, Graph | None]) -> None:
        self._outermost = outermost
        self._below = below
        self._known: dict[str, tuple[str, ...]] = {}

    def problem(self, graph_id: str) -> str | None:
        try:
            chain = (self._outermost, *self._from(graph_id, (self._outermost,)))
        except _Problem as error:
            return str(error)
        if len(chain) <= MAX_DEPTH:
            return None
        return f"graphs are nested {len(chain)} deep, {MAX_DEPTH} are allowed: {_path(chain)}"

    def _from(self, graph_id: str, above: tuple[str, ...]) -> tuple[str, ...]:
        """Raises _Problem for a cycle, or a graph that is not registered."""
        if graph_id in above:
            raise _Problem(f"cycle of graphs: {_path((*above[above.index(graph_id) :], graph_id))}")
        if (graph := self._below.get(graph_id)) is None:
            raise _Problem(f"graph {graph_id} is not registered")
        if graph_id not in self._known:
            chains = [self._from(one, (*above, graph_id)) for one in set(graphs_in(graph).values())]
            self._known[graph_id] = (graph_id, *max(chains, key=len, default=()))
        return self._known[graph_id]


def _path(chain: Iterable[str]) -> str:
    return " → ".join(chain)
