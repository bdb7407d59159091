"""What operators do with many runs, put together: dead letters, deletes, bulk, retention, statistics."""

import asyncio
from collections.abc import Callable
from functools import partial

from pyoco_server.usecases.bulk.carry_out import BEAT_SEC, LASTS_SEC, ActOnItems, CarryOutBulk
from pyoco_server.usecases.bulk.read import CancelBulk, FollowBulk, ReadBulk
from pyoco_server.usecases.bulk.start import BulkItems, StartBulk
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.dead_letters import DiscardDeadLetter, ReadDeadLetters, RedriveDeadLetter
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.fleet import DeleteWorker
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.runs.delete import DeleteRun
from pyoco_server.usecases.services.retention import (
    EXECUTIONS_AT_ONCE,
    RUNS_AT_ONCE,
    ExpireRun,
    Retention,
)
from pyoco_server.usecases.services.shared_feed import JoinedFeed
from pyoco_server.usecases.stats.count import (
    BEAT_SEC as COUNT_BEAT_SEC,
    LASTS_SEC as COUNT_SILENT_SEC,
    CountedEnds,
    CountEnds,
    ends_in,
)
from pyoco_server.usecases.stats.read import ReadStats
from pyoco_server.wiring.run_level import (
    SWEEP_BEAT_SEC,
    SWEEP_SILENT_SEC,
    Background,
    ExecutionLevel,
    RunLevel,
    Setup,
)


class OperationLevel:
    """Dead letters, deletes, bulk operations and statistics."""

    def __init__(
        self,
        backend: ServerBackend,
        setup: Setup,
        runs: RunLevel,
        executions: ExecutionLevel,
        watchers: ExecutionHub,
    ) -> None:
        letters, marks = backend.dead_letters, backend.letter_marks
        self.dead_letters = ReadDeadLetters(letters, marks, backend.run_index)
        self.redrive = RedriveDeadLetter(self.dead_letters, marks, backend.runs, runs.retry, runs.trail)
        self.discard = DiscardDeadLetter(self.dead_letters, letters, runs.trail)
        self.delete_run = DeleteRun(
            runs=backend.runs,
            index=backend.run_index,
            queue=backend.queue,
            jobs=backend.undeliverable,
            logs=backend.task_logs,
            is_needed=executions.needs,
            counted=runs.counted,
            trail=runs.trail,
        )
        self.delete_worker = DeleteWorker(backend.workers, runs.list_workers, runs.trail)
        self._add_bulk(backend, setup, runs, watchers)
        self._runs_known = runs.follow.caught_up
        self._add_retention(backend, setup, executions, runs.counted)
        self._add_stats(backend, setup, runs)

    def _add_bulk(self, backend: ServerBackend, setup: Setup, runs: RunLevel, watchers: ExecutionHub) -> None:
        operations, chunks, clock = backend.bulk_operations, backend.bulk_chunks, backend.shared_clock
        self._follow_bulk = FollowBulk(backend.bulk_feed, watchers)
        self.bulk_items = BulkItems(backend.runs, backend.run_index, self.dead_letters, runs.own_writes)
        self.start_bulk = StartBulk(
            items=self.bulk_items,
            operations=operations,
            chunks=chunks,
            followed=self._follow_bulk,
            clock=clock,
            new_id=setup.new_id,
            trail=runs.trail,
        )
        self.bulk = ReadBulk(operations, self._follow_bulk, watchers)
        self.cancel_bulk = CancelBulk(self.bulk, operations, clock, runs.trail)
        holder = setup.new_id()
        act = ActOnItems(backend.runs, runs.cancel, runs.retry, self.delete_run, self.redrive)
        self.carry_out_bulk = CarryOutBulk(
            operations=operations,
            chunks=chunks,
            followed=self._follow_bulk,
            act=act,
            lease_of=bulk_leases(backend, holder),
            holder=holder,
            clock=clock,
            trail=runs.trail,
            meter=setup.meter,
            at_once=setup.tuning.bulk_batch,
        )

    def _add_stats(self, backend: ServerBackend, setup: Setup, runs: RunLevel) -> None:
        self.stats = ReadStats(backend.stats_records, backend.shared_clock)
        self.count_ends = CountEnds(
            feed=JoinedFeed(runs.feed, backend.run_end_feed, ends_in),
            records=backend.stats_records,
            positions=backend.count_positions,
            clock=backend.shared_clock,
            meter=setup.meter,
        )
        self._stats_lease = Lease(
            backend.leases,
            "stats",
            setup.new_id(),
            backend.shared_clock,
            lasts_sec=COUNT_SILENT_SEC,
            beat_sec=COUNT_BEAT_SEC,
        )

    def _add_retention(
        self, backend: ServerBackend, setup: Setup, executions: ExecutionLevel, counted: CountedEnds
    ) -> None:
        clock, config, index = backend.shared_clock, setup.config, backend.run_index
        self.retain_runs = Retention(
            ended_before=index.ended_before,
            remove=ExpireRun(backend.runs, index, counted),
            keep_sec=config.runs_retention_sec,
            at_once=RUNS_AT_ONCE,
            clock=clock,
            what="runs",
        )
        self.retain_executions = Retention(
            ended_before=executions.index.ended_before,
            remove=executions.delete.expire,
            keep_sec=config.executions_retention_sec,
            at_once=EXECUTIONS_AT_ONCE,
            clock=clock,
            what="executions",
        )
        self._retention_lease = Lease(
            backend.leases,
            "retention",
            setup.new_id(),
            clock,
            lasts_sec=SWEEP_SILENT_SEC,
            beat_sec=SWEEP_BEAT_SEC,
        )

    async def _retain(self) -> None:
        """Not on a part of the index: the next turn would be a minute later."""
        await self._runs_known()
        await asyncio.gather(self.retain_runs.run(), self.retain_executions.run())

    def background(self) -> Background:
        return {
            "follow-bulk": self._follow_bulk.run,
            "carry-out-bulk": self.carry_out_bulk.run,
            "count-ends": partial(self._stats_lease.run, self.count_ends.run),
            "retention": partial(self._retention_lease.run, self._retain),
        }


def bulk_leases(backend: ServerBackend, holder: str) -> Callable[[str], Lease]:
    def lease_of(operation_id: str) -> Lease:
        name, clock = f"bulk-{operation_id}", backend.shared_clock
        return Lease(backend.leases, name, holder, clock, lasts_sec=LASTS_SEC, beat_sec=BEAT_SEC)

    return lease_of
