"""What the events about the items of a map change."""

from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.model import ItemLetter, MapState, NodeState, json_size, replace
from pyoco_server.domain.large_values import Place, moved


def map_opened(node: NodeState, payload: e.MapOpened, at: float) -> NodeState:
    """Carried items are known before."""
    known = node.map
    if known is None or len(known.statuses) != payload.items:
        known = _new_map(payload.items)
    return replace(node, map=replace(known, elements=payload.elements, recorded_at=at))


def _new_map(items: int) -> MapState:
    return MapState(statuses=ItemLetter.LEFT * items, outputs=(None,) * items)


def items_ended(node: NodeState, payload: e.MapItemsEnded, at: float) -> NodeState:
    known = node.map
    if known is None and payload.carried_from is not None:
        known = _new_map(payload.items or 0)
    if known is None:
        return node
    letters, outputs = list(known.statuses), list(known.outputs)
    attempts, retry_at = {**known.attempts}, {**known.retry_at}
    added, first_error = 0, known.first_error
    values: list[Place] = list(known.values)
    for item in payload.ended:
        if item.index >= len(letters) or letters[item.index] != ItemLetter.LEFT:
            continue
        retry_at.pop(item.index, None)
        if item.attempt > 1 or item.retry_at is not None:
            attempts[item.index] = item.attempt
        if item.retry_at is not None:
            retry_at[item.index] = item.retry_at
            continue
        letters[item.index] = _letter(payload, item)
        outputs[item.index] = item.output
        added += json_size(item.output)
        values += moved(item.values, "output", str(item.index))
        if first_error is None and item.error is not None:
            first_error = f"item {item.index}: {item.error.message}"
    known = replace(
        known,
        statuses="".join(letters),
        outputs=tuple(outputs),
        output_bytes=known.output_bytes + added,
        values=tuple(values),
        attempts=attempts,
        retry_at=retry_at,
        first_error=first_error,
        recorded_at=at,
        carried_from=payload.carried_from or known.carried_from,
    )
    return replace(node, map=known)


def _letter(payload: e.MapItemsEnded, item: e.ItemEnd) -> ItemLetter:
    if item.error is not None:
        return ItemLetter.FAILED
    return ItemLetter.SUCCEEDED if payload.carried_from is None else ItemLetter.CARRIED


def output_moved(node: NodeState, payload: e.NodeSucceeded) -> NodeState:
    """The node with its output. That of a map is in the events of its items."""
    known, output, values = node.map, payload.output, payload.values
    if known is None:
        return replace(node, output=output, values=values)
    if known.is_over and output is None:
        output, values = list(known.outputs), known.values
    emptied = replace(known, outputs=(), output_bytes=0, values=())
    return replace(node, output=output, values=values, map=emptied)
