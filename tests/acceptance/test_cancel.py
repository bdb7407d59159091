"""REQ-0009: a cancel that was answered CANCELLING ends the run as CANCELLED, whatever happens meanwhile."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from support.installation import Lab
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]


async def test_a_run_is_cancelled_between_two_tasks(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        run_id = await lab.submit("steps", until_cancelled=True)
        await lab.reached("in-first")
        assert await lab.cancel(run_id) == "CANCELLING"
        run = await lab.ended(run_id)
    assert (run["status"], run["error"]) == ("CANCELLED", None)
    assert run["tasks"] == {"first": "SUCCEEDED", "second": "CANCELLED"}
    assert not (lab.marks / "in-second").exists()


async def test_a_task_that_looks_sees_the_cancel_at_once(labs: Labs) -> None:
    lab = await labs(run_heartbeat_interval_sec=60.0)  # so it is not the next heartbeat that tells
    async with lab.worker():
        run_id = await lab.submit("watchful")
        await lab.reached("in-watch")
        asked = asyncio.get_running_loop().time()
        assert await lab.cancel(run_id) == "CANCELLING"
        await lab.reached("saw-cancel")
        assert asyncio.get_running_loop().time() - asked < 30.0
        assert (await lab.ended(run_id))["status"] == "CANCELLED"


async def test_a_task_that_never_returns_is_ended_with_its_process(labs: Labs) -> None:
    """PYOCO_CANCEL_GRACE_PERIOD_SEC"""
    lab = await labs(cancel_grace_period_sec=0.3)
    async with lab.worker() as worker:
        run_id = await lab.submit("stuck")
        pid = await lab.reached("in-sleep")
        assert await lab.cancel(run_id) == "CANCELLING"
        run = await lab.ended(run_id)
        assert run["status"] == "CANCELLED"
        assert run["tasks"] == {"sleep": "CANCELLED"}
        assert run["task_records"]["sleep"]["state"] == "CANCELLED"
        assert "ERR-PYOCO-0021" in worker.output
        assert pid not in lab.programs.pids()
        # The worker goes on with a new process.
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_a_cancelled_run_ends_while_its_owner_is_dead(labs: Labs) -> None:
    """Killed, then cancelled, then delivered again: the new owner starts nothing."""
    lab = await labs(consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.3)
    async with lab.worker("w1") as first:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        first.ends_after(signal.SIGKILL)
    lab.forget("in-first")
    assert await lab.cancel(run_id) == "CANCELLING"
    async with lab.worker("w2"):
        run = await lab.ended(run_id)
    assert run["status"] == "CANCELLED"
    assert not (lab.marks / "in-first").exists()


async def test_a_cancel_at_the_moment_of_completion_is_kept_or_too_late(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        for _ in range(50):
            run_id = await lab.submit("tiny", pause=0.005)
            await until(lambda: lab.run(run_id), lambda run: run["status"] != "PENDING")  # noqa: B023
            answered = await lab.cancel(run_id)
            ended = (await lab.ended(run_id))["status"]
            assert ended == ("CANCELLED" if answered == "CANCELLING" else answered)


async def test_no_cancel_is_lost_at_any_moment(labs: Labs, campaign: int | None) -> None:
    """Seeded: PYOCO_TEST_CAMPAIGN says how many runs."""
    chance = random.Random(20_261)  # noqa: S311
    lab = await labs()
    answers: dict[str, str] = {}

    async def one(pause: float, moment: float) -> None:
        run_id = await lab.submit("tiny", pause=pause)
        await asyncio.sleep(moment)  # the random moment is what is tried here
        answers[run_id] = await lab.cancel(run_id)

    plans = [(chance.choice([0.0, 0.01, 0.05]), chance.uniform(0.0, 0.12)) for _ in range(campaign or 100)]
    async with lab.worker(concurrency=2):
        for start in range(0, len(plans), 10):
            await asyncio.gather(*(one(*plan) for plan in plans[start : start + 10]))
        ends: dict[str, Any] = {run_id: await lab.ended(run_id) for run_id in answers}
    lost = {
        run_id: (answer, ends[run_id]["status"])
        for run_id, answer in answers.items()
        if ends[run_id]["status"] != ("CANCELLED" if answer == "CANCELLING" else answer)
    }
    assert lost == {}
    assert {"CANCELLING", "COMPLETED"} <= set(answers.values())  # else the moments were not mixed
