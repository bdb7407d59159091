"""Worker records of the registry, and lease records."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.inputs import MAX_FLOW_NAME, nearest
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.wheels import WheelSync


class WorkerState(StrEnum):
    RUNNING = "RUNNING"
    IDLE = "IDLE"
    STOPPED_GRACEFUL = "STOPPED_GRACEFUL"
    DISCONNECTED = "DISCONNECTED"


ALIVE = frozenset({WorkerState.RUNNING, WorkerState.IDLE})

KEPT_TASKS = "kept_tasks"
"""Runs a job without the tasks whose outputs it keeps."""
LANES = "lanes"
"""Takes jobs of all priorities of its tags, not only normal ones."""
SHARES = "shares"
"""Takes jobs of all tenants of its tags, not only those of the first share."""
RESOLVES = "resolves"
"""Puts values of secrets and variables into params."""
READS_VALUES = "reads_values"
"""Puts stored values into params."""
FEATURES = (KEPT_TASKS, RESOLVES, READS_VALUES)
"""Of every worker of this version."""


class WorkerFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker has done since its start, and what its main process uses."""

    host: str = ""
    version: str = ""
    python: str = ""
    started_at: float = 0.0
    active: int = 0
    """Runs that it has now."""
    ended: dict[str, int] = {}
    """Runs by how they ended on it: a status, or `OTHER`, e.g. returned to the queue."""
    busy_sec: float = 0.0
    """The sum of the times that these runs took."""
    cpu_sec: float | None = None
    memory_bytes: int | None = None


class WorkerRecord(Struct, frozen=True, kw_only=True):
    worker_id: str
    instance_id: str
    state: WorkerState
    tags: tuple[str, ...]
    last_seen_at: float
    last_heartbeat_at: float
    heartbeat_at: float = 0.0
    """Same as last_heartbeat_at, for older readers; not written by every other implementation."""
    updated_at: float = 0.0
    hidden: bool = False
    """Hidden for everyone, by a caller without an API key."""
    hidden_for: tuple[str, ...] = ()
    """Hidden for these tenants."""
    current_run_id: str | None = None
    last_run_id: str | None = None
    last_run_status: RunStatus | None = None
    last_run_started_at: float | None = None
    last_run_finished_at: float | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    wheel_sync: WheelSync | None = None
    flows: tuple[str, ...] | None = None
    """Names of the flows that it can run; None: its resolver cannot list them, or the worker is older."""
    flow_aliases: tuple[str, ...] = ()
    """Other names of these flows."""
    flows_complete: bool = False
    """It runs no flow with another name."""
    features: tuple[str, ...] = ()
    """What it can do that older workers cannot."""
    slots: int | None = None
    """How many runs it can run at once; None: an older worker."""
    figures: WorkerFigures | None = None
    """For its metrics; None: an older worker."""


class FlowList(Struct, frozen=True):
    """Flows of a worker, as in its record."""

    names: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    is_complete: bool = False


class WorkerActivity(Struct, frozen=True, kw_only=True):
    """The worker's own part of its record; the rest (`hidden`) belongs to others."""

    worker_id: str
    instance_id: str
    tags: tuple[str, ...]
    state: WorkerState
    current_run_id: str | None = None
    last_run_id: str | None = None
    last_run_status: RunStatus | None = None
    last_run_started_at: float | None = None
    last_run_finished_at: float | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    wheel_sync: WheelSync | None = None
    flows: FlowList | None = None
    features: tuple[str, ...] = FEATURES
    slots: int | None = None
    figures: WorkerFigures | None = None


def register(known: WorkerRecord | None, activity: WorkerActivity, now: float) -> WorkerRecord:
    """The record after a heartbeat, with the fields of others kept."""
    return WorkerRecord(
        worker_id=activity.worker_id,
        instance_id=activity.instance_id,
        state=activity.state,
        tags=activity.tags,
        hidden=known.hidden if known else False,
        hidden_for=known.hidden_for if known else (),
        last_seen_at=now,
        last_heartbeat_at=now,
        heartbeat_at=now,
        updated_at=now,
        current_run_id=activity.current_run_id,
        last_run_id=activity.last_run_id or (known.last_run_id if known else None),
        last_run_status=activity.last_run_status or (known.last_run_status if known else None),
        last_run_started_at=activity.last_run_started_at or (known.last_run_started_at if known else None),
        last_run_finished_at=activity.last_run_finished_at or (known.last_run_finished_at if known else None),
        stopped_at=activity.stopped_at,
        stop_reason=activity.stop_reason,
        wheel_sync=activity.wheel_sync,
        flows=activity.flows.names if activity.flows else None,
        flow_aliases=activity.flows.aliases if activity.flows else (),
        flows_complete=activity.flows.is_complete if activity.flows else False,
        features=activity.features,
        slots=activity.slots,
        figures=activity.figures,
    )


MAX_FLOWS_BYTES = 16 * 1024
"""Limit for the flow names of a record, which is written with every heartbeat."""


def reportable_flows(names: Iterable[str], aliases: Iterable[str] = ()) -> FlowList:
    """What fits into a worker record, names before aliases, each sorted."""
    wanted = _usable(names), _usable(aliases)
    first, room = _fitting(wanted[0], MAX_FLOWS_BYTES)
    second, _ = _fitting(wanted[1], room)
    return FlowList(first, second, is_complete=(len(first), len(second)) == tuple(map(len, wanted)))


def _usable(names: Iterable[str]) -> list[str]:
    """No run can have any other name."""
    return sorted({name for name in names if 0 < len(name) <= MAX_FLOW_NAME})


def _fitting(names: list[str], room: int) -> tuple[tuple[str, ...], int]:
    for index, name in enumerate(names):
        size = len(name.encode(errors="replace"))
        if size > room:
            return tuple(names[:index]), 0
        room -= size
    return tuple(names), room


def hide(known: WorkerRecord, tenant_id: str | None, *, hidden: bool) -> WorkerRecord:
    """Hide for one tenant, or for everyone. Showing undoes both."""
    others = tuple(tenant for tenant in known.hidden_for if tenant != tenant_id)
    if tenant_id is None:
        return replace(known, hidden=hidden)
    if hidden:
        return replace(known, hidden_for=(*others, tenant_id))
    return replace(known, hidden=False, hidden_for=others)


def seen_by(known: WorkerRecord, tenant_id: str | None) -> WorkerRecord:
    """The record with `hidden` from one tenant's view."""
    return replace(known, hidden=known.hidden or tenant_id in known.hidden_for, hidden_for=())


def is_held_by_another(known: WorkerRecord | None, activity: WorkerActivity) -> bool:
    """Whether the record belongs to another live instance of this worker, which may have crashed."""
    return known is not None and known.instance_id != activity.instance_id and known.state in ALIVE


def observed_state(record: WorkerRecord, silent_for: float, disconnect_timeout: float) -> WorkerState:
    """A worker without a heartbeat for too long is disconnected; a stopped one stays stopped."""
    if record.state in ALIVE and silent_for > disconnect_timeout:
        return WorkerState.DISCONNECTED
    return record.state


def with_observed_state(record: WorkerRecord, silent_for: float, disconnect_timeout: float) -> WorkerRecord:
    return replace(record, state=observed_state(record, silent_for, disconnect_timeout))


def newest_heartbeat(heartbeat_at: float, instance_id: str | None, worker: WorkerRecord | None) -> float:
    """Of a running run: with many runs, their worker reports more often than it writes each of them.

    Both times are by the worker's clock. Another instance of the worker does not run it.
    """
    if worker is None or worker.instance_id != instance_id or worker.state not in ALIVE:
        return heartbeat_at
    return max(heartbeat_at, worker.last_heartbeat_at)


# What the fleet knows: whether a run can find a worker and its flow.


class TagFlows(Struct, frozen=True):
    """The flows that the workers of a tag report."""

    names: frozenset[str]
    is_complete: bool


class FleetView(Struct, frozen=True):
    """By tag: flows of the live workers, and of the others."""

    live: dict[str, TagFlows]
    gone: dict[str, TagFlows]


class Doubt(Struct, frozen=True):
    """Why a run may wait or fail."""

    text: str
    is_certain: bool
    """Not even a worker that is gone had the tag or the flow: it is unknown, not just unavailable."""


def view_of(live: Iterable[WorkerRecord], gone: Iterable[WorkerRecord]) -> FleetView:
    return FleetView(_by_tag(live), _by_tag(gone))


def _by_tag(records: Iterable[WorkerRecord]) -> dict[str, TagFlows]:
    found: dict[str, list[WorkerRecord]] = {}
    for record in records:
        for tag in record.tags:
            found.setdefault(tag, []).append(record)
    return {tag: _flows_of(workers) for tag, workers in found.items()}


def _flows_of(workers: list[WorkerRecord]) -> TagFlows:
    names = (name for worker in workers for name in (*(worker.flows or ()), *worker.flow_aliases))
    return TagFlows(frozenset(names), all(worker.flows_complete for worker in workers))


NOBODY = Doubt("no worker is running: the run waits until one comes", is_certain=False)


def doubt_about(fleet: FleetView, tag: str, flow: str | None, *, suggest: bool = True) -> Doubt | None:
    """`flow` None: the run brings its own flow. `suggest`: name what may have been meant."""
    known = nearest if suggest else _nothing
    if not fleet.live:
        return NOBODY
    of_tag = fleet.live.get(tag)
    if of_tag is None:
        text = f"no live worker has the tag {tag!r}{known(tag, sorted(fleet.live))}; the run waits for one"
        return Doubt(text, is_certain=tag not in fleet.gone)
    if flow is None or flow in of_tag.names or not of_tag.is_complete:
        return None
    text = f"no live worker with the tag {tag!r} has the flow {flow!r}{known(flow, sorted(of_tag.names))}"
    return Doubt(text, is_certain=tag not in fleet.gone or flow not in fleet.gone[tag].names)


def _nothing(word: str, known: Iterable[str]) -> str:  # noqa: ARG001 - as `nearest`
    return ""


# Lease records for work that one gateway does at a time.


class LeaseRecord(Struct, frozen=True):
    holder: str
    until: float = 0.0
    """Expiry by the shared clock; a holder that has not renewed it by then counts as dead."""


def is_free(lease: LeaseRecord | None, holder: str, now: float) -> bool:
    return lease is None or lease.holder == holder or lease.until <= now
