"""A gateway, put together: one value with the three levels, from what it is given."""

from dataclasses import dataclass
from functools import partial

from pyoco_server.engine.flow_yaml import check_flow_yaml
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.events.transfer import Imported
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.runs.watch import WatchHub
from pyoco_server.usecases.schedules.start import StartScheduled
from pyoco_server.wiring.alert_level import AlertLevel
from pyoco_server.wiring.event_level import EventLevel, EventUseCases, ScheduleLevel, default_timezone
from pyoco_server.wiring.flow_control import FlowLevel
from pyoco_server.wiring.operation_level import OperationLevel
from pyoco_server.wiring.run_level import Background, ExecutionLevel, RunLevel, Setup, Tuning

__all__ = ["Levels", "Setup", "Tuning"]


@dataclass(frozen=True)
class _Connected:
    """What there is once NATS is there."""

    backend: ServerBackend
    runs: RunLevel
    executions: ExecutionLevel
    schedules: ScheduleLevel
    flows: FlowLevel
    operations: OperationLevel
    alerts: AlertLevel


class Levels:
    """Everything a gateway can do, by level.

    Before `connect` only `events.receive` works, to refuse events on record, and what asks nobody; the rest
    raises NatsUnavailable.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._connected: _Connected | None = None
        self._run_watchers = WatchHub(setup.config.max_watchers)
        self._execution_watchers = ExecutionHub(setup.config.max_watchers)
        self._bulk_watchers = ExecutionHub(setup.config.max_watchers)
        self.clock = setup.clock
        self.monotonic = setup.monotonic
        self.timezone = default_timezone(setup.config.timezone)
        self.check_flow_yaml = partial(
            check_flow_yaml,
            max_bytes=setup.config.workflow_yaml_max_bytes,
            allowed_env=setup.config.allowed_env,
        )
        self.events = EventLevel(setup.config, setup.clock, setup.new_id)

    @property
    def runs(self) -> RunLevel:
        return self._now_connected.runs

    @property
    def executions(self) -> ExecutionLevel:
        return self._now_connected.executions

    @property
    def schedules(self) -> ScheduleLevel:
        return self._now_connected.schedules

    @property
    def flows(self) -> FlowLevel:
        return self._now_connected.flows

    @property
    def operations(self) -> OperationLevel:
        return self._now_connected.operations

    @property
    def alerts(self) -> AlertLevel:
        return self._now_connected.alerts

    @property
    def _now_connected(self) -> _Connected:
        if self._connected is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._connected

    async def connect(self, backend: ServerBackend) -> list[Imported]:
        """Again for every new connection. Returns what was imported of an earlier workflow server."""
        runs = RunLevel(backend, self._setup, self._run_watchers)
        executions = ExecutionLevel(backend, self._setup, runs, self._execution_watchers)
        events = EventUseCases(
            backend=backend,
            config=self._setup.config,
            level=self.events,
            submit_run=runs.submit,
            executions=executions.start,
            waits=executions.waits,
            clock=backend.shared_clock,
            new_id=self._setup.new_id,
            trail=runs.trail,
            monotonic=self._setup.monotonic,
            repeat_patience_sec=self._setup.tuning.event_repeat_sec,
        )
        schedules = self._schedules(backend, runs, executions, events)
        flows = FlowLevel(
            backend,
            runs.list_workers,
            runs.follow_flows,
            schedules.follow,
            runs.limits.board.definitions,
            own_writes=runs.own_writes,
            trail=runs.trail,
        )
        operations = OperationLevel(backend, self._setup, runs, executions, self._bulk_watchers)
        alerts = AlertLevel(backend, self._setup, runs, executions)
        self._connected = _Connected(backend, runs, executions, schedules, flows, operations, alerts)
        imported = await events.import_files()
        self.events.connect(events)  # no event is received before: its key may be among what is imported
        return imported

    def _schedules(
        self, backend: ServerBackend, runs: RunLevel, executions: ExecutionLevel, events: EventUseCases
    ) -> ScheduleLevel:
        work = StartScheduled(
            runs=backend.runs,
            submit_run=runs.submit,
            cancel_run=runs.cancel,
            graphs=executions.graphs,
            start_execution=executions.start,
            command_execution=executions.command,
            read_executions=executions.read,
            templates=events.templates,
            start_template=events.start_template,
            default_tag=self._setup.config.default_tag,
        )
        setup = self._setup
        level = ScheduleLevel(backend, setup.config, work, setup.meter, setup.new_id, runs.trail)
        runs.on_changes(level.fire.look)
        executions.on_commits(level.fire.look_at_commit)
        return level

    @property
    def is_connected(self) -> bool:
        return self._connected is not None and self._connected.backend.is_available

    @property
    def is_storing(self) -> bool:
        """Whether what was written last was stored."""
        return self._connected is not None and self._connected.runs.check_storage.is_ok is True

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was stored when the reading began has been read."""
        found = self._connected
        if found is None:
            return False
        return all(one.is_caught_up for one in (found.runs, found.executions, found.schedules.follow))

    @property
    def progress(self) -> dict[str, tuple[int, int]]:
        """Runs and executions read since the start, and to be read. Without those that are all read."""
        found = self._connected
        if found is None:
            return {}
        parts = {"runs": found.runs.follow.progress, "executions": found.executions.progress}
        return {what: figures for what, figures in parts.items() if figures is not None}

    @property
    def stale_sec(self) -> float:
        """Seconds since the picture of all runs and executions was up to date; 0: it is."""
        found = self._connected
        return 0.0 if found is None else max(found.runs.stale_sec, found.executions.stale_sec)

    def background(self) -> Background:
        connected = self._now_connected
        return {
            **connected.runs.background(),
            "keep-time": connected.backend.shared_clock.run,
            "collect-chunks": connected.runs.wheels.keep_collecting,
            **connected.executions.background(),
            **connected.schedules.background(),
            **connected.operations.background(),
            **connected.alerts.background(),
            **self.events.background(),
        }

    @property
    def watchers(self) -> int:
        return self._run_watchers.count + self._execution_watchers.count + self._bulk_watchers.count

    def close_watchers(self) -> None:
        self._run_watchers.close()
        self._execution_watchers.close()
        self._bulk_watchers.close()
