"""The HTTP endpoint of a worker, and its metrics at the gateway."""

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from support.installation import FLOWS, Lab
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import until, until_now

Labs = Callable[..., Awaitable[Lab]]


def figures(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_a_worker_answers_probes_and_counts_its_runs(labs: Labs) -> None:
    """PYOCO_WORKER_HTTP_PORT"""
    lab = await labs(worker_http_port=free_port(), worker_heartbeat_interval_sec=0.3)
    url = f"http://127.0.0.1:{lab.config.worker_http_port}"
    completed, failed = (
        f'pyoco_worker_runs_total{{status="{status}",worker_id="w1"}}' for status in ("COMPLETED", "FAILED")
    )
    async with lab.worker(), httpx2.AsyncClient(base_url=url) as worker:
        assert (await worker.get("/health")).json() == {"status": "ok"}
        ready = await worker.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        for flow in ("tiny", "flaky"):
            await lab.ended(await lab.submit(flow, failures=9) if flow == "flaky" else await lab.submit(flow))

        async def text() -> str:
            return (await worker.get("/metrics")).text

        # A run is counted a moment after its end was written.
        shown = await until(text, lambda shown: figures(shown).keys() >= {completed, failed})
        here = figures(shown)
        assert (here[completed], here[failed]) == (1, 1)
        assert here['pyoco_worker_up{worker_id="w1"}'] == 1
        assert here['pyoco_worker_slots{worker_id="w1"}'] == 1
        assert here['pyoco_worker_cpu_seconds_total{worker_id="w1"}'] > 0
        assert any(name.startswith("pyoco_build_info{") for name in here)

        async def at_the_gateway() -> dict[str, float]:
            return figures((await lab.http.get("/workers/w1/metrics")).text)

        there = await until(at_the_gateway, lambda there: there.keys() >= {completed, failed})
        assert there.keys() <= here.keys()
        assert (await worker.get("/else")).status_code == 404
        if shutil.which("promtool"):
            checked = await asyncio.to_thread(
                subprocess.run, ["promtool", "check", "metrics"], input=shown, text=True, capture_output=True,
                check=False,
            )  # fmt: skip
            assert checked.returncode == 0, checked.stderr


def test_it_is_alive_but_not_ready_without_nats(programs: Programs) -> None:
    port, nowhere = free_port(), f"nats://127.0.0.1:{free_port()}"
    options = ("--flow-resolver", FLOWS, "--nats-url", nowhere, "--http-port", str(port))
    with programs.started("pyoco-worker", *options) as worker:
        worker.says("worker.http")

        def status(path: str) -> int | None:
            try:
                return httpx2.get(f"http://127.0.0.1:{port}{path}").status_code
            except httpx2.TransportError:
                return None

        until_now(lambda: status("/health"), lambda found: found == 200)
        assert (status("/ready"), status("/metrics")) == (503, 200)


def test_a_port_in_use_stops_the_start(programs: Programs, config: NatsBackendConfig) -> None:
    port = config.nats_url.rpartition(":")[2]
    options = ("--flow-resolver", FLOWS, "--nats-url", config.nats_url, "--http-port", port)
    done = programs.run("pyoco-worker", *options)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--http-port" in done.stderr


@pytest.mark.parametrize("wrong", ["-1", "65536", "x"])
def test_a_port_that_cannot_be_one_is_refused(programs: Programs, wrong: str) -> None:
    done = programs.run("pyoco-worker", "--flow-resolver", FLOWS, PYOCO_WORKER_HTTP_PORT=wrong)
    assert done.returncode == 1
    assert "PYOCO_WORKER_HTTP_PORT" in done.stderr
