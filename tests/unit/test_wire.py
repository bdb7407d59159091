"""The JSON of the contract: what is read, what is ignored, what is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain import codec
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.errors import InvalidJob
from support.builders import NOW, OWNER, RUN_ID, a_job, a_snapshot, a_worker
from support.tables import every_row

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
json_objects = st.dictionaries(st.text(), json_values, max_size=4)
TOO_DEEP = b"[" * 50_000


@given(params=json_objects, tags=st.none() | st.lists(st.text()).map(tuple), flow_name=st.text(min_size=1))
def test_a_job_is_read_as_it_was_written(
    params: dict[str, Any], tags: tuple[str, ...] | None, flow_name: str
) -> None:
    job = a_job(params=params, tags=tags, flow_name=flow_name)
    assert codec.decode_job(codec.encode(job)) == job


@given(params=json_objects, result=json_values, error=st.none() | st.text())
def test_a_snapshot_is_read_as_it_was_written(params: dict[str, Any], result: Any, error: str | None) -> None:
    snapshot = a_snapshot(
        RunStatus.RUNNING,
        OWNER,
        params=params,
        result=result,
        error=error,
        tasks={"t": TaskState.RUNNING},
        task_records={"t": TaskRecord(state=TaskState.RUNNING, output=result)},
    )
    assert codec.decode_run(codec.encode(snapshot)) == snapshot


def test_a_worker_record_is_read_as_it_was_written() -> None:
    record = a_worker(state=WorkerState.STOPPED_GRACEFUL, hidden=True, last_run_status=RunStatus.FAILED)
    assert codec.decode_worker(codec.encode(record)) == record


def test_fields_of_a_later_version_are_ignored() -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(a_snapshot()), "from_the_future": {"x": 1}})
    assert codec.decode_run(data) == a_snapshot()
    job = a_job()
    assert codec.decode_job(msgspec.json.encode({**msgspec.to_builtins(job), "from_the_future": 1})) == job


def test_a_snapshot_with_only_the_required_fields_of_the_contract_is_read() -> None:
    required = {
        "run_id": RUN_ID,
        "flow_name": "f",
        "status": "RUNNING",
        "params": {},
        "tasks": {"t": "SUCCEEDED"},
        "heartbeat_at": 1,
        "updated_at": 2.5,
    }
    snapshot = codec.decode_run(msgspec.json.encode(required))
    assert (snapshot.status, snapshot.tasks, snapshot.owner) == (RunStatus.RUNNING, {"t": "SUCCEEDED"}, None)


def test_a_job_with_only_the_required_fields_of_the_contract_is_read() -> None:
    required = {"run_id": RUN_ID, "flow_name": "f", "tag": "default", "submitted_at": 1}
    job = codec.decode_job(msgspec.json.encode(required))
    assert job == Job(run_id=RUN_ID, flow_name="f", tag="default", submitted_at=1)


def test_a_worker_record_with_only_the_required_fields_of_the_contract_is_read() -> None:
    required = {
        "worker_id": "other-make",
        "instance_id": "i",
        "state": "IDLE",
        "hidden": True,
        "last_seen_at": NOW,
        "last_heartbeat_at": NOW,
        "tags": ["default"],
    }
    record = codec.decode_worker(msgspec.json.encode(required))
    assert (record.worker_id, record.state, record.hidden) == ("other-make", WorkerState.IDLE, True)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"run_id": 1}', b'{"x": ' + TOO_DEEP]
)
def test_stored_bytes_that_are_something_else_are_unreadable(data: bytes) -> None:
    with pytest.raises(codec.Unreadable, match="run snapshot"):
        codec.decode_run(data)
    with pytest.raises(codec.Unreadable, match="worker record"):
        codec.decode_worker(data)


def test_a_snapshot_with_an_unknown_status_is_unreadable() -> None:
    data = codec.encode(a_snapshot()).replace(b'"PENDING"', b'"DREAMING"')
    with pytest.raises(codec.Unreadable, match="DREAMING"):
        codec.decode_run(data)


@every_row(
    "data",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b'{"run_id": "x", "flow_name": "f", "tag": "t", "submitted_at": 1}',
        b'{"run_id": "%s", "flow_name": "f", "tag": "t"}' % RUN_ID.encode(),
        b'{"run_id": "%s", "flow_name": "", "tag": "t", "submitted_at": 1}' % RUN_ID.encode(),
        b'{"run_id": "%s", "flow_name": "f", "tag": "t", "submitted_at": 1, "params": []}' % RUN_ID.encode(),
        b'{"run_id": "%s", "params": {"x": %s' % (RUN_ID.encode(), TOO_DEEP),
    ],
)
def test_garbage_on_the_queue_is_an_invalid_job(data: bytes) -> None:
    """REQ-0012"""
    with pytest.raises(InvalidJob):
        codec.decode_job(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_an_invalid_job(data: bytes) -> None:
    with pytest.raises(InvalidJob):
        codec.decode_job(data)
    assert codec.run_id_in(data) is None or b"run_id" in data
    assert isinstance(codec.payload_excerpt(data), str)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"run_id": "abc", "flow_name": 1}', "abc"),
        (b'{"run_id": 7}', None),
        (b"{}", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"x": ' + TOO_DEEP, None),
    ],
)
def test_the_run_id_of_an_unreadable_job_is_found_if_it_can_be_made_out(
    data: bytes, expected: str | None
) -> None:
    assert codec.run_id_in(data) == expected


def test_an_excerpt_is_capped_and_always_text() -> None:
    assert codec.payload_excerpt(b"\xff" + b"a" * 10, limit=3) == "\ufffdaa"
    assert len(codec.payload_excerpt(b"a" * 10_000)) == 4_096


def test_a_dead_letter_has_no_empty_fields_and_never_params() -> None:
    letter = DeadLetter(timestamp=NOW, reason=DlqReason.FLOW_NOT_FOUND, error=None, run_id=RUN_ID)
    written = msgspec.json.decode(codec.encode(letter))
    assert written == {"timestamp": NOW, "reason": "flow_not_found", "error": None, "run_id": RUN_ID}
    assert "params" not in DeadLetter.__struct_fields__


def test_the_names_on_the_wire_are_those_of_the_contract() -> None:
    """Field names to the letter: clients, workers and gateways of another make read them."""
    run_fields = {
        "run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at", "tag", "tags",
        "worker_id", "task_records", "task_records_truncated", "start_time", "end_time", "error",
        "cancel_requested_at", "cancel_requested_by", "tenant_id", "api_key_id", "workflow_yaml_sha256",
        "workflow_yaml_bytes", "instance_id", "attempt", "submitted_at", "result", "execution_id", "node_id",
    }  # fmt: skip
    task_fields = {
        "state", "started_at", "ended_at", "duration_ms", "error", "traceback",
        "inputs", "output", "artifacts",
    }  # fmt: skip
    assert run_fields <= set(RunSnapshot.__struct_fields__)
    assert set(TaskRecord.__struct_fields__) == {*task_fields, "reusable"}
    assert set(Job.__struct_fields__) == {
        "run_id", "flow_name", "tag", "tags", "params", "submitted_at", "tenant_id", "api_key_id",
        "workflow_yaml", "workflow_yaml_sha256", "workflow_yaml_bytes", "execution_id", "node_id",
        "not_before", "start_within_sec", "timeout_sec", "retry", "priority", "lane", "try_number",
        "retried_from", "kept", "schedule_id", "due_at", "graph_id", "limits", "limit_rules", "admitted_try",
        "references", "trace", "parent_run_id", "values",
    }  # fmt: skip
