"""Register and read graphs, per tenant; create an execution of one, or rerun an ended one."""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pyoco_server import tracing
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.executions.commands import (
    Code,
    CreateExecution,
    Rejected,
    StartExecution,
    keyed_command_id,
)
from pyoco_server.domain.executions.decide import decide
from pyoco_server.domain.executions.events import Actor, Commit, Payload
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.graphs import Graph, parse_graph
from pyoco_server.domain.executions.model import (
    Execution,
    carry_over,
    outputs_for_rerun,
    possible_ids,
    stored_id,
)
from pyoco_server.domain.executions.records import (
    ExecutionRecord,
    GraphPreview,
    GraphRecord,
    GraphSummary,
    Registration,
    newest_key,
    next_version,
    preview_of,
    tenant_token,
    version_key,
)
from pyoco_server.domain.inputs import is_tag
from pyoco_server.domain.runs.claims import IdempotencyClaim, claim_key
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.domain.strict_yaml import graph_definition
from pyoco_server.domain.value_previews import memory_of
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    IdempotencyConflict,
    InvalidRequest,
    NatsUnavailable,
    RequestTooLarge,
    SnapshotTooLarge,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import BoundedMemory, parse_in_thread
from pyoco_server.usecases.consistency import MAX_TRIES, claim_once
from pyoco_server.usecases.executions.commands import (
    Commanded,
    Writing,
    find_visible,
    is_execution_id,
    is_visible,
)
from pyoco_server.usecases.ports.gateway import VersionedGraph
from pyoco_server.usecases.ports.runs import ClaimStore, GraphStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Versioned, WrongRevision

log = get_logger(__name__)

# Graphs

MAX_CACHED = 256
MAX_CACHED_BYTES = 16_000_000


class Registered(Struct, frozen=True):
    record: GraphRecord
    is_new: bool


class GraphPage(Struct, frozen=True):
    items: list[GraphSummary]
    next_cursor: str | None


class ParsedGraph(Struct, frozen=True):
    graph: Graph
    version: int


class ManageGraphs:
    def __init__(
        self, graphs: GraphStore, clock: Clock, trail: AuditTrail, *, max_cached: int = MAX_CACHED
    ) -> None:
        self._trail = trail
        self._graphs = graphs
        self._clock = clock
        self._parsed: BoundedMemory[ParsedGraph] = BoundedMemory(max_cached, MAX_CACHED_BYTES)

    async def register(
        self, graph_id: str, text: bytes, content_type: str | None, caller: Caller
    ) -> Registered:
        """Raises InvalidRequest with all problems, RequestTooLarge above the message limit."""
        # In a thread, because a thousand nodes take some 150 ms.
        graph = await parse_in_thread(_read, graph_id, text, content_type)
        wanted = Registration(graph=graph, tenant_id=caller.tenant_id, by=caller.name, at=self._clock())
        for _ in range(MAX_TRIES):
            newest = await self._graphs.get(newest_key(caller.tenant_id, graph_id))
            record = next_version(newest.value if newest else None, wanted)
            if newest is not None and record is newest.value:
                return Registered(record, is_new=False)
            try:
                await self._write(newest, record)
            except WrongRevision:
                continue
            except SnapshotTooLarge as error:
                raise RequestTooLarge(f"graph {graph_id}: NATS refused it: {error.detail}") from error
            log.info("graph registered", action="graph.registered", graph_id=graph_id, version=record.version)
            before = None if newest is None else _state(newest.value)
            target = ChangeTarget("graph", graph_id)
            await self._trail.record(caller, "graph.put", target, before, _state(record))
            return Registered(record, is_new=True)
        raise NatsUnavailable(f"graph {graph_id} could not be written")

    async def preview(self, text: bytes, content_type: str | None) -> GraphPreview:
        """A definition as it would be stored. Raises InvalidRequest with all problems."""
        return preview_of(await parse_in_thread(_read, None, text, content_type))

    async def find(self, graph_id: str, version: int | None, caller: Caller) -> GraphRecord:
        """The newest version unless one is given. Raises GraphNotFound."""
        return await self._record(caller.tenant_id, graph_id, version)

    async def read(self, tenant_id: str | None, graph_id: str, version: int | None = None) -> ParsedGraph:
        """The parsed graph, cached because a version never changes."""
        if version is not None and (known := self._known(version_key(tenant_id, graph_id, version))):
            return known
        record = await self._record(tenant_id, graph_id, version)
        key = version_key(tenant_id, graph_id, record.version)
        return self._known(key) or await self._parse(key, record)

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> GraphPage:
        """In the order of their newest versions; a graph registered meanwhile comes last."""
        of = digest_of("graphs", caller.tenant_id)
        after = Revision(0) if cursor is None else Revision(int(place_of(cursor, of).updated_at))
        found = await self._graphs.newest(tenant_token(caller.tenant_id), after, limit + 1)
        more = len(found) > limit
        last = found[:limit][-1] if more else None
        next_cursor = cursor_at(Place(last.revision, last.value.graph_id), of) if last else None
        return GraphPage([stored.value for stored in found[:limit]], next_cursor)

    async def _write(self, newest: Versioned[GraphRecord] | None, record: GraphRecord) -> None:
        """First copy the newest version to a key with its number, then replace it."""
        key = newest_key(record.tenant_id, record.graph_id)
        if newest is None:
            await self._graphs.create(key, record)
            return
        await self._keep(newest.value)
        await self._graphs.update(key, record, newest.revision)

    async def _keep(self, record: GraphRecord) -> None:
        try:
            await self._graphs.create(version_key(record.tenant_id, record.graph_id, record.version), record)
        except WrongRevision:
            return  # somebody else kept it, and it never changes

    async def _record(self, tenant_id: str | None, graph_id: str, version: int | None) -> GraphRecord:
        newest = await self._graphs.get(newest_key(tenant_id, graph_id)) if is_tag(graph_id) else None
        if newest is None:
            raise GraphNotFound
        if version is None or version == newest.value.version:
            return newest.value
        is_older = 1 <= version < newest.value.version
        kept = await self._graphs.get(version_key(tenant_id, graph_id, version)) if is_older else None
        if kept is None:
            raise GraphNotFound(f"graph not found: {graph_id} has no version {version}")
        return kept.value

    def _known(self, key: str) -> ParsedGraph | None:
        return self._parsed.used(key)

    async def _parse(self, key: str, record: GraphRecord) -> ParsedGraph:
        graph, size = await parse_in_thread(_parsed, record)
        parsed = ParsedGraph(graph, record.version)
        self._parsed.keep(key, parsed, size)
        return parsed


def _state(record: GraphRecord) -> dict[str, object]:
    return {"version": record.version, "definition": record.definition}


def _parsed(record: GraphRecord) -> tuple[Graph, int]:
    """The graph, and its approximate memory: twice its definition."""
    return parse_graph(record.definition, is_stored=True), 2 * memory_of(record.definition)


def _read(graph_id: str | None, text: bytes, content_type: str | None) -> Graph:
    """`graph_id`: that of the path; None: there is none."""
    if graph_id is not None:
        _require_id(graph_id)
    definition: dict[str, Any] = graph_definition(text, content_type)
    given = definition.get("id")
    if graph_id is None and given is not None:
        _require_id(str(given))
    elif given not in (None, graph_id):
        raise InvalidRequest(
            f"graph {graph_id}: the id in the body is {str(given)[:64]!r}; omit it, or use the id in the path"
        )
    return parse_graph({**definition, "id": graph_id or given or "preview"})


def _require_id(graph_id: str) -> None:
    if not is_tag(graph_id):
        raise InvalidRequest(f"graph id {graph_id[:64]!r} must match [A-Za-z0-9_-]{{1,64}}")


# Executions of a graph

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


class Rerun(Struct, frozen=True):
    execution_id: str
    start_from: Literal["failed", "start"]
    correlation_id: str | None = None


class CreateExecutions:
    def __init__(self, writing: Writing, claims: ClaimStore) -> None:
        self._its = writing
        self._claims = claims

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
            correlation_id=wanted.correlation_id,
            rerun_of=old.state.shown_id,
            from_failed=wanted.start_from == "failed",
        )

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
        create = CreateExecution(
            actor=actor,
            input=wanted.input,
            tenant_id=caller.tenant_id,
            api_key_id=caller.api_key_id,
            graph_version=graph.version,
            rerun_of=wanted.rerun_of,
            given_id=None if wanted.given_id == wanted.execution_id else wanted.given_id,
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
        if wanted.rerun_of is not None and wanted.from_failed:
            old = await find_visible(self._its.records, wanted.rerun_of, caller)
            outputs = {} if old is None else outputs_for_rerun(old.state, graph.graph)
            payloads += carry_over(graph.graph, outputs, wanted.rerun_of)
        return payloads

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
    fields |= {"correlation_id": None, "execution_id": given or wanted.execution_id}
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()


def _accepted(decision: list[Payload] | Rejected) -> list[Payload]:
    if isinstance(decision, Rejected):
        raise CommandRejected(decision.message, decision.code.value)
    return decision


__all__ = ["CreateExecutions", "ExecutionRecord", "NewExecution"]
