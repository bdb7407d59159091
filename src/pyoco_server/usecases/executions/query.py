"""Read and watch executions: state now or at an earlier event, log, lists, and the inbox of waits."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Container, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

from msgspec import Struct

from pyoco_server.domain.executions.branches import EdgeState, edge_states
from pyoco_server.domain.executions.events import Event, value_in
from pyoco_server.domain.executions.evolve import evolve
from pyoco_server.domain.executions.graph_parts import a
from pyoco_server.domain.executions.graphs import NodeType
from pyoco_server.domain.executions.item_views import MapItem, shown_items
from pyoco_server.domain.executions.model import Execution, ExecutionStatus, json_size, possible_ids
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.runs.listing import cursor_at, digest_of, place_of
from pyoco_server.errors import (
    ExecutionNotFound,
    GatewayOverloaded,
    InvalidRequest,
    NatsUnavailable,
    NodeNotFound,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import HeavyWork
from pyoco_server.usecases.executions.commands import find_visible
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.executions.stored_values import OpenValues
from pyoco_server.usecases.ports.gateway import (
    ExecutionFilter,
    ExecutionIndex,
    ExecutionLog,
    Graphs,
    SummaryPage,
)
from pyoco_server.usecases.ports.stores import Revision


class ExecutionHub:
    """The watchers of executions. A watcher is only notified; it reads the events from the log."""

    def __init__(self, max_watchers: int) -> None:
        self._max_watchers = max_watchers
        self._bells: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.count = 0
        self.is_closed = False

    @contextmanager
    def watching(self, execution_id: str) -> Iterator[asyncio.Event]:
        if self.count >= self._max_watchers:
            raise GatewayOverloaded("too many watchers")
        bell = asyncio.Event()
        self._bells[execution_id].add(bell)
        self.count += 1
        try:
            yield bell
        finally:
            self.count -= 1
            self._bells[execution_id].discard(bell)
            if not self._bells[execution_id]:
                del self._bells[execution_id]

    def ring(self, execution_id: str) -> None:
        for bell in self._bells.get(execution_id, ()):
            bell.set()

    def close(self) -> None:
        """The gateway stops; clients should reconnect to another."""
        self.is_closed = True
        for bells in self._bells.values():
            for bell in bells:
                bell.set()


# Queries

log = get_logger(__name__)

HEARTBEAT_SEC = 1.5
"""Heartbeat interval; clients time out after some seconds of silence."""


PAGE_BYTES = 512 * 1024
"""JSON of the values in a page of events; a larger event is a page of its own."""


class EventSlice(Struct, frozen=True):
    events: list[Event]
    has_more: bool


class Page(Struct, frozen=True):
    items: list[bytes]
    """As JSON."""
    next_cursor: str | None


class ReadExecutions:
    def __init__(
        self,
        records: ExecutionRepository,
        executions: ExecutionLog,
        index: ExecutionIndex,
        hub: ExecutionHub,
        graphs: Graphs,
        *,
        heavy_work: HeavyWork,
        open_values: OpenValues,
    ) -> None:
        self._heavy_work = heavy_work
        self._open_values = open_values
        self._records = records
        self._log = executions
        self._index = index
        self._hub = hub
        self._graphs = graphs

    def room_for(self, execution_id: str, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Around all work on its state."""
        return self._records.room_for(*possible_ids(caller.tenant_id, execution_id))

    async def state(self, execution_id: str, caller: Caller) -> Execution:
        return (await self._record(execution_id, caller)).state

    async def state_at(self, execution_id: str, sequence: int, caller: Caller) -> Execution:
        """The state after the event with this sequence."""
        record = await self._record(execution_id, caller)
        state: Execution | None = None
        async for event in self._events(record.state.execution_id):
            state = evolve(state, event)
            if event.sequence == sequence and state is not None:
                return state
        version = 0 if state is None else state.version
        raise InvalidRequest(f"at_sequence: the execution has the events 1 to {version}")

    async def edges(self, state: Execution) -> list[EdgeState]:
        """The state of its edges."""
        versioned = await self._graphs.read(state.tenant_id, state.graph_id, state.graph_version)
        return await self._open_values(
            state.tenant_id, partial(self._heavy_work, edge_states, state, versioned.graph)
        )

    async def items(
        self, state: Execution, node_id: str, after: int, active: Container[str]
    ) -> Iterator[MapItem]:
        """The items of a map after this index. Raises NodeNotFound, InvalidRequest."""
        versioned = await self._graphs.read(state.tenant_id, state.graph_id, state.graph_version)
        spec = versioned.graph.nodes.get(node_id)
        if spec is None:
            raise NodeNotFound(f"the execution has no node {node_id[:64]!r}")
        if spec.type is not NodeType.MAP:
            raise InvalidRequest(f"node {node_id} is {a(spec.type)}; only a map has items")
        return shown_items(state, spec, after, active)

    async def events(self, execution_id: str, caller: Caller, after: int, limit: int) -> EventSlice:
        """At most `limit`, and no more than fit into a page."""
        stored_id = (await self._record(execution_id, caller)).state.execution_id
        found: list[Event] = []
        size = 0
        async for event in self._events(stored_id):
            if event.sequence <= after:
                continue
            size += json_size(value_in(event.payload))
            if len(found) == limit or (found and size > PAGE_BYTES):
                return EventSlice(found, has_more=True)
            found.append(event)
        return EventSlice(found, has_more=False)

    def page(self, wanted: ExecutionFilter, cursor: str | None, limit: int) -> Page:
        of = digest_of("executions", wanted.tenant_id, wanted.status, wanted.graph_id, wanted.archived)
        found = self._index.page(wanted, None if cursor is None else place_of(cursor, of), limit)
        return _page(found, of)

    def counts(self, wanted: ExecutionFilter) -> dict[ExecutionStatus, int]:
        return self._index.matching(wanted)

    def waits(self, tenant_id: str | None, cursor: str | None, limit: int) -> Page:
        """Waiting nodes, oldest first."""
        of = digest_of("waits", tenant_id)
        found = self._index.waits(tenant_id, None if cursor is None else place_of(cursor, of), limit)
        return _page(found, of)

    @asynccontextmanager
    async def watching(self, stored_id: str, after: int) -> AsyncIterator[AsyncIterator[Event | None]]:
        """Register a watcher and return its events; None after a while without any."""
        with self._hub.watching(stored_id) as bell:
            yield self._follow(stored_id, after, bell)

    async def _follow(
        self, execution_id: str, after: int, bell: asyncio.Event
    ) -> AsyncIterator[Event | None]:
        revision, has_ended = Revision(0), False
        bell.set()  # what is there already is news to this one
        while not (has_ended or self._hub.is_closed):
            if not await _rings(bell, HEARTBEAT_SEC):
                yield None
                continue
            bell.clear()
            try:
                async for logged, position in self._log.read(execution_id, revision):
                    revision = position
                    if logged is None:
                        continue
                    for event in logged.commit.events():
                        if event.sequence > after:
                            yield event
                    has_ended = logged.summary.ended_at is not None
            except NatsUnavailable as error:
                log.warning(
                    "NATS unavailable; a watcher is waiting", action="execution.watch", exc_info=error
                )
                asyncio.get_running_loop().call_later(HEARTBEAT_SEC, bell.set)
                yield None

    async def _events(self, execution_id: str) -> AsyncIterator[Event]:
        async for logged, _ in self._log.read(execution_id):
            if logged is not None:
                for event in logged.commit.events():
                    yield event

    async def _record(self, execution_id: str, caller: Caller) -> ExecutionRecord:
        record = await find_visible(self._records, execution_id, caller)
        if record is None:
            raise ExecutionNotFound
        return record


async def _rings(bell: asyncio.Event, patience: float) -> bool:
    if bell.is_set():
        return True
    waiting = asyncio.ensure_future(bell.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=patience)
    finally:
        waiting.cancel()
    return bool(done)


def _page(found: SummaryPage, of: str) -> Page:
    more = found.more_after
    return Page(found.summaries, None if more is None else cursor_at(more, of))
