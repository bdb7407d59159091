"""What a task does with its server, on a real NATS and with real workers."""

import filecmp
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.wiring import EmbeddedNats
from support.gateway_process import gateway_process, growth
from support.installation import FLOWS, Lab, environment
from support.nats_server import delete_streams_of, unique_config
from support.programs import Programs
from support.waiting import until, until_now

MB = 1_000_000

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


@pytest.mark.parametrize("megabytes", [20, pytest.param(1_000, marks=pytest.mark.long)])
async def test_an_artifact_passes_by_the_memory_of_worker_and_gateway(
    nats_server: EmbeddedNats, programs: Programs, tmp_path: Path, megabytes: int
) -> None:
    config = unique_config(nats_server.url)
    options = ("--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "1")

    def save_and_read(client: PyocoHttpClient, count: int) -> None:
        run_id = client.submit_run("saving", {"marks": str(tmp_path), "megabytes": count})["run_id"]
        run = until_now(lambda: client.get_run(run_id), lambda run: run["end_time"] is not None)
        assert run["status"] == "COMPLETED", run["error"]
        (item,) = client.list_artifacts(run_id)["items"]
        saved = client.download_artifact(run_id, "data.bin", tmp_path / "saved")
        assert item["size"] == count * MB == saved.stat().st_size
        assert filecmp.cmp(saved, tmp_path / "data.bin", shallow=False)

    with (
        gateway_process(programs, config) as gateway,
        programs.started("pyoco-worker", *options, **environment(config)) as worker,
        PyocoHttpClient(gateway.url) as client,
    ):
        worker.says("worker ready")
        save_and_read(client, 1)
        grown = growth(gateway, worker, lambda: save_and_read(client, megabytes))
        print(f"{megabytes} MB: gateway +{grown[0] / MB:.1f} MB, worker +{grown[1] / MB:.1f} MB")  # noqa: T201
        assert max(grown) < min(64, megabytes) * MB
    await delete_streams_of(config)
