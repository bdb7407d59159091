"""What a task does to its process harms its own run only: those after it and beside it are as if it had not
been there, no slot is lost, and nothing of it stays behind.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support import hostile_flows
from support.hostile_flows import HOSTILE
from support.installation import Lab
from support.programs import Program, children_of
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]
FLOWS = f"{hostile_flows.__file__}:resolve"

COMPLETED: dict[str, Any] = {
    "fork_and_exit": 3,
    "fork_and_return": 0,
    "fork_and_raise": 1,
    "fork_and_interrupt": 1,
    "fork_and_leave_it": "parent",
    "fork_as_c_does": 0,
    "fork_in_a_thread": [0],
    "use_multiprocessing": [[0, 1, 2], [0, 1, 2]],
    "leave_a_daemon": 0,
    "leave_a_thread_that_prints": "left",
    "leave_an_alarm": "left",
    "configure_logging": "configured",
    "change_the_process": "changed",
}
"""These do nothing that their own run must suffer from."""
FAILED = {
    "crash_with_a_living_child": "SIGSEGV",
    "abort_with_a_living_child": "SIGABRT",
    "kill_the_group": "SIGKILL",
    "terminate_everybody_near": "SIGTERM",
    "write_garbage_everywhere": "foreign bytes",
    "write_a_promise_of_more": "foreign bytes",
    "exit_at_once": "exited with code 0",
    "close_the_channels_and_stay": "the executor process",
}


def executors_of(worker: Program) -> list[int]:
    return [pid for zygote in children_of(worker.pid) for pid in children_of(zygote)]


class Site:
    def __init__(self, lab: Lab, worker: Program) -> None:
        self.lab = lab
        self.worker = worker
        self._probes = 0

    async def attack(self, how: str) -> dict[str, Any]:
        return await self.lab.ended(await self.lab.submit("attack", how=how))

    async def probe(self) -> Any:
        """A run's state, after it was seen to have its own result and its own output."""
        self._probes += 1
        value = self._probes
        run_id = await self.lab.submit("probe", value=value)
        run = await self.lab.ended(run_id)
        assert run["status"] == "COMPLETED", run["error"]
        found = run["result"]["look"]
        assert found["value"] == value
        lines = (await self.lab.http.get(f"/runs/{run_id}/logs")).json()["lines"]
        assert [line["text"].strip() for line in lines] == [f"probe {value}"]
        return found["state"]

    async def has_all_slots(self) -> None:
        names = {"left-slot": "right-slot", "right-slot": "left-slot"}
        runs = [await self.lab.submit("both", me=me, other=other) for me, other in names.items()]
        assert [run["status"] for run in await self.lab.all_ended(runs)] == ["COMPLETED"] * 2

    async def has_nothing_left(self, slots: int = 2) -> None:
        """No process but the worker, its zygote and an executor per slot.

        An orphan is a child of the zygote, too, so the executors are counted.
        """

        async def strangers() -> int:
            executors = executors_of(self.worker)
            known = {self.worker.pid, *children_of(self.worker.pid), *executors}
            return len(self.lab.programs.pids() - known) + max(0, len(executors) - slots)

        await until(strangers, lambda found: not found)


def complaint(how: str, run: dict[str, Any], before: Any, after: Any, beside: dict[str, Any]) -> str | None:
    if (beside["status"], beside["attempt"]) != ("RUNNING", 1):
        return f"the run beside it is {beside['status']}: {beside['error']}"
    if after != before:
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        return f"the next run found {changed}"
    if how in COMPLETED and (run["status"] != "COMPLETED" or _output(run) != COMPLETED[how]):
        return f"{run['status']} {run['error']} {run['task_records']}"
    if how in FAILED and (run["status"] != "FAILED" or FAILED[how] not in run["error"]):
        return f"{run['status']} {run['error']}"
    return None


def _output(run: dict[str, Any]) -> Any:
    return run["task_records"]["do"]["output"]


@pytest.mark.parametrize(
    "attacks", [list(HOSTILE)[::8], pytest.param(list(HOSTILE), marks=pytest.mark.slow)], ids=["some", "all"]
)
async def test_what_a_task_does_to_its_process_harms_its_own_run_only(labs: Labs, attacks: list[str]) -> None:
    """D11, D47, D49, D54: one slot has all the attacks, the other a run that is not to notice."""
    assert len(HOSTILE) >= 20
    assert {*COMPLETED, *FAILED} <= set(HOSTILE)
    lab = await labs()
    async with lab.worker(flows=FLOWS, concurrency=2) as worker:
        site = Site(lab, worker)
        beside = await lab.submit("beside")
        await lab.reached("in-beside")
        before = await site.probe()
        complaints = {}
        for how in attacks:
            run = await site.attack(how)
            try:
                if found := complaint(how, run, before, await site.probe(), await lab.run(beside)):
                    complaints[how] = found
            except AssertionError as error:
                complaints[how] = str(error)
        assert complaints == {}
        lab.let("go")
        assert (await lab.ended(beside))["result"] == {"wait": "undisturbed"}
        await site.has_all_slots()
        await site.has_nothing_left()
        completed = [how for how in attacks if how in COMPLETED]
        assert len((lab.marks / "after").read_text()) >= len(completed)  # and see the next test
        os.kill(worker.pid, 0)


async def test_a_task_that_forks_is_followed_once(labs: Labs) -> None:
    """D47: the child goes on to no other task, and reports nothing."""
    lab = await labs()
    async with lab.worker(flows=FLOWS) as worker:
        site = Site(lab, worker)
        forks = [how for how in HOSTILE if how.startswith("fork")]
        for how in forks:
            assert (await site.attack(how))["status"] == "COMPLETED"
            assert await site.probe()
        assert (lab.marks / "after").read_text() == "x" * len(forks)


async def test_children_of_a_cancelled_run_end_with_it(labs: Labs, tmp_path: Path) -> None:
    """D54: also one that has a session of its own."""
    lab = await labs(cancel_grace_period_sec=0.2)
    (tmp_path / "families.py").write_text(FAMILY)
    async with lab.worker(flows="families.py:resolve") as worker:
        run_id = await lab.submit("family")
        for name in ("child", "daemon", "parent"):
            await lab.reached(name)
        await lab.cancel(run_id)
        assert (await lab.ended(run_id))["status"] == "CANCELLED"
        await Site(lab, worker).has_nothing_left(slots=1)
        pids = [pid_in(lab.marks / name) for name in ("child", "daemon", "parent")]

        async def living() -> list[int]:
            return [pid for pid in pids if is_there(pid)]

        await until(living, lambda found: not found)


def pid_in(mark: Path) -> int:
    return int(mark.read_text())


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
from pyoco import Flow, task

SLEEP = (
    "import os, sys, time; open(sys.argv[1] + '.new', 'w').write(str(os.getpid()));"
    "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)"
)

def resolve(name):
    @task
    def found(marks):
        for name, own in (("child", False), ("daemon", True)):
            mark = str(Path(marks) / name)
            subprocess.Popen([sys.executable, "-c", SLEEP, mark], start_new_session=own)
        made = Path(marks) / ".parent"
        made.write_text(str(os.getpid()))
        made.rename(Path(marks) / "parent")
        time.sleep(600)
    return Flow(name="family") >> found
"""


async def test_a_worker_recovers_from_a_task_that_kills_the_parent_of_all_executors(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker(flows=FLOWS, concurrency=2) as worker:
        site = Site(lab, worker)
        beside = await lab.submit("beside")
        await lab.reached("in-beside")
        culprit = await lab.ended(await lab.submit("patricide"))
        assert culprit["status"] == "FAILED"
        assert "the executor process ended" in culprit["error"]
        assert (await lab.ended(beside))["status"] == "FAILED"  # and not RUNNING for ever
        await site.probe()
        await site.has_all_slots()
        await site.has_nothing_left()
