"""How a gateway reads what is stored into an index: how far it is, and again if the index is lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import cancelled

log = get_logger(__name__)

PROGRESS_SEC = 5.0


class Progress:
    """Of the first reading."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.read = 0
        self.total = 0
        self._began = self._reported = time.monotonic()

    def note(self, read: int, left: int) -> None:
        self.read += read
        self.total = self.read + left
        if time.monotonic() - self._reported >= PROGRESS_SEC:
            self._reported = time.monotonic()
            log.info(
                "reading what is stored",
                action="index.progress",
                index=self._what,
                read=self.read,
                total=self.total,
            )

    def end(self) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        log.info(
            "everything stored is known",
            action="index.ready",
            index=self._what,
            read=self.read,
            seconds=seconds,
        )


class Losable(Protocol):
    """An index that may fail."""

    @property
    def is_lost(self) -> bool: ...


class Reading:
    """The reading of a feed into an index, from the beginning again if the index is lost."""

    def __init__(self, what: str, index: Losable) -> None:
        self._what = what
        self._index = index
        self._caught_up = asyncio.Event()
        self._progress = Progress(what)
        self._task: asyncio.Future[None] | None = None

    async def run(self, read: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._task = asyncio.ensure_future(read())
            try:
                await asyncio.wait({self._task})
            finally:
                await cancelled(self._task)
            if not self._index.is_lost:
                self._task.result()
                return

    def stop_if_lost(self) -> None:
        """So that it begins again, also while there is no news."""
        if self._index.is_lost and self._task is not None:
            self._task.cancel()

    @property
    def is_caught_up(self) -> bool:
        """Whether everything stored at the start has been read."""
        return self._caught_up.is_set() and not self._index.is_lost

    async def caught_up(self) -> None:
        await self._caught_up.wait()

    @property
    def progress(self) -> tuple[int, int] | None:
        """How much is read and to be read; None if all is read."""
        return None if self.is_caught_up else (self._progress.read, self._progress.total)

    def begin(self) -> None:
        self._progress = Progress(self._what)
        self._caught_up.clear()

    def note(self, read: int, left: int, *, is_caught_up: bool) -> None:
        if self._caught_up.is_set():
            return
        self._progress.note(read, left)
        if is_caught_up:
            self._progress.end()
            self._caught_up.set()
