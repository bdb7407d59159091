"""A port to listen on that stays free for a while."""

import random
import socket
from contextlib import suppress

_QUIET = range(20_000, 32_768)
"""Systems take the local ports of outgoing connections from above. One of those may be taken by anybody's
connection between the look and the use of it, or while the server on it is being restarted."""
_TRIES = 50


def free_port(host: str, preferred: int = 0) -> int:
    """`preferred` if nobody uses it, else any free one. Raises OSError if there is none."""
    for port in (preferred, *random.sample(_QUIET, _TRIES)):
        if port:
            with suppress(OSError):
                return bound(host, port)
    return bound(host, 0)


def is_taken(host: str, port: int) -> bool:
    try:
        bound(host, port)
    except OSError:
        return True
    return False


def bound(host: str, port: int) -> int:
    """The port that listening on `port` would get. Raises OSError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        found: int = probe.getsockname()[1]
        return found
