"""Flows: what is known about each from workers and runs, and the defaults that are set for its runs."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.inputs import MAX_FLOW_NAME
from pyoco_server.domain.queues import Pause
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.model import Priority, RunRetry, RunStatus
from pyoco_server.errors import InvalidRequest


class FlowSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults for the runs of a flow, and what people should know about it."""

    name: str
    tenant_id: str | None = None
    retry: RunRetry | None = None
    timeout_sec: float | None = None
    start_within_sec: float | None = None
    priority: Priority | None = None
    params_schema: dict[str, Any] | None = None
    description: str | None = None
    owner: str | None = None
    updated_at: float | None = None

    @property
    def key(self) -> str:
        return flow_key(self.tenant_id, self.name)


NO_TENANT = "_"
RUN_DEFAULTS = ("retry", "timeout_sec", "start_within_sec", "priority")
"""Fields of a run that its flow may have a default for."""
SETTINGS = (*RUN_DEFAULTS, "params_schema", "description", "owner")


def flow_key(tenant_id: str | None, name: str) -> str:
    """The bucket key: a hash, because names of flows are arbitrary text."""
    return f"{tenant_id or NO_TENANT}.{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def is_empty(settings: FlowSettings) -> bool:
    return all(getattr(settings, name) is None for name in SETTINGS)


def is_same(one: FlowSettings, other: FlowSettings) -> bool:
    """Whoever set it, and whenever."""
    return all(getattr(one, name) == getattr(other, name) for name in SETTINGS)


def check_name(name: str) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(name) <= MAX_FLOW_NAME:
        raise InvalidRequest(f"flow name must have 1 to {MAX_FLOW_NAME} characters")


def with_defaults(submission: Submission, settings: FlowSettings) -> Submission:
    """The submission's own fields win."""
    missing = {
        name: default
        for name in RUN_DEFAULTS
        if getattr(submission, name) is None and (default := getattr(settings, name)) is not None
    }
    return replace(submission, **missing) if missing else submission


def named_flow(submission: Submission) -> str | None:
    """The flow that a worker needs to have; None: the run brings its own."""
    return submission.flow_name if submission.workflow_yaml is None else None


# What is known about a flow


class FlowRun(Struct, frozen=True, kw_only=True):
    """A recent run of a flow."""

    run_id: str
    status: RunStatus
    tag: str | None = None
    updated_at: float
    submitted_at: float | None = None
    start_time: float | None = None
    end_time: float | None = None


class Flow(Struct, frozen=True, kw_only=True):
    """A flow that live workers report, that has runs, or that has defaults.

    `success_rate` is the share of completed runs (0 to 1) among the last 100 that completed or failed;
    `p50_sec` and `p95_sec` are durations of the completed ones. null: no such run.
    """

    name: str
    tags: tuple[str, ...]
    """Tags of these workers and of `last_runs`."""
    workers: tuple[str, ...]
    """Live workers that report it."""
    wheel_version: str | None
    """Of the one wheel that these workers have; several versions during an update. null: none or several."""
    limits: tuple[str, ...] = ()
    """Names of the limits that concern its runs."""
    schedules: tuple[str, ...] = ()
    """Ids of the schedules that start it."""
    paused: Pause | None = None
    last_runs: list[FlowRun]
    """Newest first."""
    success_rate: float | None
    p50_sec: float | None
    p95_sec: float | None


class FlowPage(Struct, frozen=True):
    items: list[Flow]
    next_cursor: str | None


class FlowDetails(Flow, frozen=True, kw_only=True):
    """A flow, and what is set for it."""

    retry: RunRetry | None
    timeout_sec: float | None
    start_within_sec: float | None
    priority: Priority | None
    params_schema: dict[str, Any] | None
    description: str | None
    owner: str | None
    updated_at: float | None
    """Of the settings."""


FLOW_ANSWERS = (Flow, FlowRun, FlowPage, FlowDetails)


def details(flow: Flow, settings: FlowSettings) -> FlowDetails:
    set_here = {name: getattr(settings, name) for name in (*SETTINGS, "updated_at")}
    return FlowDetails(**asdict(flow), **set_here)


def flow_of_runs(
    name: str,
    holders: Sequence[WorkerRecord],
    schedules: Sequence[str],
    last_runs: list[FlowRun],
    ended: Sequence[FlowRun],
) -> Flow:
    """`holders`: the workers that report it. `ended`: recent runs that completed or failed."""
    completed = [run for run in ended if run.status is RunStatus.COMPLETED]
    took = sorted(
        max(0.0, run.end_time - run.start_time)
        for run in completed
        if run.start_time is not None and run.end_time is not None
    )
    tags = {tag for worker in holders for tag in worker.tags} | {run.tag for run in last_runs if run.tag}
    return Flow(
        name=name,
        tags=tuple(sorted(tags)),
        workers=tuple(sorted(worker.worker_id for worker in holders)),
        wheel_version=_wheel_version(holders),
        schedules=tuple(schedules),
        last_runs=last_runs,
        success_rate=len(completed) / len(ended) if ended else None,
        p50_sec=_percentile(took, 0.5),
        p95_sec=_percentile(took, 0.95),
    )


def _wheel_version(workers: Iterable[WorkerRecord]) -> str | None:
    """Workers do not report which of several wheels a flow is from."""
    wheels = {
        (wheel.package, wheel.version)
        for worker in workers
        if worker.wheel_sync is not None
        for wheel in worker.wheel_sync.installed_wheels
    }
    is_one = len({package for package, _ in wheels}) == 1
    return ", ".join(sorted(version for _, version in wheels)) if is_one else None


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """By nearest rank: always a duration that was measured."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def flows_by_name(workers: Iterable[WorkerRecord]) -> dict[str, list[WorkerRecord]]:
    found: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        for name in worker.flows or ():
            found.setdefault(name, []).append(worker)
    return found
