"""The state of an execution, folded from its events."""

from enum import StrEnum
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.events import Failure
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.large_values import Place, below, moved
from pyoco_server.domain.traces import Trace

__all__ = [
    "Execution",
    "ExecutionStatus",
    "Gate",
    "NodeState",
    "NodeStatus",
    "Phase",
    "ResumeRequest",
    "replace",
]


class ExecutionStatus(StrEnum):
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class NodeStatus(StrEnum):
    IDLE = "IDLE"
    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def is_live(self) -> bool:
        """The node itself is not finished."""
        return self in _LIVE


_TERMINAL = frozenset({NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.CANCELED})
_LIVE = frozenset({NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING})


class Phase(StrEnum):
    """The phase of an execution, used by the guards."""

    CREATED = "CREATED"
    STARTED = "STARTED"
    FAILING = "FAILING"
    """A node failed permanently and its siblings are being stopped."""
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Gate(Struct, frozen=True, kw_only=True):
    """The branches of a join, by their last node."""

    policy: str
    expected_branches: tuple[str, ...] = ()
    completed_branches: tuple[str, ...] = ()
    failed_branches: tuple[str, ...] = ()
    canceled_branches: tuple[str, ...] = ()
    is_passable: bool = False


class ResumeRequest(Struct, frozen=True, kw_only=True):
    requested_at: float
    requested_by: str
    data: Any = None


class Message(Struct, frozen=True, kw_only=True):
    """A received message that no node has taken yet."""

    sequence: int
    """Of its event."""
    name: str
    received_at: float
    node_ids: tuple[str, ...]
    """The nodes that may take it."""
    data: Any = None


class MapState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The items of a map, compact: there may be 10,000, and every change makes a new state."""

    statuses: str
    """A letter per item; see `ItemLetter`."""
    outputs: tuple[Any, ...] = ()
    """In order. None: not ended, or failed. Moved to the node when it succeeds."""
    output_bytes: int = 0
    values: tuple[Place, ...] = ()
    """As those of the node, in a list of the outputs."""
    elements: int | None = None
    """Of the list; None: not opened yet."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Of items that failed at first: those that have ended."""
    retry_at: dict[int, float] = field(default_factory=dict)
    """Of items with an attempt to come, or running after a failure."""
    first_error: str | None = None
    recorded_at: float = 0.0
    """Time of the last event about items."""
    carried_from: str | None = None

    @property
    def is_over(self) -> bool:
        return self.elements is not None and ItemLetter.LEFT not in self.statuses

    @property
    def failed(self) -> int:
        return self.statuses.count(ItemLetter.FAILED)


class ItemLetter(StrEnum):
    LEFT = "."
    SUCCEEDED = "s"
    CARRIED = "c"
    FAILED = "f"


class NodeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    node_type: str
    status: NodeStatus = NodeStatus.IDLE
    attempt: int = 0
    iteration: int | None = None
    """Of a repeat, from 1."""
    worker_id: str | None = None
    run_id: str | None = None
    child_execution_id: str | None = None
    """Of an execution node, for this attempt."""
    rerun_of: str | None = None
    """The child execution that its own child reruns from its failure."""
    wait_key: str | None = None
    prompt: str | None = None
    deadline: float | None = None
    wake_at: float | None = None
    """It goes on by itself then."""
    message: str | None = None
    """The name of the message that it waits for."""
    progress: float | None = None
    progress_message: str | None = None
    metrics: dict[str, Any] | None = None
    resume_request: ResumeRequest | None = None
    resume_data: Any = None
    output: Any = None
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `output`. A `$ref` elsewhere is data."""
    error: Failure | None = None
    retry_at: float | None = None
    gate: Gate | None = None
    branch_ids: tuple[str, ...] | None = None
    ready_at: float | None = None
    started_at: float | None = None
    waiting_at: float | None = None
    resumed_at: float | None = None
    ended_at: float | None = None
    updated_at: float | None = None
    stop_requested_at: float | None = None
    """Time of the interrupt or cancel request for this node."""
    stop_reason: str | None = None
    canceled_by_execution: bool = False
    carried_from: str | None = None
    """The execution that a rerun has its output from."""
    undoes: str | None = None
    """The node that this one undoes, once it has begun to."""
    map: MapState | None = None

    @property
    def work_id(self) -> str | None:
        """The id of its run or child execution."""
        return self.child_execution_id or self.run_id


class Execution(Struct, frozen=True, kw_only=True, omit_defaults=True):
    execution_id: str
    graph_id: str
    graph_version: int
    created_at: float
    updated_at: float
    version: int
    """Sequence of the last event in this state."""
    status: ExecutionStatus = ExecutionStatus.ACTIVE
    tenant_id: str | None = None
    api_key_id: str | None = None
    input: Any = None
    rerun_of: str | None = None
    given_id: str | None = None
    parent_execution_id: str | None = None
    """The execution whose node it carries out, by its shown id."""
    parent_node_id: str | None = None
    graph_versions: dict[str, int] = field(default_factory=dict)
    """Of all graphs below its own."""
    started_at: float | None = None
    cancel_requested_at: float | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    fail_requested_at: float | None = None
    failed_node_id: str | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    canceled_at: float | None = None
    archived_at: float | None = None
    result: Any = None
    error: Failure | None = None
    held_bytes: int = 0
    """JSON of the values it holds: input, metrics, data, outputs, result. Older versions did not count."""
    nodes: dict[str, NodeState] = field(default_factory=dict)
    trace: Trace | None = None
    messages: tuple[Message, ...] = ()
    """Received and not taken yet, oldest first."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `input` and `result`."""

    @property
    def is_terminal(self) -> bool:
        return self.status is not ExecutionStatus.ACTIVE

    @property
    def shown_id(self) -> str:
        """The tenant's id of the execution."""
        return self.given_id or self.execution_id

    @property
    def handled_failures(self) -> tuple[str, ...]:
        """The failed nodes of a completed execution."""
        if self.status is not ExecutionStatus.COMPLETED:
            return ()
        return tuple(name for name, node in self.nodes.items() if node.status is NodeStatus.FAILED)

    @property
    def phase(self) -> Phase:
        if self.is_terminal:
            return Phase(self.status.value)
        if self.cancel_requested_at is not None:
            return Phase.CANCELLING
        if self.fail_requested_at is not None:
            return Phase.FAILING
        return Phase.CREATED if self.started_at is None else Phase.STARTED


# The values that an execution holds. Decoded, they may take 40 times the size of their JSON.

MAX_HELD_BYTES = 1_500 * 1024
"""Up to here nodes may add."""
MAX_TOTAL_BYTES = 2_000 * 1024
"""With the result, which repeats outputs."""


def json_size(value: Any) -> int:
    return 0 if value is None else len(msgspec.json.encode(value))


def held_by(node: NodeState) -> int:
    asked = node.resume_request
    values = (node.metrics, node.resume_data, node.output, None if asked is None else asked.data)
    of_items = 0 if node.map is None or not node.map.outputs else node.map.output_bytes
    return sum(map(json_size, values)) + of_items


def too_large(state: Execution) -> str:
    return (
        f"the execution would hold more than {MAX_HELD_BYTES:,} bytes of JSON (now: {state.held_bytes:,}); "
        "pass references to large values instead of the values"
    )


# Execution ids are scoped to their tenant.
#
# The stored id is a part of the subject, in one stream for all tenants. For an id chosen by a tenant it is
# derived from tenant and id, so that no tenant can take or detect the ids of another. Without tenants, and
# for generated ids, both are the same.


def stored_id(tenant_id: str | None, given_id: str) -> str:
    if tenant_id is None:
        return given_id
    return str(uuid5(NAMESPACE_URL, f"pyoco:tenant:{tenant_id}:execution:{given_id}"))


def possible_ids(tenant_id: str | None, shown_id: str) -> tuple[str, ...]:
    """The possible stored ids for a tenant's id, the likelier one first.

    Older versions stored executions under the given id.
    """
    if tenant_id is None:
        return (shown_id,)
    derived = stored_id(tenant_id, shown_id)
    return (shown_id, derived) if _is_of_server(shown_id) else (derived, shown_id)


def _is_of_server(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


# What an execution that fails or is cancelled has to undo.


def pending_undos(state: Execution, graph: Graph) -> list[tuple[str, str]]:
    """The undo nodes that have not ended, with the nodes that they undo: the last success first."""
    place = {node_id: index for index, node_id in enumerate(graph.order)}
    found = [
        (undo_id, node_id)
        for undo_id, node_id in graph.undoes.items()
        if state.nodes[node_id].status is NodeStatus.SUCCEEDED and not state.nodes[undo_id].status.is_terminal
    ]
    return sorted(
        found, key=lambda pair: (state.nodes[pair[1]].ended_at or 0.0, place[pair[1]]), reverse=True
    )


# Outputs that a rerun takes over from an ended execution.

_NOT_IN_THE_WAY = frozenset({NodeStatus.SUCCEEDED, NodeStatus.IDLE, NodeStatus.CANCELED})
"""A node that succeeded below a cancelled one did not need it: its join had passed by other branches."""


def outputs_for_rerun(old: Execution, graph: Graph) -> dict[str, Any]:
    """The outputs of succeeded nodes without a failure or an undone node upstream. The others run again."""
    undone = {node.undoes for node in old.nodes.values()}
    return {
        node_id: old.nodes[node_id].output
        for node_id in graph.order
        if old.nodes[node_id].status is NodeStatus.SUCCEEDED
        and node_id not in undone
        and _reads_the_same(old, graph, node_id)
    }


def children_to_rerun(old: Execution, graph: Graph) -> dict[str, str]:
    """The child executions that a rerun carries on, by node: those that ended without success."""
    return {
        node_id: node.child_execution_id
        for node_id, node in old.nodes.items()
        if node.child_execution_id is not None
        and node.status is not NodeStatus.SUCCEEDED
        and _reads_the_same(old, graph, node_id)
    }


def _reads_the_same(old: Execution, graph: Graph, node_id: str) -> bool:
    """Whether a rerun keeps everything upstream of a node."""
    undone = {node.undoes for node in old.nodes.values()}
    return all(
        old.nodes[above].status in _NOT_IN_THE_WAY and above not in undone
        for above in graph.ancestors(node_id)
    )


def carry_over(graph: Graph, old: Execution) -> list[e.Payload]:
    """The events that set what a rerun keeps. The nodes have not been started in the new execution."""
    outputs, old_id = outputs_for_rerun(old, graph), old.shown_id
    carried: list[e.Payload] = [
        e.NodeSucceeded(
            node_id=node_id,
            output=outputs[node_id],
            carried_from=old_id,
            values=old.nodes[node_id].values,
        )
        for node_id in graph.order
        if node_id in outputs
    ]
    for node_id in graph.order:
        if node_id not in outputs and _reads_the_same(old, graph, node_id):
            carried += _carried_items(node_id, old.nodes[node_id].map, old_id)
    return carried


def values_of_item(values: tuple[Place, ...], index: int) -> tuple[Place, ...]:
    """Those of one output, as a place of its own."""
    return moved((place[1:] for place in below(values, "output", str(index))), "output")


ITEMS_PER_EVENT = 100


def _carried_items(node_id: str, known: MapState | None, old_id: str) -> list[e.MapItemsEnded]:
    """The items of a map that succeeded."""
    if known is None:
        return []
    kept = [
        e.ItemEnd(index=index, output=known.outputs[index], values=values_of_item(known.values, index))
        for index, letter in enumerate(known.statuses)
        if letter in (ItemLetter.SUCCEEDED, ItemLetter.CARRIED)
    ]
    return [
        e.MapItemsEnded(
            node_id=node_id,
            ended=tuple(kept[start : start + ITEMS_PER_EVENT]),
            items=len(known.statuses),
            carried_from=old_id,
        )
        for start in range(0, len(kept), ITEMS_PER_EVENT)
    ]
