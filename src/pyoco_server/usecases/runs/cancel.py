"""Cancel runs. An accepted cancel always ends CANCELLED, with or without a worker.

Our workers write with the revision they decided on, so a cancel cannot get lost between them and a gateway.
Another worker implementation may overwrite it; then the cancel is repeated.

A worker has the grace period to end its run. After that any gateway ends it: the worker is dead, frozen or
disconnected, or its flow does not stop. Such a run can only end CANCELLED, so nothing is lost. A worker that
comes back finds an ended run, stops its flow and acknowledges the job. The time in CANCELLING is measured
from when this gateway first saw it, without relying on the clock of another host.
"""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.changes import ConvergeCancel, Refusal, RequestCancel
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, RunNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import OwnWrites, change_run
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Change, Clock, Versioned

log = get_logger(__name__)

MAX_REMEMBERED = 10_000
"""Retention of cancels; a run may end before its cancel is recorded here."""
MARGIN_SEC = 0.5
"""Time after the grace period for the worker's last write."""
RETRY_SEC = 1.0
AT_ONCE = 50


class ReassertCancels:
    def __init__(
        self, runs: RunStore, clock: Clock, grace_sec: float, *, max_remembered: int = MAX_REMEMBERED
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._patience = grace_sec + MARGIN_SEC
        self._max_remembered = max_remembered
        self._accepted: dict[str, RequestCancel] = {}
        self._overwritten: set[str] = set()
        self._overdue_at: dict[str, float] = {}
        """By run in CANCELLING."""
        self._timers: list[tuple[float, str]] = []
        """The same as a heap; entries that are missing in the dict are void."""
        self._wake = asyncio.Event()

    def accepted(self, run_id: str, cancel: RequestCancel) -> None:
        """Track a cancel until the run has ended."""
        self._accepted[run_id] = cancel
        if len(self._accepted) > self._max_remembered:
            del self._accepted[next(iter(self._accepted))]

    def began_with(self, run_ids: Iterable[str]) -> None:
        """Track runs that were CANCELLING before this gateway started."""
        for run_id in run_ids:
            self._await_end(run_id)

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Called for every change of a run."""
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
        """Follow up until the run has ended; another implementation may have overwritten the cancel."""
        self._end_in(RETRY_SEC, run_id)
        with best_effort(log, "run.cancel_overdue", NatsUnavailable, run_id=run_id):
            ended = await change_run(self._runs, run_id, ConvergeCancel(is_overdue=True), self._clock)
            if isinstance(ended, Versioned) and not ended.value.status.is_terminal:
                return
            self._overdue_at.pop(run_id, None)
            if isinstance(ended, Versioned):
                log.warning(
                    "grace period is over; ended a cancelled run", action="run.cancel_overdue", run_id=run_id
                )

    async def _ask_again(self, run_id: str) -> None:
        cancel = self._accepted.get(run_id)
        if cancel is None:
            return
        log.warning("a cancel was overwritten; repeating it", action="run.cancel_again", run_id=run_id)
        with best_effort(log, "run.cancel_again", NatsUnavailable, run_id=run_id):
            await change_run(self._runs, run_id, cancel, self._clock)


class CancelRun:
    def __init__(
        self,
        runs: RunStore,
        queue: JobQueue,
        own_writes: OwnWrites,
        keep_cancels: ReassertCancels,
        clock: Clock,
        trail: AuditTrail,
    ) -> None:
        self._runs = runs
        self._queue = queue
        self._own_writes = own_writes
        self._keep_cancels = keep_cancels
        self._clock = clock
        self._trail = trail

    async def __call__(self, run_id: str, caller: Caller, reason: str | None) -> RunSnapshot:
        """The run after the request: CANCELLING, or ended before."""
        current = await self._visible(run_id, caller)
        asked = await self._ask(run_id, current, RequestCancel(requested_by=caller.name, reason=reason))
        if asked.status is RunStatus.CANCELLING and current.value.status is not RunStatus.CANCELLING:
            before = {"status": current.value.status}
            after = {"status": asked.status, "reason": reason}
            await self._trail.record(caller, "run.cancel", ChangeTarget("run", run_id), before, after)
        return asked

    async def unrecorded(self, run_id: str, caller: Caller, reason: str) -> RunSnapshot:
        """The same for one of many, which leave one record together."""
        current = await self._visible(run_id, caller)
        return await self._ask(run_id, current, RequestCancel(requested_by=caller.name, reason=reason))

    async def _visible(self, run_id: str, caller: Caller) -> Versioned[RunSnapshot]:
        current = await self._runs.get(run_id) if is_run_id(run_id) else None
        if current is None or not may_see(caller, current.value):
            raise RunNotFound
        return current

    async def of_system(self, run_id: str, requested_by: str, reason: str) -> None:
        """A cancel by the server itself. No effect on a missing run."""
        current = await self._runs.get(run_id)
        if current is not None:
            await self._ask(run_id, current, RequestCancel(requested_by=requested_by, reason=reason))

    async def _ask(self, run_id: str, current: Versioned[RunSnapshot], change: RequestCancel) -> RunSnapshot:
        asked = await change_run(self._runs, run_id, change, self._clock, known=current)
        if asked is None or isinstance(asked, Refusal):
            raise RunNotFound
        self._own_writes.wrote(asked.revision)
        if asked.value.status is RunStatus.CANCELLING:
            log.info("cancel accepted", action="run.cancel_requested", run_id=run_id, by=change.requested_by)
            self._keep_cancels.accepted(run_id, change)
            await self._converge(run_id, asked)
        return asked.value

    async def _converge(self, run_id: str, asked: Versioned[RunSnapshot]) -> None:
        """End a run without a worker now. On failure it ends after the grace period."""
        if asked.value.owner is not None:
            return
        with best_effort(log, "run.cancel_converge", NatsUnavailable, run_id=run_id):
            ended = await change_run(self._runs, run_id, ConvergeCancel(), self._clock, known=asked)
            if isinstance(ended, Versioned):
                self._own_writes.wrote(ended.revision)
            if asked.value.is_held:
                await self._queue.remove_held(run_id)
            elif asked.value.not_before is not None:
                await self._queue.unschedule(run_id)
