"""REQ-0011: a snapshot is kept under its limit, and what people need last goes first."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain import codec
from pyoco_server.domain.runs.model import (
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
)
from pyoco_server.domain.runs.trimming import SHORT_ERROR, trim_snapshot
from support.builders import OWNER, a_snapshot

BIG = "x" * 10_000


def a_big_snapshot(**changes: Any) -> RunSnapshot:
    record = TaskRecord(
        state=TaskState.FAILED, error=BIG, traceback=BIG, inputs={"i": BIG}, output=BIG, artifacts={"a": BIG}
    )
    return a_snapshot(
        RunStatus.FAILED,
        OWNER,
        **{
            "tasks": {"t": TaskState.FAILED},
            "task_records": {"t": record},
            "result": {"t": BIG},
            "error": BIG,
            **changes,
        },
    )


def what_is_left(snapshot: RunSnapshot) -> list[str]:
    record = (snapshot.task_records or {}).get("t")
    left = {
        "values": record is not None and record.output is not None,
        "tracebacks": record is not None and record.traceback is not None,
        "records": record is not None,
        "result": snapshot.result is not None,
        "whole error": len(snapshot.error or "") >= len(BIG),
    }
    return [name for name, is_there in left.items() if is_there]


def test_a_result_that_is_left_out_is_marked_with_its_size() -> None:
    """D22"""
    fitted = trim_snapshot(a_big_snapshot(error=None), 5_000, codec.encode)
    assert (fitted.snapshot.result, fitted.snapshot.result_truncated) == (None, True)
    assert fitted.snapshot.warnings == (
        "the result has 10,008 bytes as JSON; with the rest of the snapshot it is too large to store",
    )
    assert codec.decode_run(fitted.data) == fitted.snapshot


def test_no_result_is_not_a_result_that_is_left_out() -> None:
    fitted = trim_snapshot(a_big_snapshot(result=None), 15_000, codec.encode)
    assert (fitted.snapshot.result_truncated, fitted.snapshot.warnings) == (False, ())


def test_a_snapshot_within_its_limit_is_left_alone() -> None:
    snapshot = a_big_snapshot()
    data = codec.encode(snapshot)
    fitted = trim_snapshot(snapshot, len(data), codec.encode)
    assert fitted.snapshot is snapshot
    assert (fitted.data, fitted.within_limit) == (data, True)
    assert not fitted.snapshot.task_records_truncated


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (75_000, ["values", "tracebacks", "records", "result", "whole error"]),
        (45_000, ["tracebacks", "records", "result", "whole error"]),
        (25_000, ["records", "result", "whole error"]),
        (21_500, ["result", "whole error"]),
        (11_500, ["whole error"]),
        (3_500, []),
    ],
)
def test_the_largest_reduction_that_fits_is_chosen(limit: int, left: list[str]) -> None:
    fitted = trim_snapshot(a_big_snapshot(), limit, codec.encode)
    assert fitted.within_limit
    assert len(fitted.data) <= limit
    assert what_is_left(fitted.snapshot) == left
    assert fitted.snapshot.task_records_truncated is (left[:1] != ["values"])


def test_a_shortened_error_says_so() -> None:
    fitted = trim_snapshot(a_big_snapshot(), 3_500, codec.encode)
    assert fitted.snapshot.error == BIG[:SHORT_ERROR] + " … (shortened)"


def test_a_snapshot_that_cannot_be_made_small_enough_is_returned_and_said_so() -> None:
    snapshot = a_big_snapshot(params={"promised": BIG})
    fitted = trim_snapshot(snapshot, 5_000, codec.encode)
    assert not fitted.within_limit
    assert fitted.snapshot.params == {"promised": BIG}
    assert what_is_left(fitted.snapshot) == []


texts = st.text(max_size=3_000)
records = st.builds(
    TaskRecord,
    state=st.sampled_from(TaskState),
    error=st.none() | texts,
    traceback=st.none() | texts,
    inputs=st.none() | st.dictionaries(st.text(max_size=5), texts, max_size=3),
    output=st.none() | texts,
)
snapshots = st.builds(
    a_snapshot,
    tasks=st.dictionaries(st.text(max_size=10), st.sampled_from(TaskState), max_size=5),
    params=st.dictionaries(st.text(max_size=10), texts, max_size=3),
    task_records=st.none() | st.dictionaries(st.text(max_size=10), records, max_size=5),
    result=st.none() | texts,
    error=st.none() | texts,
)


@given(snapshot=snapshots, limit=st.integers(0, 30_000))
def test_tasks_and_params_always_stay_and_the_limit_holds_when_they_fit(
    snapshot: RunSnapshot, limit: int
) -> None:
    fitted = trim_snapshot(snapshot, limit, codec.encode)
    floor = trim_snapshot(snapshot, 0, codec.encode)
    assert (fitted.snapshot.tasks, fitted.snapshot.params) == (snapshot.tasks, snapshot.params)
    assert fitted.data == codec.encode(fitted.snapshot)
    assert fitted.within_limit is (len(fitted.data) <= limit)
    if len(floor.data) <= limit:
        assert fitted.within_limit
    if fitted.snapshot.task_records != snapshot.task_records:
        assert fitted.snapshot.task_records_truncated
