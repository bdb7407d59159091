"""The queues of real executor processes: who runs which flow, and when flows move."""

import asyncio
import os
import signal
from pathlib import Path

from pyoco_server.engine.executors.protocol import MAX_QUEUE, Limits
from support import process_flows
from support.executors import Listener, ended, endings, lab
from support.programs import freeze
from support.waiting import PATIENCE_SEC


async def test_queued_flows_end_in_order_with_their_own_results(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        first = await at.start("steps")
        await at.reached("in-first")
        behind = [await at.tiny() for _ in range(3)]
        at.let_go()
        assert (await ended(first)).result == {"second": "second"}
        assert [(await ended(flow)).result for flow in behind] == [{"three": 3}] * 3


async def test_flows_queued_behind_a_long_one_move_to_another_executor(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = [await at.tiny() for _ in range(5)]
        await at.reached("in-first")
        assert await endings(behind) == ["completed"] * 5  # while the long one goes on
        assert not long.ended.done()
        at.let_go()
        assert (await ended(long)).ending == "completed"


async def test_flows_queued_behind_one_that_holds_the_interpreter_move(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        deaf = await at.start("holding", seconds=600.0)
        behind = [await at.tiny() for _ in range(5)]
        assert await endings(behind) == ["completed"] * 5
        deaf.kill()
        assert (await ended(deaf)).ending == "cancelled"


async def test_nothing_queues_behind_a_flow_that_is_known_to_be_long(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        await at.start("steps")
        assert await endings([await at.tiny() for _ in range(3)]) == ["completed"] * 3
        (busy,) = (process for process in at.processes if process.flow_count)
        for _ in range(20):
            flow = await at.tiny()
            assert busy.flow_count == 1
            await ended(flow)
        at.let_go()


async def test_a_flow_that_waits_too_long_behind_a_long_one_never_starts(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, move_timeout_sec=0.2) as at:
        await at.learn_that_flows_are_tiny()
        long = await at.start("steps")
        behind = await at.tiny()
        async with asyncio.timeout(PATIENCE_SEC):
            assert await behind.outcome() is None  # another worker gets the chance
        at.let_go()
        assert (await ended(long)).ending == "completed"


async def test_a_process_that_is_slow_to_begin_is_not_forgotten(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        for process in at.processes:
            freeze(process.pid)
        flows = [await at.tiny() for _ in range(4)]
        await asyncio.sleep(5 * Limits().queue_timeout_sec)  # they go to and fro
        for process in at.processes:
            os.kill(process.pid, signal.SIGCONT)
        assert await endings(flows) == ["completed"] * 4
        assert len(at.executors._idle) == 2


async def test_a_flow_is_killed_without_those_behind_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        stuck = await at.start("stuck")
        behind = [await at.tiny() for _ in range(3)]
        await at.reached("in-sleep")
        assert stuck.kill()
        assert (await ended(stuck)).ending == "cancelled"
        assert await endings(behind) == ["completed"] * 3


async def test_a_queued_flow_is_killed_without_the_one_before_it(tmp_path: Path) -> None:
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


async def test_requests_move_with_a_queued_flow(tmp_path: Path) -> None:
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


async def test_queued_flows_run_with_new_code(tmp_path: Path) -> None:
    async with lab(tmp_path) as at:
        await at.learn_that_flows_are_tiny()
        old = await at.start("steps")
        behind = await at.tiny()
        assert await at.executors.change_spec(version="2") is None
        assert (await ended(behind)).ending == "completed"  # in a new process: the old one is busy
        assert [process.spec.version for process in at.processes if not process.flow_count] == ["2"]
        at.let_go()
        assert (await ended(old)).ending == "completed"


async def test_tiny_flows_share_a_process_before_another_is_woken_up(tmp_path: Path) -> None:
    async with lab(tmp_path, concurrency=2) as at:
        await at.learn_that_flows_are_tiny()
        flows = [await at.tiny() for _ in range(MAX_QUEUE)]
        assert sorted(process.flow_count for process in at.processes) == [0, MAX_QUEUE]
        flows += [await at.tiny() for _ in range(2)]
        assert sorted(process.flow_count for process in at.processes) == [2, MAX_QUEUE]
        assert await endings(flows) == ["completed"] * (MAX_QUEUE + 2)


async def test_a_process_that_is_for_one_run_gets_one(tmp_path: Path) -> None:
    async with lab(tmp_path, max_runs=1) as at:
        first = await at.tiny()
        pid = at.processes[0].pid
        assert at.processes[0].flow_count == 1
        second = asyncio.ensure_future(at.tiny())
        await ended(first)
        await ended(await second)
        assert pid not in {process.pid for process in at.processes}
