"""Reading runs: a run with the state of its worker, pages of runs, and run logs."""

import asyncio
import heapq
import re
from contextlib import aclosing
from itertools import groupby, islice

import msgspec
from msgspec import Struct

from pyoco_server.domain.fleet import ALIVE, WorkerRecord, observed_state
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.limits.views import WaitingFor
from pyoco_server.domain.runs.listing import (
    Flow,
    FlowRun,
    Place,
    RunFilter,
    cursor_at,
    decode_cursor,
    digest_of,
    encode_cursor,
    flow_of_runs,
    place_of,
)
from pyoco_server.domain.runs.logs import LogLine, LogRecord, in_order
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, replace
from pyoco_server.errors import InvalidRequest, RunNotFound
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.fleet import FollowWorkers, ListWorkers, WorkerFilter
from pyoco_server.usecases.limits.gate import LimitGate
from pyoco_server.usecases.ports.runs import RunIndex, RunStore, TaskLogs

_HELD = frozenset({RunStatus.RUNNING, RunStatus.CANCELLING})


class RunView(Struct, frozen=True, kw_only=True):
    snapshot: RunSnapshot
    worker_alive: bool | None = None
    worker_heartbeat_at: float | None = None
    worker_tags: tuple[str, ...] | None = None
    waiting_for: WaitingFor | None = None


class ReadRun:
    def __init__(
        self, runs: RunStore, workers: FollowWorkers, disconnect_timeout: float, limits: LimitGate
    ) -> None:
        self._limits = limits
        self._runs = runs
        self._workers = workers
        self._disconnect_timeout = disconnect_timeout

    async def __call__(self, run_id: str, caller: Caller) -> RunView:
        stored = await self._runs.get(run_id) if is_run_id(run_id) else None
        if stored is None or not may_see(caller, stored.value):
            raise RunNotFound
        worker = self._worker_of(stored.value)
        if worker is None:
            return RunView(snapshot=stored.value, waiting_for=self._limits.waiting_for(stored.value))
        state = observed_state(worker, self._workers.silent_for(worker), self._disconnect_timeout)
        return RunView(
            snapshot=stored.value,
            worker_alive=state in ALIVE,
            worker_heartbeat_at=worker.last_heartbeat_at,
            worker_tags=worker.tags,
        )

    def _worker_of(self, snapshot: RunSnapshot) -> WorkerRecord | None:
        """The worker's state matters only for a held run."""
        if snapshot.worker_id is None or snapshot.status not in _HELD:
            return None
        return self._workers.records.get(snapshot.worker_id)


# Pages of runs, from the index.


class RunPage(Struct, frozen=True):
    items: list[bytes] | list[RunSnapshot]
    """Summaries as JSON, or full snapshots if requested."""
    next_cursor: str | None


class ListRuns:
    def __init__(self, runs: RunStore, index: RunIndex, own_writes: OwnWrites) -> None:
        self._runs = runs
        self._index = index
        self._own_writes = own_writes

    async def __call__(self, wanted: RunFilter, cursor: str | None, limit: int, *, full: bool) -> RunPage:
        after = None if cursor is None else decode_cursor(cursor, wanted)
        await self._own_writes.are_visible()
        page = self._index.page(wanted, after, limit)
        next_cursor = None if page.more_after is None else encode_cursor(page.more_after, wanted)
        items = await self._details(page.places) if full else page.summaries
        return RunPage(items, next_cursor)

    async def _details(self, places: list[Place]) -> list[RunSnapshot]:
        """Skips runs removed meanwhile."""
        stored = await asyncio.gather(*(self._runs.get(place.run_id) for place in places))
        return [
            replace(entry.value, updated_at=place.updated_at)
            for entry, place in zip(stored, places, strict=True)
            if entry is not None
        ]


# Flows: those that live workers report, and those that have runs.

RECENT_RUNS = 100
"""How many ended runs the statistics of a flow cover."""
LAST_RUNS = 5
MAX_WORKERS = 10_000
_flow_run = msgspec.json.Decoder(FlowRun)


class FlowPage(Struct, frozen=True):
    items: list[Flow]
    next_cursor: str | None


class ListFlows:
    """Cost: a few bounded walks along the run index per flow of the page."""

    def __init__(self, index: RunIndex, workers: ListWorkers, own_writes: OwnWrites) -> None:
        self._index = index
        self._workers = workers
        self._own_writes = own_writes

    async def __call__(self, caller: Caller, cursor: str | None, limit: int) -> FlowPage:
        of = digest_of("flows", caller.tenant_id)
        after = "" if cursor is None else place_of(cursor, of).run_id
        await self._own_writes.are_visible()
        holders = self._holders(caller.tenant_id)
        reported = sorted(name for name in holders if name > after)
        ran = self._index.flows(caller.tenant_id, after, limit + 1)
        names = list(islice((name for name, _ in groupby(heapq.merge(reported, ran))), limit + 1))
        items = []
        for name in names[:limit]:
            items.append(self._flow(name, holders.get(name, []), caller.tenant_id))
            await asyncio.sleep(0)  # a page of flows must not hold up other requests
        more = cursor_at(Place(0.0, names[limit - 1]), of) if len(names) > limit else None
        return FlowPage(items, more)

    def _holders(self, tenant_id: str | None) -> dict[str, list[WorkerRecord]]:
        """The live workers of each flow."""
        found: dict[str, list[WorkerRecord]] = {}
        for worker in self._workers(WorkerFilter(limit=MAX_WORKERS), tenant_id):
            for name in worker.flows or ():
                found.setdefault(name, []).append(worker)
        return found

    def _flow(self, name: str, holders: list[WorkerRecord], tenant_id: str | None) -> Flow:
        wanted = RunFilter(tenant_id=tenant_id, flow=name)
        ended = [
            run
            for status in (RunStatus.COMPLETED, RunStatus.FAILED)
            for run in self._runs(replace(wanted, status=status), RECENT_RUNS)
        ]
        return flow_of_runs(
            name,
            {worker.worker_id: worker.tags for worker in holders},
            self._runs(wanted, LAST_RUNS),
            heapq.nlargest(RECENT_RUNS, ended, key=lambda run: run.updated_at),
        )

    def _runs(self, wanted: RunFilter, limit: int) -> list[FlowRun]:
        return [*map(_flow_run.decode, self._index.page(wanted, None, limit).summaries)]


# Run logs

_CURSOR = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?", re.ASCII)


class LogPage(Struct, frozen=True, kw_only=True):
    lines: list[LogLine]
    next_cursor: str
    """After the last line read."""
    has_earlier: bool = False
    """There are earlier lines."""
    has_more: bool = False
    """There are later lines now."""


class _Position(Struct, frozen=True):
    """Position after the first `taken` lines of the record following `seq`."""

    seq: int = 0
    taken: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.taken}" if self.taken else str(self.seq)


class ReadLogs:
    def __init__(self, read_run: ReadRun, task_logs: TaskLogs) -> None:
        self._read_run = read_run
        self._task_logs = task_logs

    async def last(self, run_id: str, caller: Caller, task: str | None, limit: int) -> LogPage:
        """The last `limit` lines (of one task, if given), oldest first. Raises RunNotFound."""
        await self._read_run(run_id, caller)
        found: list[LogLine] = []
        position = _Position()
        async with aclosing(self._task_logs.read(run_id)) as records:
            async for record in records:
                found += _of_task(record.lines, task)
                position = _Position(record.seq)
        lines = in_order(found)
        return LogPage(lines=lines[-limit:], next_cursor=str(position), has_earlier=len(lines) > limit)

    async def page(self, run_id: str, caller: Caller, task: str | None, limit: int, cursor: str) -> LogPage:
        """Up to `limit` lines after the cursor, in storage order.

        The last lines of a task above its limit are stored when it has ended, after later lines of other
        tasks, so a reader of all pages sorts the lines by attempt and n.
        """
        await self._read_run(run_id, caller)
        position = _position(cursor)
        found: list[LogLine] = []
        async with aclosing(self._task_logs.read(run_id, position.seq)) as records:
            async for record in records:
                if len(found) >= limit:
                    return _page(found, position, has_more=True)
                lines, position = _taken(record, position, limit - len(found))
                found += _of_task(lines, task)
                if position.taken:
                    return _page(found, position, has_more=True)
        return _page(found, position, has_more=False)


def _taken(record: LogRecord, position: _Position, limit: int) -> tuple[list[LogLine], _Position]:
    """Lines of the record, and the position after them."""
    end = position.taken + limit
    lines = record.lines[position.taken : end]
    return lines, _Position(record.seq) if end >= len(record.lines) else _Position(position.seq, end)


def _page(found: list[LogLine], position: _Position, *, has_more: bool) -> LogPage:
    return LogPage(lines=in_order(found), next_cursor=str(position), has_more=has_more)


def _of_task(lines: list[LogLine], task: str | None) -> list[LogLine]:
    return lines if task is None else [line for line in lines if line.task == task]


def _position(cursor: str) -> _Position:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest("cursor: malformed; use 0 for the start of the log")
    return _Position(int(match[1]), int(match[2] or 0))
