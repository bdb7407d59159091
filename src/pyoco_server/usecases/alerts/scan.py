"""Look for what lasts too long: late and stuck runs, runs without a place, overdue waits, lost workers.

And for escalated events, which no feed shows. Only what an alert asks for is searched.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pyoco_server.domain.alerts.happenings import (
    Happening,
    late_run,
    lost_worker,
    of_job,
    run_without_place,
    stuck_run,
    waiting_node,
)
from pyoco_server.domain.alerts.model import Alert, AlertKind
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.executions.records import Wait
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import IndexLost, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.alerts.follow import FollowAlerts
from pyoco_server.usecases.fleet import FollowWorkers, ListWorkers
from pyoco_server.usecases.limits.lines import WaitingLines
from pyoco_server.usecases.ports.gateway import CountedStore, ExecutionIndex
from pyoco_server.usecases.ports.runs import RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Clock, Revision

log = get_logger(__name__)

SCAN_SEC = 2.0
PAUSE_PER_WORK = 20.0
"""A look takes at most a twentieth of the time."""
JOBS_SEC = 5.0
PAGE = 1000
WAITS_PAGE = 200
ACTIVE = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLING)
NOTHING = Revision(0)


class _Submitted(Struct):
    submitted_at: float | None = None


_submitted = msgspec.json.Decoder(_Submitted)
_wait = msgspec.json.Decoder(Wait)
Noticed = tuple[Alert, Happening]


class Sources(Struct, frozen=True, kw_only=True):
    """Where to look."""

    runs: RunStore
    run_index: RunIndex
    execution_index: ExecutionIndex
    workers: FollowWorkers
    list_workers: ListWorkers
    lines: WaitingLines
    retry_jobs: CountedStore[RetryJob]
    is_stale: Callable[[], bool]
    """Whether the picture of runs or workers may be old: then silence means nothing."""


class _Known:
    """What was checked and still lasts, so that it need not be read again."""

    def __init__(self) -> None:
        self._before: set[Hashable] = set()
        self._now: set[Hashable] = set()

    def is_new(self, alert: Alert, *parts: Hashable) -> bool:
        key = (alert.store_key, alert.updated_at, *parts)
        self._now.add(key)
        return key not in self._before

    def next_look(self) -> None:
        self._before, self._now = self._now, set()

    def repeat(self) -> None:
        """What was found could not be stored."""
        self._now = set()


class ScanForLasting:
    def __init__(
        self,
        sources: Sources,
        alerts: FollowAlerts,
        take: Callable[[Sequence[Noticed]], Awaitable[None]],
        clock: Clock,
        *,
        silent_sec: float,
        scan_sec: float = SCAN_SEC,
    ) -> None:
        """`silent_sec`: a run without a heartbeat for this time is stuck."""
        self._from = sources
        self._alerts = alerts
        self._take = take
        self._clock = clock
        self._silent_sec = silent_sec
        self._scan_sec = scan_sec
        self._known = _Known()
        self._beats: dict[str, tuple[Revision, float]] = {}
        """The revision of a running run, and since when it has it."""
        self._jobs_at = float("-inf")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._known, self._jobs_at = _Known(), float("-inf")
        self._beats.clear()
        while True:
            began = loop.time()
            with best_effort(log, "alert.scan", NatsUnavailable, expected=(NatsUnavailable, IndexLost)):
                await self.look()
            await asyncio.sleep(max(self._scan_sec, PAUSE_PER_WORK * (loop.time() - began)))

    async def look(self) -> None:
        """Raises NatsUnavailable; then it is searched again."""
        if self._from.is_stale():
            self._beats.clear()
            return
        noticed = [one async for one in self._all()]
        noticed = [(alert, found) for alert, found in noticed if self._alerts.concerns(alert, found)]
        try:
            if noticed:
                await self._take(noticed)
        except NatsUnavailable:
            self._known.repeat()
            raise
        self._known.next_look()

    async def _all(self) -> AsyncIterator[Noticed]:
        kinds = self._alerts.kinds()
        looks: dict[AlertKind, Callable[[], AsyncIterator[Noticed]]] = {
            AlertKind.RUN_LATE: self._late_runs,
            AlertKind.RUN_STUCK: self._stuck_runs,
            AlertKind.LIMIT_WAITING: self._waiting_runs,
            AlertKind.WAIT_OVERDUE: self._overdue_waits,
            AlertKind.WORKER_LOST: self._lost_workers,
            AlertKind.EVENT_ESCALATED: self._escalated_events,
        }
        for kind, look in looks.items():
            if kind in kinds:
                async for found in look():
                    yield found

    def _by_patience(self, kind: AlertKind) -> list[tuple[float, Alert]]:
        found = [(alert.definition.late_after_sec or 0.0, alert) for alert in self._alerts.of_kind(kind)]
        return sorted(found, key=lambda one: one[0])

    # Runs

    async def _late_runs(self) -> AsyncIterator[Noticed]:
        alerts = self._by_patience(AlertKind.RUN_LATE)
        async for run_id, submitted_at in self._active_runs():
            late = [(sec, alert) for sec, alert in alerts if submitted_at + sec <= self._clock()]
            new = [one for one in late if self._known.is_new(one[1], "late", run_id)]
            run = await self._run(run_id) if new else None
            if run is not None and not run.status.is_terminal:
                for late_after_sec, alert in new:
                    yield alert, late_run(run, late_after_sec)

    async def _active_runs(self) -> AsyncIterator[tuple[str, float]]:
        """A part at a time: there may be a million."""
        for status in ACTIVE:
            after = NOTHING
            while page := self._from.run_index.active(status, after, PAGE):
                for run_id, _, summary in page:
                    submitted_at = _submitted.decode(summary).submitted_at
                    if submitted_at is not None:
                        yield run_id, submitted_at
                after = page[-1][1]
                await asyncio.sleep(0)

    async def _run(self, run_id: str) -> RunSnapshot | None:
        try:
            found = await self._from.runs.get(run_id)
        except Unreadable:  # the feeds log it
            return None
        return None if found is None else found.value

    async def _stuck_runs(self) -> AsyncIterator[Noticed]:
        """By what this gateway has seen and not by the clocks of workers."""
        now, before = asyncio.get_running_loop().time(), self._beats
        self._beats = {}
        running = list(self._from.run_index.unfinished(RunStatus.RUNNING))
        for run_id, revision, _ in running:
            known = before.get(run_id)
            since = known[1] if known is not None and known[0] == revision else now
            self._beats[run_id] = (revision, since)
            if now - since < self._silent_sec:
                continue
            run = await self._run(run_id)
            if run is None or run.status is not RunStatus.RUNNING or self._has_live_worker(run):
                continue
            for alert in self._alerts.of_kind(AlertKind.RUN_STUCK):
                if self._known.is_new(alert, "stuck", run_id, revision):
                    yield alert, stuck_run(run, self._clock())

    def _has_live_worker(self, run: RunSnapshot) -> bool:
        """With many runs, a worker reports more often than it writes each of them."""
        worker = self._from.workers.records.get(run.worker_id or "")
        return (
            worker is not None
            and worker.instance_id == run.instance_id
            and self._from.workers.silent_for(worker) < self._silent_sec
        )

    async def _waiting_runs(self) -> AsyncIterator[Noticed]:
        alerts = self._by_patience(AlertKind.LIMIT_WAITING)
        for run_id, submitted_at, limit in self._without_place():
            late = [(sec, alert) for sec, alert in alerts if submitted_at + sec <= self._clock()]
            new = [one for one in late if self._known.is_new(one[1], "limit", run_id)]
            run = await self._run(run_id) if new else None
            if run is not None and run.is_held and run.status is RunStatus.PENDING:
                for late_after_sec, alert in new:
                    yield alert, run_without_place(run, limit, late_after_sec)

    def _without_place(self) -> Iterator[tuple[str, float, str]]:
        for line in self._from.lines:
            if line.limits:  # else its flow is paused
                for (_, submitted_at, _), run_id in list(self._from.lines.runs(line)):
                    yield run_id, submitted_at, line.limits[0].limit

    # Others

    async def _overdue_waits(self) -> AsyncIterator[Noticed]:
        for late_after_sec, alert in self._by_patience(AlertKind.WAIT_OVERDUE):
            after: Any = None
            while True:
                page = self._from.execution_index.waits(alert.tenant_id, after, WAITS_PAGE)
                waits = [_wait.decode(line) for line in page.summaries]
                overdue = [one for one in waits if one.waiting_at + late_after_sec <= self._clock()]
                for wait in overdue:
                    key = (wait.execution_id, wait.node_id, wait.waiting_at)
                    if self._known.is_new(alert, "wait", *key):
                        at = wait.waiting_at + late_after_sec
                        owned = msgspec.structs.replace(wait, tenant_id=wait.tenant_id or alert.tenant_id)
                        yield alert, waiting_node(AlertKind.WAIT_OVERDUE, owned, at)
                after = page.more_after
                if after is None or len(overdue) < len(waits):  # the oldest come first
                    break
                await asyncio.sleep(0)

    async def _lost_workers(self) -> AsyncIterator[Noticed]:
        workers = self._from.workers
        if not workers.is_caught_up:
            return
        for worker in list(workers.records.values()):
            if self._from.list_workers.observed(worker).state is not WorkerState.DISCONNECTED:
                continue
            lost_at = self._clock() - workers.silent_for(worker) + self._silent_sec
            for alert in self._alerts.of_kind(AlertKind.WORKER_LOST):
                if self._known.is_new(alert, "worker", worker.worker_id, worker.last_seen_at):
                    yield alert, lost_worker(worker, lost_at)

    async def _escalated_events(self) -> AsyncIterator[Noticed]:
        now = asyncio.get_running_loop().time()
        if now < self._jobs_at + JOBS_SEC:
            return
        for job in await self._from.retry_jobs.list_values():
            happening = of_job(job)
            if happening is not None:
                for alert in self._alerts.of_kind(AlertKind.EVENT_ESCALATED):
                    yield alert, happening
        self._jobs_at = now
