"""The server of a directory, announced by `pyoco-server up` in a file of its data directory.

Workers, clients and the admin command in the same directory find the server there, whatever its port. The
server holds a lock on the file while it runs, so the file of a killed server is ignored.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyoco_server.config import NatsBackendConfig, is_set

if sys.platform != "win32":  # where only clients run
    import fcntl

DATA_DIRECTORY = Path(".pyoco")
FILE = "server.json"
LOCK_TRIES, LOCK_PAUSE_SEC = 20, 0.01
Durability = Literal["safe", "fast"]
"""Of an embedded NATS: whether a write is on disk before it is acknowledged."""
_OWNER_ONLY = 0o600
"""A NATS URL may contain a password."""


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    nats_url: str
    http_url: str


@contextmanager
def announced(server: RunningServer, directory: Path) -> Iterator[None]:
    """Announce the server until the block ends, unless the directory is read-only or already has a server."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
    except OSError as error:
        _log().warning(
            "cannot announce this server in its data directory; workers and clients need its URL",
            action="server.unannounced",
            reason=str(error),
        )
        yield
        return
    try:
        with _held(file, server):
            yield
    finally:
        os.close(file)


@contextmanager
def _held(file: int, server: RunningServer) -> Iterator[None]:
    if not _locked(file):
        _log().warning(
            "another server of this directory is running; workers and clients use that one",
            action="server.unannounced",
        )
        yield
        return
    os.ftruncate(file, 0)
    os.pwrite(file, msgspec.json.encode(server), 0)
    try:
        yield
    finally:
        os.ftruncate(file, 0)


def _log() -> Any:
    from pyoco_server.logs import get_logger  # noqa: PLC0415 - a quarter of a client's start, which logs nothing

    return get_logger(__name__)


def _locked(file: int) -> bool:
    """With retries, because a reader may hold the lock of a dead server's file for a moment."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_SEC)
        else:
            return True
    return False


def running_server(directory: Path = DATA_DIRECTORY) -> RunningServer | None:
    """The running server of this data directory."""
    if sys.platform == "win32":
        return None
    try:
        with (directory / FILE).open("rb") as file:
            if _is_locked(file.fileno()):
                return msgspec.json.decode(file.read(), type=RunningServer)
    except (OSError, msgspec.MsgspecError):
        return None
    return None


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def settings_here(*, nats_url: str | None = None, **overrides: Any) -> NatsBackendConfig:
    """The settings of this environment; without a NATS URL, that of this directory's server."""
    if nats_url is None and not is_set("nats_url"):
        found = running_server()
        nats_url = None if found is None else found.nats_url
    return NatsBackendConfig.from_env(nats_url=nats_url, **overrides)
