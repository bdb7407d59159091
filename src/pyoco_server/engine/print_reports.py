"""When what a run prints is sent to its worker."""

import threading
import time
from collections.abc import Callable

from pyoco_server.domain.task_logs import LogEntry
from pyoco_server.engine.printing import PrintCatcher

REPORT_SEC = 0.1
"""The first line is sent at once, those that follow it sooner than this are sent together."""
EXCERPT_SEC = 0.5
"""How often those who watch see the newest of a task that prints more than is kept."""


class PrintReports:
    """Nothing before the run is live: most runs are over before anybody watches."""

    def __init__(
        self,
        send: Callable[[list[LogEntry]], None],
        call_later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        """Without `call_later` nothing is held back."""
        self._send = send
        self._call_later = call_later
        self._lock = threading.RLock()
        self._catcher: PrintCatcher | None = None
        self._is_live = False
        self._is_asked = False
        self._report_at = 0.0
        self._excerpt_at = 0.0

    def begin(self, catcher: PrintCatcher) -> None:
        self._catcher = catcher

    def go_live(self) -> None:
        self._is_live = True
        self.on_news()

    def on_news(self) -> None:
        if not self._is_live or self._is_asked:
            return
        wait = self._report_at - time.monotonic()
        if wait <= 0 or self._call_later is None:
            self._report()
        else:
            self._ask(wait)

    def finish(self) -> list[LogEntry]:
        """What was not sent. Nothing is sent behind it."""
        with self._lock:
            catcher, self._catcher = self._catcher, None
            return [] if catcher is None else catcher.take()

    def _ask(self, seconds: float) -> None:
        if self._call_later is not None:
            self._is_asked = True
            self._call_later(seconds, self._report)

    def _report(self) -> None:
        with self._lock:  # until it is sent: the run's end must not overtake it
            self._is_asked = False
            if self._catcher is None:
                return
            now = time.monotonic()
            entries = self._catcher.take()
            if self._catcher.has_excerpt:
                if now >= self._excerpt_at:
                    entries += self._catcher.excerpt()
                    self._excerpt_at = now + EXCERPT_SEC
                else:
                    self._ask(self._excerpt_at - now)
            if entries:
                self._report_at = now + REPORT_SEC
                self._send(entries)
