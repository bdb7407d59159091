"""Retries of ended runs: what is kept, how the two runs are linked, which workers may take the job."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pyoco_server.domain import codec
from pyoco_server.domain.fleet import KEPT_TASKS, register
from pyoco_server.domain.runs.changes import Claim, Conclude, LinkRetry, decide
from pyoco_server.domain.runs.jobs import accept, pending
from pyoco_server.domain.runs.model import (
    KeptTasks,
    Owner,
    Reusable,
    RunRetry,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
    flow_file_key,
    kept_tasks_of,
)
from pyoco_server.domain.runs.repeats import repeated
from pyoco_server.domain.runs.trimming import trim_snapshot
from pyoco_server.errors import InvalidJob, RunNotRetriable
from pyoco_server.memory.stores import MemoryListedStore
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from pyoco_server.usecases.runs.retry import UNUSED_SEC, USED_AGAIN_SEC, FlowFiles
from support.builders import NOW, RUN_ID, a_job, a_snapshot, an_activity

OLD, NEW, NEWER = (f"0190aaaa-bbbb-7ccc-8ddd-eeeeffff000{n}" for n in (1, 2, 3))
OWNER = Owner("worker-a", "instance-1", 1)
DONE = TaskRecord(state=TaskState.SUCCEEDED, output=[1, 2], reusable=Reusable.YES, started_at=5.0)
BROKEN = TaskRecord(state=TaskState.FAILED, error="ValueError: no")
GRAPH: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",)}
KEPT = KeptTasks({"a": DONE}, GRAPH)


def ended(status: RunStatus = RunStatus.FAILED, **changes: Any) -> RunSnapshot:
    run = a_snapshot(
        status,
        OWNER,
        tag="default",
        tasks={"a": TaskState.SUCCEEDED, "b": TaskState.FAILED},
        task_records={"a": DONE, "b": BROKEN},
        task_dependencies=GRAPH,
    )
    return replace(run, **changes)


# What is kept


def test_the_outputs_of_tasks_that_succeeded_are_kept() -> None:
    assert kept_tasks_of(ended()) == KEPT


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": {}, "task_records": {}, "task_dependencies": None},
        {"tasks": {"a": TaskState.FAILED}, "task_records": {"a": BROKEN}},
    ],
)
def test_a_run_in_which_nothing_succeeded_keeps_nothing(changes: dict[str, Any]) -> None:
    assert kept_tasks_of(ended(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task_records": {"a": replace(DONE, reusable=Reusable.NOT_EXACT)}}, "'a' is not plain JSON"),
        ({"task_records": {"a": replace(DONE, reusable=None)}}, "'a' may not be exact: an older worker"),
        ({"task_records": {}, "task_records_truncated": True}, "'a' was too large to store"),
        ({"task_records": None}, "'a' may not be exact"),
        ({"task_dependencies": None}, "the order of the run's tasks is not known"),
        (
            {"task_records": {"a": replace(DONE, reusable=Reusable.CONTROL_FLOW)}},
            "flow 'sample' has a switch or a loop",
        ),
        (
            {"status": RunStatus.COMPLETED, "tasks": {"a": TaskState.SUCCEEDED}},
            "all tasks of the run succeeded",
        ),
    ],
)
def test_an_output_that_is_not_known_exactly_is_never_used(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RunNotRetriable, match=problem) as refused:
        kept_tasks_of(ended(**changes))
    assert "retry it from the start" in refused.value.detail


def test_a_snapshot_that_was_trimmed_has_no_output_to_use() -> None:
    trimmed = trim_snapshot(ended(error="x" * 100), 1_000, codec.encode).snapshot
    assert trimmed.task_records_truncated
    with pytest.raises(RunNotRetriable, match="too large to store"):
        kept_tasks_of(codec.decode_run(codec.encode(trimmed)))


def test_a_completed_run_with_an_isolated_failure_can_be_retried_from_there() -> None:
    assert kept_tasks_of(ended(RunStatus.COMPLETED)) == KEPT


def test_a_retry_has_the_input_of_the_run_and_none_of_its_history() -> None:
    run = ended(
        tags=("nightly",),
        tenant_id="acme",
        timeout_sec=5.0,
        start_within_sec=6.0,
        retry=RunRetry(max_attempts=3),
        execution_id="e",
        node_id="n",
        not_before=NOW + 60,
        retried_from="an older one",
    )
    again = repeated(run, None, "key-2", {"y": 2})
    snapshot = pending(accept(again, NEW, NOW))
    assert (snapshot.params, snapshot.tag, snapshot.tags) == ({"x": 1, "y": 2}, "default", ("nightly",))
    assert (snapshot.tenant_id, snapshot.api_key_id, snapshot.retried_from) == ("acme", "key-2", RUN_ID)
    assert (snapshot.timeout_sec, snapshot.start_within_sec, snapshot.retry) == (5.0, 6.0, run.retry)
    assert (snapshot.execution_id, snapshot.node_id, snapshot.not_before) == (None, None, None)


# The new run


def test_the_kept_tasks_are_shown_from_the_beginning_and_survive_every_try() -> None:
    first = pending(a_job(run_id=NEW, kept=KEPT, retry=RunRetry(max_attempts=2), retried_from=OLD))
    assert (first.tasks, first.task_records, first.kept_tasks) == (
        {"a": TaskState.SUCCEEDED},
        {"a": DONE},
        ("a",),
    )
    claimed = decide(first, Claim(OWNER, 7), NOW)
    assert isinstance(claimed, RunSnapshot)
    assert (claimed.tasks, claimed.task_dependencies) == (first.tasks, GRAPH)
    failure = Conclude(
        owner=OWNER,
        status=RunStatus.FAILED,
        tasks={"a": TaskState.SUCCEEDED, "b": TaskState.FAILED},
        task_records={"a": DONE, "b": BROKEN},
        try_number=1,
        retry_at=NOW + 5,
    )
    waiting = decide(claimed, failure, NOW + 1)
    assert isinstance(waiting, RunSnapshot)
    again = decide(waiting, Claim(OWNER, 8, 2), NOW + 6)
    assert isinstance(again, RunSnapshot)
    assert (again.tasks, again.task_records) == (first.tasks, first.task_records), "b is run again"
    assert again.retried_from == OLD


def test_a_retry_of_a_retry_that_never_ran_keeps_the_same_tasks() -> None:
    first = pending(a_job(run_id=NEW, kept=KEPT))
    assert kept_tasks_of(replace(first, status=RunStatus.CANCELLED)) == KEPT


# The job


class OlderJob(msgspec.Struct):
    """The fields of a job that every older worker requires."""

    run_id: str
    flow_name: str
    tag: str


def test_a_worker_that_would_run_the_kept_tasks_again_cannot_read_the_job() -> None:
    job = a_job(run_id=NEW, kept=KEPT, params={"secret": "s3cr3t"})
    data = codec.encode_job(job)
    assert codec.decode_job(data) == job
    with pytest.raises(msgspec.ValidationError, match="flow_name"):
        msgspec.json.decode(data, type=OlderJob)
    assert codec.run_id_in(data) == NEW, "so it can end the run"
    assert "s3cr3t" not in codec.payload_excerpt(data), "what it cannot read goes to the dead letters"


def test_a_plain_job_is_as_it_always_was() -> None:
    job = a_job()
    assert codec.encode_job(job) == codec.encode(job)
    msgspec.json.decode(codec.encode_job(job), type=OlderJob)


def test_what_is_neither_is_invalid() -> None:
    with pytest.raises(InvalidJob, match="flow_name"):
        codec.decode_job(b'{"run_id": "x", "tag": "t", "job_with_kept_tasks": "e30="}')


def test_a_worker_reports_that_it_can_keep_outputs() -> None:
    assert KEPT_TASKS in register(None, an_activity(), NOW).features


# The link


def linked(run: RunSnapshot, run_id: str) -> RunSnapshot:
    changed = decide(run, LinkRetry(run_id), NOW + 9)
    assert isinstance(changed, RunSnapshot)
    return changed


def test_an_ended_run_is_linked_with_the_newest_run_that_repeats_it() -> None:
    run = linked(ended(), NEW)
    assert (run.retried_as, run.status, run.updated_at) == (NEW, RunStatus.FAILED, NOW + 9)
    assert linked(run, NEW) is run
    assert linked(run, NEWER).retried_as == NEWER
    assert linked(linked(ended(), NEWER), NEW).retried_as == NEWER, "in whatever order they arrive"


def test_a_run_that_goes_on_is_not_linked() -> None:
    run = ended(RunStatus.RUNNING)
    assert linked(run, NEW) is run


# The flow.yaml


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_file_is_kept_once_for_as_long_as_it_has_runs(tenant: str | None) -> None:
    store = MemoryListedStore(codec.decode_flow_file, codec.decode_listed_flow_file)
    index, clock = SqliteRunIndex(None, tenants=tenant is not None), Clock()
    files = FlowFiles(store, index, clock)
    await files.keep(tenant, "aa", "flow: {}")
    first = await store.get(flow_file_key(tenant, "aa"))
    await files.keep(tenant, "aa", "flow: {}")
    assert await store.get(flow_file_key(tenant, "aa")) == first, "no second write"
    await files.keep(tenant, "bb", "flow: {x: 1}")
    run = ended(workflow_yaml_sha256="aa", tenant_id=tenant)
    index.apply([Change(run.run_id, Revision(1), run, None)], FeedPosition("x", Revision(1)))
    clock.now += UNUSED_SEC + 1
    await files.collect()
    assert (await files.text(tenant, "aa"), await files.text(tenant, "bb")) == ("flow: {}", None)
    index.forget(run.run_id)
    await files.keep(tenant, "aa", "flow: {}")  # a submit that has not created its run yet
    await files.collect()
    clock.now += USED_AGAIN_SEC
    await files.collect()
    assert await files.text(tenant, "aa") == "flow: {}"
    clock.now += UNUSED_SEC
    await files.collect()
    assert await files.text(tenant, "aa") is None
    index.close()
