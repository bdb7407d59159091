"""Ports of the execution use cases, beyond those of the runs."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionRecord, LoggedCommit
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.runs.listing import Place
from pyoco_server.usecases.ports.stores import Change, Feed, Revision, Store

BEGINNING = Revision(0)


class VersionedGraph(Protocol):
    @property
    def graph(self) -> Graph: ...
    @property
    def version(self) -> int: ...


class Graphs(Protocol):
    async def read(self, tenant_id: str | None, graph_id: str, version: int | None = None) -> VersionedGraph:
        """The newest version unless one is given. Raises GraphNotFound."""
        ...


class ExecutionLog(Protocol):
    """One log per execution. A commit is appended atomically after the expected revision."""

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        """Raises WrongRevision if the log has advanced beyond `expected`."""
        ...

    def read(
        self, execution_id: str, after: Revision = ...
    ) -> AsyncIterator[tuple[LoggedCommit | None, Revision]]:
        """The commits after `after`, in order. None: data that is not a commit."""
        ...


ExecutionCache = Store[ExecutionRecord]


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    status: ExecutionStatus | None = None
    graph_id: str | None = None
    archived: bool = False


class SummaryPage(Struct, frozen=True):
    summaries: list[bytes]
    """As JSON."""
    more_after: Place | None


class ExecutionIndex(Protocol):
    """The index of executions. It can be rebuilt."""

    def clear(self) -> None: ...
    def apply(self, changes: Sequence[Change[LoggedCommit]]) -> None: ...
    def page(self, wanted: ExecutionFilter, after: Place | None, limit: int) -> SummaryPage: ...
    def waits(self, tenant_id: str | None, after: Place | None, limit: int) -> SummaryPage: ...
    def is_waiting(self, tenant_id: str | None, execution_id: str, node_id: str) -> bool: ...
    def waiting_with(self, tenant_id: str | None, wait_key: str) -> list[tuple[str, str]]:
        """Executions and nodes waiting with this key, oldest first."""
        ...

    def version(self, execution_id: str) -> int:
        """Version after the last known commit; 0 if none."""
        ...

    def held_bytes(self, execution_id: str) -> int:
        """Size of its values as JSON, as of the last known commit; 0 if unknown."""
        ...

    def has_ended(self, execution_id: str) -> bool:
        """Whether it is known to have ended; False if unknown."""
        ...

    def counts(self, tenant_id: str | None) -> dict[ExecutionStatus, int]: ...
    def matching(self, wanted: ExecutionFilter) -> dict[ExecutionStatus, int]:
        """Counts by status, ignoring the status filter."""
        ...

    def active(self) -> Iterable[str]:
        """All active executions of all tenants."""
        ...

    def close(self) -> None: ...


class ExecutionBackend(Protocol):
    @property
    def execution_log(self) -> ExecutionLog: ...
    @property
    def execution_feed(self) -> Feed[LoggedCommit]: ...
    @property
    def execution_cache(self) -> ExecutionCache: ...
    @property
    def execution_index(self) -> ExecutionIndex: ...
    @property
    def leases(self) -> Store[LeaseRecord]: ...
