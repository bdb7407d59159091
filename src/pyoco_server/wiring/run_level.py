"""The levels of runs and of executions, put together, and what a gateway is given for it."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.bulk import BATCH
from pyoco_server.domain.executions.events import Commit
from pyoco_server.domain.executions.model import possible_ids
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.sealing import Sealer
from pyoco_server.usecases.alerts.scan import SCAN_SEC
from pyoco_server.usecases.alerts.send import DeliveryMeter
from pyoco_server.usecases.api_keys import IssueApiKey, ManageApiKeys
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.bulk.carry_out import BulkMeter
from pyoco_server.usecases.concurrency import HeavyWork
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.coordination import Lease, Share
from pyoco_server.usecases.events.executions import ExecutionWaits, StartExecutions
from pyoco_server.usecases.events.start import PATIENCE_SEC
from pyoco_server.usecases.executions.by_hand import ExecutionsByHand
from pyoco_server.usecases.executions.commands import CommandExecution, CommandMeter, Writing
from pyoco_server.usecases.executions.create import CreateExecutions
from pyoco_server.usecases.executions.delete import DeleteExecution
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.node_runs import NodeRuns
from pyoco_server.usecases.executions.node_work import Children, NodeWork
from pyoco_server.usecases.executions.query import ExecutionHub, ReadExecutions
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.executions.stored_values import OpenValues
from pyoco_server.usecases.fleet import START_SEC, FollowWorkers, HideWorker, ListWorkers
from pyoco_server.usecases.flows import FollowFlows
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.ports.stores import Change, Clock
from pyoco_server.usecases.runs.cancel import CancelRun, ReassertCancels
from pyoco_server.usecases.runs.children import SubmitChildren
from pyoco_server.usecases.runs.diagnose import DiagnoseRun
from pyoco_server.usecases.runs.read import ListRuns, ReadLogs, ReadRun
from pyoco_server.usecases.runs.retry import FlowFiles, LinkRetries, RetryRun
from pyoco_server.usecases.runs.submit import RequireKnown, SubmitBatch, SubmitOnce, SubmitRun
from pyoco_server.usecases.runs.watch import WatchHub, WatchRun, WatchRuns
from pyoco_server.usecases.schedules.attend import TickMeter
from pyoco_server.usecases.secrets.manage import ManageSecrets, ManageVariables
from pyoco_server.usecases.secrets.resolve import ReadValues, RequireResolvable, ResolveTexts
from pyoco_server.usecases.services import orchestrator
from pyoco_server.usecases.services.follow import (
    EXPIRE_INTERVAL_SEC,
    CheckStorage,
    FollowExecutions,
    FollowRuns,
    RunMeter,
)
from pyoco_server.usecases.services.orchestrator import Orchestrate, OrchestratorMeter
from pyoco_server.usecases.services.shared_feed import SharedFeed
from pyoco_server.usecases.services.sweep import (
    CountDeadLetters,
    EndMaxDelivered,
    QueueNextTries,
    RunExpiry,
    SweepRuns,
)
from pyoco_server.usecases.stats.count import CountedEnds, StatsMeter
from pyoco_server.usecases.values import (
    ReadArtifact,
    ReadValue,
    StoreParams,
    StoreRequest,
    SweepValues,
    UseValues,
)
from pyoco_server.usecases.wheels import ManageWheels
from pyoco_server.wiring.backends import new_key_and_salt, new_run_id
from pyoco_server.wiring.flow_control import LimitLevel, LimitMeter, QueueLevel

Background = dict[str, Callable[[], Awaitable[None]]]
"""What goes on beside the requests, by name."""
LookAtRuns = Callable[[Sequence[Change[RunSnapshot]]], None]

SWEEP_BEAT_SEC = 10.0
SWEEP_SILENT_SEC = 40.0
"""Lease timeout before another gateway sweeps."""
ORCHESTRATOR_BEAT_SEC = 1.5
ORCHESTRATOR_SILENT_SEC = 5.0
"""Silence of a gateway before the others orchestrate its part."""


class Meter(
    RunMeter,
    CommandMeter,
    OrchestratorMeter,
    TickMeter,
    LimitMeter,
    BulkMeter,
    StatsMeter,
    DeliveryMeter,
    Protocol,
):
    pass


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Timeouts and intervals that no setting names."""

    connect_timeout_sec: float = 5.0
    """How long a start waits for NATS; after that the gateway answers 503 until NATS is there."""
    body_timeout_sec: float = 30.0
    """For a whole body of JSON: whoever sends a byte a second only wants our connections."""
    expire_interval_sec: float = EXPIRE_INTERVAL_SEC
    first_worker_sec: float = START_SEC
    orchestrator_retry_sec: float = orchestrator.RETRY_SEC
    event_repeat_sec: float = PATIENCE_SEC
    bulk_batch: int = BATCH
    alert_scan_sec: float = SCAN_SEC


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a gateway is given beside its backend."""

    config: NatsBackendConfig
    meter: Meter
    clock: Clock = time.time
    monotonic: Clock = time.monotonic
    new_id: Callable[[], str] = new_run_id
    tuning: Tuning = field(default_factory=Tuning)


class RunLevel:
    """Runs, and the workers and wheels that they need."""

    def __init__(self, backend: ServerBackend, setup: Setup, watchers: WatchHub) -> None:
        self.index = backend.run_index
        self._looks: list[LookAtRuns] = []
        self._add_followers(backend, setup, watchers)
        self.own_writes = own_writes = OwnWrites(self.follow)
        self._add_submits(backend, setup, own_writes)
        self._add_reads(backend, setup, own_writes, watchers)
        self._add_changes(backend, setup, own_writes)
        self._add_sweeps(backend, setup)

    def _add_followers(self, backend: ServerBackend, setup: Setup, watchers: WatchHub) -> None:
        self.trail = AuditTrail(backend.change_log, backend.shared_clock, setup.new_id)
        self.limits = LimitLevel(
            backend, setup.meter, setup.new_id, self._runs_known, self._cancel_for_limit, self.trail
        )
        self._looks.append(self.limits.board.look)
        self.reassert_cancels = self._reassert_cancels(backend, setup)
        # When the store forgets is a time of the store, not of this host.
        self.feed = SharedFeed(backend.run_feed)
        self.follow = FollowRuns(
            self.feed,
            backend.run_index,
            watchers,
            backend.shared_clock,
            setup.meter,
            self._look,
            forget=self.limits.board.forget_runs,
            expire_interval_sec=setup.tuning.expire_interval_sec,
        )
        self.follow_workers = FollowWorkers(backend.worker_feed, setup.clock, backend.shared_clock)
        self.follow_flows = FollowFlows(backend.flow_feed, backend.flows)
        self.list_workers = ListWorkers(
            self.follow_workers,
            backend.run_index,
            setup.config.worker_disconnect_timeout_sec,
            setup.monotonic,
            setup.tuning.first_worker_sec,
        )

    def _add_submits(self, backend: ServerBackend, setup: Setup, own_writes: OwnWrites) -> None:
        clock, new_id = setup.clock, setup.new_id
        self.expiry = RunExpiry(backend.timers, backend.runs, clock)
        self.flow_files = FlowFiles(backend.flow_files, backend.run_index, clock)
        by_tenant = setup.config.http_auth_mode != "none"
        self.seal = seal = Sealer(setup.config.secrets_keys)
        values = ReadValues(backend, seal)
        self.resolve_texts = ResolveTexts(values)
        self.secrets = ManageSecrets(backend.secrets, seal, backend.shared_clock, self.trail)
        self.variables = ManageVariables(backend.variables, backend.shared_clock, self.trail)
        self.queues = QueueLevel(backend, self.list_workers, own_writes, self.trail, by_tenant=by_tenant)
        self.submit = SubmitRun(
            backend.runs,
            backend.queue,
            clock,
            new_id,
            own_writes.wrote,
            setup.config.runs_retention_sec,
            expire_at=self.expiry.set,
            keep_file=self.flow_files.keep,
            check_request=RequireKnown(self.list_workers) if setup.config.strict_flows else lambda _: None,
            complete=self.follow_flows.complete,
            choose_lane=self.queues.choose_lane,
            limits=self.limits.gate,
            require_resolvable=RequireResolvable(values, self.list_workers),
            keep_values=UseValues(backend.values).of_job,
        )
        self.submit_once = SubmitOnce(backend.claims, self.submit, clock, new_id)
        self.submit_batch = SubmitBatch(self.submit)
        self.children = SubmitChildren(backend.child_runs, backend.runs, self.submit)

    def _add_reads(
        self, backend: ServerBackend, setup: Setup, own_writes: OwnWrites, watchers: WatchHub
    ) -> None:
        silent_sec = setup.config.worker_disconnect_timeout_sec
        self.read = ReadRun(
            backend.runs, self.follow_workers, silent_sec, self.limits.gate, self.queues.list.pause_of
        )
        self.read_logs = ReadLogs(self.read, backend.task_logs)
        self.diagnose = DiagnoseRun(
            self.read,
            self.read_logs,
            backend.run_index,
            self.list_workers,
            self.queues.list,
            backend.shared_clock,
        )
        self.list = ListRuns(backend.runs, backend.run_index, own_writes, self.follow_workers)
        self.watch = WatchRun(backend.runs, backend.task_logs, watchers, setup.clock, self.follow_workers)
        self.watch_list = WatchRuns(backend.run_index, watchers, self.follow_workers)

    def _add_changes(self, backend: ServerBackend, setup: Setup, own_writes: OwnWrites) -> None:
        clock = setup.clock
        self.cancel = CancelRun(
            backend.runs, backend.queue, own_writes, self.reassert_cancels, clock, self.trail
        )
        self.counted = CountedEnds(backend.count_positions)
        self.link_retries = LinkRetries(backend.runs, clock, self.counted)
        self._looks.append(self.link_retries.look)
        self.retry = RetryRun(
            backend.runs,
            self.submit,
            self.submit_once,
            self.flow_files,
            self.list_workers,
            self.link_retries,
            trail=self.trail,
        )
        self.wheels = ManageWheels(backend.wheels, backend.wheel_history, clock, setup.new_id, self.trail)
        self.hide_worker = HideWorker(backend.workers, self.follow_workers, clock, self.trail)
        self.api_keys = ManageApiKeys(
            backend.api_keys,
            backend.shared_clock,
            IssueApiKey(backend.api_keys, backend.shared_clock, setup.config.auth_pepper),
            self.trail,
            new_key_and_salt,
        )

    def _add_sweeps(self, backend: ServerBackend, setup: Setup) -> None:
        """What ends, repeats and counts runs, whoever started them."""
        runs, queue, clock, holder = backend.runs, backend.queue, setup.clock, setup.new_id()
        self.count_dead_letters = CountDeadLetters(backend.dead_letters)
        self.check_storage = CheckStorage(backend.storage)
        self._end_undeliverable = EndMaxDelivered(
            backend.undeliverable, runs, queue, backend.dead_letters, clock
        )
        self.read_value = ReadValue(backend.values)
        self.store_request = StoreRequest(backend.values, self.list_workers.lacking, setup.new_id)
        self.read_artifact = ReadArtifact(runs, backend.values)
        self.sweep_values = SweepValues(
            backend.values, backend.run_index, backend.execution_index, setup.config.values_sweep_sec
        )
        self._next_tries = QueueNextTries(runs, queue, backend.undeliverable)
        self._looks.append(self._next_tries.look)
        self.sweep = SweepRuns(runs, backend.run_index, queue, self._end_undeliverable, clock)
        self.sweep_lease = Lease(
            backend.leases, "sweep", holder, clock, lasts_sec=SWEEP_SILENT_SEC, beat_sec=SWEEP_BEAT_SEC
        )

    def _reassert_cancels(self, backend: ServerBackend, setup: Setup) -> ReassertCancels:
        reassert = ReassertCancels(backend.runs, setup.clock, setup.config.cancel_grace_period_sec)
        reassert.began_with(run_id for run_id, _, _ in backend.run_index.unfinished(RunStatus.CANCELLING))
        self._looks.append(reassert.look)
        return reassert

    async def _runs_known(self) -> None:
        await self.follow.caught_up()

    async def _cancel_for_limit(self, run_id: str, requested_by: str, reason: str) -> None:
        await self.cancel.of_system(run_id, requested_by, reason)

    def on_changes(self, look: LookAtRuns) -> None:
        """`look` gets every change of a run, before it is in the index."""
        self._looks.append(look)

    def _look(self, changes: Sequence[Change[RunSnapshot]]) -> None:
        for look in self._looks:
            look(changes)

    @property
    def is_caught_up(self) -> bool:
        pictures = (
            self.follow,
            self.follow_workers,
            self.follow_flows,
            self.queues.follow,
            self.limits.follow,
        )
        return all(one.is_caught_up for one in pictures)

    @property
    def stale_sec(self) -> float:
        return max(self.follow.stale_sec, self.follow_workers.stale_sec)

    def background(self) -> Background:
        return {
            "follow-runs": self.follow.run,
            "check-storage": self.check_storage.run,
            "keep-cancels": self.reassert_cancels.run,
            "expire-runs": self.follow.keep_expiring,
            "sweep-runs": partial(self.sweep_lease.run, self.sweep.run),
            "queue-next-tries": self._next_tries.run,
            "end-undeliverable": self._end_undeliverable.run,
            "expire-waiting": self.expiry.run,
            "link-retries": self.link_retries.run,
            "collect-flow-files": partial(self.flow_files.run, lambda: self.is_caught_up),
            "serve-children": self.children.run,
            "follow-workers": self.follow_workers.run,
            "follow-flows": self.follow_flows.run,
            **self.queues.background(),
            **self.limits.background(),
        }


class ExecutionLevel:
    """Executions, and the graphs that they follow."""

    def __init__(self, backend: ServerBackend, setup: Setup, runs: RunLevel, watchers: ExecutionHub) -> None:
        log, clock = backend.execution_log, backend.shared_clock
        self.index = backend.execution_index
        self.graphs = ManageGraphs(backend.graphs, setup.clock, runs.trail)
        heavy_work = HeavyWork()
        records = ExecutionRepository(log, backend.execution_cache, self.index)
        self._runs = runs
        open_values, use_values = OpenValues(backend.values), UseValues(backend.values)
        writing = Writing(records, log, self.graphs, clock, setup.new_id, self._nudge, setup.meter)
        self.create = CreateExecutions(writing, backend.claims, use_values)
        self.delete = DeleteExecution(records, self.index, clock, runs.trail)
        self.command = CommandExecution(writing)
        self.orchestrate = self._orchestrate(backend, setup, runs, records, heavy_work, open_values)
        self.by_hand = ExecutionsByHand(self.command, self.create, runs.trail)
        self.read = ReadExecutions(
            records, log, self.index, watchers, self.graphs, heavy_work=heavy_work, open_values=open_values
        )
        self._follow = FollowExecutions(
            backend.execution_feed, self.index, records, self.orchestrate, watchers
        )
        self.waits = ExecutionWaits(self.index, records, self.command, self._follow)
        self.start = StartExecutions(self.graphs, self.create, self.read)

    def _orchestrate(
        self,
        backend: ServerBackend,
        setup: Setup,
        runs: RunLevel,
        records: ExecutionRepository,
        heavy_work: HeavyWork,
        open_values: OpenValues,
    ) -> Orchestrate:
        config, clock, new_id = setup.config, backend.shared_clock, setup.new_id
        orchestrate = Orchestrate(
            records=records,
            index=self.index,
            graphs=self.graphs,
            node_work=NodeWork(
                NodeRuns(
                    backend.runs,
                    backend.queue,
                    runs.submit,
                    runs.cancel,
                    clock,
                    config.default_tag,
                    store_params=StoreParams(backend.values),
                    lacking=runs.list_workers.known_to_lack,
                ),
                Children(records, self.index, self.create, self.command),
                UseValues(backend.values),
            ),
            open_values=open_values,
            share=Share(
                backend.rosters,
                "orchestrators",
                new_id(),
                lasts_sec=ORCHESTRATOR_SILENT_SEC,
                beat_sec=ORCHESTRATOR_BEAT_SEC,
            ),
            clock=clock,
            new_id=new_id,
            grace_sec=config.cancel_grace_period_sec,
            meter=setup.meter,
            heavy_work=heavy_work,
            retry_sec=setup.tuning.orchestrator_retry_sec,
        )
        runs.on_changes(orchestrate.look)
        return orchestrate

    def _nudge(self, commit: Commit) -> None:
        """The orchestrator itself creates and cancels executions."""
        self.orchestrate.nudge(commit)

    def needs(self, run: RunSnapshot) -> bool:
        """Whether it is the run of a node whose execution has not ended."""
        ids = () if run.execution_id is None else possible_ids(run.tenant_id, run.execution_id)
        return any(self.index.version(one) and not self.index.has_ended(one) for one in ids)

    @property
    def is_caught_up(self) -> bool:
        return self._follow.is_caught_up

    @property
    def progress(self) -> tuple[int, int] | None:
        """Executions read and to be read; None if all are read."""
        return self._follow.progress

    @property
    def stale_sec(self) -> float:
        return self._follow.stale_sec

    def on_commits(self, look: Callable[[LoggedCommit], None]) -> None:
        """`look` gets every commit of an execution."""
        self._follow.on_commits(look)

    def background(self) -> Background:
        return {
            "follow-executions": self._follow.run,
            "orchestrate": self._follow.orchestrate,
            "sweep-values": partial(self._runs.sweep_values.run, self._are_users_known),
        }

    def _are_users_known(self) -> bool:
        """Of stored values."""
        return self._runs.is_caught_up and self.is_caught_up
