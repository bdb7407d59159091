"""What schedules start: a run of a flow, an execution of a graph, or a template."""

from datetime import UTC, datetime

from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.executions.commands import CancelExecution
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.runs.jobs import Submission, with_references
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.schedules.model import Active, Due, Schedule, id_of
from pyoco_server.domain.schedules.ticks import Placed, RunEnd
from pyoco_server.domain.schedules.timing import zone_of
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    InvalidRequest,
    LimitReached,
    NatsUnavailable,
    PyocoServerError,
    WorkflowNotFound,
)
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.events.definitions import ManageTemplates
from pyoco_server.usecases.events.executions import StartExecutions
from pyoco_server.usecases.events.start import StartOrder, StartTemplate
from pyoco_server.usecases.executions.commands import CommandExecution
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.query import ReadExecutions
from pyoco_server.usecases.ports.gateway import ExecutionOrder
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.runs.cancel import CancelRun
from pyoco_server.usecases.runs.submit import SubmitRun

LIMIT = "limit"
"""Why a tick was skipped whose run a limit refused."""
_RUN_ENDS = {
    RunStatus.COMPLETED: RunEnd.COMPLETED,
    RunStatus.FAILED: RunEnd.FAILED,
    RunStatus.CANCELLED: RunEnd.CANCELLED,
}
_EXECUTION_ENDS = {
    ExecutionStatus.COMPLETED: RunEnd.COMPLETED,
    ExecutionStatus.FAILED: RunEnd.FAILED,
    ExecutionStatus.CANCELED: RunEnd.CANCELLED,
}


class StartScheduled:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        runs: RunStore,
        submit_run: SubmitRun,
        cancel_run: CancelRun,
        graphs: ManageGraphs,
        start_execution: StartExecutions,
        command_execution: CommandExecution,
        read_executions: ReadExecutions,
        templates: ManageTemplates,
        start_template: StartTemplate,
        default_tag: str,
    ) -> None:
        self._runs = runs
        self._submit_run = submit_run
        self._cancel_run = cancel_run
        self._graphs = graphs
        self._start_execution = start_execution
        self._command_execution = command_execution
        self._read_executions = read_executions
        self._templates = templates
        self._start_template = start_template
        self._default_tag = default_tag

    async def check(self, schedule: Schedule) -> None:
        """Raises InvalidRequest."""
        target = schedule.definition.target
        if target.flow is not None:
            await self._submit_run.job_of(self._submission(schedule, Due(0.0)), "", schedule.updated_at)
        if target.graph is not None:
            try:
                await self._graphs.read(schedule.tenant_id, target.graph)
            except GraphNotFound:
                raise InvalidRequest(f"target.graph: graph {target.graph!r} is not registered") from None
        if target.template is not None:
            try:
                await self._templates.find(schedule.tenant_id, target.template)
            except WorkflowNotFound:
                raise InvalidRequest(f"target.template: there is no template {target.template!r}") from None

    async def place(self, schedule: Schedule, due: Due, at: float) -> Placed:
        try:
            return await self._place(schedule, due, at)
        except NatsUnavailable:
            raise
        except LimitReached:
            return Placed(problem=LIMIT)
        except PyocoServerError as error:
            return Placed(problem=error.detail)

    async def _place(self, schedule: Schedule, due: Due, at: float) -> Placed:
        target, place = schedule.definition.target, id_of(schedule, due)
        if target.flow is not None:
            submission = self._submission(schedule, due)
            await self._submit_run.place_derived(await self._submit_run.job_of(submission, place, at))
            return Placed()
        if target.graph is not None:
            await self._graphs.read(schedule.tenant_id, target.graph)
            await self._start_execution.start(
                ExecutionOrder(
                    execution_id=place,
                    graph_id=target.graph,
                    definition=None,
                    input={} if target.input is None else target.input,
                    tenant_id=schedule.tenant_id,
                    actor=_name(schedule),
                    actor_kind=ActorKind.SCHEDULER,
                )
            )
            return Placed(is_execution=True)
        order = await self._order(schedule, due)
        started = await self._start_template.start_as(order, place, at)
        return Placed(is_execution=started.execution_id is not None)

    def _submission(self, schedule: Schedule, due: Due) -> Submission:
        target = schedule.definition.target
        return with_references(
            Submission(
                flow_name=target.flow or "",
                params=target.params,
                tag=target.tag or self._default_tag,
                tags=target.tags,
                tenant_id=schedule.tenant_id,
                api_key_id=schedule.api_key_id,
                schedule_id=schedule.id,
                due_at=due.due_at,
                delay_sec=target.delay_sec,
                start_within_sec=target.start_within_sec,
                timeout_sec=target.timeout_sec,
                retry=target.retry,
                priority=target.priority,
            )
        )

    async def _order(self, schedule: Schedule, due: Due) -> StartOrder:
        """A template that needs a month gets that of the tick, in the schedule's time zone."""
        target = schedule.definition.target
        template = await self._templates.find(schedule.tenant_id, target.template or "")
        local = datetime.fromtimestamp(due.due_at, UTC).astimezone(zone_of(schedule.definition.timezone))
        needs_month = template.is_month_needed and not template.year
        return StartOrder(
            template=template,
            request=EventRequest(
                template_id=template.id,
                source=_name(schedule),
                year=local.year if needs_month else None,
                month=local.month if needs_month else None,
                data=target.data,
            ),
            api_key_id=schedule.api_key_id,
            schedule_id=schedule.id,
            due_at=due.due_at,
        )

    async def end_of(self, active: Active) -> RunEnd | None:
        if not active.is_execution:
            run = await self._runs.get(active.id)
            return RunEnd.CANCELLED if run is None else _RUN_ENDS.get(run.value.status)
        try:
            async with self._read_executions.room_for(active.id, Caller()):
                state = await self._read_executions.state(active.id, Caller())
        except ExecutionNotFound:
            return RunEnd.CANCELLED
        return _EXECUTION_ENDS.get(state.status)

    async def cancel(self, active: Active, schedule: Schedule) -> None:
        reason = "replaced by the next tick"
        if not active.is_execution:
            await self._cancel_run.of_system(active.id, _name(schedule), reason)
            return
        actor = Actor(ActorKind.SCHEDULER, _name(schedule))
        command = CancelExecution(actor=actor, reason=reason, requested_by=_name(schedule))
        try:
            await self._command_execution(active.id, command, Caller())
        except (CommandRejected, ExecutionNotFound):
            return  # it has ended


def _name(schedule: Schedule) -> str:
    return f"schedule:{schedule.id}"
