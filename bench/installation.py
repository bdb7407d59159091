"""A whole installation in real processes, for the benchmarks: NATS, gateway, worker, and what each costs."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from processes import cpu_seconds, memory_mb, rss_mb, stop
from pyoco_server.processes import free_port
from pyoco_server.running_server import Durability
from pyoco_server.wiring import EmbeddedNats

HOST = "127.0.0.1"
FLOWS = f"{Path(__file__).parent / 'tiny_flows.py'}:resolve"
PATIENCE_SEC = 60.0


@dataclass
class Installation:
    port: int
    nats_url: str
    pids: dict[str, int]
    environment: dict[str, str]
    data: Path
    """Where NATS writes."""
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start_worker(self, name: str, *options: str) -> None:
        command = [sys.executable, "-m", "pyoco_server.cli.worker", "--flow-resolver", FLOWS]
        child = _start([*command, "--worker-id", name, *options], self.environment, self.data)
        self.children.append(child)
        self.pids[name] = child.pid
        with httpx2.Client(base_url=self.url) as http:
            wait_until(lambda: name in {worker["worker_id"] for worker in http.get("/workers").json()})

    def start_gateway(self, name: str) -> str:
        """Its URL."""
        url = f"http://{HOST}:{free_port(HOST)}"
        command = [sys.executable, "-m", "pyoco_server.cli.server", "up", "--port", url.rpartition(":")[2]]
        child = _start(command, self.environment, self.data)
        self.children.append(child)
        self.pids[name] = child.pid
        wait_until(lambda: _is_ready(url))
        return url

    def cpu_seconds(self) -> dict[str, float]:
        """By process; a worker's executors count with it."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def rss_mb(self) -> dict[str, float]:
        return {name: rss_mb(pid) for name, pid in self.pids.items()}

    def memory_mb(self) -> dict[str, float]:
        """By process; a worker's executors count with it, and what they share counts once."""
        return {name: memory_mb([pid]) for name, pid in self.pids.items()}

    def disk_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.data.rglob("*") if file.is_file())


@contextmanager
def installation(durability: Durability, **settings: str) -> Iterator[Installation]:
    """NATS and a gateway, each in a process of its own, on free ports of this machine."""
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedNats(Path(directory), durability=durability, port=free_port(HOST)) as nats,
    ):
        port = free_port(HOST)
        environment = {**os.environ, "PYOCO_NATS_URL": nats.url, **settings}
        command = [sys.executable, "-m", "pyoco_server.cli.server", "up", "--port", str(port)]
        gateway = _start(command, environment, Path(directory))
        pids = {"gateway": gateway.pid, "nats": nats.pid}
        whole = Installation(port, nats.url, pids, environment, Path(directory), [gateway])
        try:
            wait_until(lambda: _is_ready(whole.url))
            yield whole
        finally:
            for child in reversed(whole.children):
                stop(child)


def wait_until(is_so: Callable[[], bool], patience_sec: float = PATIENCE_SEC) -> None:
    deadline = time.monotonic() + patience_sec
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("the installation did not get there")
        time.sleep(0.02)


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready").status_code == 200
    except httpx2.TransportError:
        return False


def _start(command: list[str], environment: dict[str, str], directory: Path) -> subprocess.Popen[bytes]:
    """`directory`: of its own, because Python would import what others leave in a shared one."""
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
    )
