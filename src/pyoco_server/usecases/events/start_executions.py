"""Templates of several steps, carried out by executions."""

import msgspec

from pyoco_server.domain.execution.events import Actor, ActorKind
from pyoco_server.domain.execution.guards import Code
from pyoco_server.domain.execution.node_runs import run_id_of
from pyoco_server.domain.execution.state import Execution
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    NatsUnavailable,
    UnsupportedAction,
)
from pyoco_server.usecases.callers import Caller
from pyoco_server.usecases.events.ports import ExecutionOrder
from pyoco_server.usecases.executions.create import CreateExecutions, NewExecution
from pyoco_server.usecases.executions.manage_graphs import ManageGraphs
from pyoco_server.usecases.executions.read import ReadExecutions

FIRST_ATTEMPT = 1


class StartExecutions:
    def __init__(self, graphs: ManageGraphs, create: CreateExecutions, read: ReadExecutions) -> None:
        self._graphs = graphs
        self._create = create
        self._read = read

    async def start(self, order: ExecutionOrder) -> str:
        """Graphs have versions: a template that has not changed is registered as the version it was."""
        caller = Caller(tenant_id=order.tenant_id)
        version = None
        if order.definition is not None:
            text = msgspec.json.encode(order.definition)
            registered = await self._graphs.register(order.graph_id, text, "application/json", caller)
            version = registered.record.version
        try:
            state = await self._created(order, version, caller)
        except GraphNotFound:
            raise UnsupportedAction(f"graph {order.graph_id} is not registered") from None
        graph = await self._graphs.read(order.tenant_id, order.graph_id, state.graph_version)
        return run_id_of(order.execution_id, graph.graph.entry, FIRST_ATTEMPT)

    async def _created(self, order: ExecutionOrder, version: int | None, caller: Caller) -> Execution:
        wanted = NewExecution(
            graph_id=order.graph_id,
            graph_version=version,
            input=order.input,
            execution_id=order.execution_id,
        )
        try:
            return (await self._create(wanted, caller, Actor(ActorKind.EXTERNAL, order.actor))).state
        except CommandRejected as error:
            if error.code != Code.EXECUTION_EXISTS:
                raise
        # The id was chosen for this event: whoever made it did what is asked for here.
        try:
            return await self._read.state(order.execution_id, caller)
        except ExecutionNotFound:
            # The server that was asked is behind. Answered with 404, the event would give its key back.
            raise NatsUnavailable("the execution is there, but cannot be read yet") from None

    async def is_active(self, execution_id: str) -> bool | None:
        try:
            state = await self._read.state(execution_id, Caller())
        except ExecutionNotFound:
            return None
        return not state.is_terminal
