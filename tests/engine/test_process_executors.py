"""Real executor processes: who runs which flow, and what becomes of the others when one goes wrong."""

import asyncio
import gc
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.engine.executors import pool
from pyoco_server.engine.executors import process as executor_process
from pyoco_server.engine.executors.pool import LINE, Limits, ProcessExecutors
from pyoco_server.engine.executors.process import LINE_PATIENCE_SEC, ExecutorProcess, ProcessFlow
from pyoco_server.engine.executors.protocol import ExecutorSpec
from support import process_flows
from support.captured_logs import capture_logs
from support.things import a_job
from support.waiting import until

PATIENCE_SEC = 20.0
TINY_ONES = 30
"""After so many it is known that flows are tiny."""


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process takes its time on a busy machine."""
    monkeypatch.setattr(pool, "MOVE_PATIENCE_SEC", PATIENCE_SEC)


class Listener:
    """Remembers what was reported to it."""

    def __init__(self) -> None:
        self.steps: list[FlowProgress] = []
        self.lines: list[str] = []
        self.flow: ProcessFlow | None = None

    def progressed(self, progress: FlowProgress) -> None:
        self.steps.append(progress)
        if self.flow is not None:
            self.flow.written()

    def printed(self, entries: Sequence[LogEntry]) -> None:
        self.lines += [entry.text for entry in entries]


class Lab:
    def __init__(self, executors: ProcessExecutors, marks: Path) -> None:
        self.executors = executors
        self.marks = marks

    async def start(self, flow: str, **params: Any) -> ProcessFlow:
        job = a_job(flow_name=flow, params={"marks": str(self.marks), **params})
        listener = Listener()
        started = await self.executors.start(job, listener, PATIENCE_SEC)
        assert started is not None
        listener.flow = started
        return started

    async def tiny(self) -> ProcessFlow:
        started = await self.executors.start(a_job(flow_name="tiny", params={}), Listener(), PATIENCE_SEC)
        assert started is not None
        return started

    async def learn_that_flows_are_tiny(self) -> None:
        for _ in range(TINY_ONES):
            await ended(await self.tiny())
        self.executors._dense = LINE  # however slow this machine is

    async def reached(self, name: str) -> int:
        """The process that got there."""

        async def look() -> bool:
            return (self.marks / name).exists()

        await until(look)
        return int((self.marks / name).read_text())

    def let_go(self) -> None:
        (self.marks / "go").touch()

    @property
    def processes(self) -> list[ExecutorProcess]:
        return list(self.executors._all)


@asynccontextmanager
async def lab(marks: Path, concurrency: int = 1, **limits: float) -> AsyncIterator[Lab]:
    spec = ExecutorSpec(flow_resolver=f"{process_flows.__file__}:resolve")
    executors = ProcessExecutors(spec, concurrency, Limits(**limits))  # type: ignore[arg-type]
    await executors.open()
    try:
        yield Lab(executors, marks)
    finally:
        await executors.close()


async def ended(flow: ProcessFlow) -> FlowOutcome:
    async with asyncio.timeout(PATIENCE_SEC):
        outcome = await flow.outcome()
    assert outcome is not None
    return outcome


async def endings(flows: list[ProcessFlow]) -> list[str]:
    return [(await ended(flow)).ending for flow in flows]


async def test_flows_in_line_end_in_their_order_with_their_own_results(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        first = await at.start("steps")
        await at.reached("in-first")
        behind = [await at.tiny() for _ in range(3)]
        at.let_go()
        assert (await ended(first)).result == {"second": "second"}
        assert [(await ended(flow)).result for flow in behind] == [{"three": 3}] * 3


async def test_those_behind_a_long_flow_go_to_another_executor(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = [await at.tiny() for _ in range(5)]
        await at.reached("in-first")
        assert await endings(behind) == ["completed"] * 5  # while the long one goes on
        assert not long.ended.done()
        at.let_go()
        assert (await ended(long)).ending == "completed"


async def test_those_behind_a_flow_that_holds_the_interpreter_go_to_another_executor(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        deaf = await at.start("holding", seconds=600.0)
        behind = [await at.tiny() for _ in range(5)]
        assert await endings(behind) == ["completed"] * 5
        deaf.kill()
        assert (await ended(deaf)).ending == "cancelled"


async def test_nobody_stands_behind_a_flow_that_is_known_to_be_long(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        await at.start("steps")
        assert await endings([await at.tiny() for _ in range(3)]) == ["completed"] * 3
        (busy,) = (process for process in at.processes if process.in_line)
        for _ in range(20):
            flow = await at.tiny()
            assert busy.in_line == 1
            await ended(flow)
        at.let_go()


async def test_who_waits_too_long_behind_a_long_flow_was_never_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MOVE_PATIENCE_SEC", 0.2)
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = await at.tiny()
        async with asyncio.timeout(PATIENCE_SEC):
            assert await behind.outcome() is None  # another worker gets the chance
        at.let_go()
        assert (await ended(long)).ending == "completed"


async def test_a_process_that_dies_takes_only_the_flow_that_it_ran(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = [await at.tiny() for _ in range(3)]
        os.kill(await at.reached("in-first"), signal.SIGKILL)
        died = await ended(long)
        assert (died.ending, died.error) == ("execution_error", "the executor process was ended by SIGKILL")
        assert await endings(behind) == ["completed"] * 3


async def test_a_process_that_dies_with_a_flow_it_has_not_begun_takes_none(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        (process,) = at.processes
        os.kill(process.pid, signal.SIGSTOP)
        flows = [await at.tiny() for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
        assert await endings(flows) == ["completed"] * 3


async def test_the_process_that_starts_the_others_is_started_again(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        long = await at.start("steps")
        await at.reached("in-first")
        os.kill(at.executors._zygote._child.pid, signal.SIGKILL)
        assert (await ended(long)).ending == "execution_error"  # executors end with it
        assert await endings([await at.tiny() for _ in range(3)]) == ["completed"] * 3


async def test_a_process_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with lab(tmp_path) as at:
        (process,) = at.processes
        with capture_logs() as logs:
            resource.setrlimit(resource.RLIMIT_NOFILE, (8, limits[1]))
            try:
                os.kill(process.pid, signal.SIGKILL)
                while not logs:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert logs[0]["action"] == "executor.unusable"
        assert "Too many open files" in logs[0]["error"]
        assert (await ended(await at.tiny())).ending == "completed"


async def test_a_worker_may_have_very_many_wheels(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        path = tuple(f"/nowhere/{number}/{'x' * 100}" for number in range(2_000))
        assert await at.executors.change_spec(path=path) is None
        flows = [await at.tiny() for _ in range(3)]
        assert await endings(flows) == ["completed"] * 3


async def test_nothing_stays_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # what earlier tests have left
    before = descriptors()
    async with lab(tmp_path, concurrency=2) as at:
        await at.start("steps")
        await at.reached("in-first")
        assert descriptors() > before
    await asyncio.sleep(0)  # a transport closes one turn later
    assert descriptors() == before


async def test_a_process_that_is_slow_to_begin_is_not_forgotten(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        for process in at.processes:
            os.kill(process.pid, signal.SIGSTOP)
        flows = [await at.tiny() for _ in range(4)]
        await asyncio.sleep(5 * LINE_PATIENCE_SEC)  # they go to and fro
        for process in at.processes:
            os.kill(process.pid, signal.SIGCONT)
        assert await endings(flows) == ["completed"] * 4
        assert len(at.executors._idle) == 2


async def test_a_flow_is_ended_by_force_without_those_behind_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        stuck = await at.start("stuck")
        behind = [await at.tiny() for _ in range(3)]
        await at.reached("in-sleep")
        assert stuck.kill()
        assert (await ended(stuck)).ending == "cancelled"
        assert await endings(behind) == ["completed"] * 3


async def test_a_flow_that_stands_in_line_is_ended_without_the_one_before_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = await at.tiny()
        assert behind.kill()
        assert (await ended(behind)).ending == "cancelled"
        at.let_go()
        assert (await ended(long)).ending == "completed"


async def test_a_kill_that_comes_after_the_end_harms_nobody(tmp_path: Path) -> None:
    """The end of a flow may be on its way to us when it is to be killed, and the next one has begun."""
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        quick = await at.tiny()
        behind = await at.start("steps")
        await asyncio.sleep(0)  # both are sent
        # Without another turn of the loop: we have heard nothing, although the first has ended long ago.
        process_flows.wait_for(str(at.marks), "in-first")
        quick.kill()
        at.let_go()
        assert (await ended(quick)).ending == "completed"
        assert (await ended(behind)).ending == "completed"


async def test_what_is_asked_of_a_flow_in_line_goes_with_it(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        cancelled, live = await at.tiny(), await at.tiny()
        cancelled.cancel()
        live.go_live()
        assert (await ended(cancelled)).ending == "cancelled"
        assert (await ended(live)).ending == "completed"
        assert isinstance(live.listener, Listener)
        assert live.listener.steps
        at.let_go()
        await ended(long)


async def test_flows_in_line_are_run_with_new_code(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        old = await at.start("steps")
        behind = await at.tiny()
        assert await at.executors.change_spec(version="2") is None
        assert (await ended(behind)).ending == "completed"  # in a new process: the old one is busy
        assert [process.spec.version for process in at.processes if not process.in_line] == ["2"]
        at.let_go()
        assert (await ended(old)).ending == "completed"


async def test_tiny_flows_share_a_process_before_another_is_woken_up(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        flows = [await at.tiny() for _ in range(LINE)]
        assert sorted(process.in_line for process in at.processes) == [0, LINE]
        flows += [await at.tiny() for _ in range(2)]
        assert sorted(process.in_line for process in at.processes) == [2, LINE]
        assert await endings(flows) == ["completed"] * (LINE + 2)


async def test_a_process_that_is_for_one_run_gets_one(tmp_path: Path) -> None:
    async with lab(tmp_path, max_runs=1) as at:
        first = await at.tiny()
        pid = at.processes[0].pid
        assert at.processes[0].in_line == 1
        second = asyncio.ensure_future(at.tiny())
        await ended(first)
        await ended(await second)
        assert pid not in {process.pid for process in at.processes}


async def no_step_reaches_another(at: Lab, pairs: int) -> int:
    """Two flows at a time, one behind the other, whose last steps are on their way when they end."""
    await at.learn_that_flows_are_tiny()
    steps = 0
    for _ in range(pairs):
        for name, listener in await asyncio.gather(*(_live(at, name) for name in ("large_a", "large_b"))):
            tasks = [task for progress in listener.steps for task in progress.tasks]
            assert [task for task in tasks if not task.startswith(name)] == []
            steps += len(listener.steps)
    return steps


async def test_no_step_of_one_run_reaches_another(tmp_path: Path) -> None:
    """D02: short flows with large outputs."""
    async with lab(tmp_path) as at:
        assert await no_step_reaches_another(at, pairs=150) > 100


@pytest.mark.long
async def test_no_step_of_2000_runs_reaches_another(tmp_path: Path) -> None:
    """D02 at full size."""
    async with lab(tmp_path) as at:
        assert await no_step_reaches_another(at, pairs=1000) > 1000


async def _live(at: Lab, name: str) -> tuple[str, Listener]:
    listener = Listener()
    flow = await at.executors.start(a_job(flow_name=name, params={}), listener, PATIENCE_SEC)
    assert flow is not None
    listener.flow = flow
    flow.go_live()
    assert list((await ended(flow)).result) == [f"{name}_2"]
    return name, listener


async def test_a_job_that_cannot_be_sent_fails_alone(tmp_path: Path) -> None:
    """D48: those handed over in the same turn run, and the slot is free afterwards."""
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        flows = [await at.tiny(), await at.start("tiny", v=2**64), await at.tiny()]
        assert await endings(flows) == ["completed", "execution_error", "completed"]
        assert "the job cannot be sent to an executor" in str((await ended(flows[1])).error)
        assert (await ended(await at.tiny())).ending == "completed"


async def test_a_dead_executor_is_noticed_while_a_process_that_it_forked_lives(tmp_path: Path) -> None:
    """D49"""
    async with lab(tmp_path) as at:
        died = await ended(await at.start("family"))
        assert (died.ending, died.error) == ("execution_error", "the executor process was ended by SIGSEGV")
        assert (await ended(await at.tiny())).ending == "completed"
        child = int((at.marks / "child").read_text())

        async def is_gone() -> bool:
            return not os.path.exists(f"/proc/{child}")  # noqa: ASYNC240, PTH110

        await until(is_gone)


@pytest.mark.parametrize(
    ("flow", "result"), [("forking", {"fork": 3}), ("forking_in_a_pool", {"left": 5, "right": 1})]
)
async def test_a_forked_process_ends_with_its_task(tmp_path: Path, flow: str, result: Any) -> None:
    """D47: its exit code is its own, and the runs after it have their own results."""
    async with lab(tmp_path) as at:
        for _ in range(5):
            assert (await ended(await at.start(flow, how="exit"))).result == result
            assert (await ended(await at.tiny())).result == {"three": 3}


@pytest.mark.parametrize("how", ["state", "thread", "child"])
async def test_nothing_that_one_run_leaves_is_found_by_the_next(tmp_path: Path, how: str) -> None:
    """D11: what can be put back is, in the same process; else there is a new one."""
    async with lab(tmp_path) as at:
        before = (await ended(await at.start("tidy"))).result["look"]
        with capture_logs() as logs:
            assert (await ended(await at.start("messy", how=how))).ending == "completed"
            found = await at.start("tidy")
            after = (await ended(found)).result["look"]
        assert (before.pop("pid") == after.pop("pid")) is (how == "state")
        assert after == before
        assert isinstance(found.listener, Listener)
        assert found.listener.lines == []
        assert [line["action"] for line in logs] == ([] if how == "state" else ["executor.leftovers"])


async def test_a_run_whose_channel_carries_foreign_bytes_ends_alone(tmp_path: Path) -> None:
    """D47: what is not a message of its executor is never taken for one of another run."""
    async with lab(tmp_path, concurrency=2) as at:
        long = await at.start("steps")
        busy = await at.reached("in-first")
        (process,) = (process for process in at.processes if process.pid == busy)
        process.data_received(b"\x00\x00\x00\x01 garbage")
        failed = await ended(long)
        assert failed.ending == "execution_error"
        assert "foreign bytes in the channel" in str(failed.error)
        assert await endings([await at.tiny() for _ in range(3)]) == ["completed"] * 3


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ({}, "completed"),
        ({"leave": 3}, "completed"),
        ({"tickets": True}, "completed"),
        ({"tickets": True, "die": True}, "execution_error"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stolen", [1, 2])
async def test_jobs_that_a_task_reads_from_the_channel_are_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], ending: str, stolen: int
) -> None:
    """They were RUNNING until somebody cancelled them, while their executor waited for a job."""
    monkeypatch.setattr(executor_process, "LINE_PATIENCE_SEC", PATIENCE_SEC)  # they stay in line
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        thief = await at.start("stealing", **how)
        await at.reached("in-steal")
        behind = [await at.tiny() for _ in range(stolen)]
        assert (await ended(thief)).ending == ending
        assert [(await ended(flow)).result for flow in behind] == [{"three": 3}] * stolen
        assert (await ended(await at.tiny())).result == {"three": 3}


async def test_a_job_that_follows_a_stolen_one_is_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executor sees the gap and begins nothing more."""
    monkeypatch.setattr(executor_process, "LINE_PATIENCE_SEC", PATIENCE_SEC)
    monkeypatch.setattr(executor_process, "PING_AFTER_SEC", PATIENCE_SEC)
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        thief = await at.start("stealing", tickets=True)
        await at.reached("in-steal")
        stolen = await at.tiny()
        assert (await ended(thief)).ending == "completed"
        behind = await at.tiny()
        assert [(await ended(flow)).result for flow in (stolen, behind)] == [{"three": 3}] * 2


FAILING_FORK = """
import errno, os, sys
from pathlib import Path

fork = os.fork

def failing():
    if Path({marker!r}).exists():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

if "pyoco_server.engine.executors.zygote" in " ".join(sys.orig_argv):
    os.fork = failing
"""


async def test_a_fork_that_fails_is_tried_again_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: the system has no process left for a while."""
    marker = tmp_path / "no-processes"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAILING_FORK.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    async with lab(tmp_path, concurrency=2) as at:
        zygote = at.executors._zygote._child.pid
        long = await at.start("steps")
        busy = await at.reached("in-first")
        (idle,) = (process.pid for process in at.processes if process.pid != busy)
        marker.touch()
        with capture_logs() as logs:
            os.kill(idle, signal.SIGKILL)

            async def reported() -> bool:
                return any(line["action"] == "executor.unusable" for line in logs)

            await until(reported)
        assert "Resource temporarily unavailable" in logs[-1]["error"]
        marker.unlink()
        at.let_go()
        assert (await ended(long)).ending == "completed"
        assert await endings([await at.tiny() for _ in range(3)]) == ["completed"] * 3
        assert at.executors._zygote._child.pid == zygote

        async def are_all_there() -> bool:
            return at.executors.capacity == 2

        await until(are_all_there)


TIMED_OUT = ("execution_error", "task 'first' timed out after 0.3 s")


@pytest.mark.parametrize("how", ["sleep", "loop", "hold"])
async def test_a_task_that_does_not_stop_at_its_timeout_ends_with_its_process(
    tmp_path: Path, how: str
) -> None:
    """D23: also one that never lets go of the interpreter."""
    async with lab(tmp_path, grace_sec=0.2) as at:
        outcome = await ended(await at.start("limited", how=how))
        assert (outcome.ending, outcome.error) == TIMED_OUT
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


class Stalls:
    """How long this process computed between two turns of its loop, however busy the machine is."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("whole", [False, True])
async def test_a_huge_return_value_neither_stalls_the_worker_nor_fills_its_memory(
    tmp_path: Path, *, whole: bool
) -> None:
    """D08: 1.5 million dicts as the output of a task, the input of two, and the result."""
    async with lab(tmp_path) as at, Stalls() as stalls:
        gc.collect()
        before = resident_bytes()
        flow = await at.start("huge", whole=whole)
        flow.go_live()
        await at.reached("in-count")
        at.let_go()
        outcome = await ended(flow)
        assert resident_bytes() - before < 50_000_000
        assert stalls.longest < 0.5
    assert outcome.result == (None if whole else {"rest": 1_500_000})
    assert outcome.result_truncated is whole
    if whole:
        assert outcome.warnings[0].startswith("the result has more than 2,999,999 bytes as JSON")
    record = outcome.progress.task_records["count"]
    assert record.inputs is not None
    assert record.inputs["load"]["type"] == "list"


async def test_records_that_have_not_changed_cross_the_socket_once_before_the_end(tmp_path: Path) -> None:
    """D08"""
    received: list[dict[str, Any]] = []

    async with lab(tmp_path) as at:
        flow = await at.start("steps")
        flow.go_live()
        completed = flow._records.completed

        def remembered(progress: FlowProgress) -> FlowProgress:
            received.append(dict(progress.task_records))
            return completed(progress)

        flow._records.completed = remembered  # type: ignore[method-assign]
        await at.reached("in-first")
        at.let_go()
        outcome = await ended(flow)
        listener: Any = flow.listener
    complete = [set(step.task_records) for step in listener.steps if step.tasks]
    assert complete == [{"first", "second"}] * len(complete)
    assert set(outcome.progress.task_records) == {"first", "second"}
    assert outcome.progress.task_records["first"].output == "first"
    seen = [(name, record) for records in received for name, record in records.items()]
    assert len(seen) == len({(name, msgspec.json.encode(record)) for name, record in seen})
