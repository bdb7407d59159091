"""Maps: one run or execution for each item of a list, at most `max_parallel` at a time.

Nothing is written when an item starts. Which items may have started follows from the log: they start in
order, at most `max_parallel` run, and fewer than `BATCH` ends wait to be recorded. Whoever takes over reads
the work of these items, and knows as much as the orchestrator before it.

Ends are recorded together: `BATCH` of them, or what has come in a hundredth of the time that the map has
taken, or all that is left. Until then their facts are kept in memory, and are still in the store.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from pyoco_server.domain.executions import events as e, interpolation
from pyoco_server.domain.executions.branches import KnownNodes
from pyoco_server.domain.executions.decide import backoff
from pyoco_server.domain.executions.graphs import Graph, GraphNode, NodeType
from pyoco_server.domain.executions.model import (
    ITEMS_PER_EVENT as BATCH,
    MAX_HELD_BYTES,
    Execution,
    ItemLetter,
    MapState,
    NodeState,
    NodeStatus,
    Phase,
    json_size,
    too_large,
)
from pyoco_server.domain.executions.orchestration_draft import (
    ASKED,
    Draft,
    fail_at_start,
    fail_begun,
    failure_of,
)
from pyoco_server.domain.executions.records import CancelRun, DispatchRun, RunFact, StartChild, Work, work_of
from pyoco_server.domain.large_values import Place, below, moved, under
from pyoco_server.domain.runs.model import RunStatus

SHORTEST_PAUSE_SEC: Final = 0.25
LONGEST_PAUSE_SEC: Final = 60.0
SHARE: Final = 100
"""Of the time that the map has taken: so long an end may wait to be recorded."""
MAX_ITEM_ERROR: Final = 200


class Item(Struct, frozen=True):
    """An item that may have work."""

    index: int
    attempt: int
    work: Work


def items_in_question(execution_id: str, spec: GraphNode, known: MapState) -> Iterator[Item]:
    """Items that may have work and have not ended by the log: those to try again, the first of the others."""
    for index in sorted(known.retry_at):
        yield _item(execution_id, spec, index, known.attempts.get(index, 0) + 1)
    index = -1
    left = spec.max_parallel + BATCH
    while left and (index := known.statuses.find(ItemLetter.LEFT, index + 1)) >= 0:
        if index not in known.retry_at:
            left -= 1
            yield _item(execution_id, spec, index, 1)


def _item(execution_id: str, spec: GraphNode, index: int, attempt: int) -> Item:
    work = work_of(execution_id, spec, attempt, index)
    assert work is not None  # noqa: S101 - a map has a flow or a graph
    return Item(index, attempt, work)


def _in_question(draft: Draft, spec: GraphNode, known: MapState) -> list[Item]:
    """Kept for as long as the log says the same."""
    seen = draft.in_question.get(spec.id)
    if seen is None or seen[0] is not known:
        seen = known, list(items_in_question(draft.state.execution_id, spec, known))
        draft.in_question[spec.id] = seen
    return seen[1]


def work_in_question(state: Execution, graph: Graph, node_id: str) -> list[Work]:
    """The work of a node that there may be."""
    node = state.nodes[node_id]
    if node.map is not None and node.map.elements is not None:
        items = items_in_question(state.execution_id, graph.nodes[node_id], node.map)
        return [item.work for item in items]
    if node.work_id is None:
        return []
    return [Work(node.work_id, is_execution=node.child_execution_id is not None)]


# Opening.


def carry_on_map(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if node.stop_requested_at is not None:
        return
    if node.map is None or node.map.elements is None:
        _open(draft, node_id, node, spec)
    else:
        _start_items(draft, node_id, spec)


def _open(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    try:
        elements = _elements(draft, spec)
    except (interpolation.TemplateFailed, _Unusable) as error:
        code = error.code if isinstance(error, _Unusable) else "TEMPLATE_FAILED"
        fail = fail_at_start if node.status is NodeStatus.READY else fail_begun
        fail(draft, node_id, e.Failure(str(error), code))
        return
    if node.status is NodeStatus.READY:
        draft.emit(e.NodeStarted(node_id=node_id, attempt=node.attempt + 1))
    items = -(-len(elements) // (spec.batch or 1))
    draft.emit(e.MapOpened(node_id=node_id, elements=len(elements), items=items))
    _start_items(draft, node_id, spec)


class _Unusable(Exception):
    def __init__(self, problem: str, code: str) -> None:
        super().__init__(problem)
        self.code = code


def _elements(draft: Draft, spec: GraphNode) -> Sequence[Any]:
    """As `_list`, without the places."""
    return _list(draft, spec)[0]


def _list(draft: Draft, spec: GraphNode) -> tuple[Sequence[Any], tuple[Place, ...]]:
    """The list, which never changes: what it may refer to has ended. And the stored values in it.

    Raises TemplateFailed, _Unusable, Lacking.
    """
    found = spec.over
    values: tuple[Place, ...] = ()
    if isinstance(found, str):
        found, values = interpolation.found_at(
            found, input=draft.state.input, nodes=KnownNodes(draft.state), stored=draft.stored
        )
    if not isinstance(found, list | tuple):
        raise _Unusable(f"over is {interpolation.kind_of(found)}, not a list", "TEMPLATE_FAILED")
    if len(found) > spec.max_items:
        problem = f"over has {len(found):,} elements, and max_items is {spec.max_items:,}"
        raise _Unusable(problem, "TOO_MANY_ITEMS")
    return found, values


# Starting.


def _start_items(draft: Draft, node_id: str, spec: GraphNode) -> None:
    """Render the work of the next items. Those whose params cannot be rendered end here."""
    known = draft.state.nodes[node_id].map
    assert known is not None  # noqa: S101 - it is open
    broken: list[e.ItemEnd] = []
    free, waiting = _to_start(draft, spec, known)
    elements = _list(draft, spec) if free and waiting else ((), ())
    for item in waiting:
        if not free or draft.is_full:
            break
        try:
            if item.work.id not in draft.items:
                draft.items[item.work.id] = _start(draft, spec, item, elements)
            free -= 1
        except interpolation.TemplateFailed as error:
            failure = e.Failure(e.shortened(str(error), MAX_ITEM_ERROR), "TEMPLATE_FAILED")
            broken.append(e.ItemEnd(index=item.index, attempt=item.attempt, error=failure))
    if broken:
        draft.emit(e.MapItemsEnded(node_id=node_id, ended=tuple(broken)))


def _to_start(draft: Draft, spec: GraphNode, known: MapState) -> tuple[int, list[Item]]:
    """Free places, and what is not known to have work. Work that exists is not started again."""
    free, waiting = spec.max_parallel, []
    for item in _in_question(draft, spec, known):
        fact = draft.runs.get(item.work.id)
        if fact is None and not _has_to_pause(draft, known, item):
            waiting.append(item)
        elif fact is not None and not fact.status.is_terminal:
            free -= 1
    return max(0, free), waiting


def _has_to_pause(draft: Draft, known: MapState, item: Item) -> bool:
    retry_at = known.retry_at.get(item.index)
    return retry_at is not None and not draft.is_due(retry_at)


def _start(
    draft: Draft, spec: GraphNode, item: Item, found: tuple[Sequence[Any], tuple[Place, ...]]
) -> DispatchRun | StartChild:
    """Raises TemplateFailed."""
    elements, values = found
    local: dict[str, Any] = {"index": item.index}
    if spec.batch is None:
        local["item"] = elements[item.index]
        noted = {"item": moved(below(values, str(item.index)), "item")}
    else:
        first = item.index * spec.batch
        local["items"] = elements[first : first + spec.batch]
        noted = {"items": _in_batch(values, range(first, first + spec.batch))}
    if spec.graph is not None:
        given = draft.render_with(spec.input, local, noted)
        return StartChild(
            execution_id=item.work.id,
            node_id=spec.id,
            graph_id=spec.graph,
            input=given.value,
            values=under(given.values, "input"),
        )
    params = draft.render_with(spec.work.params, local, noted)
    return dispatch_of(spec, item.work.id, params, timeout_sec=spec.work.timeout_sec)


def _in_batch(values: tuple[Place, ...], indexes: range) -> tuple[Place, ...]:
    return tuple(
        ("items", str(int(place[0]) - indexes.start), *place[1:])
        for place in values
        if int(place[0]) in indexes
    )


def dispatch_of(
    spec: GraphNode, run_id: str, params: interpolation.Rendered, *, timeout_sec: float | None = None
) -> DispatchRun:
    work = spec.work
    assert work.flow is not None  # noqa: S101 - it is no external task
    return DispatchRun(
        run_id=run_id,
        node_id=spec.id,
        flow=work.flow,
        tag=work.tag,
        params=params.value,
        references=params.references or None,
        values=under(params.values, "params"),
        delay_sec=work.delay_sec,
        run_at=work.run_at,
        start_within_sec=work.start_within_sec,
        priority=work.priority,
        timeout_sec=timeout_sec,
    )


# Ends.


def end_map(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    """Record what has ended, if it is time; then end the map if it is over, or too much has failed."""
    if node.map is None or node.map.elements is None:
        return
    ended = _ends(draft, spec, node.map)
    if ended and _is_time(draft, node, spec, ended):
        _record(draft, node_id, spec, ended)
    _end(draft, node_id, spec)


def _record(draft: Draft, node_id: str, spec: GraphNode, ended: list[e.ItemEnd]) -> None:
    added = sum(json_size(item.output) for item in ended)
    if draft.state.held_bytes + added > MAX_HELD_BYTES:
        _fail(draft, node_id, spec, e.Failure(too_large(draft.state), "EXECUTION_TOO_LARGE"))
        return
    for start in range(0, len(ended), BATCH):
        draft.emit(e.MapItemsEnded(node_id=node_id, ended=tuple(ended[start : start + BATCH])))


def _ends(draft: Draft, spec: GraphNode, known: MapState) -> list[e.ItemEnd]:
    found = []
    for item in _in_question(draft, spec, known):
        fact = draft.runs.get(item.work.id)
        if fact is not None and fact.status.is_terminal:
            found.append(_end_of(draft, spec, item, fact))
    return found


def _end_of(draft: Draft, spec: GraphNode, item: Item, fact: RunFact) -> e.ItemEnd:
    if fact.status is RunStatus.COMPLETED:
        return e.ItemEnd(
            index=item.index,
            attempt=item.attempt,
            output=fact.result,
            values=moved(fact.values, "output"),
        )
    failure = failure_of(fact)
    error = e.Failure(e.shortened(failure.message, MAX_ITEM_ERROR), failure.code)
    is_last = item.attempt >= spec.work.retry.max_attempts
    retry_at = None if is_last else draft.now + backoff(spec, item.attempt)
    return e.ItemEnd(index=item.index, attempt=item.attempt, error=error, retry_at=retry_at)


def _is_time(draft: Draft, node: NodeState, spec: GraphNode, ended: list[e.ItemEnd]) -> bool:
    known = node.map
    assert known is not None  # noqa: S101 - it is open
    failed = known.failed + sum(item.error is not None and item.retry_at is None for item in ended)
    if len(ended) >= BATCH or failed > spec.tolerated(len(known.statuses)):
        return True
    taken = known.recorded_at - (node.started_at or known.recorded_at)
    pause = min(max(SHORTEST_PAUSE_SEC, taken / SHARE), LONGEST_PAUSE_SEC)
    free, waiting = _to_start(draft, spec, known)
    is_idle = free == spec.max_parallel and not waiting
    return is_idle or draft.is_due(known.recorded_at + pause)


def _end(draft: Draft, node_id: str, spec: GraphNode) -> None:
    node = draft.state.nodes[node_id]
    known = node.map
    if known is None or node.status is not NodeStatus.RUNNING:
        return
    items, failed = len(known.statuses), known.failed
    if failed > spec.tolerated(items):
        problem = f"{failed:,} of {items:,} items failed, {spec.tolerated(items):,} may: {known.first_error}"
        _fail(draft, node_id, spec, e.Failure(e.shortened(problem, e.MAX_ERROR), "ITEMS_FAILED"))
    elif known.is_over:
        draft.emit(e.NodeSucceeded(node_id=node_id))


def _fail(draft: Draft, node_id: str, spec: GraphNode, error: e.Failure) -> None:
    known = draft.state.nodes[node_id].map
    assert known is not None  # noqa: S101 - it is open
    fail_begun(draft, node_id, error)
    draft.abandoned += _cancels_of(draft, spec, known, "its map has failed")


# Stopping, and what becomes of work that is there.


def stop_map(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> bool:
    """Record what ended meanwhile. Whether no item is active any more."""
    if node.map is None or node.map.elements is None:
        return True
    _keep_successes(draft, node_id, spec, node.map)
    known = draft.state.nodes[node_id].map
    assert known is not None  # noqa: S101 - it is open
    if known.is_over and (draft.state.phase is Phase.FAILING or spec.undo is not None):
        draft.emit(e.NodeSucceeded(node_id=node_id))
        return True
    works = [item.work.id for item in _in_question(draft, spec, known)]
    if any(work_id not in draft.runs and work_id not in draft.items for work_id in works):
        draft.has_more = True  # they have to be read
        return False
    return not any(_is_active(draft, work_id) for work_id in works)


def _keep_successes(draft: Draft, node_id: str, spec: GraphNode, known: MapState) -> None:
    """For a rerun."""
    ended = [item for item in _ends(draft, spec, known) if item.error is None]
    if ended and draft.state.held_bytes + sum(json_size(item.output) for item in ended) <= MAX_HELD_BYTES:
        _record(draft, node_id, spec, ended)


def _is_active(draft: Draft, work_id: str) -> bool:
    fact = draft.runs.get(work_id)
    return fact is not None and not fact.status.is_terminal


def _open_maps(draft: Draft) -> Iterator[tuple[NodeState, GraphNode, MapState]]:
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        spec = draft.graph.nodes[node_id]
        if spec.type is NodeType.MAP and node.map is not None and node.map.elements is not None:
            yield node, spec, node.map


def starts_of_items(draft: Draft) -> list[DispatchRun | StartChild]:
    found: list[DispatchRun | StartChild] = []
    for node, spec, known in _open_maps(draft):
        if node.stop_requested_at is None:
            free, waiting = _to_start(draft, spec, known)
            started = [draft.items[item.work.id] for item in waiting if item.work.id in draft.items]
            found += started[:free]
    return found


def cancels_of_items(draft: Draft) -> list[CancelRun]:
    found = []
    for node, spec, known in _open_maps(draft):
        if node.stop_requested_at is not None or draft.state.is_terminal:
            found += _cancels_of(draft, spec, known, node.stop_reason or "the execution was cancelled")
    return found


def _cancels_of(draft: Draft, spec: GraphNode, known: MapState, reason: str) -> list[CancelRun]:
    items = _in_question(draft, spec, known)
    return [
        CancelRun(run_id=item.work.id, reason=reason, is_execution=item.work.is_execution)
        for item in items
        if _is_active(draft, item.work.id)
    ]


def needed_items(draft: Draft) -> set[str]:
    return {
        work_id
        for node, spec, known in _open_maps(draft)
        if node.stop_requested_at is None and not draft.state.is_terminal
        for work_id in (item.work.id for item in _in_question(draft, spec, known))
    }


def kept_facts(draft: Draft, started: set[str], cancelled: set[str]) -> dict[str, RunFact | None]:
    """What the next reaction has to know of items beside the log."""
    kept: dict[str, RunFact | None] = {}
    for node, spec, known in _open_maps(draft):
        for item in _in_question(draft, spec, known):
            work_id = item.work.id
            if work_id in started:
                kept[work_id] = RunFact(RunStatus.PENDING, is_execution=item.work.is_execution)
            elif work_id in cancelled:
                kept[work_id] = RunFact(RunStatus.CANCELLING, code=ASKED, is_execution=item.work.is_execution)
            elif draft.runs.get(work_id) is not None or (
                node.stop_requested_at is not None and work_id in draft.runs
            ):
                kept[work_id] = draft.runs[work_id]
    return kept
