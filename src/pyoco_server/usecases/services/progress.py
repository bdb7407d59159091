"""How far a gateway has read the stored runs after its start."""

import time

from pyoco_server.logs import get_logger

log = get_logger(__name__)

PROGRESS_SEC = 5.0


class Progress:
    """Of the first reading."""

    def __init__(self) -> None:
        self.read = 0
        self.total = 0
        self._began = self._reported = time.monotonic()

    def note(self, read: int, left: int) -> None:
        self.read += read
        self.total = self.read + left
        if time.monotonic() - self._reported >= PROGRESS_SEC:
            self._reported = time.monotonic()
            log.info("reading the stored runs", action="index.progress", read=self.read, total=self.total)

    def end(self) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        log.info("all stored runs are known", action="index.ready", read=self.read, seconds=seconds)
