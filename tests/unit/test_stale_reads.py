"""F6: a NATS server that was cut off tells what it knew before, and is not believed."""

import pytest

from pyoco_server.domain.executions.events import (
    Actor,
    ActorKind,
    Commit,
    ExecutionCreated,
    ExecutionStarted,
    NodeCreated,
)
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.memory.stores import MemoryExecutionLog
from pyoco_server.usecases.executions.repository import ExecutionRepository
from support.builders import NOW

CREATED = (ExecutionCreated(graph_id="g", graph_version=1), NodeCreated(node_id="only", node_type="task"))


def a_commit(
    command_id: str, *payloads: ExecutionCreated | NodeCreated | ExecutionStarted, first: int
) -> Commit:
    return Commit(
        execution_id="e-1",
        command_id=command_id,
        first_sequence=first,
        at=NOW,
        actor=Actor(ActorKind.USER, "ann"),
        payloads=payloads,
    )


async def test_f6_a_state_older_than_what_was_heard_is_not_told() -> None:
    async with open_memory_gateway_backend() as backend:
        index = backend.execution_index
        records = ExecutionRepository(backend.execution_log, backend.execution_cache, index)
        created = await records.append(None, a_commit("c-1", *CREATED, first=1))
        await records.append(created, a_commit("c-2", ExecutionStarted(), first=3))

        old = MemoryExecutionLog()
        behind = ExecutionRepository(old, backend.execution_cache, index)
        with pytest.raises(NatsUnavailable):
            await behind.stored("e-1")
        await ExecutionRepository(old, backend.execution_cache, backend.execution_index).append(
            None, a_commit("c-1", *CREATED, first=1)
        )
        with pytest.raises(NatsUnavailable):
            await behind.fresh("e-1")

        fresh = await records.fresh("e-1")
        assert isinstance(fresh, ExecutionRecord)
        assert fresh.state.version == 3
        assert await records.stored("e-2") is None
