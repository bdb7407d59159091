"""Reading runs: a run with the state of its worker, pages of runs, and run logs."""

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from msgspec import Struct

from pyoco_server.domain.fleet import ALIVE, WorkerRecord, observed_state
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.queues import Pause, WaitingFor, waiting_for
from pyoco_server.domain.runs.listing import (
    Place,
    RunFilter,
    RunSummary,
    decode_cursor,
    encode_cursor,
)
from pyoco_server.domain.runs.logs import LogLine, LogRecord, in_order
from pyoco_server.domain.runs.model import HELD, RunSnapshot, RunStatus, replace
from pyoco_server.errors import InvalidRequest, RunNotFound
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.fleet import FollowWorkers
from pyoco_server.usecases.limits.gate import LimitGate
from pyoco_server.usecases.ports.runs import IndexedPage, RunIndex, RunStore, TaskLogs


class RunView(Struct, frozen=True, kw_only=True):
    snapshot: RunSnapshot
    worker_alive: bool | None = None
    worker_heartbeat_at: float | None = None
    worker_tags: tuple[str, ...] | None = None
    waiting_for: WaitingFor | None = None


class ReadRun:
    def __init__(
        self,
        runs: RunStore,
        workers: FollowWorkers,
        disconnect_timeout: float,
        limits: LimitGate | None = None,
        pause_of: Callable[[str | None], Pause | None] = lambda _: None,
    ) -> None:
        """`pause_of`: the pause of a tag."""
        self._limits = limits
        self._pause_of = pause_of
        self._runs = runs
        self._workers = workers
        self._disconnect_timeout = disconnect_timeout

    async def __call__(self, run_id: str, caller: Caller) -> RunView:
        stored = await self._runs.get(run_id) if is_run_id(run_id) else None
        if stored is None or not may_see(caller, stored.value):
            raise RunNotFound
        run = stored.value
        if run.status is RunStatus.PENDING:
            return RunView(snapshot=run, waiting_for=self._waiting_for(run))
        worker = self._worker_of(run)
        if worker is None:
            return RunView(snapshot=run)
        state = observed_state(worker, self._workers.silent_for(worker), self._disconnect_timeout)
        return RunView(
            snapshot=self._workers.refreshed(run),
            worker_alive=state in ALIVE,
            worker_heartbeat_at=worker.last_heartbeat_at,
            worker_tags=worker.tags,
        )

    def _waiting_for(self, run: RunSnapshot) -> WaitingFor | None:
        """A run waits for its limits before it comes to the queue of its tag."""
        found = None if self._limits is None else self._limits.waiting_for(run)
        return found or waiting_for(run.tag, self._pause_of(run.tag))

    def _worker_of(self, snapshot: RunSnapshot) -> WorkerRecord | None:
        """The worker's state matters only for a held run."""
        if snapshot.worker_id is None or snapshot.status not in HELD:
            return None
        return self._workers.records.get(snapshot.worker_id)


# Pages of runs, from the index.

_decode_summary = msgspec.json.Decoder(RunSummary).decode


class RunPage(Struct, frozen=True):
    items: list[bytes] | list[RunSnapshot]
    """Summaries as JSON, or full snapshots if requested."""
    next_cursor: str | None


class ListRuns:
    def __init__(
        self, runs: RunStore, index: RunIndex, own_writes: OwnWrites, workers: FollowWorkers
    ) -> None:
        self._runs = runs
        self._workers = workers
        self._index = index
        self._own_writes = own_writes

    async def __call__(self, wanted: RunFilter, cursor: str | None, limit: int, *, full: bool) -> RunPage:
        after = None if cursor is None else decode_cursor(cursor, wanted)
        await self._own_writes.are_visible()
        page = self._index.page(wanted, after, limit)
        next_cursor = None if page.more_after is None else encode_cursor(page.more_after, wanted)
        items = await self._details(page.places) if full else self._shown(page)
        return RunPage(items, next_cursor)

    def _shown(self, page: IndexedPage) -> list[bytes]:
        """Only a running run has to be decoded: its heartbeat may be that of its worker."""
        return [
            msgspec.json.encode(self._workers.refreshed(_decode_summary(data))) if status in HELD else data
            for data, status in zip(page.summaries, page.statuses, strict=True)
        ]

    async def _details(self, places: list[Place]) -> list[RunSnapshot]:
        """Skips runs removed meanwhile."""
        stored = await asyncio.gather(*(self._runs.get(place.run_id) for place in places))
        return [
            replace(self._workers.refreshed(entry.value), updated_at=place.updated_at)
            for entry, place in zip(stored, places, strict=True)
            if entry is not None
        ]


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
