"""The items of a map as they are shown."""

from collections.abc import Container, Iterator

from msgspec import Struct

from pyoco_server.domain.executions.graphs import GraphNode
from pyoco_server.domain.executions.model import Execution, ItemLetter, MapState, NodeStatus
from pyoco_server.domain.executions.records import work_of

_ENDS = {
    ItemLetter.SUCCEEDED: NodeStatus.SUCCEEDED,
    ItemLetter.CARRIED: NodeStatus.SUCCEEDED,
    ItemLetter.FAILED: NodeStatus.FAILED,
}


class ItemCounts(Struct, frozen=True):
    """`elements`: of the list, null until the map has opened. `succeeded` includes those carried over."""

    elements: int | None
    total: int
    succeeded: int
    failed: int
    carried: int


class MapItem(Struct, frozen=True):
    """With a batch, several elements of the list. An end is shown up to a minute late, with many items."""

    index: int
    status: NodeStatus
    attempt: int
    run_id: str | None
    execution_id: str | None
    carried_from: str | None


def item_counts(known: MapState) -> ItemCounts:
    carried = known.statuses.count(ItemLetter.CARRIED)
    return ItemCounts(
        elements=known.elements,
        total=len(known.statuses),
        succeeded=known.statuses.count(ItemLetter.SUCCEEDED) + carried,
        failed=known.failed,
        carried=carried,
    )


def shown_items(state: Execution, spec: GraphNode, after: int, active: Container[str]) -> Iterator[MapItem]:
    """Items after this index. `active`: ids of runs that have not ended."""
    node = state.nodes[spec.id]
    known = node.map or MapState(statuses="")
    free = spec.max_parallel if node.status.is_live else 0
    free -= known.statuses.count(ItemLetter.LEFT, 0, after + 1)
    for index in range(after + 1, len(known.statuses)):
        letter = ItemLetter(known.statuses[index])
        is_left = letter is ItemLetter.LEFT
        free -= is_left
        attempt = known.attempts.get(index, 0) + 1 if is_left else known.attempts.get(index, 1)
        work = work_of(state.execution_id, spec, attempt, index)
        has_begun = work is not None and (work.id in active or free >= 0)
        is_carried = letter is ItemLetter.CARRIED
        status = _ENDS.get(letter) or _status_of_left(is_live=node.status.is_live, has_begun=has_begun)
        is_shown = work is not None and not is_carried and status is not NodeStatus.IDLE
        yield MapItem(
            index=index,
            status=status,
            attempt=0 if is_carried or status is NodeStatus.IDLE else attempt,
            run_id=work.id if work is not None and is_shown and not work.is_execution else None,
            execution_id=work.id if work is not None and is_shown and work.is_execution else None,
            carried_from=known.carried_from if is_carried else None,
        )


def _status_of_left(*, is_live: bool, has_begun: bool) -> NodeStatus:
    if not is_live:
        return NodeStatus.CANCELED
    return NodeStatus.RUNNING if has_begun else NodeStatus.IDLE
