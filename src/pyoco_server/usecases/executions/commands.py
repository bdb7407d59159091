"""Execute a command: decide on the known state, append, and decide again after a conflict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from pyoco_server import tracing
from pyoco_server.domain.cel.values import Allowance, TooHeavy
from pyoco_server.domain.executions.commands import Code, Command, Rejected, command_digest, keyed_command_id
from pyoco_server.domain.executions.decide import decide
from pyoco_server.domain.executions.events import Commit, Payload
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.model import Execution, possible_ids
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.executions.traces import span_of_execution
from pyoco_server.domain.inputs import is_tag
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    IdempotencyConflict,
    NatsUnavailable,
    NodeNotFound,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import parse_in_thread
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.gateway import ExecutionLog, Graphs
from pyoco_server.usecases.ports.stores import Clock, WrongRevision

# The end of an execution, logged once by the process that appended it.

log = get_logger(__name__)


class EndMeter(Protocol):
    def execution_ended(self, status: str) -> None: ...


def tell_if_ended(meter: EndMeter, before: Execution, after: Execution) -> None:
    if before.is_terminal or not after.is_terminal:
        return
    meter.execution_ended(after.status.value)
    if tracing.active is not None:
        tracing.emit([span_of_execution(after)])
    log.info(
        "execution ended",
        action="execution.ended",
        execution_id=after.execution_id,
        graph_id=after.graph_id,
        status=after.status.value,
    )


LIGHT_STEPS = 20_000
"""Limit of the conditions of messages on the event loop: a few milliseconds."""
MAX_TRIES = 100
"""Each conflict is another writer's progress; only very many concurrent writers come near this limit."""


class CommandMeter(EndMeter, Protocol):
    def rejected(self, code: str) -> None: ...


class Commanded(Struct, frozen=True):
    state: Execution
    is_replayed: bool = False
    before: Execution | None = None
    """The state that this command changed; None if it changed nothing."""


def is_execution_id(text: str) -> bool:
    """One token of a subject, like a tag."""
    return is_tag(text)


def is_visible(caller: Caller, record: ExecutionRecord) -> bool:
    """Another tenant's execution is treated as missing."""
    return caller.tenant_id is None or caller.tenant_id == record.state.tenant_id


async def find_visible(
    records: ExecutionRepository, execution_id: str, caller: Caller, *, is_known_enough: bool = False
) -> ExecutionRecord | None:
    """The execution with the caller's id. `is_known_enough`: the state known to this process suffices."""
    if not is_execution_id(execution_id):
        return None
    for stored in possible_ids(caller.tenant_id, execution_id):
        record = await (records.known(stored) if is_known_enough else records.stored(stored))
        if record is not None and is_visible(caller, record):
            return record
    return None


@dataclass(frozen=True, slots=True)
class Writing:
    """What every change of an execution needs."""

    records: ExecutionRepository
    log: ExecutionLog
    graphs: Graphs
    clock: Clock
    new_id: Callable[[], str]
    nudge: Callable[[Commit], None]
    meter: CommandMeter


class CommandExecution:
    def __init__(self, writing: Writing) -> None:
        self._its = writing

    async def __call__(
        self, execution_id: str, command: Command, caller: Caller, key: str | None = None
    ) -> Commanded:
        """The state after the command. Raises CommandRejected, ExecutionNotFound, NodeNotFound."""
        async with self._its.records.room_for(*possible_ids(caller.tenant_id, execution_id)):
            return await self._commanded(execution_id, command, caller, key)

    async def of_system(self, execution_id: str, command: Command) -> None:
        """A command of the server itself, by the stored id. Raises ExecutionNotFound."""
        await self._commanded(execution_id, command, Caller(), None)

    async def _commanded(
        self, execution_id: str, command: Command, caller: Caller, key: str | None
    ) -> Commanded:
        record = await find_visible(self._its.records, execution_id, caller, is_known_enough=True)
        if record is None:
            raise ExecutionNotFound
        execution_id = record.state.execution_id
        command_id = (
            self._its.new_id() if key is None else keyed_command_id(caller.tenant_id, execution_id, key)
        )
        digest = None if key is None else command_digest(command)
        for _ in range(MAX_TRIES):
            if digest is not None and command_id in record.keys:
                return await self._replayed(record, command_id, digest)
            decision = await self._decide(record, command)
            if not decision or isinstance(decision, Rejected):
                current = await self._current(record)
                if current.log_revision == record.log_revision:
                    return self._without_effect(record, command, decision)
                record = current
                continue
            try:
                after = await self._append(record, command, command_id, digest, decision)
            except WrongRevision:
                record = await self._current(record)
                continue
            return Commanded(after.state, before=record.state)
        raise NatsUnavailable("too many concurrent writers on this execution; retry in a moment")

    async def _decide(self, record: ExecutionRecord, command: Command) -> list[Payload] | Rejected:
        state = record.state
        found = await self._its.graphs.read(state.tenant_id, state.graph_id, state.graph_version)
        try:
            return decide(state, found.graph, command, self._its.clock(), Allowance(LIGHT_STEPS))
        except TooHeavy:
            return await parse_in_thread(decide, state, found.graph, command, self._its.clock())

    async def _append(
        self,
        record: ExecutionRecord,
        command: Command,
        command_id: str,
        digest: str | None,
        payloads: list[Payload],
    ) -> ExecutionRecord:
        commit = Commit(
            execution_id=record.state.execution_id,
            command_id=command_id,
            first_sequence=record.state.version + 1,
            at=max(self._its.clock(), record.state.updated_at),
            actor=command.actor,
            payloads=tuple(payloads),
            correlation_id=command.correlation_id,
            request_digest=digest,
        )
        after = await self._its.records.append(record, commit)
        self._its.nudge(commit)
        await self._its.records.save(after)
        log.info(
            "command accepted",
            action="execution.command",
            execution_id=commit.execution_id,
            command=type(command).__name__,
            version=after.state.version,
            correlation_id=command.correlation_id,
        )
        tell_if_ended(self._its.meter, record.state, after.state)
        return after

    async def _current(self, record: ExecutionRecord) -> ExecutionRecord:
        current = await self._its.records.fresh(record.state.execution_id, record)
        if current is None:
            raise ExecutionNotFound
        return current

    def _without_effect(
        self, record: ExecutionRecord, command: Command, decision: list[Payload] | Rejected
    ) -> Commanded:
        if not isinstance(decision, Rejected):
            return Commanded(record.state)
        self._its.meter.rejected(decision.code.value)
        log.info(
            "command rejected",
            action="execution.command_rejected",
            execution_id=record.state.execution_id,
            command=type(command).__name__,
            code=decision.code.value,
            correlation_id=command.correlation_id,
        )
        if decision.code is Code.NODE_NOT_FOUND:
            raise NodeNotFound(decision.message)
        raise CommandRejected(decision.message, decision.code.value)

    async def _replayed(self, record: ExecutionRecord, command_id: str, digest: str) -> Commanded:
        """The original response, whatever has happened since."""
        known = record.keys[command_id]
        if known.request_digest != digest:
            raise IdempotencyConflict
        execution_id = record.state.execution_id
        state: Execution | None = None
        async for logged, _ in self._its.log.read(execution_id):
            if logged is None:
                continue
            if logged.commit.first_sequence > known.version:
                break
            state = fold(logged.commit.events(), state)
        return Commanded(state or record.state, is_replayed=True)
