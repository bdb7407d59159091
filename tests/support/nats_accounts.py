"""A real nats-server with the accounts and rights of deploy/nats."""

import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.nats_server import free_port

CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "accounts.conf"
USERS = ("gateway", "admin", "worker")
PATIENCE_SEC = 20.0


class NatsWithAccounts:
    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, user: str) -> str:
        return f"nats://{user}:{_password(user)}@127.0.0.1:{self.port}"


@contextmanager
def nats_with_accounts(directory: Path) -> Iterator[NatsWithAccounts]:
    port = free_port()
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    passwords = {f"PYOCO_{user.upper()}_PASSWORD": _password(user) for user in USERS}
    options = ("-c", str(CONFIG), "--addr", "127.0.0.1", "--port", str(port), "--store_dir", str(directory))
    with subprocess.Popen([binary, *options], env=passwords, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield NatsWithAccounts(port)
        finally:
            server.kill()


def _password(user: str) -> str:
    return f"secret-of-{user}"


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_SEC
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError("nats-server did not start")
