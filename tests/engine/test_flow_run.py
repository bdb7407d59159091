"""REQ-0008, REQ-0024: flows in the real engine, and the progress they report."""

import json
import math
import threading
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyoco import Flow, task
from pyoco.core.models import Task

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.values import ValueRoom
from support import flows
from support.builders import RUN_ID


class Reports:
    """All progress of a flow."""

    def __init__(self) -> None:
        self.progress: list[FlowProgress] = []

    def __call__(self, progress: FlowProgress) -> None:
        self.progress.append(progress)

    def states_of(self, task: str) -> list[str]:
        """The states of a task in their order, each once."""
        seen = [str(progress.tasks[task]) for progress in self.progress if progress.tasks]
        return list(dict.fromkeys(seen))


@pytest.fixture
def reports() -> Reports:
    return Reports()


def run(
    flow: Any, reports: Reports, params: dict[str, Any] | None = None, *, live: bool = False
) -> FlowOutcome:
    flow_run = FlowRun(flow, RUN_ID, params or {})
    if live:
        flow_run.follow(reports)
    return flow_run.run()


def test_a_flow_that_succeeds_gives_the_output_of_its_last_task(reports: Reports) -> None:
    outcome = run(flows.chain(), reports, {"n": 4})
    assert (outcome.ending, outcome.result, outcome.error) == (Ending.COMPLETED, {"total": 30}, None)
    assert outcome.progress.tasks == dict.fromkeys(["numbers", "squares", "total"], "SUCCEEDED")


def test_a_report_while_a_failure_is_recorded_does_not_cost_the_traceback(reports: Reports) -> None:
    """The engine records the error first. It needs the text of the exception again for the traceback."""

    class Broken(Exception):
        texts = 0

        def __str__(self) -> str:
            self.texts += 1
            if self.texts > 1 and not reports.progress:
                flow_run.follow(reports)
            return "broken"

    @task
    def breaks() -> None:
        raise Broken

    flow_run = FlowRun(Flow(name="f") >> breaks, RUN_ID, {})
    record = flow_run.run().progress.task_records["breaks"]
    assert (record.error, reports.progress[0].task_records["breaks"].traceback) == ("broken", None)
    assert "raise Broken" in (record.traceback or "")


def test_the_record_of_a_task_has_inputs_output_and_duration(reports: Reports) -> None:
    record = run(flows.chain(), reports, {"n": 2}).progress.task_records["squares"]
    assert (record.state, record.inputs, record.output) == ("SUCCEEDED", {"numbers": [1, 2]}, [1, 4])
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at
    assert record.duration_ms is not None


def test_progress_is_reported_from_the_first_pending_task_to_the_last_success(reports: Reports) -> None:
    run(flows.chain(), reports, live=True)
    assert set(reports.progress[1].tasks.values()) == {"PENDING"}
    for name in ("numbers", "squares", "total"):
        assert reports.states_of(name) == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_nothing_is_reported_before_the_flow_is_followed(reports: Reports) -> None:
    run(flows.chain(), reports)
    assert reports.progress == []


def test_reported_progress_does_not_change_later(reports: Reports) -> None:
    run(flows.chain(), reports, live=True)
    assert reports.progress[1].task_records["total"].state == "PENDING"


def test_a_task_that_starts_while_its_flow_is_first_followed_has_one_record(reports: Reports) -> None:
    """Records are sent again only when they are other objects."""

    def on_task(name: str | None) -> None:
        if name == "numbers" and not reports.progress:
            flow_run.follow(reports)

    flow_run = FlowRun(flows.chain(), RUN_ID, {}, on_task)
    flow_run.run()
    first, second = (progress.task_records["numbers"] for progress in reports.progress[:2])
    assert first.state == "RUNNING"
    assert first is second


def test_a_flow_that_fails_reports_why_and_where(reports: Reports) -> None:
    outcome = run(flows.failing(), reports)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ValueError: broken on purpose")
    assert outcome.result is None
    assert outcome.progress.tasks == {"fine": "SUCCEEDED", "breaks": "FAILED", "never": "PENDING"}
    record = outcome.progress.task_records["breaks"]
    assert record.error == "broken on purpose"
    assert "raise ValueError" in (record.traceback or "")


def test_a_flow_that_exits_the_process_ends_only_its_run(reports: Reports) -> None:
    outcome = run(flows.exiting(), reports)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "SystemExit: 3")


def test_a_task_that_is_retried_succeeds_in_the_end(reports: Reports) -> None:
    outcome = run(flows.retrying(failures=1), reports)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"flaky": 2})
    assert outcome.progress.task_records["flaky"].state == "SUCCEEDED"


def test_a_task_whose_retries_are_used_up_fails_its_run(reports: Reports) -> None:
    outcome = run(flows.retrying(failures=2), reports)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ConnectionError: attempt 2")


def test_an_isolated_failure_does_not_fail_the_run(reports: Reports) -> None:
    outcome = run(flows.isolated(), reports)
    assert outcome.ending is Ending.COMPLETED
    assert outcome.progress.tasks == {"bad": "FAILED", "after_bad": "FAILED", "good": "SUCCEEDED"}
    assert outcome.result == {"after_bad": None, "good": "good"}


def test_branches_run_at_the_same_time(reports: Reports) -> None:
    outcome = run(flows.parallel(), reports)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"join": "lr"})


@pytest.mark.parametrize(
    ("way", "expected"), [("A", {"on_a": "a was chosen"}), ("B", {"on_b": "b was chosen"})]
)
def test_the_result_of_a_flow_with_choices_is_that_of_the_task_that_ended_last(
    reports: Reports, way: str, expected: dict[str, str]
) -> None:
    outcome = run(flows.choosing(), reports, {"way": way})
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, expected)


def test_a_task_that_is_part_of_two_flows_is_the_last_one_where_nothing_follows_it(reports: Reports) -> None:
    longer = flows.chain()
    numbers = next(task for task in longer.tasks if task.name == "numbers")
    shorter = Flow(name="shorter") >> numbers
    assert run(shorter, reports).result == {"numbers": [1, 2, 3]}


def test_a_run_that_is_cancelled_before_it_starts_runs_no_task(reports: Reports) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {})
    flow_run.cancel()
    outcome = flow_run.run()
    assert outcome.ending is Ending.CANCELLED
    assert outcome.progress.tasks == {"wait": "CANCELLED", "after": "CANCELLED"}
    assert not gate.entered.is_set()


def test_a_run_that_is_cancelled_between_tasks_starts_no_further_one(reports: Reports) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {})
    outcomes: list[FlowOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(flow_run.run()))
    thread.start()
    assert gate.entered.wait(flows.PATIENCE_SEC)
    flow_run.cancel()
    gate.open()
    thread.join(flows.PATIENCE_SEC)
    assert [outcome.ending for outcome in outcomes] == [Ending.CANCELLED]
    assert outcomes[0].progress.tasks == {"wait": "SUCCEEDED", "after": "CANCELLED"}


def test_a_flow_with_choices_can_be_cancelled_before_it_starts(reports: Reports) -> None:
    flow_run = FlowRun(flows.choosing(), RUN_ID, {"way": "A"})
    flow_run.cancel()
    assert flow_run.run().ending is Ending.CANCELLED


def test_the_result_is_converted_by_the_rule_of_values(reports: Reports) -> None:
    """D21"""
    outcome = run(flows.returning({"when": {1}, "half": "\ud800", "on": date(2026, 1, 2)}), reports)
    expected = {"when": [1], "half": "\\ud800", "on": "2026-01-02"}
    assert outcome.result == {"give": expected}
    assert outcome.progress.task_records["give"].output == expected


class DataFrame:
    def __repr__(self) -> str:
        return "2 rows"


def test_a_last_task_that_returns_what_json_cannot_hold_fails(reports: Reports) -> None:
    """D21"""
    outcome = run(flows.returning({"rows": DataFrame(), "n": 1}), reports)
    problem = (
        "task 'give' returned a DataFrame at output.rows: not JSON; "
        "return a list of rows or save it as an artifact"
    )
    assert (outcome.ending, outcome.error, outcome.result) == (Ending.EXECUTION_ERROR, problem, None)
    assert outcome.progress.tasks == {"give": "FAILED"}
    record = outcome.progress.task_records["give"]
    assert (record.state, record.error) == ("FAILED", problem)
    assert record.output == {"rows": {"$repr": "2 rows", "type": "DataFrame"}, "n": 1}


def test_what_a_task_in_the_middle_returns_passes_on_as_it_is(reports: Reports) -> None:
    """D21"""
    frame = DataFrame()

    @task
    def load() -> Any:
        return frame

    @task
    def use(load: Any) -> bool:
        return load is frame

    outcome = run(Flow(name="f") >> load >> use, reports, live=True)
    assert (outcome.ending, outcome.result, outcome.warnings) == (Ending.COMPLETED, {"use": True}, ())
    preview = {"$repr": "2 rows", "type": "DataFrame"}
    assert outcome.progress.task_records["load"].output == preview
    assert outcome.progress.task_records["use"].inputs == {"load": preview}


def test_not_a_number_is_null_in_the_result_with_a_warning_that_names_task_and_place(
    reports: Reports,
) -> None:
    """D21"""
    outcome = run(flows.returning({"mean": math.nan}), reports)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"give": {"mean": None}})
    assert outcome.warnings == ("task 'give' returned NaN at output.mean: null instead",)


def test_a_result_above_the_limit_is_left_out_with_a_warning(reports: Reports) -> None:
    """D22"""
    outcome = FlowRun(flows.returning("x" * 5_000), RUN_ID, {}, room=ValueRoom(snapshot_bytes=1_024)).run()
    assert (outcome.ending, outcome.result, outcome.result_truncated) == (Ending.COMPLETED, None, True)
    assert outcome.warnings == ("the result has more than 5,001 bytes as JSON; at most 1,024 bytes are kept",)
    assert outcome.progress.task_records_truncated
    output = outcome.progress.task_records["give"].output
    assert output["type"] == "str"
    assert output["$repr"].startswith("'xxx")


def test_a_large_output_goes_to_a_file_and_that_of_a_node_if_it_is_larger(tmp_path: Path) -> None:
    whole, text = (
        ValueRoom(inline_bytes=64 * 1024, value_bytes=1_000_000, directory=str(tmp_path)),
        "x" * 100_000,
    )
    alone = FlowRun(flows.returning(text), RUN_ID, {}, room=whole.of(RUN_ID, is_node=False)).run()
    (file,) = alone.files
    assert (alone.result, file.task, file.size) == ({"give": None}, "give", 100_002)
    assert json.loads(Path(file.path).read_text()) == text
    of_node = FlowRun(flows.returning(text), RUN_ID, {}, room=whole.of(RUN_ID, is_node=True)).run()
    assert (of_node.result, of_node.files) == ({"give": text}, ())
    larger = FlowRun(flows.returning(2 * text), RUN_ID, {}, room=whole.of(RUN_ID, is_node=True)).run()
    assert (larger.result, len(larger.files)) == ({"give": None}, 1)


def test_a_secret_is_masked_before_a_large_output_is_written(tmp_path: Path) -> None:
    room = ValueRoom(inline_bytes=1_024, value_bytes=1_000_000, directory=str(tmp_path))
    flow = flows.returning(["s3cr3t-token"] * 1_000)
    outcome = FlowRun(flow, RUN_ID, {}, room=room, masks=Masks(["s3cr3t-token"])).run()
    (file,) = outcome.files
    assert "s3cr3t" not in Path(file.path).read_text()


def test_a_large_output_that_cannot_be_written_is_left_out_with_a_warning(tmp_path: Path) -> None:
    room = ValueRoom(inline_bytes=1_024, directory=str(tmp_path / "gone"), value_bytes=1_000_000)
    outcome = FlowRun(flows.returning("x" * 5_000), RUN_ID, {}, room=room).run()
    assert (outcome.ending, outcome.result, outcome.result_truncated) == (Ending.COMPLETED, None, True)
    assert outcome.warnings == (
        "the large output of task 'give' could not be written to a file: No such file or directory",
    )


def test_records_of_huge_values_are_bounded_and_read_once(reports: Reports) -> None:
    """D08"""
    rows = [{"i": 0}] * 1_500_000

    @task
    def load() -> Any:
        return rows

    @task
    def use(load: Any) -> int:
        return len(load)

    outcome = run(Flow(name="f") >> load >> use, reports, live=True)
    assert outcome.result == {"use": 1_500_000}
    assert outcome.progress.task_records_truncated
    assert len(msgspec.json.encode(outcome.progress.task_records)) < 5_000
    assert outcome.progress.task_records["use"].inputs is not None
    assert outcome.progress.task_records["use"].inputs["load"]["type"] == "list"


def test_a_record_that_has_not_changed_is_the_same_object(reports: Reports) -> None:
    """D08"""
    run(flows.chain(), reports, live=True)
    records = [progress.task_records["numbers"] for progress in reports.progress if progress.tasks]
    ended = [record for record in records if record.state == "SUCCEEDED"]
    assert len(ended) > 2
    assert all(record is ended[0] for record in ended)


class Adder:
    def __call__(self, x: int) -> int:
        return x + 1


@pytest.mark.parametrize("function", [Adder(), Adder().__call__, partial(lambda y, x: x + y, 1)])
def test_a_task_may_be_any_callable(function: Any, reports: Reports) -> None:
    flow = Flow("f") >> Task(func=function, name="add")
    for _ in range(2):
        assert run(flow, reports, {"x": 1}).result == {"add": 2}
