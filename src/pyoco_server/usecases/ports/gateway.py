"""Ports of a gateway beyond those of the runs: executions, workflow events, schedules."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pyoco_server.domain.audit_trail import AuditEntry
from pyoco_server.domain.bulk import BulkChunk, BulkRecord
from pyoco_server.domain.events.audit import AuditRecord, StoredEvent
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.receipts import KeptResume, Receipt, Slot, WaitPlace
from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.events.retry import Delivered, NotificationSettings, RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.executions.events import ActorKind
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionRecord, LoggedCommit
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.flows import FlowSettings
from pyoco_server.domain.limits.holders import Holders
from pyoco_server.domain.limits.model import LimitRecord
from pyoco_server.domain.queues import QueueRecord
from pyoco_server.domain.runs.listing import Place
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.domain.shares import Roster
from pyoco_server.domain.stats.records import Bucket, CountPosition, RunEnd, StatsRecord
from pyoco_server.errors import InvalidListQuery
from pyoco_server.usecases.ports.alerts import AlertsBackend
from pyoco_server.usecases.ports.queues import QueueLanes, QueueStore
from pyoco_server.usecases.ports.runs import GatewayBackend
from pyoco_server.usecases.ports.stores import Change, Feed, FeedPosition, MeasuredClock, Revision, Store

# Executions

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

    async def pinned(self, tenant_id: str | None, graph: Graph) -> dict[str, int]:
        """The newest versions of all graphs below it. Raises InvalidRequest."""
        ...


class ExecutionLog(Protocol):
    """One log per execution. A commit is appended atomically after the expected revision."""

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        """Raises WrongRevision if the log has advanced beyond `expected`."""
        ...

    async def bury(self, logged: LoggedCommit, expected: Revision, ttl_sec: float | None = None) -> None:
        """Append the last commit of a deleted execution. `ttl_sec`: how long it keeps the id taken.

        Raises WrongRevision like `append`.
        """
        ...

    async def erase(self, execution_id: str) -> None:
        """Remove all commits but the last."""
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
    """A cache of the execution logs for lists and counts. It can be rebuilt.

    Methods raise IndexLost if what was stored cannot be read or written any more.
    """

    @property
    def position(self) -> FeedPosition | None: ...
    @property
    def is_lost(self) -> bool:
        """Whether it is empty until it is filled again, after `clear`."""
        ...

    def clear(self) -> None: ...
    def apply(self, changes: Sequence[Change[LoggedCommit]], position: FeedPosition | None = ...) -> None:
        """`position`: of the feed after these changes; None: they are this gateway's own."""
        ...

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

    def is_deleted(self, execution_id: str) -> bool: ...
    def ended_before(self, at: float, limit: int) -> list[str]:
        """Executions of all tenants that ended before this time, the oldest first."""
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
    @property
    def rosters(self) -> Store[Roster]: ...


# The audit trail


class ChangeWindow(Struct, frozen=True):
    """A stretch of the audit trail."""

    items: list[tuple[int, AuditEntry]]
    """With their numbers, newest first."""
    start: int
    """The lowest number that was read."""
    first: int
    """The lowest number that there is."""


class ChangeLog(Protocol):
    async def append(self, entry: AuditEntry) -> None:
        """Repeats of an id within minutes are one entry."""
        ...

    async def before(self, number: int | None, limit: int) -> ChangeWindow:
        """At most `limit` entries before this number; None: the newest."""
        ...


# Workflow events: stores, audit, notifications; executions as they need them

T = TypeVar("T")


class ListedStore(Store[T], Protocol[T]):
    async def list_values(self, prefix: str = "") -> list[T]:
        """Values of the keys under `prefix`, which is empty or ends with a dot.

        Actions have their params as JSON; retry jobs and kept resumes lack the data of their events.
        """
        ...


class CountedStore(ListedStore[T], Protocol[T]):
    async def count(self, prefix: str = "") -> int:
        """Number of keys under `prefix`, in one request."""
        ...


class AuditStream(Protocol):
    async def append(self, event: StoredEvent) -> Revision:
        """Repeats of an event id within minutes are one record."""
        ...

    async def find(self, event_id: str) -> StoredEvent | None: ...


class EventsBackend(Protocol):
    """Stores of workflow events. Keys: see `usecases/events/definitions.py`."""

    @property
    def templates(self) -> ListedStore[Template]: ...
    @property
    def actions(self) -> ListedStore[Action]: ...
    @property
    def sources(self) -> ListedStore[Source]: ...
    @property
    def notification_settings(self) -> ListedStore[NotificationSettings]: ...
    @property
    def slots(self) -> Store[Slot]: ...
    @property
    def leases(self) -> Store[LeaseRecord]: ...
    @property
    def imports(self) -> Store[ImportMark]: ...
    @property
    def receipts(self) -> ListedStore[Receipt]:
        """Limited per tenant by the settings, approximately; the oldest are evicted first."""
        ...

    @property
    def retry_jobs(self) -> CountedStore[RetryJob]: ...
    @property
    def resumes(self) -> CountedStore[KeptResume]: ...
    @property
    def audit(self) -> AuditStream: ...
    @property
    def audit_feed(self) -> Feed[StoredEvent]:
        """Without the requests, which may be large."""
        ...


class AuditLog(Protocol):
    """Second destination of audit records, besides the stream."""

    async def write(self, record: AuditRecord) -> None: ...


class Notifier(Protocol):
    async def send(self, webhook_url: str, text: str) -> Delivered:
        """Never raises because of the receiver."""
        ...


class ExecutionOrder(Struct, frozen=True, kw_only=True):
    """An execution to create and start. Its id is already chosen, so a repeat is harmless."""

    execution_id: str
    graph_id: str
    definition: dict[str, Any] | None
    """Graph to register under `graph_id` first; None: already registered."""
    input: dict[str, Any]
    tenant_id: str | None
    actor: str
    actor_kind: ActorKind = ActorKind.EXTERNAL


class Executions(Protocol):
    async def start(self, order: ExecutionOrder) -> str:
        """The run id of the first task. Idempotent per execution_id."""
        ...

    async def is_active(self, execution_id: str) -> bool | None:
        """None: no such execution."""
        ...


class NotWaitingYet(Exception):
    """The node does not wait, but still may."""


class Waits(Protocol):
    """Waiting nodes of executions."""

    def find(self, tenant_id: str | None, target: ResumeTarget) -> list[WaitPlace]:
        """Waiting nodes known to this gateway, oldest first."""
        ...

    async def resume(self, kept: KeptResume, place: WaitPlace) -> None:
        """Idempotent per event.

        Raises NotWaitingYet; permanently, CommandRejected, ExecutionNotFound or NodeNotFound.
        """
        ...

    async def next_wait(self, seconds: float) -> bool:
        """Wait until a node begins to wait; False: timeout."""
        ...


# Statistics


MAX_STATS_BYTES = 128 * 1024 * 1024


def check_stats_size(size: int) -> None:
    """Raises InvalidListQuery."""
    if size > MAX_STATS_BYTES:
        raise InvalidListQuery(
            f"invalid list query: since: more than {MAX_STATS_BYTES // 1024**2} MB of records; "
            "choose a shorter time"
        )


class StatsRecords(Store[StatsRecord], Protocol):
    async def between(
        self, tenant_id: str | None, bucket: Bucket, since: float, until: float
    ) -> list[tuple[int, bytes]]:
        """Starts and records, as JSON, of the buckets that start in this time, oldest first.

        `tenant_id` None: of all tenants. Raises InvalidListQuery if they have more than `MAX_STATS_BYTES`.
        """
        ...


# All levels


class ServerBackend(GatewayBackend, ExecutionBackend, Protocol):
    """What a gateway needs."""

    @property
    def secrets(self) -> ListedStore[SecretRecord]: ...
    @property
    def variables(self) -> ListedStore[VariableRecord]: ...

    @property
    def events(self) -> EventsBackend: ...
    @property
    def alerts(self) -> AlertsBackend: ...
    @property
    def shared_clock(self) -> MeasuredClock: ...
    @property
    def flows(self) -> Store[FlowSettings]: ...
    @property
    def flow_feed(self) -> Feed[FlowSettings]: ...
    @property
    def schedules(self) -> Store[Schedule]: ...
    @property
    def schedule_feed(self) -> Feed[Schedule]: ...
    @property
    def tick_pages(self) -> Store[TickPage]: ...
    @property
    def change_log(self) -> ChangeLog: ...
    @property
    def queues(self) -> QueueStore: ...
    @property
    def queue_feed(self) -> Feed[QueueRecord]: ...
    @property
    def lanes(self) -> QueueLanes: ...
    @property
    def bulk_operations(self) -> Store[BulkRecord]: ...
    @property
    def bulk_feed(self) -> Feed[BulkRecord]: ...
    @property
    def bulk_chunks(self) -> Store[BulkChunk]: ...
    @property
    def stats_records(self) -> StatsRecords: ...
    @property
    def count_positions(self) -> Store[CountPosition]: ...
    @property
    def run_end_feed(self) -> Feed[RunEnd]:
        """The run bucket, for statistics."""
        ...

    @property
    def limits(self) -> Store[LimitRecord]: ...
    @property
    def limit_feed(self) -> Feed[LimitRecord]: ...
    @property
    def limit_holders(self) -> Store[Holders]: ...
    @property
    def limit_holder_feed(self) -> Feed[Holders]: ...
