"""A nats-server that the program nats-bootstrap starts for us: for installations that manage NATS with it."""

import os
import secrets
import subprocess
from pathlib import Path

from pyoco_server.jetstream.server_process import find_binary, wait_until_ready
from pyoco_server.processes import start_child, stop_family

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class BootstrapNats:
    """From `start` to `stop`; what it says is in `log`."""

    def __init__(
        self, program: str, directory: Path, *, host: str, port: int, http_port: int, patience_sec: float
    ) -> None:
        self.directory = directory.absolute()
        self.port = port
        self.http_port = http_port
        self._program = program
        self._host = host
        self._patience_sec = patience_sec

    @property
    def url(self) -> str:
        return f"nats://{'127.0.0.1' if self._host in WILDCARDS else self._host}:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "nats-bootstrap.log"

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def start(self) -> None:
        """Start it and wait until it takes connections. Raises NatsUnavailable."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"pyoco_bootstrap_{secrets.token_hex(4)}"
        with self.log.open("wb") as output:
            self._child = self._started(name, output.fileno())
        try:
            wait_until_ready(self._child, self.port, name, self.log, self._patience_sec)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """With the nats-server, which nats-bootstrap does not stop when it is told to stop itself."""
        stop_family(self._child)

    def _started(self, name: str, output: int) -> subprocess.Popen[bytes]:
        binary = find_binary()
        env = {**({"NATS_SERVER_PATH": binary} if binary else {}), **os.environ}
        server_options = [
            *("-js", "-n", name, "-a", self._host, "-p", str(self.port), "-m", str(self.http_port)),
            *("-sd", str(self.directory / "data")),
        ]
        return start_child([self._program, "up", "--", *server_options], env=env, stdout=output)
