"""Runs in time: delays, tries, timeouts, and runs that nobody starts."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server import PyocoNatsClient
from pyoco_server.config import NatsBackendConfig
from support.gateway import gateway
from support.http_executions import Executions, graph, task
from support.installation import TERMINAL, Lab
from support.nats_server import jobs_waiting
from support.programs import Program, Programs
from support.silent_proxy import StoppingProxy, stopping_proxy
from support.waiting import PATIENCE_SEC, until

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


async def test_runs_of_nodes_are_tried_again_as_their_flow_wants(labs: Labs) -> None:
    """All tries of the run are one attempt of the node."""
    lab = await labs()
    assert (await lab.http.put("/flows/flaky", json={"retry": AT_ONCE})).status_code == 200
    executions = Executions(lab.http)
    await executions.register(
        "g", graph({"a": task("flaky", params={"marks": str(lab.marks), "failures": 2})})
    )
    async with lab.worker():
        execution_id = (await executions.create(graph_id="g"))["execution_id"]

        async def state() -> Any:
            return (await lab.http.get(f"/executions/{execution_id}")).json()

        found = await until(state, lambda one: one["status"] != "ACTIVE")
        run = await lab.run(found["nodes"]["a"]["run_id"])
    assert (found["status"], found["nodes"]["a"]["attempt"]) == ("COMPLETED", 1), found
    assert (run["status"], kinds(run), run["retry"]["max_attempts"]) == ("COMPLETED", ["error"] * 2, 5)


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


# Workers that die between any two steps of a retry: the failed try is recorded, the job of the next one is
# queued, that of the failed one is acknowledged.

QUICK: dict[str, Any] = {"consumer_ack_wait_sec": 1.0, "ack_progress_interval_sec": 0.3}


class Steps:
    """A worker whose way to NATS ends at a step of its work; then it is killed."""

    def __init__(self, lab: Lab, proxy: StoppingProxy) -> None:
        self.lab = lab
        self.proxy = proxy
        self._workers = 0
        self._has_queued = False

    def records(self, subject: str, data: bytes) -> bool:
        is_run = subject.startswith(f"$KV.{self.lab.config.runs_kv_bucket}.")
        return is_run and b'"status":"PENDING"' in data and b'"tries":[{' in data

    def queues(self, subject: str, _data: bytes) -> bool:
        return subject.startswith(f"{self.lab.config.work_subject_prefix}.")

    def acknowledges(self, subject: str, data: bytes) -> bool:
        """The failed try, and not what is left of a run before it."""
        self._has_queued = self._has_queued or self.queues(subject, data)
        is_ack = subject.startswith("$JS.ACK.") and data.strip() in (b"", b"+ACK")
        return is_ack and self._has_queued

    @property
    def all(self) -> dict[str, tuple[Callable[[str, bytes], bool], bool]]:
        return {
            "before the record": (self.records, False),
            "after the record": (self.records, True),
            "before the next job": (self.queues, False),
            "after the next job": (self.queues, True),
            "before the ack": (self.acknowledges, False),
        }

    def worker(self) -> AbstractAsyncContextManager[Program]:
        self._workers += 1
        url = f"nats://127.0.0.1:{self.proxy.port}"
        return self.lab.worker(f"w{self._workers}", "--nats-url", url)

    async def die_at(self, name: str) -> None:
        is_wanted, lets_through = self.all[name]
        self._has_queued = False
        self.proxy.stop_at(is_wanted, lets_through=lets_through)
        async with self.worker() as worker:
            async with asyncio.timeout(PATIENCE_SEC):
                await self.proxy.has_stopped.wait()
            worker.ends_after(signal.SIGKILL)
        self.proxy.go_on()


@pytest.fixture
async def steps(labs: Labs) -> AsyncIterator[Steps]:
    lab = await labs(**QUICK, cancel_grace_period_sec=0.3)
    async with stopping_proxy(int(lab.config.nats_url.rpartition(":")[2])) as proxy:
        yield Steps(lab, proxy)


async def test_a_run_has_its_tries_and_no_more_when_workers_die_at_every_step(steps: Steps) -> None:
    lab = steps.lab
    run_id = await lab.submit("flaky", {"retry": AT_ONCE}, failures=99)
    for number, name in enumerate(steps.all):
        await steps.die_at(name)
        run = await lab.run(run_id)
        expected = ("PENDING", number) if number else ("RUNNING", 0)
        assert (run["status"], len(run["tries"])) == expected, name
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 1)
    async with steps.worker():
        run = await lab.ended(run_id)
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
    assert (run["status"], kinds(run), [one["n"] for one in run["tries"]]) == (
        "FAILED",
        ["error"] * 5,
        [1, 2, 3, 4, 5],
    )
    starts = len(list(lab.marks.glob("try-*")))
    assert starts == 6, "each try once, and the first again: its end was not recorded"


async def test_a_cancel_wins_wherever_in_a_retry_a_worker_has_died(steps: Steps) -> None:
    lab = steps.lab
    cancelled = []
    for name in steps.all:
        run_id = await lab.submit("flaky", {"retry": {**AT_ONCE, "backoff_sec": 1}}, failures=99)
        await steps.die_at(name)
        await lab.cancel(run_id)
        cancelled.append(await lab.ended(run_id))
        assert cancelled[-1]["status"] == "CANCELLED", name
    starts = len(list(lab.marks.glob("try-*")))
    async with steps.worker():
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
    assert len(list(lab.marks.glob("try-*"))) == starts == len(steps.all), "nothing was started again"
    for run in cancelled:
        assert (await lab.run(run["run_id"]))["status"] == "CANCELLED"


async def test_the_next_worker_completes_a_retry_while_no_gateway_runs(
    config: NatsBackendConfig, programs: Programs
) -> None:
    config = replace(config, **QUICK)
    async with gateway(config) as http:
        lab = Lab(config, programs, http)
        run_id = await lab.submit("flaky", {"retry": AT_ONCE}, failures=1)
    client = await PyocoNatsClient.connect(config)
    async with stopping_proxy(int(config.nats_url.rpartition(":")[2])) as proxy:
        steps = Steps(lab, proxy)
        await steps.die_at("after the record")
        waiting = await client.get_run(run_id)
        assert (waiting["status"], len(waiting["tries"])) == ("PENDING", 1)
        assert await jobs_waiting(config) == 1, "that of the failed try"
        async with steps.worker():
            run = await until(lambda: client.get_run(run_id), lambda found: found["status"] in TERMINAL)
            await until(lambda: jobs_waiting(config), lambda count: count == 0)
    await client.close()
    assert (run["status"], kinds(run), run["result"]) == ("COMPLETED", ["error"], {"work": 2})
    assert len(list(lab.marks.glob("try-*"))) == 2
