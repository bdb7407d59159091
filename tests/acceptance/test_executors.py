"""REQ-0008, REQ-0024: flows run in processes; what one of them does to itself concerns only its run."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.worker.pipeline import START_PATIENCE_SEC
from support import process_flows
from support.installation import Lab
from support.programs import children_of
from support.waiting import until

SUPPORT = str(Path(process_flows.__file__).parent)

Labs = Callable[..., Awaitable[Lab]]


def executors_of(worker_pid: int) -> list[int]:
    return [pid for zygote in children_of(worker_pid) for pid in children_of(zygote)]


@pytest.mark.parametrize(
    ("how", "told"), [("exit", "exited with code 7"), ("kill", "SIGKILL"), ("segfault", "SIGSEGV")]
)
async def test_an_executor_that_dies_fails_its_run_only(labs: Labs, how: str, told: str) -> None:
    lab = await labs()
    async with lab.worker(concurrency=2):
        other = await lab.submit("steps")
        await lab.reached("in-first")
        run = await lab.ended(await lab.submit("dying", how=how))
        assert run["status"] == "FAILED"
        assert told in run["error"]
        lab.let("go")
        assert (await lab.ended(other))["status"] == "COMPLETED"
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_an_executor_that_dies_while_it_is_idle_is_replaced(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker() as worker:
        (idle,) = executors_of(worker.pid)
        lab.programs.kill(idle)

        async def replaced() -> bool:
            return executors_of(worker.pid) not in ([], [idle])

        await until(replaced)
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_a_process_is_replaced_after_its_number_of_runs(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1", "--max-runs-per-process", "3"):
        told = [(await lab.ended(await lab.submit("who")))["result"]["tell"] for _ in range(7)]
    assert [answer["nth"] for answer in told] == [1, 2, 3, 1, 2, 3, 1]
    assert len({answer["pid"] for answer in told}) == 3


async def test_a_process_that_has_grown_is_replaced(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1", "--max-memory-mb", "200"):
        told = [
            (await lab.ended(await lab.submit("who", megabytes=size)))["result"]["tell"]
            for size in (1, 1, 250, 1)
        ]
    assert [answer["nth"] for answer in told] == [1, 2, 3, 1]


@pytest.mark.parametrize("flow", ["stuck", "holding"])
async def test_executors_end_when_their_worker_is_killed(labs: Labs, flow: str) -> None:
    lab = await labs()
    async with lab.worker(concurrency=2) as worker:
        await lab.submit(flow, seconds=100.0)
        await lab.reached("in-sleep" if flow == "stuck" else "in-hold")
        worker.ends_after(signal.SIGKILL)
        assert await asyncio.to_thread(lab.programs.are_gone)


async def test_what_runs_have_started_ends_when_their_worker_is_killed(labs: Labs) -> None:
    """D54: also what has left the executor's session."""
    lab = await labs()
    async with lab.worker() as worker:
        await lab.submit("parenting")
        for name in ("in-child", "in-daemon"):
            await lab.reached(name)
        worker.ends_after(signal.SIGKILL)
        assert await asyncio.to_thread(lab.programs.are_gone)


async def test_a_crash_with_a_living_child_neither_holds_its_slot_nor_the_workers_end(labs: Labs) -> None:
    """D49"""
    lab = await labs()
    async with lab.worker() as worker:
        run = await lab.ended(await lab.submit("family"))
        assert run["status"] == "FAILED"
        assert "SIGSEGV" in run["error"]
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"
        assert await asyncio.to_thread(worker.ends_after, signal.SIGTERM) == 0


@pytest.mark.parametrize("how", ["loop", "hold", "sleep"])
async def test_a_task_ends_at_its_timeout_whatever_it_does(labs: Labs, how: str) -> None:
    """D23"""
    lab = await labs(cancel_grace_period_sec=0.5)
    async with lab.worker():
        run = await lab.ended(await lab.submit("limited", how=how))
        assert (run["status"], run["error"]) == ("FAILED", "task 'first' timed out after 0.3 s")
        assert run["tasks"]["first"] == "FAILED"
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_nothing_leaks_over_many_runs_and_processes(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1", "--max-runs-per-process", "20", concurrency=2) as worker:

        async def runs(count: int) -> list[Any]:
            submitted = [await lab.submit("who") for _ in range(count)]
            return [run["result"]["tell"]["fds"] for run in await lab.all_ended(submitted)]

        async def settled() -> bool:
            return len(executors_of(worker.pid)) == 2

        await runs(50)
        await until(settled)
        (zygote,) = children_of(worker.pid)
        before = _fds(worker.pid), _fds(zygote)
        in_executors = set(await runs(200))
        await until(settled)
        assert (_fds(worker.pid), _fds(zygote)) == before
        assert len(in_executors) == 1


def _fds(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_output_is_caught_by_task_as_it_is_printed_and_capped(labs: Labs) -> None:
    """D28"""
    lab = await labs()
    async with lab.worker():
        run_id = await lab.submit("talking")
        await lab.reached("in-first")

        async def lines() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await lab.http.get(f"/runs/{run_id}/logs")).json()["lines"]
            return found

        live = await until(lines)  # the task still runs
        assert [(line["task"], line["stream"]) for line in live] == [("first", "stdout")]
        assert "hello from first" in live[0]["text"]
        lab.let("go")
        assert (await lab.ended(run_id))["status"] == "COMPLETED"
        answer = await lab.http.get(f"/runs/{run_id}/logs", params={"cursor": "0"})
        found = sorted(answer.json()["lines"], key=lambda line: line["n"])
    everything = "".join(line["text"] for line in found if line["task"] == "second")
    assert everything.startswith("line 0 ")
    assert everything.rstrip("x\n").endswith("line 19999 ")
    assert 60_000 < len(everything) < 70_000  # kept up to its limit, with a word about the rest
    (mark,) = [line for line in found if "cut_lines" in line]
    assert f"… {mark['cut_lines']:,} lines" in everything


@pytest.mark.slow
async def test_a_worker_whose_executors_cannot_be_started_takes_no_jobs(labs: Labs, tmp_path: Path) -> None:
    """Claimed and given back, a run would have been delivered too often before the flows are mended."""
    lab = await labs(consumer_max_deliver=3)
    flows = tmp_path / "mended.py"
    flows.write_text(
        works := f"import sys\nsys.path.insert(0, {SUPPORT!r})\nfrom process_flows import resolve\n"
    )
    async with lab.worker("w1", "--max-runs-per-process", "1", flows="mended.py:resolve") as worker:
        flows.write_text("raise SystemExit")
        await lab.ended(await lab.submit("tiny"))  # in the executor that was ready before
        await asyncio.to_thread(worker.says, "executor could not be started")
        waiting = await lab.submit("tiny")
        await asyncio.sleep(5 * START_PATIENCE_SEC)  # in which it could be tried in vain too often
        assert (await lab.run(waiting))["status"] == "PENDING"
        flows.write_text(works)
        assert (await lab.ended(waiting))["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_thing", "no_such_thing' (broken.py, line 1)"),
        ("x = 1\nraise SystemExit(5)", "SystemExit: 5 (broken.py, line 2)"),
        ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
async def test_flows_that_cannot_be_imported_stop_the_start(
    labs: Labs, tmp_path: Path, code: str, told: str
) -> None:
    lab = await labs()
    (tmp_path / "broken.py").write_text(code)
    done = await asyncio.to_thread(lab.programs.run, "pyoco-worker", "--flow-resolver", "broken.py:resolve")
    assert done.returncode == 1
    assert "the flows could not be loaded" in done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
