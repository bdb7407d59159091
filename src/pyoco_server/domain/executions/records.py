"""What is stored and derived: the folded state of an execution, summaries, its runs."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.events import Actor, Commit, shortened
from pyoco_server.domain.executions.evolve import evolve
from pyoco_server.domain.executions.graphs import GraphNode
from pyoco_server.domain.executions.model import Execution, ExecutionStatus, NodeStatus, json_size
from pyoco_server.domain.large_values import Place
from pyoco_server.domain.runs.model import Priority, RunStatus
from pyoco_server.domain.secrets.references import References
from pyoco_server.domain.value_previews import memory_of

MAX_SUMMARY_ERROR = 500
MAX_SUMMARY_DATA = 1_000
MAX_SUMMARY_FAILURES = 20
MAX_PROMPTS = 100_000
"""Characters of all prompts together, because a summary is part of every commit."""
MAX_KEYS = 1_000
"""Idempotency keys kept per execution; the oldest is dropped first."""


class KeyedCommand(Struct, frozen=True):
    """The digest of the command of an `Idempotency-Key`, and the resulting version."""

    request_digest: str
    version: int


REDUCER = 4
"""The version of `evolve`. What another version has folded may lack fields or transitions."""


class ExecutionRecord(Struct, frozen=True, kw_only=True):
    """A snapshot of the folded log. It can be rebuilt."""

    state: Execution
    log_revision: int
    keys: dict[str, KeyedCommand] = field(default_factory=dict)
    reducer: int = 1
    """Of the version that wrote it; those before the field had the first."""


def advance(record: ExecutionRecord | None, commit: Commit, log_revision: int) -> ExecutionRecord | None:
    """The record after one more commit. None before the execution exists."""
    state = None if record is None else record.state
    for event in commit.events():
        state = evolve(state, event)
    if state is None:
        return None
    keys = {} if record is None else record.keys
    if commit.request_digest is not None:
        kept = list(keys.items())[-(MAX_KEYS - 1) :]
        keys = {**dict(kept), commit.command_id: KeyedCommand(commit.request_digest, commit.last_sequence)}
    return ExecutionRecord(state=state, log_revision=log_revision, keys=keys, reducer=REDUCER)


class Wait(Struct, frozen=True, kw_only=True):
    """A waiting node: an entry of the inbox."""

    execution_id: str
    graph_id: str
    node_id: str
    waiting_at: float
    wait_key: str | None = None
    prompt: str | None = None
    message: str | None = None
    """The name of the message that it waits for."""
    deadline: float | None = None
    resume_requested_by: str | None = None
    resume_data: Any = None
    tenant_id: str | None = None


class ExecutionSummary(Struct, frozen=True, kw_only=True):
    """An execution after a commit. Stored with the commit, so that lists need no fold."""

    execution_id: str
    graph_id: str
    graph_version: int
    status: ExecutionStatus
    version: int
    created_at: float
    updated_at: float
    tenant_id: str | None = None
    rerun_of: str | None = None
    parent_execution_id: str | None = None
    parent_node_id: str | None = None
    started_at: float | None = None
    cancel_requested_at: float | None = None
    fail_requested_at: float | None = None
    ended_at: float | None = None
    archived_at: float | None = None
    failed_node_id: str | None = None
    handled_failures: tuple[str, ...] = ()
    """Failed nodes of a completed execution, up to a limit."""
    error: str | None = None
    node_counts: dict[NodeStatus, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    given_id: str | UnsetType = UNSET
    """The tenant's id, if different; shown in lists instead of `execution_id`."""
    held_bytes: int | UnsetType = UNSET
    """JSON of the values it holds; not shown."""
    deleted_at: float | UnsetType = UNSET
    """Set by the last commit of a deleted execution, which keeps its id taken; not shown."""

    def shown(self) -> "ExecutionSummary":
        given = self.execution_id if self.given_id is UNSET else self.given_id
        return replace(self, execution_id=given, given_id=UNSET, held_bytes=UNSET)


class LoggedCommit(Struct, frozen=True):
    commit: Commit
    summary: ExecutionSummary


def tombstone(record: ExecutionRecord, actor: Actor, now: float) -> LoggedCommit:
    """The last commit of a deleted execution. It has no events, so that nothing is left of the others."""
    state = record.state
    commit = Commit(
        execution_id=state.execution_id,
        command_id=f"delete-{state.execution_id}",
        first_sequence=state.version + 1,
        at=now,
        actor=actor,
        payloads=(),
    )
    summary = summarise(state)
    return LoggedCommit(commit, replace(summary, deleted_at=now, error=None, waits=(), node_counts={}))


def summarise(state: Execution) -> ExecutionSummary:
    return ExecutionSummary(
        execution_id=state.execution_id,
        graph_id=state.graph_id,
        graph_version=state.graph_version,
        status=state.status,
        version=state.version,
        created_at=state.created_at,
        updated_at=state.updated_at,
        tenant_id=state.tenant_id,
        rerun_of=state.rerun_of,
        parent_execution_id=state.parent_execution_id,
        parent_node_id=state.parent_node_id,
        started_at=state.started_at,
        cancel_requested_at=state.cancel_requested_at,
        fail_requested_at=state.fail_requested_at,
        ended_at=state.completed_at or state.failed_at or state.canceled_at,
        archived_at=state.archived_at,
        failed_node_id=state.failed_node_id,
        handled_failures=state.handled_failures[:MAX_SUMMARY_FAILURES],
        error=None if state.error is None else shortened(state.error.message, MAX_SUMMARY_ERROR),
        node_counts=dict(Counter(node.status for node in state.nodes.values())),
        waits=tuple(_waits(state)),
        given_id=state.given_id or UNSET,
        held_bytes=state.held_bytes or UNSET,
    )


def _waits(state: Execution) -> Iterable[Wait]:
    """Of nodes that somebody has to resume."""
    waiting = {
        node_id: node
        for node_id, node in state.nodes.items()
        if node.status is NodeStatus.WAITING and node.wake_at is None
    }
    limit = max(1, MAX_PROMPTS // max(1, len(waiting)))
    for node_id, node in waiting.items():
        asked = node.resume_request
        yield Wait(
            execution_id=state.shown_id,
            graph_id=state.graph_id,
            node_id=node_id,
            waiting_at=node.waiting_at or state.updated_at,
            wait_key=node.wait_key,
            prompt=None if node.prompt is None else shortened(node.prompt, limit),
            message=node.message,
            deadline=node.deadline,
            resume_requested_by=None if asked is None else asked.requested_by,
            resume_data=None
            if asked is None or _size(asked.data) > min(MAX_SUMMARY_DATA, limit)
            else asked.data,
            tenant_id=state.tenant_id,
        )


def _size(data: Any) -> int:
    return len(msgspec.json.encode(data))


__all__ = [
    "ExecutionRecord",
    "ExecutionSummary",
    "KeyedCommand",
    "LoggedCommit",
    "Wait",
    "advance",
    "replace",
    "summarise",
]


# The work of nodes, in runs and child executions: ids, facts and effects.


class Work(Struct, frozen=True, order=True):
    id: str
    is_execution: bool = False


class RunFact(Struct, frozen=True):
    """Facts about a node's run, or child execution."""

    status: RunStatus
    result: Any = None
    error: str | None = None
    code: str = "RUN_FAILED"
    """Failure code, if it failed."""
    is_execution: bool = False
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `result`."""
    are_values_kept: bool = False
    """The execution is a user of them already."""


class DispatchRun(Struct, frozen=True, kw_only=True):
    run_id: str
    node_id: str
    flow: str
    tag: str | None
    params: dict[str, Any]
    delay_sec: float | None = None
    run_at: float | None = None
    start_within_sec: float | None = None
    priority: Priority | None = None
    timeout_sec: float | None = None
    """Of the run itself, for an item; the timeout of a node is the orchestrator's."""
    references: References | None = None
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `params`."""

    @property
    def work_id(self) -> str:
        return self.run_id


class StartChild(Struct, frozen=True, kw_only=True):
    execution_id: str
    node_id: str
    graph_id: str
    input: Any
    rerun_of: str | None = None
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `input`."""

    @property
    def work_id(self) -> str:
        return self.execution_id


class CancelRun(Struct, frozen=True, kw_only=True):
    run_id: str
    """Or the id of a child execution."""
    reason: str
    is_execution: bool = False


@lru_cache(maxsize=4_096)
def run_id_of(execution_id: str, node_id: str, attempt: int, part: int | None = None) -> str:
    """`part`: the iteration of a repeat, or the index of an item of a map."""
    turn = f"{attempt}" if part is None else f"{part}.{attempt}"
    return str(uuid5(NAMESPACE_URL, f"pyoco:run:{execution_id}:{node_id}:{turn}"))


@lru_cache(maxsize=4_096)
def child_id_of(execution_id: str, node_id: str, attempt: int, part: int | None = None) -> str:
    """`part`: the index of an item of a map."""
    turn = f"{attempt}" if part is None else f"{part}.{attempt}"
    return str(uuid5(NAMESPACE_URL, f"pyoco:execution:{execution_id}:{node_id}:{turn}"))


def work_of(execution_id: str, spec: GraphNode, attempt: int, part: int | None = None) -> Work | None:
    """What carries out an attempt of a node, or of an item. None: no run and no execution of ours."""
    if spec.is_nested:
        return Work(child_id_of(execution_id, spec.id, attempt, part), is_execution=True)
    if spec.work.flow is None:
        return None
    return Work(run_id_of(execution_id, spec.id, attempt, part))


# Memory of executions, mostly user data.

_NODE = 1_000
_EVENT = 200
_ITEM = 20
_LIGHT_BYTES = 8 * 1024
_PER_BYTE = 40
"""Of JSON: nested empty lists. A large value counts as if it were one, because to measure it takes long."""


def memory_of_state(state: Execution) -> int:
    """Approximate bytes."""
    maps = [node.map for node in state.nodes.values() if node.map is not None]
    of_items = sum(_ITEM * len(known.statuses) + sum(map(_memory_of, known.outputs)) for known in maps)
    held_bytes = state.held_bytes - sum(known.output_bytes for known in maps)
    if held_bytes > _LIGHT_BYTES:
        return _NODE * (1 + len(state.nodes)) + _PER_BYTE * held_bytes + of_items
    values: list[Any] = [state.input, state.result]
    for node in state.nodes.values():
        asked = node.resume_request
        values += (node.output, node.resume_data, node.metrics, None if asked is None else asked.data)
    values += (message.data for message in state.messages)
    return _NODE * (1 + len(state.nodes)) + memory_of(values) + of_items


def memory_of_commit(commit: Commit) -> int:
    """Approximate upper bound of a state's growth."""
    return sum(_EVENT + _memory_of(e.value_in(payload)) for payload in commit.payloads)


def _memory_of(value: Any) -> int:
    size = json_size(value)
    return memory_of(value) if size <= _LIGHT_BYTES else _PER_BYTE * size
