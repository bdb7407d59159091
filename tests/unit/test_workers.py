"""REQ-0015, REQ-0022: a worker's record, and how its silence is read."""

import pytest

from pyoco_server.domain.fleet import WorkerState, observed_state, register, with_observed_state
from pyoco_server.domain.runs.model import RunStatus
from support.builders import NOW, a_worker, an_activity


def test_the_first_record_is_visible_and_seen_now() -> None:
    record = register(None, an_activity(), NOW)
    assert (record.worker_id, record.state, record.hidden) == ("worker-a", WorkerState.IDLE, False)
    assert record.last_seen_at == record.last_heartbeat_at == record.heartbeat_at == record.updated_at == NOW


@pytest.mark.parametrize("hidden", [True, False])
def test_a_sign_of_life_keeps_whether_the_worker_is_hidden(*, hidden: bool) -> None:
    """REQ-0022"""
    assert register(a_worker(hidden=hidden), an_activity(instance_id="new"), NOW).hidden is hidden


def test_a_restarted_worker_still_shows_its_last_run() -> None:
    known = a_worker(
        last_run_id="r1",
        last_run_status=RunStatus.FAILED,
        last_run_started_at=1.0,
        last_run_finished_at=2.0,
    )
    record = register(known, an_activity(instance_id="new"), NOW)
    assert (record.last_run_id, record.last_run_status) == ("r1", RunStatus.FAILED)
    assert (record.last_run_started_at, record.last_run_finished_at) == (1.0, 2.0)


def test_a_restarted_worker_is_not_stopped_any_more() -> None:
    known = a_worker(state=WorkerState.STOPPED_GRACEFUL, stopped_at=1.0, stop_reason="graceful_shutdown")
    record = register(known, an_activity(), NOW)
    assert (record.state, record.stopped_at, record.stop_reason) == (WorkerState.IDLE, None, None)


@pytest.mark.parametrize(
    ("state", "silent_for", "expected"),
    [
        ("IDLE", 20.0, "IDLE"),
        ("IDLE", 20.1, "DISCONNECTED"),
        ("RUNNING", 0.0, "RUNNING"),
        ("RUNNING", 21.0, "DISCONNECTED"),
        ("RUNNING", -5.0, "RUNNING"),
        ("STOPPED_GRACEFUL", 1_000.0, "STOPPED_GRACEFUL"),
        ("DISCONNECTED", 0.0, "DISCONNECTED"),
    ],
)
def test_a_silent_worker_is_disconnected_and_a_stopped_one_stays_stopped(
    state: str, silent_for: float, expected: str
) -> None:
    record = a_worker(state=WorkerState(state))
    assert observed_state(record, silent_for, 20.0) == expected
    assert with_observed_state(record, silent_for, 20.0) == a_worker(state=WorkerState(expected))
