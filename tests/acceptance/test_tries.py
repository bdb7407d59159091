"""Runs in time: delays, tries, timeouts, and runs that nobody starts."""

import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.installation import Lab
from support.nats_server import jobs_waiting
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]
AT_ONCE = {"max_attempts": 5, "backoff_sec": 0.05, "jitter": 0}


def kinds(run: dict[str, Any]) -> list[str]:
    return [one["failure"]["kind"] for one in run["tries"]]


async def test_a_delayed_run_starts_when_its_time_has_come(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        run_id = await lab.submit("tiny", {"delay_sec": 1.5})
        waiting = await lab.run(run_id)
        assert waiting["status"] == "PENDING"
        assert waiting["not_before"] - waiting["submitted_at"] == pytest.approx(1.5, abs=1.0)
        run = await lab.ended(run_id)
    assert run["status"] == "COMPLETED", run["error"]
    assert run["start_time"] >= run["not_before"] - 0.1
    assert (run["attempt"], run["tries"]) == (1, [])


async def test_a_run_is_tried_again_until_it_succeeds(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        run = await lab.ended(await lab.submit("flaky", {"retry": AT_ONCE}, failures=2))
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
    assert (run["status"], run["result"], run["failure"]) == ("COMPLETED", {"work": 3}, None)
    assert [(one["n"], one["failure"]["message"]) for one in run["tries"]] == [
        (1, "ValueError: try 1 fails"),
        (2, "ValueError: try 2 fails"),
    ]
    assert run["tries"][0]["failure"]["task"] == "work"
    assert "try 1 fails" in run["tries"][0]["failure"]["traceback"]


async def test_a_run_whose_tries_are_used_up_fails_with_the_last_failure(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        fields = {"retry": {**AT_ONCE, "max_attempts": 3}}
        run = await lab.ended(await lab.submit("flaky", fields, failures=9))
    assert (run["status"], run["error"]) == ("FAILED", "ValueError: try 3 fails")
    assert (kinds(run), run["failure"]["message"]) == (["error"] * 3, "ValueError: try 3 fails")


async def test_a_crashed_executor_uses_up_a_try(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        fields = {"retry": {**AT_ONCE, "max_attempts": 2, "on": ["crash"]}}
        run = await lab.ended(await lab.submit("dying", fields, how="kill"))
        again = await lab.ended(await lab.submit("tiny"))
    assert (run["status"], kinds(run)) == ("FAILED", ["crash", "crash"])
    assert again["status"] == "COMPLETED", "the worker goes on"


async def test_a_try_that_takes_too_long_is_ended_with_its_process(labs: Labs) -> None:
    lab = await labs(cancel_grace_period_sec=0.3)
    async with lab.worker():
        run = await lab.ended(await lab.submit("stuck", {"timeout_sec": 0.5}))
        again = await lab.ended(await lab.submit("tiny"))
    assert (run["status"], run["error"]) == ("FAILED", "timed out after 0.5 s")
    assert (run["failure"]["kind"], kinds(run)) == ("timeout", ["timeout"])
    assert again["status"] == "COMPLETED", "the worker goes on"


async def test_a_run_that_nobody_starts_in_time_expires(labs: Labs) -> None:
    lab = await labs()
    run = await lab.ended(await lab.submit("tiny", {"start_within_sec": 0.5}))
    assert (run["status"], run["failure"]["kind"], run["tries"]) == ("FAILED", "expired", [])
    async with lab.worker():
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
        assert (await lab.run(run["run_id"])) == run | {"worker_alive": None}, "the job is dropped"


async def test_a_cancelled_run_never_starts_later(labs: Labs) -> None:
    lab = await labs()
    run_id = await lab.submit("tiny", {"delay_sec": 600})
    assert await jobs_waiting(lab.config) == 1
    assert await lab.cancel(run_id) == "CANCELLING"
    assert (await lab.ended(run_id))["status"] == "CANCELLED"
    assert await jobs_waiting(lab.config) == 0, "nothing is left behind"


async def test_a_run_that_waits_for_its_next_try_can_be_cancelled(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        run_id = await lab.submit("flaky", {"retry": {"max_attempts": 2, "backoff_sec": 600}}, failures=9)
        await until(lambda: lab.run(run_id), lambda run: bool(run["tries"]))
        await lab.cancel(run_id)
        run = await lab.ended(run_id)
    assert (run["status"], kinds(run)) == ("CANCELLED", ["error"])
    await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)


async def test_a_retry_from_where_it_failed_survives_the_death_of_its_worker(labs: Labs) -> None:
    lab = await labs(consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.3)
    async with lab.worker():
        old = await lab.ended(await lab.submit("halting"))
    assert (old["status"], (lab.marks / "starts").read_text()) == ("FAILED", "ls")
    answer = await lab.http.post(f"/runs/{old['run_id']}/retry", json={"from": "failed"})
    run_id = answer.json()["run_id"]
    assert (await lab.run(run_id))["tasks"] == {"load": "SUCCEEDED"}
    lab.let("repaired")
    async with lab.worker("w2") as worker:
        await lab.reached("in-send")
        worker.send(signal.SIGKILL)
    lab.let("go")
    async with lab.worker("w3"):
        new = await lab.ended(run_id)
    assert (new["status"], new["result"]) == ("COMPLETED", {"send": 6})
    assert (lab.marks / "starts").read_text() == "lsss", "the first task was never run again"
    assert (await lab.run(old["run_id"]))["retried_as"] == run_id
