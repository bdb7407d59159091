"""Task timeouts in real executor processes."""

from pathlib import Path

import pytest

from support import process_flows
from support.executors import ended, lab
from support.waiting import PATIENCE_SEC, until

TIMED_OUT = ("execution_error", "task 'first' timed out after 0.3 s")


@pytest.mark.parametrize("how", ["sleep", "loop", "hold"])
async def test_a_task_that_does_not_stop_at_its_timeout_ends_with_its_process(
    tmp_path: Path, how: str
) -> None:
    """D23: also one that never lets go of the interpreter."""
    async with lab(tmp_path, grace_sec=0.2) as at:
        outcome = await ended(await at.start("limited", how=how))
        assert (outcome.ending, outcome.error) == TIMED_OUT
        assert outcome.progress.tasks["first"] == "FAILED"
        assert not (at.marks / "in-second").exists()
        assert (await ended(await at.tiny())).ending == "completed"


async def test_a_task_that_times_out_is_asked_to_stop_first(tmp_path: Path) -> None:
    """D23"""
    async with lab(tmp_path, grace_sec=PATIENCE_SEC) as at:
        (process,) = at.processes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(process), "kill", None)  # nobody is to be killed
            outcome = await ended(await at.start("limited_generously", how="look"))
        assert (outcome.ending, outcome.error) == ("execution_error", "task 'first' timed out after 2 s")
        assert (at.marks / "saw-cancel").exists()
        assert not (at.marks / "in-second").exists()


async def test_a_flow_with_a_timeout_and_control_flow_ends_too(tmp_path: Path) -> None:
    """D23"""
    async with lab(tmp_path, grace_sec=0.2) as at:
        outcome = await ended(await at.start("limited_with_a_switch", how="loop"))
        assert (outcome.ending, outcome.error) == TIMED_OUT


async def test_a_task_that_ends_in_time_is_not_disturbed(tmp_path: Path) -> None:
    """D23"""
    async with lab(tmp_path, grace_sec=0.0) as at:
        for _ in range(3):
            outcome = await ended(await at.start("limited_generously", how="sleep", seconds=0.0))
            assert (outcome.ending, outcome.result) == ("completed", {"second": "second"})


async def test_a_worker_that_was_busy_at_the_deadline_reads_what_has_arrived_first(tmp_path: Path) -> None:
    """D23: the task had ended in time; only we did not know it."""
    async with lab(tmp_path, grace_sec=0.0) as at:
        flow = await at.start("limited_for_long", how="wait")

        async def has_deadline() -> bool:
            return "first" in flow._deadlines

        await until(has_deadline)
        at.let_go()
        process_flows.wait_for(str(at.marks), "in-second")  # the loop stands still
        flow._deadlines["first"].timer._run()  # and its next turn begins with the deadline
        assert (await ended(flow)).ending == "completed"
