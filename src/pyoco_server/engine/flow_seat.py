"""Where a running flow sits: what is asked of it may come before it is there, and after it is gone."""

import threading

from pyoco_server.engine.flow_run import FlowRun


class FlowSeat:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: FlowRun | None = None
        self._is_cancelled = False
        self._is_live = False

    def take(self, run: FlowRun) -> None:
        """The flow is there: what was asked for before is asked of it now."""
        with self._lock:
            self._run = run
            is_cancelled, is_live = self._is_cancelled, self._is_live
        if is_cancelled:
            run.cancel()
        if is_live:
            run.go_live()

    def leave(self) -> None:
        with self._lock:
            self._run = None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            run = self._run
        if run is not None:
            run.cancel()

    def go_live(self) -> None:
        with self._lock:
            self._is_live = True
            run = self._run
        if run is not None:
            run.go_live()
