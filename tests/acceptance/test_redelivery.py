"""REQ-0010, REQ-0011: workers that die, freeze or stop; every run has one end, and none is lost."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from pyoco_server.worker.pipeline import START_PATIENCE_SEC
from pyoco_server.worker.session import LIVE_AFTER_SEC
from support.installation import Lab
from support.nats_server import jobs_waiting, raw_nats
from support.programs import Program, freeze
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]

QUICK: dict[str, Any] = {"consumer_ack_wait_sec": 2.0, "ack_progress_interval_sec": 0.3}


async def state_of(lab: Lab, worker_id: str) -> str:
    answer = await lab.http.get("/workers", params={"scope": "all"})
    states: dict[str, str] = {record["worker_id"]: record["state"] for record in answer.json()}
    return states.get(worker_id, "not heard of yet")


def without_signs_of_life(run: dict[str, Any]) -> dict[str, Any]:
    """A run is shown with what is known of its worker now."""
    return {key: value for key, value in run.items() if not key.startswith("worker_")}


async def redelivered(lab: Lab) -> int:
    async with raw_nats(lab.config.nats_url) as client:
        info = await client.jetstream().consumer_info(lab.config.work_stream, "pyoco_workers_default")
        delivered: int = info.delivered.consumer_seq
        return delivered - 1


async def test_another_worker_takes_over_from_one_that_was_killed(labs: Labs) -> None:
    lab = await labs(**QUICK)
    async with lab.worker("w1") as first:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        first.ends_after(signal.SIGKILL)
    lab.forget("in-first")
    async with lab.worker("w2"):
        await lab.reached("in-first")
        lab.let("go")
        run = await lab.ended(run_id)
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
    assert (run["status"], run["worker_id"], run["attempt"]) == ("COMPLETED", "w2", 2)
    assert run["tasks"] == {"first": "SUCCEEDED", "second": "SUCCEEDED"}


async def test_a_worker_that_was_frozen_writes_nothing_when_it_wakes_up(labs: Labs) -> None:
    lab = await labs(**QUICK)
    async with lab.worker("frozen") as frozen:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        freeze(frozen.pid)
        lab.forget("in-first")
        async with lab.worker("awake"):
            await lab.reached("in-first")  # delivered again, while the first still runs it
            lab.let("go")
            run = await lab.ended(run_id)
            assert (run["status"], run["worker_id"], run["attempt"]) == ("COMPLETED", "awake", 2)
            frozen.send(signal.SIGCONT)
            await asyncio.to_thread(frozen.says, "run.lost")
        assert without_signs_of_life(await lab.run(run_id)) == without_signs_of_life(run)
        assert await jobs_waiting(lab.config) == 0


async def test_a_worker_that_is_frozen_while_it_owns_a_run_leaves_it_to_the_next(labs: Labs) -> None:
    """It wakes up while the next owner still runs the flow: fenced, and its flow is ended."""
    lab = await labs(**QUICK)
    async with lab.worker("frozen") as frozen:
        run_id = await lab.submit("steps")
        old = await lab.reached("in-first")
        freeze(frozen.pid)
        lab.forget("in-first")
        async with lab.worker("awake"):
            await lab.reached("in-first")
            frozen.send(signal.SIGCONT)
            await asyncio.to_thread(frozen.says, "run.lost")

            async def is_gone() -> bool:
                return old not in lab.programs.pids()

            await until(is_gone)
            lab.let("go")
            run = await lab.ended(run_id)
    assert (run["status"], run["worker_id"]) == ("COMPLETED", "awake")


@pytest.mark.parametrize("fault", [freeze, lambda pid: os.kill(pid, signal.SIGKILL)], ids=["STOP", "KILL"])
async def test_a_silent_worker_is_noticed_after_the_timeout_however_seldom_its_runs_are_written(
    labs: Labs, fault: Callable[[int], None]
) -> None:
    """The worker's heartbeat counts for its run as long as it is alive, and no longer."""
    lab = await labs(
        run_heartbeat_interval_sec=3600.0,
        worker_heartbeat_interval_sec=0.5,
        worker_disconnect_timeout_sec=3.0,
    )
    async with lab.worker("w1") as worker:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        first = await until(lambda: lab.run(run_id), lambda run: run["status"] == "RUNNING")
        alive = await until(
            lambda: lab.run(run_id), lambda run: run["heartbeat_at"] > first["heartbeat_at"] + 1.0
        )
        assert (alive["worker_alive"], alive["updated_at"] <= alive["heartbeat_at"]) == (True, True)
        fault(worker.pid)
        at = time.time()
        lost = await until(lambda: lab.run(run_id), lambda run: run["worker_alive"] is False)
        assert time.time() - at > 1.5, "a heartbeat is at most 0.75 s old, and 3 s are allowed"
        assert (lost["status"], lost["heartbeat_at"] <= at + 0.5) == ("RUNNING", True)
        assert await state_of(lab, "w1") == "DISCONNECTED"
        worker.send(signal.SIGCONT)
        lab.let("go")


async def test_a_worker_that_is_asked_to_stop_lets_its_run_end(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1") as worker:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        worker.send(signal.SIGTERM)
        await asyncio.to_thread(worker.says, "finishing active runs")
        lab.let("go")
        assert await asyncio.to_thread(worker.exit_code) == 0
    run = await lab.run(run_id)
    assert (run["status"], run["attempt"]) == ("COMPLETED", 1)
    await until(lambda: state_of(lab, "w1"), lambda state: state == "STOPPED_GRACEFUL")


async def test_a_run_that_outlasts_the_drain_is_given_back_at_once(labs: Labs) -> None:
    lab = await labs(consumer_ack_wait_sec=600)  # only giving the run back can bring it to another worker
    async with lab.worker("w1", "--drain-timeout", "0.2") as worker:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        lab.forget("in-first")
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.exit_code) == 0
    await until(lambda: state_of(lab, "w1"), lambda state: state == "STOPPED_GRACEFUL")
    async with lab.worker("w2"):
        await lab.reached("in-first")
        lab.let("go")
        run = await lab.ended(run_id)
    assert (run["status"], run["worker_id"], run["attempt"]) == ("COMPLETED", "w2", 2)


async def test_a_long_task_that_holds_the_interpreter_is_not_delivered_again(labs: Labs) -> None:
    """Three times AckWait, in which the executor's Python cannot run a single line."""
    lab = await labs(**QUICK)
    async with lab.worker("w1", concurrency=2), lab.worker("w2"):
        run = await lab.ended(await lab.submit("holding", seconds=6.0))
        assert (run["status"], run["attempt"]) == ("COMPLETED", 1)
        assert await redelivered(lab) == 0


async def test_a_long_run_after_tiny_ones_uses_up_nobodys_deliveries(labs: Labs) -> None:
    """While flows are tiny a worker asks for more than it can run; then comes one that is not."""
    lab = await labs(consumer_max_deliver=3)
    async with lab.worker("w1", "--tags", "default,other"):
        await lab.all_ended([await lab.submit("tiny") for _ in range(60)])
        long = await lab.submit("steps")
        await lab.reached("in-first")
        behind = [await lab.submit("tiny") for _ in range(5)]
        await asyncio.sleep(5 * START_PATIENCE_SEC)  # in which they could be tried in vain too often
        lab.let("go")
        runs = await lab.all_ended([long, *behind])
    assert {run["status"] for run in runs} == {"COMPLETED"}


class Supervised:
    """A worker that is started again whenever it has been killed."""

    def __init__(self, lab: Lab, worker_id: str) -> None:
        self._lab = lab
        self._worker_id = worker_id
        self._stack = AsyncExitStack()
        self.kills = 0

    async def start(self) -> None:
        self._program: Program = await self._stack.enter_async_context(
            self._lab.worker(self._worker_id, concurrency=2)
        )

    async def kill(self) -> None:
        self.kills += 1
        await asyncio.to_thread(self._program.ends_after, signal.SIGKILL)
        await self._stack.aclose()
        await self.start()

    async def stop(self) -> None:
        await self._stack.aclose()


async def test_no_run_is_lost_while_workers_are_killed(labs: Labs, campaign: int | None) -> None:
    """Seeded: PYOCO_TEST_CAMPAIGN says how many runs."""
    chance = random.Random(40_962)  # noqa: S311
    lab = await labs(consumer_ack_wait_sec=1.5, ack_progress_interval_sec=0.4, consumer_max_deliver=1000)
    workers = {worker_id: Supervised(lab, worker_id) for worker_id in ("w1", "w2")}
    for worker in workers.values():
        await worker.start()
    run_ids: list[str] = []

    async def submit_all() -> None:
        for _ in range(campaign or 200):
            run_ids.append(await lab.submit("tiny", pause=chance.choice([0.0, 0.02, 0.1])))
            await asyncio.sleep(chance.uniform(0.0, 0.04))

    def kills() -> int:
        return sum(worker.kills for worker in workers.values())

    submitting = asyncio.ensure_future(submit_all())
    held = await lab.submit("steps")  # a random moment may hit only idle workers: one kill surely hits a run
    await lab.reached("in-first")
    await workers[(await lab.run(held))["worker_id"]].kill()
    lab.let("go")
    while kills() < 3 or not submitting.done() or await jobs_waiting(lab.config) > (campaign or 200) // 10:
        await asyncio.sleep(chance.uniform(0.2, 1.0))  # the random moment is what is tried here
        await workers[chance.choice(["w1", "w2"])].kill()
    await submitting
    runs = await lab.all_ended(run_ids)
    taken_over = await lab.ended(held)
    await until(lambda: jobs_waiting(lab.config), lambda count: count == 0)
    for worker in workers.values():
        await worker.stop()
    assert {run["status"] for run in runs} == {"COMPLETED"}
    assert {str(run["result"]) for run in runs} == {"{'three': 3}"}
    assert len(runs) == (campaign or 200)
    assert kills() >= 3
    assert taken_over["status"] == "COMPLETED"
    assert taken_over["attempt"] > 1


async def doubled(lab: Lab) -> None:
    """The job that is on the queue, once more, as a repeat puts it that the queue does not remember."""
    async with raw_nats(lab.config.nats_url) as client:
        stream = client.jetstream()
        message = await stream.get_last_msg(
            lab.config.work_stream, f"{lab.config.work_subject_prefix}.default"
        )
        headers = {**(message.headers or {}), "Nats-Msg-Id": "another"}
        await stream.publish(message.subject, message.data, headers=headers)


async def test_d03_a_second_job_of_a_run_is_dropped(labs: Labs) -> None:
    """D03: each job took the run from the other, again and again, until the deliveries were used up."""
    lab = await labs(**QUICK)
    async with lab.worker("w1"), lab.worker("w2"):
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        await doubled(lab)
        await until(lambda: jobs_waiting(lab.config), lambda count: count == 1)
        lab.let("go")
        run = await lab.ended(run_id)
    assert (run["status"], run["attempt"]) == ("COMPLETED", 1)


async def add_consumer(client: Any, lab: Lab, ack_wait: float) -> None:
    """As somebody made it before our first worker came."""
    config = ConsumerConfig(
        durable_name="pyoco_workers_default",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ack_wait,
        max_deliver=20,
        filter_subject=f"{lab.config.work_subject_prefix}.default",
    )
    await client.jetstream().add_consumer(lab.config.work_stream, config)


async def test_d09_the_settings_of_an_existing_consumer_are_used(labs: Labs) -> None:
    """D09: with an AckWait of 1.5 s and a report every 10 s a long task was started over and over."""
    lab = await labs()
    async with raw_nats(lab.config.nats_url) as client, AsyncExitStack() as stack:
        await add_consumer(client, lab, ack_wait=1.5)
        reports = await client.subscribe(f"$JS.ACK.{lab.config.work_stream}.>")
        await stack.enter_async_context(lab.worker())
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        for _ in range(8):  # four times AckWait
            assert (await reports.next_msg(30.0)).data == b"+WPI"
        assert await redelivered(lab) == 0
        lab.let("go")
        run = await lab.ended(run_id)
    assert (run["status"], run["attempt"]) == ("COMPLETED", 1)


@pytest.mark.long
async def test_d09_a_task_of_20_s_starts_once_with_an_ack_wait_of_3_s(labs: Labs) -> None:
    """D09 at full size. Two workers: a job that is delivered again would be begun by the idle one."""
    lab = await labs()
    async with raw_nats(lab.config.nats_url) as client:
        await add_consumer(client, lab, ack_wait=3.0)
    async with lab.worker("w1"), lab.worker("w2"):
        run = await lab.ended(await lab.submit("counted", seconds=20.0))
    assert (run["status"], run["attempt"]) == ("COMPLETED", 1)
    assert (lab.marks / "starts").read_text() == "x"
    assert await redelivered(lab) == 0


async def submitted_at_last(lab: Lab, flow: str, key: str) -> str:
    """A busy machine may answer 503 now and then."""
    body = {"flow_name": flow, "params": {"pause": 1.5 * LIVE_AFTER_SEC}}

    async def submit() -> Any:
        return await lab.http.post("/runs", json=body, headers={"Idempotency-Key": key})

    answer = await until(submit, lambda answer: answer.status_code == 200)
    run_id: str = answer.json()["run_id"]
    return run_id


@pytest.mark.long
async def test_d02_no_snapshot_of_2000_runs_names_a_task_of_another(labs: Labs) -> None:
    """D02 at full size: every snapshot that is ever written, of runs that share one executor."""
    lab = await labs()
    flow_of: dict[str, str] = {}
    snapshots: list[dict[str, Any]] = []

    async def seen(message: Any) -> None:
        snapshots.append(json.loads(message.data))

    async with raw_nats(lab.config.nats_url) as client, lab.worker():
        await client.subscribe(f"$KV.{lab.config.runs_kv_bucket}.>", cb=seen)
        await client.flush()
        for number in range(2000):
            name = "large_b" if number % 2 else "large_a"
            flow_of[await submitted_at_last(lab, name, str(number))] = name
        runs = await lab.all_ended(flow_of)

        async def ends_seen() -> int:
            return sum(snapshot["status"] == "COMPLETED" for snapshot in snapshots)

        await until(ends_seen, lambda count: count == 2000)
    assert {run["status"] for run in runs} == {"COMPLETED"}
    for snapshot in snapshots:
        name = flow_of[snapshot["run_id"]]
        named = {*snapshot["tasks"], *snapshot["task_records"], *(snapshot["result"] or {})}
        assert [task for task in named if not task.startswith(name)] == []
    on_the_way = [snapshot for snapshot in snapshots if snapshot["status"] == "RUNNING" and snapshot["tasks"]]
    assert len(on_the_way) > 1000
