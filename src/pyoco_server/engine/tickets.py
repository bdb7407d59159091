"""Who begins a flow: whoever takes its ticket, the executor whose line it stands in or its worker.

A worker writes a few jobs ahead into an executor's channel, and may want those back that stand behind one
that takes long, or whose executor has died. An executor that is busy cannot be asked, and perhaps never
answers again. So every job has a ticket, a number in a pipe that both can read: the kernel gives each number
to one of the two.
"""

import os
import struct

_NUMBER = struct.Struct("=Q")
_ALL = 1 << 16
_os_read = os.read  # bound now: a task may replace what the module has


class Tickets:
    """The worker's end."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        # Both flags belong to the pipe itself, so they hold for the executor's descriptor, too.
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._is_closed = False

    def for_executor(self) -> int:
        """A descriptor to send to it."""
        return os.dup(self._reading)

    def give(self, *numbers: int) -> None:
        """Before the jobs are sent. Numbers only ever grow."""
        os.write(self._writing, b"".join(map(_NUMBER.pack, numbers)))

    def take_back(self) -> set[int]:
        """All that the executor has not taken, and now never will."""
        if self._is_closed:
            return set()
        return {number for (number,) in _NUMBER.iter_unpack(_read(self._reading, _ALL))}

    def close(self) -> None:
        if not self._is_closed:  # else the numbers may be others' by now
            self._is_closed = True
            os.close(self._reading)
            os.close(self._writing)


class ExecutorTickets:
    """The executor's end."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._last = 0

    def close(self) -> None:
        """In a process that a task has forked."""
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1

    def take(self, number: int) -> bool:
        """Whether the job with this number is to be done here. Jobs come in the order of their numbers."""
        while self._last < number:
            data = _read(self._reading, _NUMBER.size)
            if not data:
                return False
            (self._last,) = _NUMBER.unpack(data)
        return self._last == number


def _read(descriptor: int, size: int) -> bytes:
    """Whole numbers: a pipe gives away what it has under one lock."""
    try:
        return _os_read(descriptor, size)
    except BlockingIOError:
        return b""
