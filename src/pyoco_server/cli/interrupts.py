"""Ctrl-C where it does no harm: not in the middle of drawing, which leaves a terminal without a cursor."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Inside this block Ctrl-C waits for `allowed`; there it is the KeyboardInterrupt that it always is."""

    def __init__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()  # no other gets signals
        self._is_allowed = False
        self._came = False

    def __enter__(self) -> Self:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        if self._came and error is None:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._is_allowed = True
        try:
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False

    def _receive(self, _: int, __: FrameType | None) -> None:
        self._came = True
        if self._is_allowed:
            self._is_allowed = False
            raise KeyboardInterrupt
