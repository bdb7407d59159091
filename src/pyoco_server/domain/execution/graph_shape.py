"""The shape of a graph: its entry, its order, and which fork belongs to which join.

Sets of nodes are bits of an integer here, one per node in topological order: a thousand nodes are sixteen
machine words, so all ancestors and dominators of the largest graph take a few milliseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct

from pyoco_server.domain.execution.graph_model import Edge

Edges = Mapping[str, tuple[Edge, ...]]


def by_end(nodes: Iterable[str], edges: Sequence[Edge]) -> tuple[Edges, Edges]:
    """Incoming and outgoing edges of each node, in the order in which they were declared."""
    incoming: dict[str, list[Edge]] = {node: [] for node in nodes}
    outgoing: dict[str, list[Edge]] = {node: [] for node in incoming}
    for edge in edges:
        incoming[edge.target].append(edge)
        outgoing[edge.source].append(edge)
    return _frozen(incoming), _frozen(outgoing)


def _frozen(edges: Mapping[str, list[Edge]]) -> Edges:
    return {node: tuple(found) for node, found in edges.items()}


def entries(incoming: Edges) -> list[str]:
    """Nodes that nothing leads to.

    In a graph without cycles every way back from a node ends in one of them; so if there is exactly one,
    it leads to every node, and no node is out of reach.
    """
    return [node for node, edges in incoming.items() if not edges]


def topological_order(incoming: Edges, outgoing: Edges) -> tuple[str, ...]:
    """Of nodes that could come next, the one declared first. Nodes on or behind a cycle are left out."""
    names = list(incoming)
    place = {name: index for index, name in enumerate(names)}
    missing = {node: len(edges) for node, edges in incoming.items()}
    free = [place[node] for node in entries(incoming)]
    heapify(free)
    order = []
    while free:
        node = names[heappop(free)]
        order.append(node)
        for edge in outgoing[node]:
            missing[edge.target] -= 1
            if not missing[edge.target]:
                heappush(free, place[edge.target])
    return tuple(order)


def find_cycle(incoming: Edges, order: Sequence[str]) -> list[str]:
    """A cycle among the nodes that have no place in the order, its first node at both ends."""
    left = incoming.keys() - set(order)
    node = next(name for name in incoming if name in left)
    seen: dict[str, None] = {}
    while node not in seen:
        seen[node] = None
        node = next(edge.source for edge in incoming[node] if edge.source in left)
    backwards = list(seen)[list(seen).index(node) :]
    return [node, *reversed(backwards)]


class Above(Struct, frozen=True):
    """For each node, the nodes above it: all of them, and those that no way from the entry goes round."""

    order: tuple[str, ...]
    ancestors: dict[str, int]
    dominators: dict[str, int]

    def is_above(self, upper: str, lower: str) -> bool:
        """Whether `lower` comes after `upper` on some way; a node is not above itself."""
        return upper != lower and bool(self.ancestors[lower] >> self._bit(upper) & 1)

    def nearest_fork(self, sources: Iterable[str], forks: Sequence[str]) -> str | None:
        """The last fork that is above, or is, each of the nodes from which a join's edges come.

        One that cannot be gone round comes first: it opens every branch of the join.
        """
        common = dominating = -1
        for source in sources:
            common &= self.ancestors[source]
            dominating &= self.dominators[source]
        above = [fork for fork in forks if common >> self._bit(fork) & 1]
        certain = [fork for fork in above if dominating >> self._bit(fork) & 1]
        return max(certain or above, key=self._bit, default=None)

    def _bit(self, node: str) -> int:
        return self.ancestors[node].bit_length() - 1


def above(order: tuple[str, ...], incoming: Edges) -> Above:
    """Sets include the node itself, which is their highest bit."""
    ancestors: dict[str, int] = {}
    dominators: dict[str, int] = {}
    for index, node in enumerate(order):
        reached, certain = 0, -1 if incoming[node] else 0
        for edge in incoming[node]:
            reached |= ancestors[edge.source]
            certain &= dominators[edge.source]
        ancestors[node] = reached | 1 << index
        dominators[node] = certain | 1 << index
    return Above(order, ancestors, dominators)
