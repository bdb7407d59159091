"""A JetStream cluster on loopback, made of the configuration file that we ship."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.nats_server import free_port
from support.programs import Program, Programs, freeze

CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "nats-server.conf"
NODES = ("nats-1", "nats-2", "nats-3")
USER, PASSWORD = "pyoco", "s3cret"


class Cluster:
    """Three nodes, each a process that can be killed and started again with its data."""

    def __init__(self, programs: Programs, directory: Path) -> None:
        self._programs = programs
        self._running: dict[str, tuple[Program, ExitStack]] = {}
        self._ports = {node: (free_port(), free_port(), free_port()) for node in NODES}
        self._directory = directory

    @property
    def url(self) -> str:
        return ",".join(map(self.url_of, NODES))

    def url_of(self, node: str) -> str:
        return f"nats://{USER}:{PASSWORD}@127.0.0.1:{self._ports[node][0]}"

    def environment(self, node: str) -> dict[str, str]:
        client, route, http = self._ports[node]
        routes = (f"nats://{USER}:{PASSWORD}@127.0.0.1:{ports[1]}" for ports in self._ports.values())
        return {
            "NATS_NAME": node,
            "NATS_HOST": "127.0.0.1",
            "NATS_PORT": str(client),
            "NATS_ROUTE_PORT": str(route),
            "NATS_HTTP_PORT": str(http),
            "NATS_STORE": str(self._directory / node),
            "NATS_USER": USER,
            "NATS_PASSWORD": PASSWORD,
            "NATS_ROUTES": f"[{', '.join(routes)}]",
        }

    def start(self, node: str) -> None:
        stack = ExitStack()
        program = stack.enter_context(
            self._programs.started("nats-server", "-c", str(CONFIG), **self.environment(node))
        )
        self._running[node] = program, stack

    def kill(self, node: str) -> None:
        program, stack = self._running.pop(node)
        self._programs.kill(program.pid)
        stack.close()

    def freeze(self, node: str) -> None:
        freeze(self._running[node][0].pid)

    def thaw(self, node: str) -> None:
        self._running[node][0].send(signal.SIGCONT)

    def stop(self) -> None:
        for node in list(self._running):
            self.kill(node)

    def is_healthy(self, node: str) -> bool:
        """As a probe sees it: the node takes part, and its streams and consumers are up to date."""
        program = self._running[node][0]
        assert not program.has_ended, f"{node} has ended:\n{program.output}"
        try:
            return bool(self._ask(node, "healthz") == {"status": "ok"})
        except OSError:
            return False

    def streams(self) -> dict[str, dict[str, Any]]:
        """What is known of each stream, by name."""
        (node, *_) = self._running
        accounts = self._ask(node, "jsz?streams=1&config=1")["account_details"]
        return {stream["name"]: stream for account in accounts for stream in account["stream_detail"]}

    def _ask(self, node: str, what: str) -> Any:
        url = f"http://127.0.0.1:{self._ports[node][2]}/{what}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)


@contextmanager
def running_cluster(programs: Programs, directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(programs, directory)
    try:
        for node in NODES:
            cluster.start(node)
        yield cluster
    finally:
        cluster.stop()
