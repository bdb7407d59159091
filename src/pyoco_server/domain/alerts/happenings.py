"""What alerts are about, from what is stored of runs, executions, schedules, dead letters and events.

A happening has an id that follows from it. So whoever notices it, and however often, it is one.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from pyoco_server.domain.alerts.filters import passes
from pyoco_server.domain.alerts.model import Alert, AlertKind
from pyoco_server.domain.cel.values import ConditionFailed
from pyoco_server.domain.dead_letters import StoredLetter
from pyoco_server.domain.events.retry import JobStatus, RetryJob
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionSummary, Wait
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.schedules.model import Schedule, Tick, TickStatus

MAX_ERROR = 2_000
OF_FLEET = "*"
"""In place of a tenant: workers belong to all."""


class Happening(Struct, frozen=True, kw_only=True):
    kind: AlertKind
    tenant_id: str | None
    at: float
    subject: str
    """Messages about the same subject are sent in order."""
    occurrence: str
    """Distinguishes it from others of its kind and subject."""
    flow_name: str | None = None
    tag: str | None = None
    tags: tuple[str, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    status: str | None = None
    error: str | None = None
    run_id: str | None = None
    execution_id: str | None = None
    node_id: str | None = None
    schedule_id: str | None = None
    worker_id: str | None = None
    limit: str | None = None
    reason: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What only its kind has."""
    group: str = ""
    """What a cooldown counts beside the alert: the flow, or what takes its place."""

    @property
    def flow(self) -> str:
        return self.flow_name or self.group


_IN_DATA = (
    "run_id", "flow_name", "tag", "status", "error", "execution_id", "node_id", "schedule_id", "worker_id",
    "limit", "reason",
)  # fmt: skip


def body_of(happening: Happening, alert: Alert, suppressed: int) -> dict[str, Any]:
    data = {name: getattr(happening, name) for name in _IN_DATA}
    return {
        "type": happening.kind.value,
        "timestamp": datetime.fromtimestamp(happening.at, UTC).isoformat().replace("+00:00", "Z"),
        "data": {"alert": alert.name, **data, "suppressed": suppressed, **happening.more},
    }


def concerns(alert: Alert, happening: Happening) -> bool:
    """Whether an alert is about it. Raises ConditionFailed if its filter has no result."""
    if happening.kind not in alert.definition.on:
        return False
    if happening.tenant_id != OF_FLEET and alert.tenant_id not in (None, happening.tenant_id):
        return False
    if happening.kind not in WHILE_IT_LASTS and happening.at < alert.since.get(happening.kind, 0.0):
        return False
    return alert.definition.filter is None or passes(alert.definition.filter, _values(happening))


WHILE_IT_LASTS = frozenset(
    {AlertKind.RUN_LATE, AlertKind.RUN_STUCK, AlertKind.WAIT_OVERDUE, AlertKind.LIMIT_WAITING}
)
"""These are states: an alert that is defined during one is about it, too."""


def _values(happening: Happening) -> dict[str, Any]:
    return {
        "flow_name": happening.flow_name,
        "params": happening.params,
        "status": happening.status,
        "tag": happening.tag,
        "tags": list(happening.tags),
        "type": happening.kind.value,
    }


# Runs


def of_run(run: RunSnapshot, stored_at: float | None) -> Iterator[Happening]:
    """What a change of a run means by itself."""
    if run.status is RunStatus.FAILED:
        at = stored_at if stored_at is not None and run.retried_as is None else run.end_time
        yield _run(AlertKind.RUN_FAILED, run, at or run.updated_at, "")


def late_run(run: RunSnapshot, late_after_sec: float) -> Happening:
    return _run(AlertKind.RUN_LATE, run, (run.submitted_at or 0.0) + late_after_sec, "")


def stuck_run(run: RunSnapshot, at: float) -> Happening:
    return _run(AlertKind.RUN_STUCK, run, at, f"{run.try_number}.{run.attempt or 0}")


def run_without_place(run: RunSnapshot, limit: str, late_after_sec: float) -> Happening:
    at = (run.submitted_at or 0.0) + late_after_sec
    return _run(AlertKind.LIMIT_WAITING, run, at, str(run.try_number), limit=limit)


def _run(kind: AlertKind, run: RunSnapshot, at: float, occurrence: str, **more: Any) -> Happening:
    return Happening(
        kind=kind,
        tenant_id=run.tenant_id,
        at=at,
        subject=run.run_id,
        occurrence=occurrence,
        flow_name=run.flow_name,
        tag=run.tag,
        tags=run.tags or (),
        params=run.params or {},
        status=run.status.value,
        error=_cut(run.error),
        run_id=run.run_id,
        execution_id=run.execution_id,
        node_id=run.node_id,
        schedule_id=run.schedule_id,
        worker_id=run.worker_id,
        reason=None if run.failure is None else run.failure.kind.value,
        **more,
    )


# Executions


def of_execution(summary: ExecutionSummary) -> Iterator[Happening]:
    """From the whole state and not from the last event, so that no state is missed."""
    if summary.archived_at is not None:
        return
    if summary.status is ExecutionStatus.FAILED and summary.ended_at is not None:
        yield _failed_execution(summary, summary.ended_at)
    if summary.status is ExecutionStatus.ACTIVE:
        for wait in summary.waits:
            yield waiting_node(AlertKind.WAIT_OPENED, wait, wait.waiting_at)


def _failed_execution(summary: ExecutionSummary, at: float) -> Happening:
    shown = summary.shown()
    return Happening(
        kind=AlertKind.EXECUTION_FAILED,
        tenant_id=summary.tenant_id,
        at=at,
        subject=shown.execution_id,
        occurrence=f"{at:.6f}",
        status=summary.status.value,
        error=_cut(summary.error),
        execution_id=shown.execution_id,
        node_id=summary.failed_node_id,
        more={"graph_id": summary.graph_id},
        group=summary.graph_id,
    )


def waiting_node(kind: AlertKind, wait: Wait, at: float) -> Happening:
    return Happening(
        kind=kind,
        tenant_id=wait.tenant_id,
        at=at,
        subject=wait.execution_id,
        occurrence=f"{wait.node_id}.{wait.waiting_at:.6f}",
        status="WAITING",
        execution_id=wait.execution_id,
        node_id=wait.node_id,
        more={
            "graph_id": wait.graph_id,
            "wait_key": wait.wait_key,
            "prompt": _cut(wait.prompt),
            "deadline": wait.deadline,
        },
        group=wait.graph_id,
    )


# Schedules

_TICKS = {
    TickStatus.SKIPPED: AlertKind.SCHEDULE_SKIPPED,
    TickStatus.MISSED: AlertKind.SCHEDULE_MISSED,
}


def of_tick(schedule: Schedule, tick: Tick) -> Happening | None:
    kind, target = _TICKS.get(tick.status), schedule.definition.target
    if kind is None:
        return None
    return Happening(
        kind=kind,
        tenant_id=schedule.tenant_id,
        at=tick.fired_at,
        subject=schedule.key,
        occurrence=f"{schedule.incarnation}.{tick.due_at:.3f}",
        flow_name=target.flow,
        tag=target.tag,
        tags=target.tags or (),
        params=target.params,
        status=tick.status.value,
        schedule_id=schedule.id,
        reason=tick.reason,
        more={"due_at": tick.due_at, "count": tick.count},
        group=target.graph or target.template or "",
    )


# Workers, dead letters, events


def lost_worker(worker: WorkerRecord, at: float) -> Happening:
    return Happening(
        kind=AlertKind.WORKER_LOST,
        tenant_id=OF_FLEET,
        at=at,
        subject=worker.worker_id,
        occurrence=f"{worker.instance_id}.{worker.last_seen_at:.3f}",
        tag=worker.tags[0] if worker.tags else None,
        tags=worker.tags,
        status="DISCONNECTED",
        worker_id=worker.worker_id,
        more={"last_heartbeat_at": worker.last_heartbeat_at},
    )


def of_letter(stored: StoredLetter, at: float | None) -> Happening:
    letter = stored.letter
    return Happening(
        kind=AlertKind.DEAD_LETTER,
        tenant_id=stored.tenant_id,
        at=letter.timestamp if at is None else at,
        subject=letter.run_id or stored.id,
        occurrence=stored.mark_key,
        flow_name=letter.flow_name,
        tag=letter.tag or stored.tag,
        tags=letter.tags or (),
        error=_cut(letter.error),
        run_id=letter.run_id,
        worker_id=letter.worker_id,
        reason=letter.reason.value,
        more={"dead_letter_id": stored.id},
    )


def of_job(job: RetryJob) -> Happening | None:
    if job.status is not JobStatus.ESCALATED:
        return None
    return Happening(
        kind=AlertKind.EVENT_ESCALATED,
        tenant_id=job.tenant_id,
        at=job.updated_at,
        subject=job.id,
        occurrence=f"{job.updated_at:.6f}",
        status=job.status.value,
        error=_cut(job.last_error),
        reason="/".join(filter(None, (job.last_reason_class, job.last_reason_code))) or None,
        more={
            "template_id": job.template_id,
            "template_name": job.template_name,
            "idempotency_key": job.idempotency_key,
            "job_id": job.id,
            "attempts": job.attempts,
        },
        group=job.template_id,
    )


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_ERROR else text[:MAX_ERROR] + "…"


__all__ = ["ConditionFailed", "Happening"]
