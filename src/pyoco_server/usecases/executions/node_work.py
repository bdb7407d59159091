"""The work of nodes: runs, and executions of other graphs, which are created once per attempt."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from pyoco_server.domain.executions.commands import CancelExecution
from pyoco_server.domain.executions.events import MAX_REASON, ORCHESTRATOR, shortened
from pyoco_server.domain.executions.model import Execution, ExecutionStatus
from pyoco_server.domain.executions.records import CancelRun, DispatchRun, RunFact, StartChild, Work
from pyoco_server.domain.large_values import below, owned_by_execution
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    InvalidRequest,
    RequestTooLarge,
)
from pyoco_server.usecases.executions.commands import CommandExecution
from pyoco_server.usecases.executions.create import CreateExecutions
from pyoco_server.usecases.executions.node_runs import NodeRuns, below_execution, named
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.gateway import ExecutionIndex
from pyoco_server.usecases.values import UseValues

_AS_RUN = {
    ExecutionStatus.ACTIVE: RunStatus.RUNNING,
    ExecutionStatus.COMPLETED: RunStatus.COMPLETED,
    ExecutionStatus.FAILED: RunStatus.FAILED,
    ExecutionStatus.CANCELED: RunStatus.CANCELLED,
}


def fact_of_execution(state: Execution) -> RunFact:
    """Facts about a child execution for the node that it carries out."""
    problem = None
    if state.error is not None:
        problem = f"node {state.failed_node_id} of its execution failed: {state.error.message}"
    return RunFact(
        _AS_RUN[state.status],
        state.result,
        problem,
        "EXECUTION_FAILED",
        is_execution=True,
        values=below(state.values, "result"),
    )


class Children:
    """The executions of nodes.

    Their states are read without asking for room: who waits for it here holds room for the parent.
    """

    def __init__(
        self,
        records: ExecutionRepository,
        index: ExecutionIndex,
        create: CreateExecutions,
        command: CommandExecution,
    ) -> None:
        self._records = records
        self._index = index
        self._create = create
        self._command = command

    async def read(self, execution_id: str) -> RunFact | None:
        """Its state is read only if it has ended, or may not exist; its end is reported, too."""
        if self._index.version(execution_id) and not self._index.has_ended(execution_id):
            return RunFact(RunStatus.RUNNING, is_execution=True)
        record = await self._records.known(execution_id)
        return None if record is None else fact_of_execution(record.state)

    async def start(self, parent: Execution, wanted: StartChild) -> RunFact | None:
        """Returns a failure if it can never be created."""
        try:
            with below_execution(parent):
                await self._create.child(parent, wanted)
        except CommandRejected:
            return await self._who_has_its_id(parent, wanted)
        except RequestTooLarge as error:
            return _refused(f"input: {error.detail}", "INPUT_TOO_LARGE")
        except (InvalidRequest, GraphNotFound) as error:
            return _refused(error.detail, "EXECUTION_REFUSED")
        return None

    async def _who_has_its_id(self, parent: Execution, wanted: StartChild) -> RunFact | None:
        """Mostly it exists already."""
        record = await self._records.known(wanted.execution_id)
        if record is None:
            return _refused("its execution was deleted", "EXECUTION_REFUSED")
        place = (record.state.parent_execution_id, record.state.parent_node_id)
        if place != (parent.shown_id, wanted.node_id):
            return _refused(f"execution id {wanted.execution_id} is in use", "EXECUTION_REFUSED")
        return fact_of_execution(record.state) if record.state.is_terminal else None

    async def cancel(self, parent: Execution, unwanted: CancelRun) -> None:
        """No effect on one that does not exist or has ended."""
        reason = shortened(unwanted.reason, MAX_REASON)
        command = CancelExecution(actor=ORCHESTRATOR, reason=reason, requested_by=named(parent))
        try:
            await self._command.of_system(unwanted.run_id, command)
        except ExecutionNotFound:
            return


def _refused(problem: str, code: str) -> RunFact:
    return RunFact(RunStatus.FAILED, error=problem, code=code, is_execution=True)


Facts = Mapping[str, RunFact | None]


class NodeWork:
    def __init__(self, runs: NodeRuns, children: Children, use_values: UseValues) -> None:
        self._runs = runs
        self._children = children
        self._use_values = use_values

    async def keep_values(self, state: Execution, facts: Facts) -> Facts:
        """The facts, once the execution is a user of the stored values in them.

        A run may be deleted before its execution.
        """
        new = {
            work_id: await self._kept(state, fact)
            for work_id, fact in facts.items()
            if fact is not None and fact.values and not fact.are_values_kept
        }
        return {**facts, **new} if new else facts

    async def _kept(self, state: Execution, fact: RunFact) -> RunFact:
        owner = owned_by_execution(state.execution_id)
        if await self._use_values(state.tenant_id, owner, {"result": fact.result}, fact.values):
            return replace(fact, are_values_kept=True)
        problem = "its result is a stored value that does not exist any more"
        return RunFact(RunStatus.FAILED, error=problem, code="OUTPUT_GONE", is_execution=fact.is_execution)

    async def read(self, wanted: Iterable[Work]) -> dict[str, RunFact | None]:
        """A run whose dispatch was interrupted gets its job."""
        works = list(wanted)
        facts = await self._runs.read(work.id for work in works if not work.is_execution)
        for work in works:
            if work.is_execution:
                facts[work.id] = await self._children.read(work.id)
        return facts

    async def dispatch(self, state: Execution, wanted: DispatchRun | StartChild) -> RunFact | None:
        """Returns the end of one that has ended already, or can never be placed."""
        if isinstance(wanted, StartChild):
            return await self._children.start(state, wanted)
        return await self._runs.dispatch(state, wanted)

    async def cancel(self, state: Execution, unwanted: CancelRun) -> None:
        if unwanted.is_execution:
            await self._children.cancel(state, unwanted)
        else:
            await self._runs.cancel(state, unwanted)
