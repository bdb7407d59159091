"""Lists of runs: what can be asked for, what an item shows, and the cursor that leads to the next page."""

import base64
import hashlib

import msgspec
from msgspec import Struct

from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, TaskState
from pyoco_server.errors import InvalidListQuery

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs. `tenant_id` None: of everybody (auth is off)."""

    tenant_id: str | None = None
    status: RunStatus | None = None
    flow: str | None = None
    tag: str | None = None
    updated_after: float | None = None
    workflow_yaml_sha256: str | None = None


class Place(Struct, frozen=True, array_like=True):
    """A run's place in the list: newest first, ties by run id."""

    updated_at: float
    run_id: str


class RunSummary(Struct, frozen=True, kw_only=True):
    """What a list shows of a run."""

    run_id: str
    flow_name: str
    status: RunStatus
    tag: str | None
    tags: tuple[str, ...] | None
    updated_at: float
    heartbeat_at: float
    submitted_at: float | None
    start_time: float | None
    end_time: float | None
    worker_id: str | None
    attempt: int | None
    error: str | None
    cancel_requested_at: float | None
    tasks_total: int
    tasks_done: int
    tenant_id: str | None
    api_key_id: str | None
    workflow_yaml_sha256: str | None
    workflow_yaml_bytes: int | None
    execution_id: str | None
    node_id: str | None


_SAME_NAMES = [name for name in RunSummary.__struct_fields__ if not name.startswith("tasks_")]


def is_beat(snapshot: RunSnapshot) -> bool:
    """Whether the last write was a heartbeat alone: it leaves `updated_at` behind."""
    return snapshot.heartbeat_at > snapshot.updated_at


def changed_at(snapshot: RunSnapshot, stored_at: float | None) -> float:
    """When a run changed last, by the clock of the store that took the write.

    Lists are ordered and filtered by it, and show it as `updated_at`: the clocks of the hosts that write
    snapshots may be minutes apart, and a poller would miss what the slow one wrote. Every gateway gets it
    from the stored message alone. Of a heartbeat, what passed since the change is known by one clock.
    """
    if stored_at is None:
        return snapshot.updated_at
    return stored_at - max(0.0, snapshot.heartbeat_at - snapshot.updated_at)


def summary(snapshot: RunSnapshot, updated_at: float | None = None) -> RunSummary:
    """`updated_at`: as `changed_at` has it."""
    same = {name: getattr(snapshot, name) for name in _SAME_NAMES}
    if updated_at is not None:
        same["updated_at"] = updated_at
    return RunSummary(
        **same,
        tasks_total=len(snapshot.tasks),
        tasks_done=sum(state is TaskState.SUCCEEDED for state in snapshot.tasks.values()),
    )


class _Cursor(Struct, array_like=True):
    place: Place
    of: str


def encode_cursor(place: Place, wanted: RunFilter) -> str:
    return cursor_at(place, _digest(wanted))


def decode_cursor(cursor: str, wanted: RunFilter) -> Place:
    return place_of(cursor, _digest(wanted))


def cursor_at(place: Place, of: str) -> str:
    """A cursor of the list that `of` stands for."""
    data = msgspec.json.encode(_Cursor(place, of))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def place_of(cursor: str, of: str) -> Place:
    """Any gateway can read it. It leads on in the list it is of, and nowhere else."""
    try:
        data = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        found = msgspec.json.decode(data, type=_Cursor)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidListQuery("invalid list query: cursor is not one of ours") from error
    if found.of != of:
        raise InvalidListQuery("invalid list query: cursor belongs to a list with other filters")
    return found.place


def _digest(wanted: RunFilter) -> str:
    """`updated_after` is left out: a client that polls may move it on while it reads the pages."""
    return digest_of(wanted.tenant_id, wanted.status, wanted.flow, wanted.tag, wanted.workflow_yaml_sha256)


def digest_of(*parts: str | bool | None) -> str:
    """What a cursor is bound to."""
    return hashlib.blake2s(msgspec.json.encode(parts), digest_size=6).hexdigest()
