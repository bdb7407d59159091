"""The files of deploy/, given to the programs they are for."""

import asyncio
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from pyoco_server.wiring import EmbeddedNats
from support.cluster import CONFIG, NODES, Cluster
from support.installation import FLOWS, environment
from support.nats_server import delete_streams_of, free_port, unique_config
from support.programs import SCRIPTS, Program, Programs
from support.waiting import until
from tools.reference import ROOT

DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("node", NODES)
def test_nats_accepts_its_configuration(node: str, programs: Programs, tmp_path: Path) -> None:
    cluster = Cluster(programs, tmp_path)
    checked = programs.run("nats-server", "-t", "-c", str(CONFIG), **cluster.environment(node))
    assert checked.returncode == 0, checked.stderr


def test_what_the_image_is_given_is_enough_to_install_the_package(programs: Programs, tmp_path: Path) -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    source = tmp_path / "source"
    source.mkdir()
    for name in " ".join(copied).split():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = programs.run(
        "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "./source"
    )
    assert built.returncode == 0, built.stderr
    assert [wheel.name.split("-")[0] for wheel in (tmp_path / "dist").iterdir()] == ["pyoco_server"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    for unit in units:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/pyoco/bin", str(SCRIPTS)))
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in units)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kustomize_puts_the_manifests_together(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    example = tmp_path / "deploy" / "kubernetes" / "secret.env.example"
    example.rename(example.with_suffix(""))
    built = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "deploy"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    manifests = list(yaml.safe_load_all(built.stdout))
    images = {
        container["image"]
        for manifest in manifests
        if "template" in manifest.get("spec", {})
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"pyoco-server:1.0.0"}
    assert {manifest["metadata"].get("namespace", "pyoco") for manifest in manifests} == {"pyoco"}


# The proxy


class Fleet:
    """Two gateways behind the proxy, and a worker."""

    def __init__(self, http: httpx2.AsyncClient, gateways: list[Program], marks: Path) -> None:
        self.http = http
        self.gateways = gateways
        self.marks = marks
        marks.mkdir()

    async def submit(self) -> str:
        body = {"flow_name": "steps", "params": {"marks": str(self.marks)}}
        answer = await self.http.post("/runs", json=body)
        assert answer.status_code == 200, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    async def is_ready(self) -> bool:
        try:
            return (await self.http.get("/ready")).status_code == 200
        except httpx2.TransportError:
            return False


@asynccontextmanager
async def fleet(programs: Programs, nats: EmbeddedNats, marks: Path) -> AsyncIterator[Fleet]:
    config = unique_config(nats.url)
    environ = environment(config)
    ports, site = [free_port(), free_port()], free_port()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(delete_streams_of, config)

        def start(*command: str, **more: str) -> Program:
            return stack.enter_context(programs.started(*command, **environ, **more))

        gateways = [start("pyoco-server", "up", PYOCO_HTTP_PORT=str(port)) for port in ports]
        worker = start("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "1")
        start(
            *("caddy", "run", "--adapter", "caddyfile", "--config", str(DEPLOY / "proxy" / "Caddyfile")),
            SITE=f"http://127.0.0.1:{site}",
            GATEWAYS=" ".join(f"127.0.0.1:{port}" for port in ports),
            XDG_DATA_HOME=str(marks.parent),
            XDG_CONFIG_HOME=str(marks.parent),
        )
        for program in (*gateways, worker):
            await asyncio.to_thread(program.says, "gateway ready|worker ready")
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=f"http://127.0.0.1:{site}"))
        running = Fleet(http, gateways, marks)
        await until(running.is_ready)
        yield running


async def statuses(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("data: ") and '"snapshot"' in line:
            snapshot: dict[str, Any] = yaml.safe_load(line.removeprefix("data: "))["snapshot"]
            yield snapshot["status"]


async def test_through_the_proxy_events_come_at_once_and_a_gateway_may_die(
    programs: Programs, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    async with fleet(programs, nats_server, tmp_path / "marks") as running:
        run_id = await running.submit()
        async with running.http.stream("GET", f"/runs/{run_id}/watch") as answer:
            seen = statuses(answer.aiter_lines())
            while await anext(seen) != "RUNNING":  # while its first task waits for us: nothing is held back
                pass
            (running.marks / "go").touch()
            assert [status async for status in seen][-1] == "COMPLETED"

        running.gateways[0].ends_after(signal.SIGKILL)
        for _ in range(10):
            assert (await running.http.get(f"/runs/{run_id}")).status_code == 200
