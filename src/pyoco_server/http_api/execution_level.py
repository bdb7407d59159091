"""The executions level of a gateway: its use cases, put together."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pyoco_server.config import NatsBackendConfig
from pyoco_server.usecases.concurrency import HeavyWork
from pyoco_server.usecases.events.executions import ExecutionWaits
from pyoco_server.usecases.executions.commands import CommandExecution, CommandMeter
from pyoco_server.usecases.executions.create import CreateExecutions
from pyoco_server.usecases.executions.node_runs import NodeRuns
from pyoco_server.usecases.executions.query import ExecutionHub, ReadExecutions
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.lease import Lease
from pyoco_server.usecases.ports.executions import Graphs
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.runs.cancel import CancelRun
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.server_backend import ServerBackend
from pyoco_server.usecases.services.follow_executions import FollowExecutions
from pyoco_server.usecases.services.orchestrator import Orchestrate, OrchestratorMeter

ORCHESTRATOR_SILENT_SEC = 5.0
"""So long without a word of the gateway that orchestrates, and another takes over."""


class ExecutionMeter(CommandMeter, OrchestratorMeter, Protocol):
    pass


class ExecutionLevel:
    def __init__(  # noqa: PLR0913 - one argument per part it is put together from
        self,
        *,
        backend: ServerBackend,
        config: NatsBackendConfig,
        graphs: Graphs,
        submit_run: SubmitRun,
        cancel_run: CancelRun,
        clock: Clock,
        new_id: Callable[[], str],
        hub: ExecutionHub,
        meter: ExecutionMeter,
    ) -> None:
        log = backend.execution_log
        self.index = backend.execution_index
        heavy_work = HeavyWork()
        records = ExecutionRepository(log, backend.execution_cache, self.index)
        self.orchestrate = Orchestrate(
            records=records,
            index=self.index,
            graphs=graphs,
            node_runs=NodeRuns(
                backend.runs, backend.queue, submit_run, cancel_run, clock, config.default_tag
            ),
            lease=Lease(backend.leases, "orchestrator", new_id(), clock, lasts_sec=ORCHESTRATOR_SILENT_SEC),
            clock=clock,
            new_id=new_id,
            grace_sec=config.cancel_grace_period_sec,
            meter=meter,
            heavy_work=heavy_work,
        )
        nudge = self.orchestrate.nudge
        self.create = CreateExecutions(
            records=records,
            execution_log=log,
            graphs=graphs,
            claims=backend.claims,
            clock=clock,
            new_id=new_id,
            nudge=nudge,
            meter=meter,
        )
        self.command = CommandExecution(
            records=records,
            execution_log=log,
            graphs=graphs,
            clock=clock,
            new_id=new_id,
            nudge=nudge,
            meter=meter,
        )
        self.read = ReadExecutions(records, log, self.index, hub, graphs, heavy_work)
        self._follow = FollowExecutions(backend.execution_feed, self.index, records, self.orchestrate, hub)
        self.waits = ExecutionWaits(self.index, records, self.command, self._follow)

    @property
    def is_caught_up(self) -> bool:
        return self._follow.is_caught_up

    @property
    def stale_sec(self) -> float:
        return self._follow.stale_sec

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "follow-executions": self._follow.run,
            "orchestrate": self._follow.orchestrate,
        }
