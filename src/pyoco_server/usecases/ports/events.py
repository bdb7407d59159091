"""What workflow events need of the world beyond runs."""

from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pyoco_server.domain.events.audit import AuditRecord, StoredEvent
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.notifications import Delivered, NotificationSettings
from pyoco_server.domain.events.receipts import KeptResume, Receipt, Slot, WaitPlace
from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.usecases.ports.executions import ExecutionBackend
from pyoco_server.usecases.ports.runs import GatewayBackend
from pyoco_server.usecases.ports.stores import Feed, MeasuredClock, Revision, Store

T = TypeVar("T")


class ListedStore(Store[T], Protocol[T]):
    async def list_values(self, prefix: str = "") -> list[T]:
        """Of all keys that begin with `prefix`, which is empty or ends with a dot."""
        ...


class CountedStore(ListedStore[T], Protocol[T]):
    async def count(self, prefix: str = "") -> int:
        """How many there are under `prefix`, cheaply."""
        ...


class AuditStream(Protocol):
    async def append(self, event: StoredEvent) -> Revision:
        """The same event id twice, within minutes, is one record."""
        ...

    async def find(self, event_id: str) -> StoredEvent | None: ...


class EventsBackend(Protocol):
    """What workflow events need beyond runs. Keys: see `usecases/events/definitions.py`."""

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
        """Holds about as many of each tenant as the settings allow; the oldest go first."""
        ...

    @property
    def retry_jobs(self) -> CountedStore[RetryJob]: ...
    @property
    def resumes(self) -> CountedStore[KeptResume]: ...
    @property
    def audit(self) -> AuditStream: ...
    @property
    def audit_feed(self) -> Feed[StoredEvent]: ...


class AuditLog(Protocol):
    """Where audit records go beside the stream."""

    async def write(self, record: AuditRecord) -> None: ...


class Notifier(Protocol):
    async def send(self, webhook_url: str, text: str) -> Delivered:
        """Never raises for what the other side does."""
        ...


class ExecutionOrder(Struct, frozen=True, kw_only=True):
    """An execution to be created and started. Its id was chosen before, so that a repeat is harmless."""

    execution_id: str
    graph_id: str
    definition: dict[str, Any] | None
    """To be registered under `graph_id` first; None: it is registered."""
    input: dict[str, Any]
    tenant_id: str | None
    actor: str


class Executions(Protocol):
    async def start(self, order: ExecutionOrder) -> str:
        """The id of the first task's run. The same order twice is one execution."""
        ...

    async def is_active(self, execution_id: str) -> bool | None:
        """None: there is no such execution."""
        ...


class NotWaitingYet(Exception):
    """The node may still come to wait."""


class Waits(Protocol):
    """Nodes of executions that wait."""

    def find(self, tenant_id: str | None, target: ResumeTarget) -> list[WaitPlace]:
        """Those that this gateway has heard of, oldest first."""
        ...

    async def resume(self, kept: KeptResume, place: WaitPlace) -> None:
        """The same event twice resumes once.

        Raises NotWaitingYet; and, for good, CommandRejected, ExecutionNotFound, NodeNotFound.
        """
        ...

    async def news(self, seconds: float) -> bool:
        """Until somewhere a node waits; False after so long without."""
        ...


class ServerBackend(GatewayBackend, ExecutionBackend, Protocol):
    """What a gateway needs, for all levels."""

    @property
    def events(self) -> EventsBackend: ...
    @property
    def shared_clock(self) -> MeasuredClock: ...
