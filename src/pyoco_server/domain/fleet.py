"""Worker records of the registry, and lease records."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

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
FEATURES = (KEPT_TASKS,)
"""Of every worker of this version."""


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
    features: tuple[str, ...] = ()
    """What it can do that older workers cannot."""
    slots: int | None = None
    """How many runs it can run at once; None: an older worker."""


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
    flows: tuple[str, ...] | None = None
    features: tuple[str, ...] = FEATURES
    slots: int | None = None


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
        flows=activity.flows,
        features=activity.features,
        slots=activity.slots,
    )


MAX_FLOW_NAME = 200
MAX_FLOWS_BYTES = 16 * 1024
"""Limit for the flow names of a record, which is written with every heartbeat."""


def reportable_flows(names: Iterable[str]) -> tuple[str, ...]:
    """The names that fit into a worker record, sorted."""
    room = MAX_FLOWS_BYTES
    fitting = []
    for name in sorted({name for name in names if 0 < len(name) <= MAX_FLOW_NAME}):
        room -= len(name.encode(errors="replace"))
        if room < 0:
            break
        fitting.append(name)
    return tuple(fitting)


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


# Lease records for work that one gateway does at a time.


class LeaseRecord(Struct, frozen=True):
    holder: str
    until: float = 0.0
    """Expiry by the shared clock; a holder that has not renewed it by then counts as dead."""


def is_free(lease: LeaseRecord | None, holder: str, now: float) -> bool:
    return lease is None or lease.holder == holder or lease.until <= now
