"""Delete archived executions. The id of a deleted one stays taken."""

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.executions.events import ORCHESTRATOR, Actor, ActorKind
from pyoco_server.domain.executions.model import possible_ids
from pyoco_server.domain.executions.records import summarise, tombstone
from pyoco_server.errors import ExecutionNotFound, NatsUnavailable, NotDeletable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.executions.commands import find_visible, is_execution_id
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.gateway import ExecutionIndex
from pyoco_server.usecases.ports.stores import Clock, WrongRevision

log = get_logger(__name__)

FORGOTTEN_SEC = 86_400.0
"""How long an expired execution keeps its id: long enough for every gateway to see it, even one that was
down for a while."""


class DeleteExecution:
    """A last commit, then the rest of the log: a gateway killed in between leaves a deleted execution."""

    def __init__(
        self, records: ExecutionRepository, index: ExecutionIndex, clock: Clock, trail: AuditTrail
    ) -> None:
        self._records = records
        self._index = index
        self._clock = clock
        self._trail = trail

    async def __call__(self, execution_id: str, caller: Caller) -> None:
        """Raises ExecutionNotFound or NotDeletable."""
        actor = Actor(kind=ActorKind.USER, id=caller.name)
        for _ in range(MAX_TRIES):
            record = await find_visible(self._records, execution_id, caller)
            if record is None:
                await self._finish(execution_id, caller)
                raise ExecutionNotFound
            if record.state.archived_at is None:
                is_over = record.state.is_terminal
                raise NotDeletable(
                    "archive it first" if is_over else "it has not ended; cancel and archive it first"
                )
            try:
                await self._records.bury(record, tombstone(record, actor, self._clock()), None)
            except WrongRevision:
                continue
            log.info(
                "execution deleted", action="execution.deleted", execution_id=execution_id, by=caller.name
            )
            target, before = ChangeTarget("execution", execution_id), summarise(record.state).shown()
            await self._trail.record(caller, "execution.delete", target, before, None)
            return
        raise NatsUnavailable(f"execution {execution_id} could not be deleted")

    async def _finish(self, execution_id: str, caller: Caller) -> None:
        """A gateway that died in between may have left data behind."""
        ids = possible_ids(caller.tenant_id, execution_id) if is_execution_id(execution_id) else ()
        for stored_id in ids:
            if self._index.is_deleted(stored_id):
                await self._records.erase(stored_id)

    async def expire(self, stored_id: str) -> None:
        """For one whose retention is over. Raises NatsUnavailable."""
        record = await self._records.fresh(stored_id)
        if record is None or not record.state.is_terminal:
            return
        try:
            await self._records.bury(record, tombstone(record, ORCHESTRATOR, self._clock()), FORGOTTEN_SEC)
        except WrongRevision:
            return  # e.g. archived just now; the next turn finds it
