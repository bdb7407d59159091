"""Connections that wait for their next use."""

import select
import socket


def has_news(idle: socket.socket) -> bool:
    """An idle connection has nothing to say, unless it says that it is over."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([idle], [], [], 0)[0])
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))
