"""Run lists: filters, summaries and page cursors."""

import base64
import hashlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from pyoco_server.domain.runs.model import RunProgress, RunSnapshot, RunStatus, TaskState
from pyoco_server.errors import InvalidListQuery

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


class RunFilter(Struct, frozen=True, kw_only=True):
    """A filter of a run list. `tenant_id` None: all tenants (auth is off)."""

    tenant_id: str | None = None
    status: RunStatus | None = None
    flow: str | None = None
    tag: str | None = None
    updated_after: float | None = None
    updated_before: float | None = None
    workflow_yaml_sha256: str | None = None
    parent_run_id: str | None = None


class Place(Struct, frozen=True, array_like=True):
    """A run's position in the list: newest first, ties by run id."""

    updated_at: float
    run_id: str


class RunSummary(Struct, frozen=True):
    """A run as shown in a list."""

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
    schedule_id: str | None = None
    due_at: float | None = None
    not_before: float | None = None
    instance_id: str | None = None
    """Of its worker."""
    parent_run_id: str | None = None
    progress: RunProgress | None = None
    """Until it has ended."""


def _between(after: str, before: str) -> Callable[[RunSnapshot], tuple[Any, ...]]:
    """The values of a snapshot for the fields of a summary between two others."""
    names = RunSummary.__struct_fields__
    return attrgetter(*names[names.index(after) + 1 : names.index(before)])


_to_updated_at = _between("run_id", "updated_at")
_to_tasks = _between("updated_at", "tasks_total")
_to_progress = _between("tasks_done", "progress")


def is_beat(snapshot: RunSnapshot) -> bool:
    """Whether the last write was only a heartbeat, which leaves `updated_at` behind."""
    return snapshot.heartbeat_at > snapshot.updated_at


def changed_at(snapshot: RunSnapshot, stored_at: float | None) -> float:
    """Time of a run's last change, by the clock of the store.

    Lists are ordered and filtered by it, and show it as `updated_at`, because the clocks of writing hosts may
    be minutes apart and a poller would miss changes of a slow one. Every gateway derives it from the stored
    message alone. For a heartbeat, one clock measured the time since the change.
    """
    if stored_at is None:
        return snapshot.updated_at
    return stored_at - max(0.0, snapshot.heartbeat_at - snapshot.updated_at)


def summary(snapshot: RunSnapshot, run_id: str, updated_at: float) -> RunSummary:
    """`updated_at`: the result of `changed_at`. `run_id`: its key, whatever another implementation wrote."""
    values = (
        run_id,
        *_to_updated_at(snapshot),
        updated_at,
        *_to_tasks(snapshot),
        len(snapshot.tasks),
        list(snapshot.tasks.values()).count(TaskState.SUCCEEDED),
        *_to_progress(snapshot),
        None if snapshot.status.is_terminal else snapshot.progress,
    )
    return RunSummary(*values)


class _Cursor(Struct, array_like=True):
    place: Place
    of: str


def encode_cursor(place: Place, wanted: RunFilter) -> str:
    return cursor_at(place, _digest(wanted))


def decode_cursor(cursor: str, wanted: RunFilter) -> Place:
    return place_of(cursor, _digest(wanted))


def cursor_at(place: Place, of: str) -> str:
    """A cursor for the list with the digest `of`."""
    data = msgspec.json.encode(_Cursor(place, of))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def place_of(cursor: str, of: str) -> Place:
    """Decode a cursor, which any gateway can read, and check that it belongs to this list."""
    try:
        data = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        found = msgspec.json.decode(data, type=_Cursor)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidListQuery("invalid list query: malformed cursor") from error
    if found.of != of:
        raise InvalidListQuery("invalid list query: cursor belongs to a list with other filters")
    return found.place


def _digest(wanted: RunFilter) -> str:
    """Without times, which a polling client may change between pages."""
    parent = () if wanted.parent_run_id is None else (wanted.parent_run_id,)
    return digest_of(
        wanted.tenant_id, wanted.status, wanted.flow, wanted.tag, wanted.workflow_yaml_sha256, *parent
    )


def digest_of(*parts: str | bool | None) -> str:
    """The digest that binds a cursor to a list."""
    return hashlib.blake2s(msgspec.json.encode(parts), digest_size=6).hexdigest()
