"""Standard output, standard error and `logging` of a process that runs flows.

`OutputStreams` replaces the Python objects once: a logging handler or a thread may keep a stream beyond its
run. Only the destination of the output changes with the run.

`OutputPipes` does the same for the descriptors of an executor, for output that does not come from Python:
child processes, C code, crashes. The executor reads the two pipes, because it knows the running task; its
worker reads what is left in them after the executor has died.
"""

import codecs
import ctypes
import faulthandler
import io
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TextIO

ESCAPED = "backslashreplace"
"""Bytes that are not text are shown escaped."""
STDOUT, STDERR, LOGGING = "stdout", "stderr", "logging"


class Capture(Protocol):
    @property
    def is_strange(self) -> bool: ...
    def printed(self, stream: str, text: str) -> None: ...
    def masked(self, text: str) -> str: ...


class OutputStreams:
    """Both streams and the log handler."""

    def __init__(self, originals: Mapping[str, TextIO], *, passes_through: bool) -> None:
        """`originals` get the output that belongs to no run; with `passes_through`, all output."""
        self.capture: Capture | None = None
        self.stdout = _Stream(self, STDOUT, originals[STDOUT], passes_through=passes_through)
        self.stderr = _Stream(self, STDERR, originals[STDERR], passes_through=passes_through)
        self.handler = _LogHandler(self)
        self._is_installed = False
        self._before: tuple[Any, Any] = (None, None)

    def install(self) -> None:
        """For the life of the process."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        _make_room_in_basic_config(self.handler)
        root = logging.getLogger()
        root.addHandler(self.handler)
        root.setLevel(logging.INFO)
        self._is_installed = True
        os.register_at_fork(after_in_child=self._write_through)

    def begin_run(self, capture: Capture) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.stdout, self.stderr
        root = logging.root
        if self.handler not in root.handlers:  # not installed, or removed by a flow
            root.addHandler(self.handler)
        self.capture = capture

    def end_run(self) -> None:
        self.capture = None
        sys.stdout, sys.stderr = self._before
        if not self._is_installed:
            logging.root.removeHandler(self.handler)

    def _write_through(self) -> None:
        """In a forked child nothing can be captured, but its parent reads the pipes."""
        self.capture = None
        for stream in (self.stdout, self.stderr):
            stream.write_through()

    def are_written_by(self, handler: logging.Handler) -> bool:
        stream = getattr(handler, "stream", None)
        return getattr(stream, "original", stream) in (self.stdout, self.stderr)


def text_file(descriptor: int) -> TextIO:
    """Line-buffered; closing it leaves the descriptor open."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors=ESCAPED, closefd=False)


class _Stream(io.TextIOBase):
    """A text stream with a `buffer`, like the standard ones."""

    encoding = "utf-8"
    errors = ESCAPED
    line_buffering = True
    mode = "w"

    def __init__(self, streams: OutputStreams, name: str, original: TextIO, *, passes_through: bool) -> None:
        self._streams = streams
        self._name = name
        self._original = original
        self._passes_through = passes_through
        self._descriptor = 1 if name == STDOUT else 2
        self.buffer = _Bytes(self)

    @property
    def name(self) -> str:
        return f"<{self._name}>"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._descriptor

    def reconfigure(self, **_options: Any) -> None:
        """Ignored: captured output is always text."""

    def close(self) -> None:
        """Ignored: it outlives every run."""

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")

    def flush(self) -> None:
        self._original.flush()

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        capture = self._streams.capture
        if capture is None or capture.is_strange:
            self._write_original(text)
            return len(text)
        capture.printed(self._name, text)
        if self._passes_through:
            self._write_original(capture.masked(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def write_through(self) -> None:
        self._original = text_file(self._descriptor)
        self.buffer = _Bytes(self)  # the old lock may be held by a thread that does not exist here

    def _write_original(self, text: str) -> None:
        try:
            self._original.write(text)
        except UnicodeEncodeError:
            encoding = self._original.encoding or "utf-8"
            self._original.write(text.encode(encoding, ESCAPED).decode(encoding))


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`: decodes bytes as they are written."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(ESCAPED)
        self._lock = threading.Lock()

    @property
    def raw(self) -> "_Bytes":
        return self

    @property
    def name(self) -> int:
        return self._stream.fileno()

    @property
    def mode(self) -> str:
        return "wb"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        with self._lock:
            text = self._decoder.decode(bytes(view))
        if text:
            self._stream.write(text)
        return view.nbytes

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Ignored, like that of the stream."""

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")


class _LogHandler(logging.Handler):
    """Captures log records from INFO up, unless the flow's own logging prints them."""

    def __init__(self, streams: OutputStreams) -> None:
        super().__init__(logging.INFO)
        self._streams = streams
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        capture = self._streams.capture
        if capture is None or capture.is_strange or self._is_printed(record):
            return
        try:
            capture.printed(LOGGING, self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - like any handler: a bad record must not fail the task
            self.handleError(record)

    def _is_printed(self, record: logging.LogRecord) -> bool:
        """Another handler writes it to stdout or stderr, where it is captured."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                if record.levelno >= handler.level and self._streams.are_written_by(handler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def _make_room_in_basic_config(ours: logging.Handler) -> None:
    """`logging.basicConfig` does nothing if the root logger has a handler: ours must not count."""
    configure: Callable[..., None] = logging.basicConfig

    def basic_config(**options: Any) -> None:
        root = logging.getLogger()
        was_there = ours in root.handlers
        root.removeHandler(ours)
        try:
            configure(**options)
        finally:
            if was_there:
                root.addHandler(ours)

    logging.basicConfig = basic_config


_PIPE_BYTES = 1 << 16
"""The capacity of a pipe: one read returns everything."""
_NAMES = (STDOUT, STDERR)


class ProcessCapture(Capture, Protocol):
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


def unread_output(read: Sequence[int]) -> list[tuple[str, str]]:
    """The last output of a dead executor: stream and text."""
    found = ((name, _read(descriptor)) for name, descriptor in zip(_NAMES, read, strict=False))
    return [(name, data.decode("utf-8", ESCAPED)) for name, data in found if data]


class OutputPipes:
    """Replaces descriptors 1 and 2 of an executor for the life of the process."""

    def __init__(self, ends: Ends) -> None:
        originals = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor, write in zip((1, 2), ends.write, strict=True):
            os.dup2(
                write, descriptor
            )  # `write` stays open, so that the pipe survives if a task closes 1 or 2
        for descriptor in (*ends.read, *ends.write):
            os.set_inheritable(descriptor, False)
        self.streams = OutputStreams(
            dict(zip(_NAMES, map(text_file, originals), strict=True)), passes_through=False
        )
        self._capture: ProcessCapture | None = None
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
        """In the reading thread. A new time replaces that of the same call."""
        self._alarm.set(seconds, call)

    def read_pipes(self) -> None:
        """Hand on everything written so far, including what another thread is just reading."""
        with self._lock:
            ready, _, _ = select.select(self._read, (), (), 0)
            for descriptor in ready:
                self._take(self._read.index(descriptor))

    def begin_run(self, capture: "ProcessCapture") -> None:
        self._capture = capture
        self.streams.begin_run(capture)

    def end_run(self) -> None:
        self.streams.end_run()
        self._read_rest()
        self._capture = None

    def _read_rest(self) -> None:
        if self._stdout_of_c is not None:
            _libc.fflush(self._stdout_of_c)
        self.read_pipes()
        if self._was_used:
            self._was_used = False
            for index, decoder in enumerate(self._decoders):
                self._hand_on(index, decoder.decode(b"", final=True))

    def _serve(self) -> None:
        poll = select.poll()
        for descriptor in (*self._read, self._alarm.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = poll.poll(self._alarm.timeout_ms())
            self._alarm.ring_if_due()
            if any(descriptor in self._read for descriptor, _ in ready):
                self.read_pipes()

    def _take(self, index: int) -> None:
        self._was_used = True
        self._hand_on(index, self._decoders[index].decode(_read(self._read[index])))

    def _hand_on(self, index: int, text: str) -> None:
        if not text:
            return
        if self._capture is not None:
            self._capture.child_printed(_NAMES[index], text)
        else:  # between two runs: output of a leftover child process
            with suppress(OSError):
                os.write(self._originals[index], text.encode("utf-8", ESCAPED))


class _Alarm:
    """A timer for a thread that polls."""

    def __init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._due: dict[Callable[[], None], float] = {}

    def fileno(self) -> int:
        return self._wake_read

    def set(self, seconds: float, call: Callable[[], None]) -> None:
        self._due[call] = time.monotonic() + seconds
        with suppress(BlockingIOError):  # already awake
            os.write(self._wake_write, b"!")

    def timeout_ms(self) -> int | None:
        due = min(list(self._due.values()), default=None)
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def ring_if_due(self) -> None:
        _read(self._wake_read)
        now = time.monotonic()
        for call in [call for call, due in list(self._due.items()) if due <= now]:
            del self._due[call]
            call()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIPE_BYTES)
    except BlockingIOError:
        return b""


_libc = ctypes.CDLL(None)
_LINE_BUFFERED = 1


def _line_buffered_stdout() -> ctypes.c_void_p | None:
    """C's stdout: fully buffered, its output would show up in a later run."""
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    try:
        stdout = ctypes.c_void_p.in_dll(_libc, name)
    except ValueError:
        return None
    _libc.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    return stdout
