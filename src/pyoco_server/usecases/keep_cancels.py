"""See every cancel to its end: CANCELLED, whatever becomes of the worker.

Our own workers write with the revision they decided on, so a cancel cannot get lost between them and us. A
worker of another make may write its whole snapshot over it: then it is asked for again, until it is seen.

A worker has the grace period to end its run. After that any gateway does: the worker is dead, frozen or cut
off, or its flow does not stop. Nothing but CANCELLED can be the end of such a run, so nothing is lost by it.
A worker that comes back finds a run that has ended, stops its flow and acknowledges the job. How long it has
been CANCELLING is measured from when this gateway saw it so: no clock of another host is trusted for that.
"""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from pyoco_server.domain.run_changes import ConvergeCancel, RequestCancel
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Change, Clock, RunStore, Versioned
from pyoco_server.usecases.waiting import wait_at_most

log = get_logger(__name__)

MAX_REMEMBERED = 10_000
"""The end of a run may pass before its cancel is remembered; such a one must not stay for ever."""
MARGIN_SEC = 0.5
"""Beyond the grace period: for the worker's own last write."""
RETRY_SEC = 1.0
AT_ONCE = 50


class KeepCancels:
    def __init__(self, runs: RunStore, clock: Clock, grace_sec: float) -> None:
        self._runs = runs
        self._clock = clock
        self._patience = grace_sec + MARGIN_SEC
        self._accepted: dict[str, RequestCancel] = {}
        self._overwritten: set[str] = set()
        self._overdue_at: dict[str, float] = {}
        """By run that was seen CANCELLING."""
        self._timers: list[tuple[float, str]] = []
        """A heap of the same; one that the dict does not have any more is void."""
        self._wake = asyncio.Event()

    def accepted(self, run_id: str, cancel: RequestCancel) -> None:
        """Remembered until the run has ended."""
        self._accepted[run_id] = cancel
        if len(self._accepted) > MAX_REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def began_with(self, run_ids: Iterable[str]) -> None:
        """Runs that were CANCELLING before this gateway began to look."""
        for run_id in run_ids:
            self._await_end(run_id)

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Every change of a run passes here."""
        for change in changes:
            run_id, run = change.key, change.value
            if run is None or run.status.is_terminal:
                self._accepted.pop(run_id, None)
                self._overdue_at.pop(run_id, None)
            elif run.status is RunStatus.CANCELLING:
                self._await_end(run_id)
            elif run_id in self._accepted:
                self._overwritten.add(run_id)
                self._wake.set()

    def _await_end(self, run_id: str) -> None:
        if run_id not in self._overdue_at:
            self._end_in(self._patience, run_id)
            self._wake.set()

    def _end_in(self, seconds: float, run_id: str) -> None:
        self._overdue_at[run_id] = asyncio.get_running_loop().time() + seconds
        heappush(self._timers, (self._overdue_at[run_id], run_id))

    async def run(self) -> None:
        while True:
            await self._wait()
            self._wake.clear()
            while self._overwritten:
                await self._ask_again(self._overwritten.pop())
            while overdue := self._overdue():
                await asyncio.gather(*(self._end(run_id) for run_id in overdue))

    async def _wait(self) -> None:
        if not self._timers:
            await self._wake.wait()
            return
        left = self._timers[0][0] - asyncio.get_running_loop().time()
        await wait_at_most(self._wake, max(0.0, left))

    def _overdue(self) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        overdue: list[str] = []
        while self._timers and self._timers[0][0] <= now and len(overdue) < AT_ONCE:
            at, run_id = heappop(self._timers)
            if self._overdue_at.get(run_id) == at:
                overdue.append(run_id)
        return overdue

    async def _end(self, run_id: str) -> None:
        """Until the run has ended. Meanwhile a worker of another make may have overwritten the cancel."""
        self._end_in(RETRY_SEC, run_id)
        with best_effort(log, "run.cancel_overdue", NatsUnavailable, run_id=run_id):
            ended = await change_run(self._runs, run_id, ConvergeCancel(is_overdue=True), self._clock)
            if isinstance(ended, Versioned) and not ended.value.status.is_terminal:
                return
            self._overdue_at.pop(run_id, None)
            if isinstance(ended, Versioned):
                log.warning(
                    "ended a cancelled run for its worker", action="run.cancel_overdue", run_id=run_id
                )

    async def _ask_again(self, run_id: str) -> None:
        cancel = self._accepted.get(run_id)
        if cancel is None:
            return
        log.warning("a cancel was overwritten; asking again", action="run.cancel_again", run_id=run_id)
        with best_effort(log, "run.cancel_again", NatsUnavailable, run_id=run_id):
            await change_run(self._runs, run_id, cancel, self._clock)
