"""Output of an executor that does not come from Python: its child processes, C code, its last words.

Descriptors 1 and 2 are the ends of two pipes. The executor reads them, and knows which task runs; its worker
reads what is left in them when the executor has died.
"""

import codecs
import ctypes
import faulthandler
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from pyoco_server.engine.output_streams import ESCAPED, STDERR, STDOUT, Catcher, OutputStreams, text_file

_AT_ONCE = 1 << 16
"""What a pipe holds: one read has all that was there when it began."""
_NAMES = (STDOUT, STDERR)


class ProcessCatcher(Catcher, Protocol):
    def child_printed(self, stream: str, text: str) -> None: ...


class Ends(NamedTuple):
    """The ends of the two pipes, in the order of `_NAMES`."""

    read: tuple[int, int]
    write: tuple[int, int]

    @classmethod
    def new(cls) -> "Ends":
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        for descriptor in (out_read, err_read):
            os.set_blocking(descriptor, False)
        return cls((out_read, err_read), (out_write, err_write))

    def close(self) -> None:
        close_all((*self.read, *self.write))


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def what_is_left(read: Sequence[int]) -> list[tuple[str, str]]:
    """The last output of an executor that has died: stream and text."""
    found = ((name, _read(descriptor)) for name, descriptor in zip(_NAMES, read, strict=False))
    return [(name, data.decode("utf-8", ESCAPED)) for name, data in found if data]


class OutputPipes:
    """The executor's side: descriptors 1 and 2 are replaced for the life of the process."""

    def __init__(self, ends: Ends) -> None:
        originals = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor, write in zip((1, 2), ends.write, strict=True):
            os.dup2(write, descriptor)  # `write` stays open: a task may close 1 or 2, and a pipe must not end
        for descriptor in (*ends.read, *ends.write):
            os.set_inheritable(descriptor, False)
        self.streams = OutputStreams(
            dict(zip(_NAMES, map(text_file, originals), strict=True)), passes_through=False
        )
        self._catcher: ProcessCatcher | None = None
        self._originals = originals
        self._read = ends.read
        self._decoders = [codecs.getincrementaldecoder("utf-8")(ESCAPED) for _ in _NAMES]
        self._lock = threading.RLock()
        self._was_used = False
        self._stdout_of_c = _line_buffered_stdout()
        self._alarm = _Alarm()
        self.thread = threading.Thread(target=self._serve, daemon=True, name="pyoco-output")

    def start(self) -> None:
        self.streams.install()
        faulthandler.enable(file=2)
        self.thread.start()

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """In the thread that reads. One call at a time."""
        self._alarm.set(seconds, call)

    def look(self) -> None:
        """Take what has been written up to now. What another thread has read by then, it has handed on."""
        with self._lock:
            ready, _, _ = select.select(self._read, (), (), 0)
            for descriptor in ready:
                self._take(self._read.index(descriptor))

    def _end_run(self) -> None:
        if self._stdout_of_c is not None:
            _libc.fflush(self._stdout_of_c)
        self.look()
        if self._was_used:
            self._was_used = False
            for index, decoder in enumerate(self._decoders):
                self._hand_on(index, decoder.decode(b"", final=True))

    @contextmanager
    def given_to(self, catcher: "ProcessCatcher") -> Iterator[None]:
        """While a run goes on."""
        self._catcher = catcher
        try:
            with self.streams.catching(catcher):
                yield
        finally:
            self._end_run()
            self._catcher = None

    def _serve(self) -> None:
        poll = select.poll()
        for descriptor in (*self._read, self._alarm.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = poll.poll(self._alarm.timeout_ms())
            self._alarm.ring_if_due()
            if any(descriptor in self._read for descriptor, _ in ready):
                self.look()

    def _take(self, index: int) -> None:
        self._was_used = True
        self._hand_on(index, self._decoders[index].decode(_read(self._read[index])))

    def _hand_on(self, index: int, text: str) -> None:
        if not text:
            return
        if self._catcher is not None:
            self._catcher.child_printed(_NAMES[index], text)
        else:  # between two runs: by a child that was left over
            with suppress(OSError):
                os.write(self._originals[index], text.encode("utf-8", ESCAPED))


class _Alarm:
    """Wakes a thread that polls, at once or later."""

    def __init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._due: tuple[float, Callable[[], None]] | None = None

    def fileno(self) -> int:
        return self._wake_read

    def set(self, seconds: float, call: Callable[[], None]) -> None:
        self._due = time.monotonic() + seconds, call
        with suppress(BlockingIOError):  # it is awake
            os.write(self._wake_write, b"!")

    def timeout_ms(self) -> int | None:
        due = self._due
        return None if due is None else max(0, int((due[0] - time.monotonic()) * 1000) + 1)

    def ring_if_due(self) -> None:
        _read(self._wake_read)
        due = self._due
        if due is not None and due[0] <= time.monotonic():
            self._due = None
            due[1]()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _AT_ONCE)
    except BlockingIOError:
        return b""


_libc = ctypes.CDLL(None)
_LINE_BUFFERED = 1


def _line_buffered_stdout() -> ctypes.c_void_p | None:
    """C's own stdout: into a pipe it would wait for 4 KiB, and tell a later run."""
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    try:
        stdout = ctypes.c_void_p.in_dll(_libc, name)
    except ValueError:
        return None
    _libc.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    return stdout
