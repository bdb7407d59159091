"""REQ-0008, REQ-0024: flows in the real engine, and what is told about them."""

import threading
from typing import Any

import pytest
from pyoco import Flow

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress
from pyoco_server.engine.flow_run import FlowRun
from support import flows
from support.things import RUN_ID


class Told:
    """Remembers all progress."""

    def __init__(self) -> None:
        self.progress: list[FlowProgress] = []

    def __call__(self, progress: FlowProgress) -> None:
        self.progress.append(progress)

    def states_of(self, task: str) -> list[str]:
        """The states of a task in their order, each once."""
        seen = [str(progress.tasks[task]) for progress in self.progress if progress.tasks]
        return list(dict.fromkeys(seen))


@pytest.fixture
def told() -> Told:
    return Told()


def run(flow: Any, told: Told, params: dict[str, Any] | None = None, *, live: bool = False) -> FlowOutcome:
    flow_run = FlowRun(flow, RUN_ID, params or {}, told)
    if live:
        flow_run.go_live()
    return flow_run.run()


def test_a_flow_that_succeeds_gives_the_output_of_its_last_task(told: Told) -> None:
    outcome = run(flows.chain(), told, {"n": 4})
    assert (outcome.ending, outcome.result, outcome.error) == (Ending.COMPLETED, {"total": 30}, None)
    assert outcome.progress.tasks == dict.fromkeys(["numbers", "squares", "total"], "SUCCEEDED")


def test_the_record_of_a_task_says_what_went_in_what_came_out_and_how_long_it_took(told: Told) -> None:
    record = run(flows.chain(), told, {"n": 2}).progress.task_records["squares"]
    assert (record.state, record.inputs, record.output) == ("SUCCEEDED", {"numbers": [1, 2]}, [1, 4])
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at
    assert record.duration_ms is not None


def test_progress_is_told_from_the_first_pending_task_to_the_last_success(told: Told) -> None:
    run(flows.chain(), told, live=True)
    assert set(told.progress[1].tasks.values()) == {"PENDING"}
    for task in ("numbers", "squares", "total"):
        assert told.states_of(task) == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_nothing_is_told_before_somebody_wants_to_know(told: Told) -> None:
    run(flows.chain(), told)
    assert told.progress == []


def test_progress_that_was_told_does_not_change_later(told: Told) -> None:
    run(flows.chain(), told, live=True)
    assert told.progress[1].task_records["total"].state == "PENDING"


def test_a_flow_that_fails_says_why_and_where(told: Told) -> None:
    outcome = run(flows.failing(), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ValueError: broken on purpose")
    assert outcome.result is None
    assert outcome.progress.tasks == {"fine": "SUCCEEDED", "breaks": "FAILED", "never": "PENDING"}
    record = outcome.progress.task_records["breaks"]
    assert record.error == "broken on purpose"
    assert "raise ValueError" in (record.traceback or "")


def test_a_flow_that_exits_the_process_ends_only_its_run(told: Told) -> None:
    outcome = run(flows.exiting(), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "SystemExit: 3")


def test_a_task_that_is_retried_succeeds_in_the_end(told: Told) -> None:
    outcome = run(flows.retrying(failures=1), told)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"flaky": 2})
    assert outcome.progress.task_records["flaky"].state == "SUCCEEDED"


def test_a_task_whose_retries_are_used_up_fails_its_run(told: Told) -> None:
    outcome = run(flows.retrying(failures=2), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ConnectionError: attempt 2")


def test_an_isolated_failure_does_not_fail_the_run(told: Told) -> None:
    outcome = run(flows.isolated(), told)
    assert outcome.ending is Ending.COMPLETED
    assert outcome.progress.tasks == {"bad": "FAILED", "after_bad": "FAILED", "good": "SUCCEEDED"}
    assert outcome.result == {"after_bad": None, "good": "good"}


def test_branches_run_at_the_same_time(told: Told) -> None:
    outcome = run(flows.parallel(), told)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"join": "lr"})


@pytest.mark.parametrize(
    ("way", "expected"), [("A", {"on_a": "a was chosen"}), ("B", {"on_b": "b was chosen"})]
)
def test_the_result_of_a_flow_with_choices_is_that_of_the_task_that_ended_last(
    told: Told, way: str, expected: dict[str, str]
) -> None:
    outcome = run(flows.choosing(), told, {"way": way})
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, expected)


def test_a_task_that_is_part_of_two_flows_is_the_last_one_where_nothing_follows_it(told: Told) -> None:
    longer = flows.chain()
    numbers = next(task for task in longer.tasks if task.name == "numbers")
    shorter = Flow(name="shorter") >> numbers
    assert run(shorter, told).result == {"numbers": [1, 2, 3]}


def test_a_run_that_is_cancelled_before_it_starts_runs_no_task(told: Told) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {}, told)
    flow_run.cancel()
    outcome = flow_run.run()
    assert outcome.ending is Ending.CANCELLED
    assert outcome.progress.tasks == {"wait": "CANCELLED", "after": "CANCELLED"}
    assert not gate.entered.is_set()


def test_a_run_that_is_cancelled_between_tasks_starts_no_further_one(told: Told) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {}, told)
    outcomes: list[FlowOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(flow_run.run()))
    thread.start()
    assert gate.entered.wait(flows.PATIENCE_SEC)
    flow_run.cancel()
    gate.open()
    thread.join(flows.PATIENCE_SEC)
    assert [outcome.ending for outcome in outcomes] == [Ending.CANCELLED]
    assert outcomes[0].progress.tasks == {"wait": "SUCCEEDED", "after": "CANCELLED"}


def test_a_flow_with_choices_can_be_cancelled_before_it_starts(told: Told) -> None:
    flow_run = FlowRun(flows.choosing(), RUN_ID, {"way": "A"}, told)
    flow_run.cancel()
    assert flow_run.run().ending is Ending.CANCELLED


def test_outputs_that_json_cannot_hold_are_their_repr(told: Told) -> None:
    outcome = run(flows.returning({"when": {1}, "half": "\ud800"}), told)
    assert outcome.result == {"give": {"when": "{1}", "half": "\\ud800"}}
    assert outcome.progress.task_records["give"].output == {"when": "{1}", "half": "\\ud800"}
