"""A real nats-server with the accounts and rights of deploy/nats."""

import re
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.nats_server import free_port
from support.waiting import PATIENCE_SEC

CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "accounts.conf"
BACKUP_PAGE = CONFIG.parents[2] / "docs" / "how-to" / "backup.md"
USERS = ("gateway", "admin", "worker", "backup")


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
    config = directory.with_name(f"{directory.name}.conf")
    config.write_text(_with_backup_user())
    options = ("-c", str(config), "--addr", "127.0.0.1", "--port", str(port), "--store_dir", str(directory))
    with subprocess.Popen([binary, *options], env=passwords, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield NatsWithAccounts(port)
        finally:
            server.kill()


def _with_backup_user() -> str:
    """The file as it is, and the user for backups as the page about them describes it."""
    (rights,) = re.findall(r"^```text\n(publish: .*?)^```", BACKUP_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    user = f"{{ user: backup, password: $PYOCO_BACKUP_PASSWORD, permissions: {{ {rights} }} }}"
    return CONFIG.read_text().replace("users: [", f"users: [\n{user}", 1)


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
