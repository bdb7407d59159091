"""REQ-0015: a worker id belongs to one running worker at a time."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

from pyoco_server.wiring import EmbeddedNats
from support.installation import FLOWS, Lab, environment
from support.nats_server import unique_config
from support.programs import Programs, freeze
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]


async def second(lab: Lab) -> subprocess.CompletedProcess[str]:
    """A worker of the same id, to its end."""
    command = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "w1")
    return await asyncio.to_thread(lab.programs.run, *command, **environment(lab.config))


async def record(lab: Lab) -> dict[str, Any]:
    async def look() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await lab.http.get("/workers", params={"scope": "all"})).json()
        return found

    (found,) = await until(look)
    return found


async def test_a_second_worker_of_an_id_is_refused_while_the_first_is_alive(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1"):
        first = await until(lambda: record(lab), lambda found: found["state"] == "IDLE")
        done = await second(lab)
        assert done.returncode == 1
        assert "another worker with the id 'w1' is running" in done.stderr
        assert "--worker-id" in done.stderr
        assert "Traceback" not in done.stderr
        assert (await record(lab))["instance_id"] == first["instance_id"]
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_somebody_who_hides_a_dead_worker_does_not_bring_it_to_life(labs: Labs) -> None:
    lab = await labs(worker_heartbeat_interval_sec=1.0)
    async with lab.worker("w1") as first:
        first.ends_after(signal.SIGKILL)
    starting = asyncio.ensure_future(_opened(lab))
    while not starting.done():
        await lab.http.patch("/workers/w1", json={"hidden": True})
        await asyncio.sleep(0.1)  # again and again, as long as the next one looks
    await starting


async def _opened(lab: Lab) -> None:
    async with lab.worker("w1"):
        pass


async def test_the_next_worker_takes_the_id_of_one_that_stopped_or_died(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1") as first:
        assert await asyncio.to_thread(first.ends_after, signal.SIGTERM) == 0
    async with lab.worker("w1") as after_a_stop:
        assert "worker.id_held" not in after_a_stop.output
        after_a_stop.ends_after(signal.SIGKILL)
    async with lab.worker("w1") as after_a_death:
        assert "worker.id_held" in after_a_death.output
        assert (await lab.ended(await lab.submit("tiny")))["status"] == "COMPLETED"


async def test_a_worker_whose_id_was_taken_over_stops_loudly_and_gives_back_its_run(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker("w1") as frozen:
        run_id = await lab.submit("steps")
        await lab.reached("in-first")
        freeze(frozen.pid)
        lab.forget("in-first")
        async with lab.worker("w1") as awake:
            frozen.send(signal.SIGCONT)
            assert await asyncio.to_thread(frozen.exit_code) == 1
            assert "another worker with the id 'w1' is running" in frozen.output
            await lab.reached("in-first")  # long before the AckWait of 30 s
            lab.let("go")
            assert (await lab.ended(run_id))["status"] == "COMPLETED"
            holder = (await record(lab))["instance_id"]
            assert await asyncio.to_thread(awake.ends_after, signal.SIGTERM) == 0
    stopped = await until(lambda: record(lab), lambda found: found["state"] == "STOPPED_GRACEFUL")
    assert stopped["instance_id"] == holder


def test_f5_a_worker_that_loses_nats_while_it_starts_waits_for_it(
    programs: Programs, own_nats: EmbeddedNats
) -> None:
    """F5: it used to end, and with nobody to start it again the queue stood still."""
    command = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "1")
    environ = environment(unique_config(own_nats.url, worker_heartbeat_interval_sec=3.0))
    with programs.started(*command, **environ) as first:
        first.says("worker ready")
        first.ends_after(signal.SIGKILL)
    with programs.started(*command, **environ) as second:
        # It looks for a few seconds whether the one before it is alive; so long NATS must not take to end.
        second.says("worker.id_held")
        os.kill(own_nats.pid, signal.SIGKILL)
        own_nats.stop()
        second.says("worker.waiting")
        own_nats.start()
        second.says("worker ready")
        assert second.ends_after(signal.SIGTERM) == 0
