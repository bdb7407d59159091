"""`sys.stdout`, `sys.stderr` and `logging` of a process that runs flows: the same from one run to the next.

Who keeps one of them (a logging handler, a thread) keeps something that goes on working; only what becomes of
the output changes with the run.
"""

import codecs
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

ESCAPED = "backslashreplace"
"""What is not text is shown as the bytes that it is."""
STDOUT, STDERR, LOGGING = "stdout", "stderr", "logging"


class Catcher(Protocol):
    @property
    def is_strange(self) -> bool: ...
    def printed(self, stream: str, text: str) -> None: ...


class OutputStreams:
    """Both streams, and the handler of log records."""

    def __init__(self, originals: Mapping[str, TextIO], *, passes_through: bool) -> None:
        """`originals`: where output goes that belongs to no run; with `passes_through`, all of it."""
        self.catcher: Catcher | None = None
        self.stdout = _Stream(self, STDOUT, originals[STDOUT], passes_through=passes_through)
        self.stderr = _Stream(self, STDERR, originals[STDERR], passes_through=passes_through)
        self.handler = _LogHandler(self)
        self._is_installed = False

    def install(self) -> None:
        """For the life of the process."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        _make_room_in_basic_config(self.handler)
        root = logging.getLogger()
        root.addHandler(self.handler)
        root.setLevel(logging.INFO)
        self._is_installed = True
        os.register_at_fork(after_in_child=self._write_through)

    @contextmanager
    def catching(self, catcher: Catcher) -> Iterator[None]:
        """While a run goes on, for good or for this once."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.stdout, self.stderr
        root = logging.getLogger()
        if self.handler not in root.handlers:  # else since the process began, if no flow has removed it
            root.addHandler(self.handler)
        self.catcher = catcher
        try:
            yield
        finally:
            self.catcher = None
            sys.stdout, sys.stderr = before
            if not self._is_installed:
                root.removeHandler(self.handler)

    def _write_through(self) -> None:
        """In a forked child: what it would catch reaches nobody, but its parent reads the pipes."""
        self.catcher = None
        for stream in (self.stdout, self.stderr):
            stream.write_through()

    def are_written_by(self, handler: logging.Handler) -> bool:
        stream = getattr(handler, "stream", None)
        return getattr(stream, "original", stream) in (self.stdout, self.stderr)


def text_file(descriptor: int) -> TextIO:
    """Written line by line; the descriptor stays open behind it."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors=ESCAPED, closefd=False)


class _Stream(io.TextIOBase):
    """As a program expects its stdout to be: text, with bytes underneath."""

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
        """What is caught is text, and stays text."""

    def close(self) -> None:
        """It outlives whoever would close it."""

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")

    def flush(self) -> None:
        self._original.flush()

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        catcher = self._streams.catcher
        if catcher is None or catcher.is_strange:
            self._write_original(text)
            return len(text)
        catcher.printed(self._name, text)
        if self._passes_through:
            self._write_original(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def write_through(self) -> None:
        self._original = text_file(self._descriptor)
        self.buffer = _Bytes(self)  # the lock of the one before may be held by a thread that is not here

    def _write_original(self, text: str) -> None:
        try:
            self._original.write(text)
        except UnicodeEncodeError:
            encoding = self._original.encoding or "utf-8"
            self._original.write(text.encode(encoding, ESCAPED).decode(encoding))


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`: bytes that become text as they come."""

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
        """As the stream above it."""

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")


class _LogHandler(logging.Handler):
    """Log records from INFO up, unless the flow's own logging prints them anyway."""

    def __init__(self, streams: OutputStreams) -> None:
        super().__init__(logging.INFO)
        self._streams = streams
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        catcher = self._streams.catcher
        if catcher is None or catcher.is_strange or self._is_printed(record):
            return
        try:
            catcher.printed(LOGGING, self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - as any handler does: a bad record costs itself, not the task
            self.handleError(record)

    def _is_printed(self, record: logging.LogRecord) -> bool:
        """Another handler writes it to stdout or stderr, from where it is caught."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                if record.levelno >= handler.level and self._streams.are_written_by(handler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def _make_room_in_basic_config(ours: logging.Handler) -> None:
    """`logging.basicConfig` does nothing where the root logger has a handler: ours must not be the reason."""
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
