"""What executions need from the world, beyond the ports of the runs."""

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
        """The newest version where none is named. Raises GraphNotFound."""
        ...


class ExecutionLog(Protocol):
    """One log per execution. A commit is appended whole, behind the one its writer knows, or not at all."""

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        """Raises WrongRevision when the log has gone on behind `expected`."""
        ...

    def read(
        self, execution_id: str, after: Revision = ...
    ) -> AsyncIterator[tuple[LoggedCommit | None, Revision]]:
        """The commits behind `after`, in order. None: something is there that is no commit."""
        ...


ExecutionCache = Store[ExecutionRecord]


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    status: ExecutionStatus | None = None
    graph_id: str | None = None
    archived: bool = False


class SummaryPage(Struct, frozen=True):
    summaries: list[bytes]
    """As JSON, ready to be sent."""
    more_after: Place | None


class ExecutionIndex(Protocol):
    """Which executions there are, and where they stand. Losing it loses nothing."""

    def clear(self) -> None: ...
    def apply(self, changes: Sequence[Change[LoggedCommit]]) -> None: ...
    def page(self, wanted: ExecutionFilter, after: Place | None, limit: int) -> SummaryPage: ...
    def waits(self, tenant_id: str | None, after: Place | None, limit: int) -> SummaryPage: ...
    def is_waiting(self, tenant_id: str | None, execution_id: str, node_id: str) -> bool: ...
    def waiting_with(self, tenant_id: str | None, wait_key: str) -> list[tuple[str, str]]:
        """Executions and their nodes that wait with this key, oldest first."""
        ...

    def version(self, execution_id: str) -> int:
        """Of the last commit that was seen; 0 when there is none."""
        ...

    def has_ended(self, execution_id: str) -> bool:
        """Whether it is known to have; of one that nobody has heard of it is not."""
        ...

    def counts(self, tenant_id: str | None) -> dict[ExecutionStatus, int]: ...
    def matching(self, wanted: ExecutionFilter) -> dict[ExecutionStatus, int]:
        """How many there are in each status, whichever status is wanted."""
        ...

    def active(self) -> Iterable[str]:
        """All that have not ended, of all tenants."""
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
