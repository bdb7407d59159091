"""One flow in pyoco's engine, with its progress told as it happens."""

import threading
from collections.abc import Callable
from operator import is_
from typing import Any

from pyoco.core.engine import Engine
from pyoco.core.models import Flow, RunContext
from pyoco.core.models import RunStatus as EngineStatus
from pyoco.core.models import TaskState as EngineTaskState
from pyoco.trace.backend import TraceBackend

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress, Raised
from pyoco_server.domain.runs import TaskRecord, TaskState, replace
from pyoco_server.engine.artifacts import ServerRunContext
from pyoco_server.engine.awaiting import RunLoop, close_never_awaited, entered_loop, is_never_awaited
from pyoco_server.engine.chain import without_thread_pool
from pyoco_server.engine.flow_shape import dependencies_of
from pyoco_server.engine.forked_tasks import end_forks_with_their_task
from pyoco_server.engine.raised import raised
from pyoco_server.engine.signatures import prepare_tasks
from pyoco_server.engine.values import (
    MAX_VALUE_BYTES,
    BadOutput,
    RecordBudget,
    Result,
    capped_text,
    described,
    result_of,
)
from pyoco_server.errors import ExecutionFailed

OnProgress = Callable[[FlowProgress], None]
OnTask = Callable[[str | None], None]
"""Told which task the calling thread is in from now on; None: in none."""


class FlowRun:
    """Runs once, in the calling thread; `cancel` and `go_live` may be called from any other."""

    def __init__(
        self,
        flow: Flow,
        run_id: str,
        params: dict[str, Any],
        on_progress: OnProgress,
        on_task: OnTask = lambda _: None,
        *,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self._flow = flow
        self._params = params
        self._max_value_bytes = max_value_bytes
        self._context = ServerRunContext(run_id=run_id)
        self._loop = RunLoop()
        records = _Records(self._context, RecordBudget(max_value_bytes))
        self._trace = _Trace(flow, self._context, records, self._loop, on_progress, on_task)
        self._engine = Engine(trace_backend=self._trace)

    def run(self) -> FlowOutcome:
        try:
            prepare_tasks(self._flow)
            end_forks_with_their_task(self._flow)
        except ExecutionFailed as error:
            return self._failed(error.detail, raised(error))
        try:
            with self._loop:
                context = self._engine.run(
                    without_thread_pool(self._flow), self._params, run_context=self._context
                )
        except BaseException as error:  # noqa: BLE001 - whatever a task raises ends its run, SystemExit too
            return self._failed(described(error), raised(error))
        if self._context.status is EngineStatus.CANCELLED:
            return FlowOutcome(ending=Ending.CANCELLED, progress=self._trace.complete())
        try:
            result = self._result(context.results)
        except BadOutput as error:
            self._trace.refused(error.task, error.problem)
            outcome = self._failed(error.problem)
            close_never_awaited(context.results.values())
            return outcome
        return FlowOutcome(
            ending=Ending.COMPLETED,
            progress=self._trace.complete(),
            result=result.value,
            result_truncated=result.is_truncated,
            warnings=result.warnings,
        )

    def _failed(self, error: str, exception: Raised | None = None) -> FlowOutcome:
        return FlowOutcome(
            ending=Ending.EXECUTION_ERROR, progress=self._trace.complete(), error=error, raised=exception
        )

    def _result(self, results: dict[str, Any]) -> Result:
        """The outputs of the flow's last tasks, by name. Raises BadOutput."""
        last = _last_tasks(self._flow, self._context)
        for name in [name for name, value in results.items() if is_never_awaited(value)]:
            # Whoever it was meant for, nobody did what it stands for.
            last = {name}
        return result_of({name: results.get(name) for name in sorted(last)}, self._max_value_bytes)

    def cancel(self) -> None:
        """Ask the engine to stop at the next task; tasks can look at `ctx.is_cancelled` before that."""
        self._engine.cancel(self._context.run_id)
        if self._context.status in (EngineStatus.RUNNING, EngineStatus.FAILED):
            # The engine has not registered the run yet (or any more): mark it, so that no task starts. One
            # that has failed waits for the tasks that still run: they can see that they are to stop.
            self._context.status = EngineStatus.CANCELLING

    def go_live(self) -> None:
        """Tell the progress now, and from now on every step. Most runs are over before anybody asks."""
        self._trace.go_live()


class _Trace(TraceBackend):  # type: ignore[misc]  # pyoco ships no types
    """Turns the engine's callbacks into progress, once somebody wants it.

    The engine calls back *before* it sets a task's new state, so the state comes from the callback. Only the
    task that changed is converted again.
    """

    def __init__(
        self,
        flow: Flow,
        context: RunContext,
        records: "_Records",
        loop: RunLoop,
        on_progress: OnProgress,
        on_task: OnTask,
    ) -> None:
        self._flow = flow
        self._context = context
        self._read = records
        self._loop = loop
        self._on_progress = on_progress
        self._on_task = on_task
        self._lock = threading.Lock()
        self._is_live = False
        self._tasks: dict[str, TaskState] = {}
        self._records: dict[str, TaskRecord] = {}
        self._dependencies: dict[str, tuple[str, ...]] | None = None

    def go_live(self) -> None:
        with self._lock:
            self._is_live = True
            self._on_progress(self._read_all())

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None:  # noqa: ARG002
        if self._is_live:
            self.go_live()

    def on_flow_end(self, flow_name: str) -> None:
        pass

    def on_node_start(self, node_name: str) -> None:
        entered_loop(self._loop)
        self._on_task(node_name)
        self._changed(node_name, TaskState.RUNNING)

    def on_node_end(self, node_name: str, duration_ms: float) -> None:
        self._on_task(None)
        self._changed(node_name, TaskState.SUCCEEDED, duration_ms)

    def on_node_error(self, node_name: str, error: Exception) -> None:  # noqa: ARG002
        self._on_task(None)
        self._changed(node_name, TaskState.FAILED)

    def refused(self, name: str, problem: str) -> None:
        """The task returned, but what it returned cannot be kept."""
        self._context.tasks[name] = EngineTaskState.FAILED
        record = self._context.ensure_task_record(name)
        record.state, record.error = EngineTaskState.FAILED, problem

    def complete(self) -> FlowProgress:
        """The state of all tasks, read again."""
        with self._lock:
            return self._read_all()

    def _read_all(self) -> FlowProgress:
        for name, state in self._context.tasks.copy().items():
            self._tasks[name] = TaskState(state.value)
            self._records[name] = self._read(name)
        return self._progress()

    def _changed(self, name: str, state: TaskState, duration_ms: float | None = None) -> None:
        if not self._is_live:
            return
        with self._lock:
            record = replace(self._read(name), state=state)
            if duration_ms is not None and record.started_at is not None:
                ended_at = record.started_at + duration_ms / 1000
                record = replace(record, ended_at=ended_at, duration_ms=duration_ms)
            self._tasks[name] = state
            self._records[name] = record
            self._on_progress(self._progress())

    def _progress(self) -> FlowProgress:
        if self._dependencies is None:
            self._dependencies = dependencies_of(self._flow)
        return FlowProgress(
            self._tasks.copy(),
            self._records.copy(),
            self._dependencies,
            task_records_truncated=self._read.is_truncated,
        )


class _Records:
    """Task records as they leave the process. What has not changed since is not converted again."""

    def __init__(self, context: RunContext, budget: RecordBudget) -> None:
        self._context = context
        self._budget = budget
        self._known: dict[str, tuple[tuple[Any, ...], TaskRecord]] = {}

    @property
    def is_truncated(self) -> bool:
        return self._budget.is_exceeded

    def __call__(self, name: str) -> TaskRecord:
        record = self._context.ensure_task_record(name)
        key = (record.state, record.started_at, record.ended_at, record.inputs, record.output, record.error)
        known = self._known.get(name)
        if known is None or not all(map(is_, key, known[0])):
            known = self._known[name] = (key, self._converted(name, record))
        return known[1]

    def _converted(self, name: str, record: Any) -> TaskRecord:
        inputs, output, artifacts = self._budget.values_of(
            name, record.inputs, record.output, record.artifacts
        )
        return TaskRecord(
            state=TaskState(record.state.value),
            started_at=record.started_at,
            ended_at=record.ended_at,
            duration_ms=record.duration_ms,
            error=capped_text(record.error),
            traceback=capped_text(record.traceback),
            inputs=inputs,
            output=output,
            artifacts=artifacts,
        )


def _last_tasks(flow: Flow, context: RunContext) -> set[str]:
    if flow.has_control_flow():
        # Loops and switches have no static last task: it is the one that ended last.
        ended = {n: r.ended_at for n, r in context.task_records.items() if r.ended_at is not None}
        return {max(ended, key=lambda name: ended[name])} if ended else set()
    # A task object may be part of several flows: only dependents inside this one count.
    return {task.name for task in flow.tasks if not task.dependents & flow.tasks}
