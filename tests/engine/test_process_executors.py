"""Real executor processes: what happens to other flows when one goes wrong."""

import asyncio
import gc
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from pyoco_server.domain.runs.jobs import FlowProgress
from pyoco_server.engine.executors.process import ExecutorProcess
from support.builders import a_job
from support.captured_logs import capture_logs
from support.executors import Lab, Listener, ended, endings, lab
from support.programs import freeze, proc
from support.waiting import PATIENCE_SEC, until


async def test_a_process_that_dies_takes_only_the_flow_that_it_ran(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = [await at.tiny() for _ in range(3)]
        os.kill(await at.reached("in-first"), signal.SIGKILL)
        died = await ended(long)
        assert (died.ending, died.error) == ("execution_error", "the executor process was killed by SIGKILL")
        assert await endings(behind) == ["completed"] * 3


async def test_a_process_that_dies_with_a_flow_it_has_not_begun_takes_none(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        (process,) = at.processes
        freeze(process.pid)
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
        return len(list(proc("self/fd").iterdir()))

    gc.collect()  # what earlier tests have left
    before = descriptors()
    async with lab(tmp_path, concurrency=2) as at:
        await at.start("steps")
        await at.reached("in-first")
        assert descriptors() > before
    await asyncio.sleep(0)  # a transport closes one turn later
    assert descriptors() == before


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
    proc()
    async with lab(tmp_path) as at:
        died = await ended(await at.start("family"))
        assert (died.ending, died.error) == ("execution_error", "the executor process was killed by SIGSEGV")
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
        ({"tickets": True, "linger": True}, "completed"),
        ({"tickets": True, "die": True}, "execution_error"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stolen", [1, 2])
async def test_jobs_that_a_task_reads_from_the_channel_are_run_elsewhere(
    tmp_path: Path, how: dict[str, Any], ending: str, stolen: int
) -> None:
    """They were RUNNING until somebody cancelled them, while their executor waited for a job."""
    async with lab(tmp_path, queue_timeout_sec=PATIENCE_SEC) as at:  # they stay queued
        await at.learn_that_flows_are_tiny()
        thief = await at.start("stealing", **how)
        await at.reached("in-steal")
        behind = [await at.tiny() for _ in range(stolen)]
        assert (await ended(thief)).ending == ending
        assert [(await ended(flow)).result for flow in behind] == [{"three": 3}] * stolen
        assert (await ended(await at.tiny())).result == {"three": 3}


async def test_a_job_that_follows_a_stolen_one_is_run_elsewhere(tmp_path: Path) -> None:
    """Its executor sees the gap and begins nothing more."""
    async with lab(tmp_path, queue_timeout_sec=PATIENCE_SEC, ping_after_sec=PATIENCE_SEC) as at:
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
    return int(proc("self/statm").read_text().split()[1]) * resource.getpagesize()


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
        listener: Any = flow.listener

        async def has_reported_tasks() -> bool:
            return any(step.tasks for step in listener.steps)

        await until(has_reported_tasks)
        at.let_go()
        outcome = await ended(flow)
    complete = [set(step.task_records) for step in listener.steps if step.tasks]
    assert complete == [{"first", "second"}] * len(complete)
    assert set(outcome.progress.task_records) == {"first", "second"}
    assert outcome.progress.task_records["first"].output == "first"
    seen = [(name, record) for records in received for name, record in records.items()]
    assert len(seen) == len({(name, msgspec.json.encode(record)) for name, record in seen})


@pytest.mark.parametrize("turns", range(1, 8))
async def test_an_executor_whose_start_is_cancelled_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """As when a worker stops while it replaces one: at any moment of the start."""
    faults: list[dict[str, Any]] = []
    async with lab(tmp_path) as at:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        executor = ExecutorProcess(at.executors, at.executors._spec)
        connecting = asyncio.ensure_future(executor.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        done = (await asyncio.gather(connecting, return_exceptions=True))[0]
        for descriptor in done if isinstance(done, list) else []:
            os.close(descriptor)
        assert executor._is_over == isinstance(done, asyncio.CancelledError)
    assert faults == []
