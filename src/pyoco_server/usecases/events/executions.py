"""Executions as events need them: start one for a template of several steps, resume its waiting nodes."""

from typing import Final

import msgspec

from pyoco_server.domain.events.receipts import KeptResume, WaitPlace
from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.executions.commands import Code, ResumeNode
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.executions.graphs import NodeType
from pyoco_server.domain.executions.model import Execution, possible_ids
from pyoco_server.domain.executions.records import run_id_of
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    NatsUnavailable,
    UnsupportedAction,
)
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.executions.commands import CommandExecution
from pyoco_server.usecases.executions.create import CreateExecutions, NewExecution
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.query import ReadExecutions
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.gateway import ExecutionIndex, ExecutionOrder, NotWaitingYet
from pyoco_server.usecases.services.follow import FollowExecutions

FIRST_ATTEMPT = 1
_NEVER_WAIT: Final = frozenset({NodeType.FORK.value, NodeType.JOIN.value, NodeType.SLEEP.value})


class StartExecutions:
    def __init__(self, graphs: ManageGraphs, create: CreateExecutions, read: ReadExecutions) -> None:
        self._graphs = graphs
        self._create = create
        self._read = read

    async def start(self, order: ExecutionOrder) -> str:
        """Registering an unchanged template again yields the graph version it already has."""
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
        entry = graph.graph.nodes[graph.graph.entry]
        iteration = 1 if entry.type is NodeType.REPEAT else None
        return run_id_of(order.execution_id, entry.id, FIRST_ATTEMPT, iteration)

    async def _created(self, order: ExecutionOrder, version: int | None, caller: Caller) -> Execution:
        wanted = NewExecution(
            graph_id=order.graph_id,
            graph_version=version,
            input=order.input,
            execution_id=order.execution_id,
        )
        try:
            return (await self._create(wanted, caller, Actor(order.actor_kind, order.actor))).state
        except CommandRejected as error:
            if error.code != Code.EXECUTION_EXISTS:
                raise
        # The id was chosen for this event, so an earlier try created it.
        try:
            return await self._read.state(order.execution_id, caller)
        except ExecutionNotFound:
            # A lagging replica answered. A 404 would release the event's key.
            raise NatsUnavailable("the execution exists but cannot be read yet") from None

    async def is_active(self, execution_id: str) -> bool | None:
        try:
            async with self._read.room_for(execution_id, Caller()):
                state = await self._read.state(execution_id, Caller())
        except ExecutionNotFound:
            return None
        return not state.is_terminal


class ExecutionWaits:
    def __init__(
        self,
        index: ExecutionIndex,
        records: ExecutionRepository,
        command: CommandExecution,
        follow: FollowExecutions,
    ) -> None:
        self._index = index
        self._records = records
        self._command = command
        self._follow = follow

    def find(self, tenant_id: str | None, target: ResumeTarget) -> list[WaitPlace]:
        if target.execution_id is not None and target.node_id is not None:
            ids, node_id = possible_ids(tenant_id, target.execution_id), target.node_id
            is_waiting = any(self._index.is_waiting(tenant_id, it, node_id) for it in ids)
            return [WaitPlace(target.execution_id, node_id)] if is_waiting else []
        found = self._index.waiting_with(tenant_id, target.wait_key or "")
        return [WaitPlace(execution_id, node_id) for execution_id, node_id in found]

    async def resume(self, kept: KeptResume, place: WaitPlace) -> None:
        command = ResumeNode(
            actor=Actor(ActorKind.EXTERNAL, f"event:{kept.request.source or kept.id}"),
            node_id=place.node_id,
            resume_key=kept.target.wait_key,
            data=kept.request.data,
            correlation_id=kept.id,
        )
        try:
            await self._command(place.execution_id, command, Caller(tenant_id=kept.tenant_id), kept.id)
        except CommandRejected as error:
            if await self._may_wait_yet(error, place, kept.tenant_id):
                raise NotWaitingYet from None
            raise

    async def _may_wait_yet(self, error: CommandRejected, place: WaitPlace, tenant_id: str | None) -> bool:
        if error.code == Code.EXECUTION_NOT_STARTED:
            return True
        if error.code != Code.NODE_STATUS:
            return False
        node = None
        for execution_id in possible_ids(tenant_id, place.execution_id):
            if (record := await self._records.fresh(execution_id)) is not None:
                node = record.state.nodes.get(place.node_id)
                break
        return node is not None and not node.status.is_terminal and node.node_type not in _NEVER_WAIT

    async def next_wait(self, seconds: float) -> bool:
        return await self._follow.next_wait(seconds)
