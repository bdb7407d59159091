"""What decides when runs start, put together: the queues of tags, limits, and what is set for flows."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.flows import FollowFlows, ReadFlows, SetFlow
from pyoco_server.usecases.limits.admit import AdmissionMeter, AdmitRuns
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.definitions import LimitDefinitions
from pyoco_server.usecases.limits.follow import FollowLimits
from pyoco_server.usecases.limits.gate import Cancel, GateMeter, LimitGate
from pyoco_server.usecases.limits.manage import ManageLimits
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.queues import ChooseLane, FollowQueues, KeepQueues, ListQueues, PauseQueue
from pyoco_server.usecases.schedules.follow import FollowSchedules


class QueueLevel:
    """The queues of tags."""

    def __init__(
        self,
        backend: ServerBackend,
        workers: ListWorkers,
        own_writes: OwnWrites,
        trail: AuditTrail,
        *,
        by_tenant: bool,
    ) -> None:
        clock = backend.shared_clock
        self.follow = FollowQueues(backend.queue_feed)
        lanes = (backend.queues, self.follow, backend.lanes)
        self.choose_lane = ChooseLane(*lanes, workers, by_tenant=by_tenant)
        self.pause = PauseQueue(*lanes, clock, trail)
        self.list = ListQueues(backend.run_index, self.follow, workers, own_writes, clock)
        self._keep = KeepQueues(self.follow, backend.lanes, workers, clock)

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {"follow-queues": self.follow.run, "keep-queues": self._keep.run}


class FlowLevel:
    """Flows as workers, runs and schedules show them, and what is set for them."""

    def __init__(
        self,
        backend: ServerBackend,
        workers: ListWorkers,
        followed: FollowFlows,
        schedules: FollowSchedules,
        limits: LimitDefinitions,
        *,
        own_writes: OwnWrites,
        trail: AuditTrail,
    ) -> None:
        clock = backend.shared_clock
        self.read = ReadFlows(
            backend.run_index,
            workers,
            followed,
            schedules.by_flow,
            limits,
            own_writes=own_writes,
            clock=clock,
        )
        self.set = SetFlow(backend.flows, followed, self.read, backend.queue, clock, trail)


ADMIT_BEAT_SEC = 0.3
ADMIT_SILENT_SEC = 1.5
"""Lease timeout before another gateway admits runs. Short, because all of them wait meanwhile."""


class LimitMeter(AdmissionMeter, GateMeter, Protocol):
    pass


class LimitLevel:
    """Limits. They go by the clock of the store, because all gateways have to agree on rates."""

    def __init__(
        self,
        backend: ServerBackend,
        meter: LimitMeter,
        new_id: Callable[[], str],
        runs_known: Callable[[], Awaitable[None]],
        cancel: Cancel,
        trail: AuditTrail,
    ) -> None:
        clock = backend.shared_clock
        self.board = LimitBoard()
        for run in backend.run_index.limited():
            self.board.note(run)
        self.follow = FollowLimits(
            self.board,
            backend.limit_feed,
            backend.limit_holder_feed,
            backend.runs,
            runs_known,
            lambda: [run_id for run_id, _, _ in backend.run_index.unfinished()],
        )
        self.gate = LimitGate(self.board, self.follow, cancel, clock, meter)
        self.manage = ManageLimits(backend.limits, self.board, self.follow, clock, new_id, trail)
        self.admit = AdmitRuns(
            board=self.board,
            runs=backend.runs,
            queue=backend.queue,
            holders=backend.limit_holders,
            lease=Lease(
                backend.leases,
                "limits",
                new_id(),
                clock,
                lasts_sec=ADMIT_SILENT_SEC,
                beat_sec=ADMIT_BEAT_SEC,
            ),
            clock=clock,
            meter=meter,
            ready=self.follow.ready,
        )

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "follow-limits": self.follow.run_definitions,
            "follow-holders": self.follow.run_holders,
            "sort-waiting": self.follow.run_sorting,
            "admit-runs": self.admit.run,
        }
