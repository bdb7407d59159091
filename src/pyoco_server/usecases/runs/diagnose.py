"""Gather what explains the state of a run."""

import msgspec
from msgspec import Struct

from pyoco_server.domain.diagnosis.causes import (
    DAY_SEC,
    LOG_LINES,
    MAX_GONE,
    CompletedRun,
    Facts,
    QueueStanding,
    SameErrors,
    SeenWorker,
    flow_seen,
    same_errors,
)
from pyoco_server.domain.fleet import ALIVE, WorkerRecord
from pyoco_server.domain.runs.listing import RunFilter
from pyoco_server.domain.runs.model import HELD, RunSnapshot, RunStatus, replace
from pyoco_server.errors import RunNotFound
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.ports.runs import RunIndex
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.queues import UNKNOWN_SLOTS, ListQueues
from pyoco_server.usecases.runs.read import ReadLogs, ReadRun

MAX_COMPARED_RUNS = 200
"""Failed runs of a flow whose errors are compared."""
MAX_AHEAD = 10_000
"""Runs that are counted for a position."""


class _Failed(Struct):
    """What is read of a failed run in the index."""

    error: str | None
    updated_at: float


_decode_failed = msgspec.json.Decoder(_Failed).decode


class DiagnoseRun:
    def __init__(
        self,
        read_run: ReadRun,
        read_logs: ReadLogs,
        index: RunIndex,
        workers: ListWorkers,
        queues: ListQueues,
        clock: Clock,
    ) -> None:
        """`clock`: that of the store, by which jobs are due."""
        self._read_run = read_run
        self._read_logs = read_logs
        self._index = index
        self._workers = workers
        self._queues = queues
        self._clock = clock

    async def __call__(self, run_id: str, caller: Caller) -> Facts:
        """Raises RunNotFound."""
        view = await self._read_run(run_id, caller)
        run = view.snapshot
        facts = Facts(run=run, now=self._clock(), waiting_for=view.waiting_for, worker=self._worker_of(run))
        if run.status not in (RunStatus.COMPLETED, RunStatus.CANCELLED):
            facts = await self._with_fleet(facts, caller)
        if facts.failure is not None:
            facts = await self._with_other_runs(facts, caller)
        if facts.failure is not None or run.status in HELD:
            facts = replace(facts, log=await self._last_lines(facts, caller))
        return facts

    def _worker_of(self, run: RunSnapshot) -> SeenWorker | None:
        if run.worker_id is None or run.status not in HELD:
            return None
        record = self._workers.find(run.worker_id)
        if record is None:
            return SeenWorker(worker_id=run.worker_id, state=None, silent_sec=None)
        is_same = run.instance_id in (None, record.instance_id)  # other implementations set none
        return replace(self._seen(record), is_same_instance=is_same)

    def _seen(self, record: WorkerRecord) -> SeenWorker:
        silent_sec = round(max(0.0, self._workers.silent_for(record)), 3)
        return SeenWorker(worker_id=record.worker_id, state=record.state, silent_sec=silent_sec)

    async def _with_fleet(self, facts: Facts, caller: Caller) -> Facts:
        run, tag = facts.run, facts.run.tag
        if tag is None:  # an older snapshot
            return facts
        everyone = self._workers.everyone()
        alive = [worker for worker in everyone if worker.state in ALIVE]
        gone = [self._seen(worker) for worker in everyone if worker not in alive and tag in worker.tags]
        gone.sort(key=lambda worker: worker.silent_sec or 0.0)
        return replace(
            facts,
            queue=await self._standing(run, tag, caller),
            flow=flow_seen(run, tag, alive),
            gone=tuple(gone[:MAX_GONE]),
        )

    async def _standing(self, run: RunSnapshot, tag: str, caller: Caller) -> QueueStanding:
        queue = await self._queues.one(tag, caller.tenant_id)
        ahead = self._index.runs_ahead(run.run_id, MAX_AHEAD)
        return QueueStanding(
            tag=tag,
            position=None if ahead is None or ahead >= MAX_AHEAD else ahead + 1,
            waiting=queue.waiting,
            running=queue.running,
            workers=queue.workers,
            slots=self._workers.slots_by_tag(UNKNOWN_SLOTS)[tag],
            throughput_per_min=queue.throughput_per_min,
        )

    async def _with_other_runs(self, facts: Facts, caller: Caller) -> Facts:
        run = facts.run
        same = None if run.status is RunStatus.PENDING else self._same_errors(run, facts.now)
        return replace(facts, same_errors=same, last_completed=await self._last_completed(run, caller))

    def _same_errors(self, run: RunSnapshot, now: float) -> SameErrors:
        page = self._index.page(
            _of_flow(run, RunStatus.FAILED, now - DAY_SEC), after=None, limit=MAX_COMPARED_RUNS
        )
        failed = [_decode_failed(data) for data in page.summaries]
        found = [(one.error, one.updated_at) for one in failed]
        return same_errors(run.error, found, is_partial=page.more_after is not None)

    async def _last_completed(self, run: RunSnapshot, caller: Caller) -> CompletedRun | None:
        page = self._index.page(_of_flow(run, RunStatus.COMPLETED), after=None, limit=1)
        if not page.places:
            return None
        place = page.places[0]
        try:
            wheels = (await self._read_run(place.run_id, caller)).snapshot.wheels
        except RunNotFound:  # expired meanwhile
            return None
        return CompletedRun(run_id=place.run_id, at=place.updated_at, wheels=wheels)

    async def _last_lines(self, facts: Facts, caller: Caller) -> tuple[str, ...]:
        """Of the task that failed if it printed anything, else of the run."""
        task = None if facts.failure is None else facts.failure.task
        for one in dict.fromkeys((task, None)):
            page = await self._read_logs.last(facts.run.run_id, caller, one, LOG_LINES)
            if page.lines:
                return tuple(line.text.rstrip("\r\n") for line in page.lines)
        return ()


def _of_flow(run: RunSnapshot, status: RunStatus, since: float | None = None) -> RunFilter:
    return RunFilter(tenant_id=run.tenant_id, flow=run.flow_name, status=status, updated_after=since)
