"""Register and read graphs, per tenant."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.executions.graph_versions import (
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
from pyoco_server.domain.executions.graphs import MAX_PROBLEMS, Graph, parse_graph
from pyoco_server.domain.executions.nesting import MAX_GRAPHS, graphs_in, problems_of
from pyoco_server.domain.inputs import is_tag
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.domain.strict_yaml import graph_definition
from pyoco_server.domain.value_previews import memory_of
from pyoco_server.errors import (
    GraphNotFound,
    InvalidRequest,
    NatsUnavailable,
    RequestTooLarge,
    SnapshotTooLarge,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import BoundedMemory, parse_in_thread
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.ports.runs import GraphStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Versioned, WrongRevision

log = get_logger(__name__)

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
        refuse_nesting(graph, await self._below(caller.tenant_id, graph))
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

    async def pinned(self, tenant_id: str | None, graph: Graph) -> dict[str, int]:
        """The newest versions of all graphs below it. Raises InvalidRequest."""
        below = await self._below(tenant_id, graph)
        refuse_nesting(graph, below)
        return {graph_id: found.version for graph_id, found in below.items() if found is not None}

    async def _below(self, tenant_id: str | None, graph: Graph) -> dict[str, ParsedGraph | None]:
        """Up to one more than allowed. None: not registered."""
        below: dict[str, ParsedGraph | None] = {}
        waiting = set(graphs_in(graph).values())
        while waiting and len(below) <= MAX_GRAPHS:
            graph_id = waiting.pop()
            found = below[graph_id] = await self._newest(tenant_id, graph_id)
            if found is not None:
                waiting |= set(graphs_in(found.graph).values()) - {graph.id, *below}
        return below

    async def _newest(self, tenant_id: str | None, graph_id: str) -> ParsedGraph | None:
        with suppress(GraphNotFound):
            return await self.read(tenant_id, graph_id)
        return None

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


def refuse_nesting(graph: Graph, below: Mapping[str, ParsedGraph | None]) -> None:
    """Raises InvalidRequest."""
    graphs = {graph_id: None if found is None else found.graph for graph_id, found in below.items()}
    if problems := problems_of(graph, graphs):
        raise InvalidRequest(f"graph {graph.id}: {'; '.join(problems[:MAX_PROBLEMS])}")


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
