"""What a task does with its server, on a real NATS and with real workers."""

import signal
from collections.abc import Awaitable, Callable
from typing import Any

from support.installation import Lab
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]
QUICK: dict[str, Any] = {"consumer_ack_wait_sec": 2.0, "ack_progress_interval_sec": 0.3}


async def children_of(lab: Lab, run_id: str) -> list[str]:
    answer = await lab.http.get("/runs", params={"parent_run_id": run_id})
    assert answer.status_code == 200, answer.text
    return sorted(run["run_id"] for run in answer.json())


async def test_a_run_that_is_delivered_again_does_not_start_its_children_twice(labs: Labs) -> None:
    lab = await labs(**QUICK)
    async with lab.worker("w1") as first:
        run_id = await lab.submit("submitting")
        await lab.reached("submitted")
        shown = await until(lambda: lab.run(run_id), lambda run: run["progress"] is not None)
        assert shown["progress"] == {"value": 0.5, "message": "started two"}
        before = await children_of(lab, run_id)
        first.ends_after(signal.SIGKILL)
    lab.forget("submitted")
    async with lab.worker("w2"):
        await lab.reached("submitted")
        lab.let("go")
        run = await lab.ended(run_id)
        assert (run["status"], run["attempt"]) == ("COMPLETED", 2)
        assert len(before) == 2
        assert sorted(run["result"]["start"]) == before == await children_of(lab, run_id)
        for child in await lab.all_ended(before):
            assert (child["status"], child["parent_run_id"]) == ("COMPLETED", run_id)
    lines = (await lab.http.get(f"/runs/{run_id}/logs")).json()["lines"]
    assert {(line["attempt"], line["text"], line["level"], line["fields"]["runs"]) for line in lines} >= {
        (2, "started\n", "warning", 2)
    }
