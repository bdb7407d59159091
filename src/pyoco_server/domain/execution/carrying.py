"""What a re-run takes over from an execution that has ended: the outputs of what was done for good."""

from typing import Any

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.graphs import Graph, NodeType
from pyoco_server.domain.execution.state import Execution, NodeStatus

_NOT_IN_THE_WAY = frozenset({NodeStatus.SUCCEEDED, NodeStatus.IDLE, NodeStatus.CANCELED})
"""What succeeded below a node that was cancelled did not need it: its join had passed by other branches."""


def carried_outputs(old: Execution, graph: Graph) -> dict[str, Any]:
    """Of each node that succeeded, and above which nothing failed. The rest is done again."""
    return {
        node_id: old.nodes[node_id].output
        for node_id in graph.order
        if old.nodes[node_id].status is NodeStatus.SUCCEEDED
        and all(old.nodes[above].status in _NOT_IN_THE_WAY for above in graph.ancestors(node_id))
    }


def carry_over(graph: Graph, outputs: dict[str, Any]) -> list[e.Payload]:
    """The events that make it so, in the order in which they can have happened."""
    events: list[e.Payload] = []
    for node_id in graph.order:
        if node_id not in outputs:
            continue
        events += [e.NodeReady(node_id=node_id), e.NodeStarted(node_id=node_id, attempt=1)]
        if graph.nodes[node_id].type is NodeType.FORK:
            branches = dict.fromkeys(edge.target for edge in graph.outgoing[node_id])
            events.append(e.ForkOpened(node_id=node_id, branch_ids=tuple(branches)))
        elif graph.nodes[node_id].type is NodeType.JOIN:
            events.append(e.JoinPassed(node_id=node_id))
        events.append(e.NodeSucceeded(node_id=node_id, output=outputs[node_id]))
    return events
