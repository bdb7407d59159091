"""Create an execution of a graph, or rerun an ended one."""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pyoco_server import tracing
from pyoco_server.domain.executions.commands import (
    Code,
    CreateExecution,
    Rejected,
    StartExecution,
    keyed_command_id,
)
from pyoco_server.domain.executions.decide import decide
from pyoco_server.domain.executions.events import ORCHESTRATOR, Actor, Commit, Payload, values_in
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.model import (
    Execution,
    carry_over,
    children_to_rerun,
    possible_ids,
    stored_id,
)
from pyoco_server.domain.executions.records import ExecutionRecord, StartChild
from pyoco_server.domain.large_values import Place, below, owned_by_execution
from pyoco_server.domain.runs.claims import IdempotencyClaim, claim_key
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    IdempotencyConflict,
    InvalidRequest,
    NatsUnavailable,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import claim_once
from pyoco_server.usecases.executions.commands import (
    Commanded,
    Writing,
    find_visible,
    is_execution_id,
    is_visible,
)
from pyoco_server.usecases.ports.gateway import VersionedGraph
from pyoco_server.usecases.ports.runs import ClaimStore
from pyoco_server.usecases.ports.stores import WrongRevision
from pyoco_server.usecases.values import UseValues

log = get_logger(__name__)

CREATES = "create:"
"""Scope of the idempotency keys of creates; no execution id contains a colon."""


class NewExecution(Struct, frozen=True, kw_only=True):
    graph_id: str
    graph_version: int | None = None
    input: Any = None
    execution_id: str | None = None
    """The stored id."""
    given_id: str | None = None
    """The caller's id."""
    start: bool = True
    correlation_id: str | None = None
    rerun_of: str | None = None
    from_failed: bool = False
    graph_versions: dict[str, int] | None = None
    """Of the graphs below it; None: the newest."""
    parent_execution_id: str | None = None
    """As the tenant calls it."""
    parent_node_id: str | None = None
    values: tuple[Place, ...] = ()
    """Where `input` refers to stored values."""


class Rerun(Struct, frozen=True):
    execution_id: str
    start_from: Literal["failed", "start"]
    correlation_id: str | None = None


class CreateExecutions:
    def __init__(self, writing: Writing, claims: ClaimStore, use_values: UseValues) -> None:
        self._its = writing
        self._claims = claims
        self._use_values = use_values

    async def __call__(
        self, wanted: NewExecution, caller: Caller, actor: Actor, key: str | None = None
    ) -> Commanded:
        wanted = await self._placed(wanted, caller)
        graph = await self._its.graphs.read(caller.tenant_id, wanted.graph_id, wanted.graph_version)
        if key is None:
            execution_id = wanted.execution_id or self._its.new_id()
            return await self._create(execution_id, self._its.new_id(), wanted, graph, caller, actor)
        scope = f"{CREATES}{wanted.rerun_of or ''}"
        execution_id = await self._claimed(wanted, caller, key, scope)
        command_id = keyed_command_id(caller.tenant_id, scope, key)
        try:
            return await self._create(execution_id, command_id, wanted, graph, caller, actor)
        except CommandRejected:
            first = await self._first(execution_id, command_id)
            if first is None:
                raise
            return Commanded(first, is_replayed=True)

    async def _placed(self, wanted: NewExecution, caller: Caller) -> NewExecution:
        """With the stored id for the caller's id."""
        given = wanted.given_id
        if given is None:
            return wanted
        if not is_execution_id(given):
            raise InvalidRequest(f"execution_id {given!r} must match [A-Za-z0-9_-]{{1,64}}")
        old = await self._its.records.stored(given) if caller.tenant_id is not None else None
        is_in_use = old is not None and is_visible(caller, old)  # one that an older version stored
        stored = given if is_in_use else stored_id(caller.tenant_id, given)
        return msgspec.structs.replace(wanted, execution_id=stored)

    async def rerun(self, wanted: Rerun, caller: Caller, actor: Actor, key: str | None = None) -> Commanded:
        """A new execution of the same graph version and input. The old one is unchanged."""
        async with self._its.records.room_for(*possible_ids(caller.tenant_id, wanted.execution_id)):
            return await self(await self._again(wanted, caller), caller, actor, key)

    async def _again(self, wanted: Rerun, caller: Caller) -> NewExecution:
        old = await find_visible(self._its.records, wanted.execution_id, caller)
        if old is None:
            raise ExecutionNotFound
        if wanted.start_from == "failed" and not old.state.is_terminal:
            raise CommandRejected(
                "only an ended execution can be rerun from its failure",
                Code.EXECUTION_NOT_TERMINAL.value,
            )
        return NewExecution(
            graph_id=old.state.graph_id,
            graph_version=old.state.graph_version,
            input=old.state.input,
            values=below(old.state.values, "input"),
            correlation_id=wanted.correlation_id,
            rerun_of=old.state.shown_id,
            from_failed=wanted.start_from == "failed",
            graph_versions=old.state.graph_versions,
        )

    async def child(self, parent: Execution, wanted: StartChild) -> None:
        """The execution of a node. Raises CommandRejected if its id is in use, as after the first time."""
        new = NewExecution(
            graph_id=wanted.graph_id,
            graph_version=parent.graph_versions.get(wanted.graph_id),
            graph_versions=parent.graph_versions,
            input=wanted.input,
            values=wanted.values,
            execution_id=wanted.execution_id,
            parent_execution_id=parent.shown_id,
            parent_node_id=wanted.node_id,
            rerun_of=wanted.rerun_of,
            from_failed=wanted.rerun_of is not None,
        )
        await self(new, Caller(parent.tenant_id, parent.api_key_id), ORCHESTRATOR)

    async def _create(
        self,
        execution_id: str,
        command_id: str,
        wanted: NewExecution,
        graph: VersionedGraph,
        caller: Caller,
        actor: Actor,
    ) -> Commanded:
        payloads = await self._events(wanted, graph, caller, actor)
        for payload in payloads:
            await self._keep_values(execution_id, caller.tenant_id, payload)
        commit = Commit(
            execution_id=execution_id,
            command_id=command_id,
            first_sequence=1,
            at=self._its.clock(),
            actor=actor,
            payloads=tuple(payloads),
            correlation_id=wanted.correlation_id,
        )
        try:
            record = await self._its.records.append(None, commit)
        except WrongRevision:
            if not await self._its.records.is_taken(execution_id):  # the server that was asked is behind
                raise NatsUnavailable("the execution exists but is not readable yet") from None
            raise self._rejected(execution_id, wanted) from None
        self._its.nudge(commit)
        log.info(
            "execution created",
            action="execution.created",
            execution_id=execution_id,
            graph_id=wanted.graph_id,
            graph_version=graph.version,
            correlation_id=wanted.correlation_id,
        )
        return Commanded(record.state)

    async def _keep_values(self, execution_id: str, tenant_id: str | None, payload: Payload) -> None:
        """The input, and what a rerun carries over. Raises InvalidRequest."""
        owner = owned_by_execution(execution_id)
        for value, places in values_in(payload):
            if not await self._use_values(tenant_id, owner, value, places):
                raise InvalidRequest("a stored value that it would need does not exist any more")

    def _rejected(self, execution_id: str, wanted: NewExecution) -> CommandRejected:
        code = Code.EXECUTION_EXISTS.value
        self._its.meter.rejected(code)
        log.info(
            "command rejected",
            action="execution.command_rejected",
            execution_id=execution_id,
            command="CreateExecution",
            code=code,
            correlation_id=wanted.correlation_id,
        )
        return CommandRejected("this execution id is in use", code)

    async def _events(
        self, wanted: NewExecution, graph: VersionedGraph, caller: Caller, actor: Actor
    ) -> list[Payload]:
        """Create and, unless disabled, start it in one atomic commit."""
        old = await self._carried_on(wanted, caller)
        versions = wanted.graph_versions
        if versions is None:
            versions = await self._its.graphs.pinned(caller.tenant_id, graph.graph)
        create = CreateExecution(
            actor=actor,
            input=wanted.input,
            values=wanted.values,
            tenant_id=caller.tenant_id,
            api_key_id=caller.api_key_id,
            graph_version=graph.version,
            rerun_of=wanted.rerun_of,
            given_id=None if wanted.given_id == wanted.execution_id else wanted.given_id,
            parent_execution_id=wanted.parent_execution_id,
            parent_node_id=wanted.parent_node_id,
            graph_versions=versions,
            children_to_rerun={} if old is None else children_to_rerun(old, graph.graph),
            trace=tracing.here(),
        )
        payloads = _accepted(decide(None, graph.graph, create, self._its.clock()))
        if not wanted.start:
            return payloads
        created = fold(
            Commit(
                execution_id="new",
                command_id="",
                first_sequence=1,
                at=self._its.clock(),
                actor=actor,
                payloads=tuple(payloads),
            ).events()
        )
        payloads += _accepted(decide(created, graph.graph, StartExecution(actor=actor), self._its.clock()))
        if old is not None:
            payloads += carry_over(graph.graph, old)
        return payloads

    async def _carried_on(self, wanted: NewExecution, caller: Caller) -> Execution | None:
        """The execution that this one carries on."""
        if wanted.rerun_of is None or not wanted.from_failed:
            return None
        record = await find_visible(self._its.records, wanted.rerun_of, caller)
        return None if record is None else record.state

    async def _claimed(self, wanted: NewExecution, caller: Caller, key: str, scope: str) -> str:
        """The execution id of the first request with this key."""
        place = claim_key(caller.tenant_id, key, scope)
        digest = _digest(wanted)
        claim = IdempotencyClaim(
            run_id=wanted.execution_id or self._its.new_id(), request=digest, claimed_at=self._its.clock()
        )
        found, _ = await claim_once(self._claims, place, claim)
        if found.value.request != digest:
            raise IdempotencyConflict
        return found.value.run_id

    async def _first(self, execution_id: str, command_id: str) -> Execution | None:
        """The execution after its creation, if this command created it."""
        async for logged, _ in self._its.log.read(execution_id):
            if logged is not None:
                is_ours = logged.commit.command_id == command_id
                return fold(logged.commit.events()) if is_ours else None
        return None


def _digest(wanted: NewExecution) -> str:
    """The format of older versions, whose keys are still in use."""
    fields = msgspec.structs.asdict(wanted)
    given = fields.pop("given_id")
    for name in ("graph_versions", "parent_execution_id", "parent_node_id", "values"):
        del fields[name]
    fields |= {"correlation_id": None, "execution_id": given or wanted.execution_id}
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()


def _accepted(decision: list[Payload] | Rejected) -> list[Payload]:
    if isinstance(decision, Rejected):
        raise CommandRejected(decision.message, decision.code.value)
    return decision


__all__ = ["CreateExecutions", "ExecutionRecord", "NewExecution"]
