"""A job: the message on the work queue that asks for one run."""

from typing import Any

from msgspec import Struct, field

from pyoco_server.domain.names import LABEL_RULE, MAX_FLOW_NAME, MAX_TAGS, is_label, is_run_id, require_tag
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import InvalidJob, InvalidRequest


class Submission(Struct, frozen=True, kw_only=True):
    """What somebody wants to be run."""

    flow_name: str
    params: dict[str, Any] = field(default_factory=dict)
    tag: str
    tags: tuple[str, ...] | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None


class Job(Struct, frozen=True, kw_only=True):
    run_id: str
    flow_name: str
    tag: str
    submitted_at: float
    tags: tuple[str, ...] | None = None
    params: dict[str, Any] | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None


def accept(submission: Submission, run_id: str, now: float) -> Job:
    """The job of a submission that follows the rules for names."""
    check_names(submission)
    return Job(
        run_id=run_id,
        flow_name=submission.flow_name,
        tag=submission.tag,
        tags=submission.tags if submission.tags is not None else (submission.tag,),
        params=submission.params,
        submitted_at=now,
        tenant_id=submission.tenant_id,
        api_key_id=submission.api_key_id,
        workflow_yaml=submission.workflow_yaml,
        workflow_yaml_sha256=submission.workflow_yaml_sha256,
        workflow_yaml_bytes=submission.workflow_yaml_bytes,
        execution_id=submission.execution_id,
        node_id=submission.node_id,
    )


def check_names(submission: Submission) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(submission.flow_name) <= MAX_FLOW_NAME:
        raise InvalidRequest(f"flow_name must have 1 to {MAX_FLOW_NAME} characters")
    require_tag(submission.tag)
    tags = submission.tags or ()
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"tags: at most {MAX_TAGS} tags are allowed, got {len(tags)}")
    for tag in tags:
        if not is_label(tag):
            raise InvalidRequest(f"tags: {tag!r} must have {LABEL_RULE}")


def check(job: Job) -> Job:
    """A job that was read from the queue: whoever put it there, its names must be usable as keys."""
    if not is_run_id(job.run_id):
        raise InvalidJob(f"run_id {job.run_id!r} is not a UUID")
    if not job.flow_name:
        raise InvalidJob("flow_name is empty")
    return job


def pending(job: Job, retention_sec: float | None = None) -> RunSnapshot:
    """The first snapshot of a job's run.

    Gateway and worker both get it from the job alone, so that a worker that knows its revision can claim
    the run with one write and no read. `retention_sec` comes beside the job.
    """
    return RunSnapshot(
        run_id=job.run_id,
        flow_name=job.flow_name,
        status=RunStatus.PENDING,
        params=job.params or {},
        tasks={},
        tag=job.tag,
        tags=job.tags,
        submitted_at=job.submitted_at,
        heartbeat_at=job.submitted_at,
        updated_at=job.submitted_at,
        tenant_id=job.tenant_id,
        api_key_id=job.api_key_id,
        workflow_yaml_sha256=job.workflow_yaml_sha256,
        workflow_yaml_bytes=job.workflow_yaml_bytes,
        execution_id=job.execution_id,
        node_id=job.node_id,
        retention_sec=retention_sec,
    )
