"""Real processes that are killed, frozen and started again: nats-servers, gateways, workers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2

from networks import Network
from pyoco_server.config import NatsBackendConfig
from pyoco_server.processes import free_port, start_child
from support import process_flows
from support.installation import environment

HOST = "127.0.0.1"
START_SEC = 60.0
LOOK_SEC = 0.02
LAST_LINES = 5


class NotReady(Exception):
    """A process did not come up."""


@dataclass(frozen=True)
class Place:
    network: Network
    name: str

    @property
    def prefix(self) -> Sequence[str]:
        return self.network.within(self.name)

    def cut(self) -> None:
        self.network.cut(self.name)

    def heal(self) -> None:
        self.network.heal(self.name)


@dataclass
class Member:
    """One process of the installation. It is started again under the same name, port and directory."""

    kind: str
    name: str
    command: Sequence[str]
    directory: Path
    environ: dict[str, str] = field(default_factory=dict)
    is_frozen: bool = False
    kills: int = 0
    where: Place | None = None
    """In a network of its own, which can be cut off."""
    child: "subprocess.Popen[bytes] | None" = None

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def end(self) -> str:
        """How it ended, for a member that nobody has stopped: its exit code and its last lines."""
        assert self.child is not None
        last = (self.directory / f"{self.name}.log").read_text(errors="replace").splitlines()[-LAST_LINES:]
        return f"{self.name} ended by itself, exit code {self.child.returncode}:\n" + "\n".join(last)

    async def start(self) -> None:
        with (self.directory / f"{self.name}.log").open("ab") as log:
            command = (*self.where.prefix, *self.command) if self.where else self.command
            env = {**os.environ, "PYTHONFAULTHANDLER": "1", **self.environ}
            self.child = start_child(command, env=env, stdout=log)
        deadline = time.monotonic() + START_SEC
        while not await asyncio.to_thread(self.is_ready):
            if not self.is_running or time.monotonic() > deadline:
                raise NotReady(f"{self.name}: see {self.directory / self.name}.log")
            await asyncio.sleep(LOOK_SEC)

    def is_ready(self) -> bool:
        return True

    async def kill(self) -> None:
        self.kills += 1
        await self._end(signal.SIGKILL)

    async def stop(self) -> float:
        """Asked politely; how many seconds it took."""
        began = time.monotonic()
        await self._end(signal.SIGTERM)
        return time.monotonic() - began

    async def _end(self, how: signal.Signals) -> None:
        if self.is_running:
            self.thaw()
            os.kill(self.pid, how)
            assert self.child is not None
            await asyncio.to_thread(self.child.wait)

    def freeze(self) -> None:
        self.is_frozen = True
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.is_frozen and self.is_running:
            os.kill(self.pid, signal.SIGCONT)
        self.is_frozen = False


class NatsNode(Member):
    host: str = HOST
    port: int = 0

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                return connection.recv(4).startswith(b"INFO")
        except OSError:
            return False


class GatewayMember(Member):
    port: int = 0

    def is_ready(self) -> bool:
        """Up, not caught up: NATS may be away while it starts."""
        try:
            return httpx2.get(f"http://{HOST}:{self.port}/health", timeout=2).status_code == 200
        except httpx2.HTTPError:
            return False


class WorkerMember(Member):
    """Ready as soon as it runs: it waits for NATS by itself."""


def nats_nodes(directory: Path, hosts: Sequence[str], max_file: str | None = None) -> list[NatsNode]:
    """A single server, or a cluster whose nodes know each other's routes."""
    ports = [(host, free_port(HOST), free_port(HOST)) for host in hosts]
    routes = ", ".join(f'"nats://{host}:{cluster_port}"' for host, _, cluster_port in ports)
    limit = f"max_file_store: {max_file}" if max_file else ""
    nodes = []
    for number, (host, port, cluster_port) in enumerate(ports):
        listen = f'cluster {{ name: chaos, listen: "{host}:{cluster_port}", routes: [{routes}] }}'
        nodes.append(
            _node(directory, f"nats-{number}", (host, port), limit, listen if len(hosts) > 1 else "")
        )
    return nodes


def _node(directory: Path, name: str, address: tuple[str, int], limit: str, cluster: str) -> NatsNode:
    host, port = address
    config = directory / f"{name}.conf"
    config.write_text(
        f'server_name: {name}\nlisten: "{host}:{port}"\n'
        f'jetstream {{ store_dir: "{directory / name}", {limit} }}\n{cluster}\n'
    )
    binary = Path(sys.executable).with_name("nats-server")
    node = NatsNode("nats", name, (str(binary), "-c", str(config)), directory)
    node.host, node.port = host, port
    return node


def gateway_member(directory: Path, name: str, config: NatsBackendConfig) -> GatewayMember:
    port = free_port(HOST)
    place = ("--port", str(port), "--data-dir", str(directory / name))
    command = (sys.executable, "-m", "pyoco_server.cli.server", "up", *place)
    own = replace(config, audit_log_path=str(directory / f"{name}.jsonl"))
    member = GatewayMember("gateway", name, command, directory, environment(own))
    member.port = port
    return member


def worker_member(directory: Path, name: str, config: NatsBackendConfig, *options: str) -> WorkerMember:
    flows = f"{process_flows.__file__}:resolve"
    command = (sys.executable, "-m", "pyoco_server.cli.worker", "--flow-resolver", flows, "--worker-id", name)
    return WorkerMember(
        "worker", name, (*command, "--concurrency", "2", *options), directory, environment(config)
    )
