"""Listen addresses: whether a port is free, which program holds it, and its local URL."""

import errno
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pyoco_server.cli import server_texts as texts
from pyoco_server.errors import InvalidCliInput
from pyoco_server.processes import bound, free_port

_LISTENS = "0A"
"""The state in /proc/net/tcp."""


def require_free(host: str, port: int, option: str = "--port") -> None:
    """Raises InvalidCliInput with the program that holds the port, or another reason."""
    try:
        bound(host, port)
    except (OSError, OverflowError) as error:
        raise InvalidCliInput(_refusal(error, host, port, option)) from error


def _refusal(error: OSError | OverflowError, host: str, port: int, option: str) -> str:
    address = f"{host}:{port}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        holder = holder_of(port) or texts.ANOTHER_PROGRAM()
        return texts.PORT_IN_USE(address=address, holder=holder, option=option, free=free_port(host))
    if isinstance(error, PermissionError):
        return texts.PORT_FORBIDDEN(address=address, option=option, free=free_port(host))
    reason = getattr(error, "strerror", None) or error
    return texts.CANNOT_LISTEN(address=address, reason=reason)


def holder_of(port: int) -> str | None:
    """The program that listens on a port, as `name (pid 123)`; None if unknown."""
    inodes = set(_listening_inodes(port))
    for process in Path("/proc").glob("[0-9]*"):
        if inodes & set(_socket_inodes(process)):
            return f"{_name(process)} (pid {process.name})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(process: Path) -> Iterator[str]:
    """Readable for our own processes only, for root for all."""
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]
    except OSError:  # the process has ended, or belongs to another user
        return


def _name(process: Path) -> str:
    """The name of the script rather than its interpreter."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    script = next((word for word in words[1:2] if word.startswith("/")), words[0])
    return Path(script).name or (process / "comm").read_text().strip()


# Listen options; a container sets them in its environment.

Host = Annotated[str, Parameter(env_var="PYOCO_HTTP_HOST", show_env_var=False)]
Port = Annotated[int, Parameter(env_var="PYOCO_HTTP_PORT", show_env_var=False)]

WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def local_url(host: str, port: int) -> str:
    """The URL for clients on this machine."""
    name = "127.0.0.1" if host in WILDCARDS else host
    return f"http://[{name}]:{port}" if ":" in name and not name.startswith("[") else f"http://{name}:{port}"
