"""Whether a port can be listened on, before anything is started that would need it."""

import socket

from pyoco_server.errors import InvalidCliInput


def require_free(host: str, port: int) -> None:
    try:
        _bind(host, port)
    except OSError as error:
        raise InvalidCliInput(
            f"cannot listen on {host}:{port} ({error.strerror}): another program uses it. "
            f"Stop that program, or choose another port, e.g. --port {free_port(host)}"
        ) from error


def free_port(host: str, preferred: int = 0) -> int:
    """`preferred` if nobody uses it, else any free one."""
    try:
        return _bind(host, preferred)
    except OSError:
        return _bind(host, 0)


def _bind(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        bound: int = probe.getsockname()[1]
        return bound
