"""One run of a flow in pyoco's engine: progress, result, artifacts."""

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import pyoco.core.engine
from pyoco.core.context import Context
from pyoco.core.engine import Engine
from pyoco.core.log_capture import RunLogCapture
from pyoco.core.models import Flow, RunContext, RunStatus as EngineStatus, Task, TaskState as EngineTaskState
from pyoco.trace.backend import TraceBackend

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Raised
from pyoco_server.domain.runs.model import (
    FailureKind,
    KeptTasks,
    RunProgress,
    TaskRecord,
    TaskState,
    replace,
)
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.domain.values import bounded_warnings
from pyoco_server.engine.flow_plan import Dependencies, Plan, plan_of, task_graph_of
from pyoco_server.engine.task_records import STATES, TaskRecords
from pyoco_server.engine.tasks import (
    RunLoop,
    capped_text,
    close_never_awaited,
    described,
    entered_loop,
    is_never_awaited,
    raised,
)
from pyoco_server.engine.values import (
    BadOutput,
    RecordBudget,
    Result,
    ValueRoom,
    result_of,
)
from pyoco_server.errors import ExecutionFailed

OnProgress = Callable[[FlowProgress], None]
OnTask = Callable[[str | None], None]
"""Called with the task that the calling thread enters; None: it leaves its task."""


class FlowRun:
    """One run of a flow in pyoco's engine.

    `run` is called once and blocks; `cancel` and `follow` may be called from other threads.
    """

    def __init__(
        self,
        flow: Flow,
        run_id: str,
        params: dict[str, Any],
        on_task: OnTask = lambda _: None,
        *,
        room: ValueRoom = ValueRoom(),  # noqa: B008 - frozen
        kept: KeptTasks | None = None,
        masks: Masks = NO_MASKS,
    ) -> None:
        """`kept`: tasks that are not run, with their outputs. `masks`: secrets in `params`."""
        self._masks = masks
        self._flow = flow
        self._params = params
        self._room = room
        self._kept = kept
        known = {} if kept is None else kept.records
        self._context = ServerRunContext(run_id=run_id)
        self._context.lacks_scratch = any(map(_uses_context, (t for t in flow.tasks if t.name in known)))
        self._loop = RunLoop()
        budget = RecordBudget(room.snapshot_bytes)
        records = TaskRecords(self._context, budget, known, masks, is_plain=not flow.has_control_flow())
        self._trace = _Trace(flow, self._context, records, self._loop, on_task)
        self._engine = _Engine(self._trace, known)

    def run(self) -> FlowOutcome:
        try:
            plan = plan_of(self._flow)
        except ExecutionFailed as error:
            return self._failed(error.detail, raised(error))
        if problem := self._changed_since(plan):
            return replace(self._failed(problem), failure_kind=FailureKind.INVALID_JOB)
        self._trace.dependencies = plan.dependencies
        try:
            with self._loop:
                context = self._engine.run(plan.program, self._params, run_context=self._context)
        except BaseException as error:  # noqa: BLE001 - any exception of a task ends its run, even SystemExit
            return self._failed(described(error, self._masks), raised(error, self._masks))
        if self._context.status is EngineStatus.CANCELLED:
            return FlowOutcome(ending=Ending.CANCELLED, progress=self._trace.complete())
        try:
            result = self._result(plan, context.results)
        except BadOutput as error:
            self._trace.refused(error.task, error.problem)
            outcome = self._failed(error.problem)
            close_never_awaited(context.results.values())
            return outcome
        return FlowOutcome(
            ending=Ending.COMPLETED,
            progress=self._trace.complete(),
            result=result.value,
            files=result.files,
            result_truncated=result.is_truncated,
            warnings=bounded_warnings([*result.warnings, *self._incomplete(plan)], 0),
        )

    def _changed_since(self, plan: Plan) -> str | None:
        """Why the kept outputs do not fit this flow."""
        is_plain = not self._flow.has_control_flow()
        if self._kept is None or (is_plain and self._kept.dependencies == plan.dependencies):
            return None
        return (
            f"flow {self._flow.name!r} has other tasks than the retried run, or another order of them; "
            "retry it from the start"
        )

    def _failed(self, error: str, exception: Raised | None = None) -> FlowOutcome:
        return FlowOutcome(
            ending=Ending.EXECUTION_ERROR, progress=self._trace.complete(), error=error, raised=exception
        )

    def _result(self, plan: Plan, results: dict[str, Any]) -> Result:
        """The outputs of the flow's last tasks, by name. Raises BadOutput."""
        last = _ended_last(self._context) if plan.last is None else plan.last
        for name in [name for name, value in results.items() if is_never_awaited(value)]:
            # Even if it is not a last task: what it stands for was never done.
            last = frozenset({name})
        return result_of({name: results.get(name) for name in sorted(last)}, self._room, self._masks)

    def _incomplete(self, plan: Plan) -> Iterator[str]:
        """A completed run may have isolated failures, and loops without a round."""
        if plan.program is not self._flow:  # a chain, which stops at the first failure
            return
        records = self._context.task_records
        for name, state in self._context.tasks.items():
            if state is EngineTaskState.FAILED and records[name].started_at is None:
                yield f"task {name!r} did not run: a task before it failed"
            elif state is EngineTaskState.FAILED:
                error = capped_text(records[name].error, self._masks)
                yield f"task {name!r} failed, and the flow continued: {error}"
        if not any(record.started_at for record in records.values()):
            yield "no task ran: the flow has only loops, and none had a round"

    def cancel(self) -> None:
        """Have the engine stop at the next task; a running task may check `ctx.is_cancelled`."""
        self._engine.cancel(self._context.run_id)
        if self._context.status in (EngineStatus.RUNNING, EngineStatus.FAILED):
            # The engine has not registered the run yet (or no longer): mark it, so that no task starts. A
            # failed run waits for its running tasks, which can see the mark.
            self._context.status = EngineStatus.CANCELLING

    def follow(self, on_progress: OnProgress) -> None:
        """Report the progress now and after every step."""
        self._trace.follow(on_progress)

    def note(self, mark: RunProgress) -> None:
        """How far the run is, for the next report."""
        self._trace.mark = mark

    def report(self) -> None:
        """To the follower, if there is one."""
        self._trace.report()


class _Engine(Engine):  # type: ignore[misc]  # pyoco ships no types
    """Without its capture of output, which takes longer than a tiny task and keeps all text in memory."""

    def __init__(self, trace_backend: TraceBackend, kept: dict[str, TaskRecord]) -> None:
        super().__init__(trace_backend=trace_backend)
        self._kept = kept

    def _execute_task(self, task: Task, *others: Any) -> None:
        record = self._kept.get(task.name)
        super()._execute_task(task if record is None else _returning(task, record.output), *others)
        self.trace.returned(task.name)

    def run(self, flow: Any, params: dict[str, Any], run_context: RunContext) -> Context:
        _here.is_ours = True
        return super().run(flow, params, run_context=run_context)


def _returning(task: Task, output: Any) -> Task:
    """In place of a task with a known output. A copy of it, because the tasks that follow may change it."""
    output = deepcopy(output)
    stand_in = copy(task)
    stand_in.func, stand_in.inputs = (lambda: output), {}
    return stand_in


def _uses_context(task: Task) -> bool:
    try:
        return "ctx" in inspect.signature(task.func).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return True


_here = threading.local()


class _NoCapture:
    """In place of pyoco's. We have our own."""

    def activate(self) -> AbstractContextManager[None]:
        return _NOTHING

    def capture_task(self) -> AbstractContextManager[tuple[None, None]]:
        return _NO_TEXTS


_NOTHING: AbstractContextManager[None] = nullcontext()
_NO_TEXTS: AbstractContextManager[tuple[None, None]] = nullcontext((None, None))
_NO_CAPTURE = _NoCapture()


def _log_capture(**streams: Any) -> Any:
    """An engine that a task starts itself has its capture."""
    is_ours, _here.is_ours = getattr(_here, "is_ours", False), False
    return _NO_CAPTURE if is_ours else RunLogCapture(**streams)


class _Trace(TraceBackend):  # type: ignore[misc]  # pyoco ships no types
    """Turns the engine's callbacks into progress, once it is followed.

    The engine calls back *before* it sets a task's new state, so the state comes from the callback. Only the
    changed task is converted again.
    """

    def __init__(
        self,
        flow: Flow,
        context: RunContext,
        records: TaskRecords,
        loop: RunLoop,
        on_task: OnTask,
    ) -> None:
        self._flow = flow
        self._context = context
        self._read = records
        self._loop = loop
        self._on_progress: OnProgress | None = None
        self._on_task = on_task
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskState] = {}
        self._records: dict[str, TaskRecord] = {}
        self.dependencies: Dependencies | None = None
        self.mark: RunProgress | None = None

    def report(self) -> None:
        with self._lock:
            if self._on_progress is not None:
                self._on_progress(self._progress())

    def follow(self, on_progress: OnProgress) -> None:
        with self._lock:
            self._on_progress = on_progress
            on_progress(self._read_all())

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None:  # noqa: ARG002
        if self._on_progress is not None:
            self.follow(self._on_progress)

    def on_flow_end(self, flow_name: str) -> None:
        pass

    def on_node_start(self, node_name: str) -> None:
        entered_loop(self._loop)
        self._on_task(node_name)
        if self._on_progress is not None:
            self._changed(node_name, TaskState.RUNNING)

    def on_node_end(self, node_name: str, duration_ms: float) -> None:
        self._on_task(None)
        if self._on_progress is not None:
            self._changed(node_name, TaskState.SUCCEEDED, duration_ms)

    def on_node_error(self, node_name: str, error: Exception) -> None:  # noqa: ARG002
        self._on_task(None)
        self._changed(node_name, TaskState.FAILED)

    def returned(self, name: str) -> None:
        """Convert the record now: the tasks that follow may change what this one returned."""
        if type(self._context.ensure_task_record(name).output) in _UNCHANGEABLE:
            return
        with self._lock:
            self._read(name)

    def refused(self, name: str, problem: str) -> None:
        """The task returned a value that cannot be kept."""
        self._context.tasks[name] = EngineTaskState.FAILED
        record = self._context.ensure_task_record(name)
        record.state, record.error = EngineTaskState.FAILED, problem

    def complete(self) -> FlowProgress:
        """The state of all tasks, read again."""
        with self._lock:
            return self._read_all()

    def _read_all(self) -> FlowProgress:
        for name, state in self._context.tasks.copy().items():
            self._tasks[name] = TaskState.SUCCEEDED if name in self._read.kept else STATES[state]
            self._records[name] = self._read(name)
        return self._progress()

    def _changed(self, name: str, state: TaskState, duration_ms: float | None = None) -> None:
        on_progress = self._on_progress
        if on_progress is None or name in self._read.kept:
            return
        with self._lock:
            record = self._read(name)
            if record.state is not state:  # else it may have been reported already
                record = replace(record, state=state)
            if duration_ms is not None and record.started_at is not None:
                ended_at = record.started_at + duration_ms / 1000
                record = replace(record, ended_at=ended_at, duration_ms=duration_ms)
            self._tasks[name] = state
            self._records[name] = record
            on_progress(self._progress())

    def _progress(self) -> FlowProgress:
        if self.dependencies is None:
            self.dependencies = task_graph_of(self._flow)
        return FlowProgress(
            self._tasks.copy(),
            self._records.copy(),
            self.dependencies,
            task_records_truncated=self._read.is_truncated,
            progress=self.mark,
        )


_UNCHANGEABLE = frozenset({type(None), bool, int, float, str})


def _ended_last(context: RunContext) -> frozenset[str]:
    """With loops and switches the last task is not static: take the one that ended last."""
    ended = {n: r.ended_at for n, r in context.task_records.items() if r.ended_at is not None}
    return frozenset({max(ended, key=lambda name: ended[name])} if ended else ())


ARTIFACTS = str(Path(".pyoco/artifacts").absolute())
"""Where `ctx.save_artifact` writes, one directory per run; relative to where the worker was started."""


class ServerRunContext(RunContext):  # type: ignore[misc]  # pyoco ships no types
    """Marks a run as one of ours."""

    lacks_scratch = False
    """Tasks that are not run again may have put something into `ctx.scratch`, which is not known."""


class _PartOfScratch(dict[str, Any]):
    """Raises an error for what it lacks: a default would be a wrong value without an error."""

    def __missing__(self, key: str) -> Any:
        raise LookupError(
            f"ctx.scratch has no {key!r}: a retry keeps what tasks returned, not what they put into "
            "ctx.scratch; retry the run from the start"
        )

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002
        return self[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or bool(self.__missing__(str(key)))


class _Context(Context):  # type: ignore[misc]
    """Creates the artifact directory of a run on first use, and not ./artifacts for every run.

    The engine has no setting for it, so its context class is replaced. Runs that are not ours are unaffected.
    """

    artifact_dir: str | None

    def __post_init__(self) -> None:
        if self.artifact_dir is None and isinstance(self.run_context, ServerRunContext):
            self.artifact_dir = f"{ARTIFACTS}{os.sep}{self.run_context.run_id}"
            if self.run_context.lacks_scratch:
                self.scratch = _PartOfScratch()
        else:
            super().__post_init__()


pyoco.core.engine.Context = _Context
pyoco.core.engine.RunLogCapture = _log_capture
