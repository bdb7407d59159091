"""The runs that carry out task nodes: started once per attempt, read, and cancelled."""

import asyncio
from collections.abc import Iterable

from pyoco_server.domain.execution.react import CancelRun as Unwanted
from pyoco_server.domain.execution.react import DispatchRun, RunFact
from pyoco_server.domain.execution.state import Execution
from pyoco_server.domain.jobs import Job, Submission, accept
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.usecases.cancel_run import CancelRun
from pyoco_server.usecases.ports import Clock, JobQueue, RunStore, Versioned
from pyoco_server.usecases.submit_run import SubmitRun


class NodeRuns:
    def __init__(
        self,
        runs: RunStore,
        queue: JobQueue,
        submit_run: SubmitRun,
        cancel_run: CancelRun,
        clock: Clock,
        default_tag: str,
    ) -> None:
        self._runs = runs
        self._queue = queue
        self._submit_run = submit_run
        self._cancel_run = cancel_run
        self._clock = clock
        self._default_tag = default_tag

    async def read(self, run_ids: Iterable[str]) -> dict[str, RunFact | None]:
        """What the store has of them. One whose dispatch was cut off gets its job."""
        wanted = list(run_ids)
        found = await asyncio.gather(*(self._runs.get(run_id) for run_id in wanted))
        pending = [run for run in found if run is not None and run.value.status is RunStatus.PENDING]
        if pending:
            await self._mend(pending)
        return {
            run_id: None if run is None else RunFact(run.value.status, run.value.result, run.value.error)
            for run_id, run in zip(wanted, found, strict=True)
        }

    async def _mend(self, pending: list[Versioned[RunSnapshot]]) -> None:
        """Whoever placed these runs may have died before it placed their jobs."""
        queued = await self._queue.run_ids()
        for run in pending:
            if run.value.run_id not in queued:
                await self._submit_run.replace_job(run, _job_of(run.value))

    async def dispatch(self, state: Execution, wanted: DispatchRun) -> None:
        submission = Submission(
            flow_name=wanted.flow,
            params=wanted.params,
            tag=wanted.tag or self._default_tag,
            tenant_id=state.tenant_id,
            api_key_id=state.api_key_id,
            execution_id=state.execution_id,
            node_id=wanted.node_id,
        )
        await self._submit_run.place_derived(accept(submission, wanted.run_id, self._clock()))

    async def cancel(self, state: Execution, unwanted: Unwanted) -> None:
        await self._cancel_run.of_system(unwanted.run_id, f"execution:{state.execution_id}", unwanted.reason)


def _job_of(run: RunSnapshot) -> Job:
    """The job that a PENDING run was placed with."""
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
    )
