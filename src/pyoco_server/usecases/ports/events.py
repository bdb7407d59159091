"""Ports of workflow events: stores, audit, notifications, executions."""

from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pyoco_server.domain.events.audit import AuditRecord, StoredEvent
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.receipts import KeptResume, Receipt, Slot, WaitPlace
from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.events.retry import Delivered, NotificationSettings, RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.executions.events import ActorKind
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.usecases.ports.executions import ExecutionBackend
from pyoco_server.usecases.ports.runs import GatewayBackend
from pyoco_server.usecases.ports.stores import Feed, MeasuredClock, Revision, Store

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


class ServerBackend(GatewayBackend, ExecutionBackend, Protocol):
    """What a gateway needs, for all levels."""

    @property
    def events(self) -> EventsBackend: ...
    @property
    def shared_clock(self) -> MeasuredClock: ...
    @property
    def schedules(self) -> Store[Schedule]: ...
    @property
    def schedule_feed(self) -> Feed[Schedule]: ...
    @property
    def tick_pages(self) -> Store[TickPage]: ...
