"""The nodes that events resume are those of executions."""

from typing import Final

from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.events.resumes import KeptResume, WaitPlace
from pyoco_server.domain.execution.commands import ResumeNode
from pyoco_server.domain.execution.events import Actor, ActorKind
from pyoco_server.domain.execution.graphs import NodeType
from pyoco_server.domain.execution.guards import Code
from pyoco_server.domain.execution.ids import possible_ids
from pyoco_server.errors import CommandRejected
from pyoco_server.usecases.callers import Caller
from pyoco_server.usecases.events.ports import NotWaitingYet
from pyoco_server.usecases.executions.command import CommandExecution
from pyoco_server.usecases.executions.follow import FollowExecutions
from pyoco_server.usecases.executions.ports import ExecutionIndex
from pyoco_server.usecases.executions.records import ExecutionRecords

_NEVER_WAIT: Final = frozenset({NodeType.FORK.value, NodeType.JOIN.value})


class ExecutionWaits:
    def __init__(
        self,
        index: ExecutionIndex,
        records: ExecutionRecords,
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
            is_there = any(self._index.is_waiting(tenant_id, it, node_id) for it in ids)
            return [WaitPlace(target.execution_id, node_id)] if is_there else []
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

    async def news(self, seconds: float) -> bool:
        return await self._follow.next_wait(seconds)
