"""The runs of task nodes: started once per attempt, read, and cancelled."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from pyoco_server import tracing
from pyoco_server.domain.executions.model import Execution
from pyoco_server.domain.executions.records import CancelRun as Unwanted, DispatchRun, RunFact
from pyoco_server.domain.executions.traces import EXECUTION, place_of_execution
from pyoco_server.domain.fleet import READS_VALUES
from pyoco_server.domain.large_values import below
from pyoco_server.domain.runs.jobs import Job, Submission
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.traces import above, tracestate_of
from pyoco_server.errors import (
    InvalidRequest,
    LimitReached,
    NatsUnavailable,
    RequestTooLarge,
    SnapshotTooLarge,
    TimersUnsupported,
)
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Versioned
from pyoco_server.usecases.runs.cancel import CancelRun
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.values import StoreParams, too_old

# Active runs of executions, as known to this process.


class LiveRuns:
    def __init__(self) -> None:
        self._by_execution: dict[str, dict[str, RunStatus]] = defaultdict(dict)

    def heard(self, run: RunSnapshot) -> bool:
        """Whether the status changed; most changes of a run are heartbeats."""
        assert run.execution_id is not None  # noqa: S101 - the caller asks for runs of executions only
        known = self.of(run.execution_id).get(run.run_id)
        if not run.status.is_terminal:
            self._by_execution[run.execution_id][run.run_id] = run.status
        elif known is not None:
            self._forget(run.execution_id, run.run_id)
        return known is not run.status

    def of(self, execution_id: str) -> Mapping[str, RunStatus]:
        return self._by_execution.get(execution_id, {})

    def executions(self) -> Iterable[str]:
        """Executions with active runs, ended or not."""
        return list(self._by_execution)

    def _forget(self, execution_id: str, run_id: str) -> None:
        runs = self._by_execution[execution_id]
        runs.pop(run_id, None)
        if not runs:
            del self._by_execution[execution_id]


def fact_of(run: RunSnapshot) -> RunFact:
    """Facts about a run for its execution."""
    if run.status is RunStatus.COMPLETED and run.result is None and _was_cut(run):
        # The run completed, but a node without a readable output fails.
        why = next(iter(run.warnings), "return less, or where it is")
        text = f"its run completed, but its result was too large to be kept: {why}"
        return RunFact(RunStatus.FAILED, error=text, code="OUTPUT_TOO_LARGE")
    return RunFact(run.status, run.result, run.error, values=below(run.values, "result"))


def _was_cut(run: RunSnapshot) -> bool:
    """The second form is from workers before `result_truncated`."""
    return run.result_truncated or run.task_records_truncated


REMEMBERED_SEC = 60.0
"""Half of the queue's duplicate window. The clock of another host affects only the cost."""
QUEUED_SEC = 5.0
QUEUED_PER_READING = 10.0
"""A long queue is read less often. A redundant job does no harm, because a worker drops it."""


READ_AT_ONCE = 4
"""A run may have params of 1 MiB, and an execution a thousand runs."""


INLINE_PARAMS_BYTES = 96 * 1024
"""A snapshot of 256 KiB has room for as much, and for the output of a node that is not stored."""


class NodeRuns:
    def __init__(  # noqa: PLR0913 - one argument per part that it works with
        self,
        runs: RunStore,
        queue: JobQueue,
        submit_run: SubmitRun,
        cancel_run: CancelRun,
        clock: Clock,
        default_tag: str,
        *,
        store_params: StoreParams,
        lacking: Callable[[str, str], list[str]] = lambda _, __: [],
    ) -> None:
        """`lacking`: ids of live workers that are too old for a feature, of a tag."""
        self._lacking = lacking
        self._store_params = store_params
        self._runs = runs
        self._queue = queue
        self._submit_run = submit_run
        self._cancel_run = cancel_run
        self._clock = clock
        self._default_tag = default_tag
        self._queued: asyncio.Future[set[str]] | None = None
        self._queued_at = 0.0
        self._queued_for = QUEUED_SEC

    async def read(self, run_ids: Iterable[str]) -> dict[str, RunFact | None]:
        """Read runs from the store. A run whose dispatch was interrupted gets its job."""
        wanted = list(run_ids)
        facts: dict[str, RunFact | None] = {}
        for start in range(0, len(wanted), READ_AT_ONCE):
            facts |= await self._read(wanted[start : start + READ_AT_ONCE])
        return facts

    async def _read(self, wanted: list[str]) -> dict[str, RunFact | None]:
        found = await asyncio.gather(*(self._runs.get(run_id) for run_id in wanted))
        await asyncio.gather(
            *(self._mend(run) for run in found if run is not None and run.value.status is RunStatus.PENDING)
        )
        return {
            run_id: None if run is None else fact_of(run.value)
            for run_id, run in zip(wanted, found, strict=True)
        }

    async def _mend(self, run: Versioned[RunSnapshot]) -> None:
        """Place the job of a run whose dispatcher may have crashed before doing so.

        Within its duplicate window the queue drops a repeated job. After that its content has to be checked.
        """
        if run.value.limits is not None:
            return  # its job was there before it
        job = _job_of(run.value)
        if self._clock() - job.submitted_at < REMEMBERED_SEC:
            await self._queue.publish(job, run.revision)
        elif job.run_id not in await self._queued_jobs():
            await self._submit_run.replace_job(run, job)

    async def _queued_jobs(self) -> set[str]:
        """One read for all concurrent callers, which may be thousands after a start."""
        now = asyncio.get_running_loop().time()
        if self._queued is None or now - self._queued_at > self._queued_for:
            self._queued = asyncio.ensure_future(self._read_queue())
            self._queued_at = now
        reading = self._queued
        try:
            return await asyncio.shield(reading)
        except NatsUnavailable:
            self._queued = None
            raise

    async def _read_queue(self) -> set[str]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await self._queue.run_ids()
        self._queued_for = max(QUEUED_SEC, QUEUED_PER_READING * (loop.time() - began))
        return found

    async def dispatch(self, state: Execution, wanted: DispatchRun) -> RunFact | None:
        """Returns a failure if such a run can never be placed."""
        submission = Submission(
            flow_name=wanted.flow,
            params=wanted.params,
            tag=wanted.tag or self._default_tag,
            tenant_id=state.tenant_id,
            api_key_id=state.api_key_id,
            execution_id=state.execution_id,
            node_id=wanted.node_id,
            delay_sec=wanted.delay_sec,
            run_at=wanted.run_at,
            start_within_sec=wanted.start_within_sec,
            priority=wanted.priority,
            timeout_sec=wanted.timeout_sec,
            references=wanted.references,
            values=wanted.values,
        )
        older = self._lacking(READS_VALUES, submission.tag)
        if wanted.values and older:
            problem = too_old(wanted.values[0], submission.tag, older)
            return RunFact(RunStatus.FAILED, error=problem, code="RUN_REFUSED")
        try:
            with below_execution(state):
                job = await self._submit_run.job_of(
                    submission, wanted.run_id, self._clock(), graph_id=state.graph_id
                )
                if not older:
                    job = await self._store_params(job, INLINE_PARAMS_BYTES)
                await self._submit_run.place_derived(job)
        except (RequestTooLarge, SnapshotTooLarge) as error:
            await self._cancel_run.of_system(wanted.run_id, named(state), "its job is too large")
            return RunFact(RunStatus.FAILED, error=f"params: {error.detail}", code="PARAMS_TOO_LARGE")
        except LimitReached as error:
            return RunFact(RunStatus.FAILED, error=error.detail, code="LIMIT_REACHED")
        except (InvalidRequest, TimersUnsupported) as error:
            return RunFact(RunStatus.FAILED, error=error.detail, code="RUN_REFUSED")
        return None

    async def cancel(self, state: Execution, unwanted: Unwanted) -> None:
        await self._cancel_run.of_system(unwanted.run_id, named(state), unwanted.reason)


def below_execution(state: Execution) -> AbstractContextManager[None]:
    """Its runs belong to the span of the execution."""
    if tracing.active is None:
        return nullcontext()
    return tracing.below(place_of_execution(state), EXECUTION, tracestate_of(state.trace))


def named(state: Execution) -> str:
    return f"execution:{state.execution_id}"


def _job_of(run: RunSnapshot) -> Job:
    """The job of a PENDING run."""
    return Job(
        run_id=run.run_id,
        flow_name=run.flow_name,
        tag=run.tag or "",
        submitted_at=run.submitted_at or run.updated_at,
        tags=run.tags,
        params=run.params,
        tenant_id=run.tenant_id,
        api_key_id=run.api_key_id,
        execution_id=run.execution_id,
        node_id=run.node_id,
        not_before=run.not_before,
        start_within_sec=run.start_within_sec,
        timeout_sec=run.timeout_sec,
        retry=run.retry,
        priority=run.priority,
        try_number=run.try_number,
        references=run.references,
        values=below(run.values, "params"),
        trace=above(run.trace),
    )
