"""Jobs, snapshots and records to start a test with."""

from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.fleet import WorkerActivity, WorkerRecord, WorkerState
from pyoco_server.domain.runs.jobs import Job, Submission
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.wiring import new_run_id

RUN_ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001"
NOW = 1_700_000_000.0
OWNER = Owner("worker-a", "instance-1", 2)


def a_submission(**changes: Any) -> Submission:
    return replace(Submission(flow_name="sample", params={"x": 1}, tag="default"), **changes)


def a_job(**changes: Any) -> Job:
    job = Job(run_id=new_run_id(), flow_name="sample", tag="default", submitted_at=NOW, params={"x": 1})
    return replace(job, **changes)


def a_snapshot(
    status: RunStatus = RunStatus.PENDING, owner: Owner | None = None, **changes: Any
) -> RunSnapshot:
    snapshot = RunSnapshot(
        run_id=RUN_ID,
        flow_name="sample",
        status=status,
        params={"x": 1},
        tasks={},
        heartbeat_at=NOW,
        updated_at=NOW,
        worker_id=owner.worker_id if owner else None,
        instance_id=owner.instance_id if owner else None,
        attempt=owner.attempt if owner else None,
    )
    return replace(snapshot, **changes)


def an_activity(**changes: Any) -> WorkerActivity:
    activity = WorkerActivity(
        worker_id="worker-a", instance_id="instance-1", tags=("default",), state=WorkerState.IDLE
    )
    return replace(activity, **changes)


def a_worker(**changes: Any) -> WorkerRecord:
    record = WorkerRecord(
        worker_id="worker-a",
        instance_id="instance-1",
        state=WorkerState.IDLE,
        tags=("default",),
        last_seen_at=NOW,
        last_heartbeat_at=NOW,
        heartbeat_at=NOW,
        updated_at=NOW,
    )
    return replace(record, **changes)
