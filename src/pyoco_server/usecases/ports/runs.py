"""Ports of the use cases. `jetstream` and `testing` implement them; one suite checks both.

Every method may raise `NatsUnavailable`: the store did not reply in time, and the outcome is unknown.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.auth import ApiKeyRecord
from pyoco_server.domain.dead_letters import DeadLetter, LetterMark, StoredLetter
from pyoco_server.domain.executions.graph_versions import GraphRecord, GraphSummary
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.large_values import StoredValue, ValueUse
from pyoco_server.domain.limits.holders import Standing
from pyoco_server.domain.queues import QueueFigures
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.claims import IdempotencyClaim
from pyoco_server.domain.runs.listing import Place, RunFilter
from pyoco_server.domain.runs.logs import LogLine, LogRecord
from pyoco_server.domain.runs.model import FlowFile, RunSnapshot, RunStatus
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.domain.wheels import InstalledWheel, Wheel, WheelEvent
from pyoco_server.usecases.ports.queues import JobQueue, JobSources, UndeliverableJobs
from pyoco_server.usecases.ports.stores import (
    NO_HORIZON,
    Change,
    Feed,
    FeedPosition,
    Revision,
    Storage,
    Store,
    Versioned,
)

RunStore = Store[RunSnapshot]
WorkerStore = Store[WorkerRecord]
ClaimStore = Store[IdempotencyClaim]


class FlowFileStore(Store[FlowFile], Protocol):
    """Flow.yaml files by their hash."""

    async def list_values(self, prefix: str = "") -> list[FlowFile]:
        """All of them, without their texts."""
        ...


class ApiKeyFeed(Protocol):
    """All API keys in memory, kept up to date by the store."""

    @property
    def is_current(self) -> bool:
        """Whether the feed is at most a second behind. If not, the store has to be read."""
        ...

    def known(self, key_id: str) -> ApiKeyRecord | None: ...


class ApiKeyStore(Store[ApiKeyRecord], Protocol):
    """Records by `record_key(key_id)`."""

    async def list_keys(self) -> list[ApiKeyRecord]:
        """All records, oldest change first."""
        ...

    def follow_keys(self) -> AbstractAsyncContextManager[ApiKeyFeed]: ...


class IndexedPage(Struct, frozen=True):
    summaries: list[bytes]
    """Summaries of the runs as JSON."""
    places: list[Place]
    """Ids of the runs, in the same order."""
    statuses: list[RunStatus]
    more_after: Place | None
    """Start of the next page; None after the last."""


class RunIndex(Protocol):
    """A cache of the run store for lists and counts. It can be rebuilt.

    Methods raise IndexLost if what was stored cannot be read or written any more.
    """

    @property
    def position(self) -> FeedPosition | None: ...
    @property
    def is_lost(self) -> bool:
        """Whether it is empty until it is filled again, after `clear`."""
        ...

    def clear(self, horizon: Revision = NO_HORIZON) -> None:
        """`horizon`: up to this revision, changes are the only ones of their run."""
        ...

    def apply(self, changes: Sequence[Change[RunSnapshot]], position: FeedPosition) -> None: ...
    def expire(self, now: float) -> int: ...
    def forget(self, run_id: str) -> None: ...
    def page(self, wanted: RunFilter, after: Place | None, limit: int) -> IndexedPage: ...
    def ended_before(self, at: float, limit: int) -> list[str]:
        """Runs of all tenants that ended before this time."""
        ...

    def matching(self, wanted: RunFilter) -> list[str]:
        """Ids of all that match at this moment, newest first."""
        ...

    def counts(self, tenant_id: str | None) -> dict[RunStatus, int]: ...
    def counts_within(self, wanted: RunFilter, most: int) -> dict[RunStatus, int]:
        """By the tenant, flow and tag of a filter, up to `most` of each status."""
        ...

    def flows(self, tenant_id: str | None, after: str, limit: int) -> Sequence[str]:
        """Names of flows that have runs, in order, following `after`."""
        ...

    def queues(self, tenant_id: str | None, now: float) -> dict[str, QueueFigures]:
        """Tags with runs that wait, run, or ended in the last minute."""
        ...

    def runs_ahead(self, run_id: str, most: int) -> int | None:
        """Waiting runs of its tag and tenant that wait longer, up to `most`; None: the run does not wait."""
        ...

    def is_of(self, run_id: str, tenant_id: str) -> bool: ...
    def knows(self, run_id: str) -> bool: ...
    def is_known(self, change: Change[RunSnapshot]) -> bool:
        """Whether the index has this state of the run, apart from its heartbeat."""
        ...

    def limited(self) -> Iterable[Standing]:
        """All active runs that limits concern."""
        ...

    def unfinished(self, *statuses: RunStatus) -> Iterable[tuple[str, Revision, RunStatus]]:
        """All active runs of all tenants, or those with one of the statuses, with their known revisions."""
        ...

    def active(self, status: RunStatus, after: Revision, limit: int) -> Sequence[tuple[str, Revision, bytes]]:
        """Runs of all tenants with a status that is not final, after a revision; with summaries as JSON."""
        ...

    def close(self) -> None: ...


class Timer(Protocol):
    """A timer that is due. It is repeated until it is settled."""

    @property
    def id(self) -> str:
        """The same at every repetition."""
        ...

    @property
    def key(self) -> str: ...
    @property
    def payload(self) -> bytes: ...

    async def settle(self) -> None:
        """Mark it as handled."""
        ...


class Timers(Protocol):
    """Times kept by the store, so that they survive all gateways."""

    async def set(self, kind: str, key: str, at: float, payload: bytes = b"") -> None:
        """`at`: by the store's clock; a time in the past is due now. Replaces a pending timer of the key.

        Raises TimersUnsupported.
        """
        ...

    async def clear(self, kind: str, key: str) -> None:
        """Remove a pending timer. No error if there is none."""
        ...

    def follow(self, kind: str) -> AsyncGenerator[Timer, None]:
        """All timers of a kind as they are due, without end; each goes to one of all followers."""
        ...


class WheelStore(Protocol):
    """Registered wheels and their content."""

    async def list_wheels(self) -> list[Wheel]: ...

    async def get(self, name: str) -> Wheel | None: ...

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        tags: Sequence[str],
        check: Callable[[list[Wheel]], None],
    ) -> Wheel:
        """Store a wheel. `check` receives all others and raises if it must not be added.

        Of two concurrent uploads, the later one is checked against the earlier.
        """
        ...

    def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        """The verified content. Raises NatsUnavailable if it is damaged."""
        ...

    async def delete(self, name: str) -> Wheel | None:
        """The removed wheel; None if there was none."""
        ...

    async def collect(self, older_than: float) -> int:
        """Remove remains of uploads abandoned `older_than` seconds ago; their number."""
        ...


class ValueStore(Protocol):
    """Large values, by tenant and hash. A value is kept while something uses it."""

    async def put(
        self, tenant_id: str | None, owner: str, kind: str, chunks: AsyncIterator[bytes]
    ) -> StoredValue:
        """Store content that `owner` uses. `kind`: its media type. Content of the same hash is shared."""
        ...

    async def find(self, tenant_id: str | None, sha256: str, *, of_any: bool = False) -> StoredValue | None:
        """A value of this tenant; `of_any`: of whichever tenant."""
        ...

    async def use(self, tenant_id: str | None, owner: str, sha256: str) -> StoredValue | None:
        """Let `owner` use a value of its tenant, too. None: nobody uses it any more."""
        ...

    def read(self, value: StoredValue) -> AsyncGenerator[bytes, None]:
        """The content in pieces. Raises NatsUnavailable if it is incomplete."""
        ...

    async def uses(self) -> list[ValueUse]: ...

    async def release(self, use: ValueUse) -> None:
        """The owner does not exist any more."""
        ...

    async def withdraw(self, tenant_id: str | None, owner: str, sha256: str) -> None:
        """The owner does not use it any more, and goes on."""
        ...

    async def bytes_used(self, tenant_id: str | None, owners: str) -> int:
        """Of all values that owners of a kind use; equal ones count once."""
        ...

    async def collect(self, older_than: float) -> int:
        """Remove content without uses, written `older_than` seconds ago; their number."""
        ...


class GraphStore(Store[GraphRecord], Protocol):
    """Versions of graphs by `newest_key` and `version_key`."""

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        """The newest version of each graph of a tenant (a `tenant_token`), oldest change first."""
        ...


class WheelInstaller(Protocol):
    """Wheels on a worker's disk."""

    async def install(self, wheel: Wheel, content: AsyncIterator[bytes]) -> InstalledWheel:
        """Raises WheelSyncFailed and leaves nothing behind."""
        ...

    async def keep_only(self, wheels: Collection[InstalledWheel]) -> None:
        """Remove other wheels, once they cannot be in use."""
        ...


class WheelHistory(Protocol):
    async def append(self, event: WheelEvent) -> None: ...

    async def list_events(self) -> list[WheelEvent]:
        """All stored events, newest first."""
        ...


class TooManyLines(Exception):
    """More lines than the store accepts at once."""


class TaskLogs(Protocol):
    """Run logs."""

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str) -> None:
        """A retry with the same `write_id` soon after the first is stored once. Raises TooManyLines."""
        ...

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        """Send lines to current followers without storing them."""
        ...

    async def remove(self, run_id: str) -> None:
        """Remove what is stored of a run."""
        ...

    def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        """Records stored after `after`, in storage order."""
        ...

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        """`callback` receives new lines until the returned function is called."""
        ...


class RunSignals(Protocol):
    async def on_foreign_write(
        self, run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """`callback` is called after foreign writes of the run, until the returned function is called.

        A hint without guarantee; callers also have to poll.
        """
        ...


class ChildRuns(Protocol):
    """Requests of workers for child runs, each answered by one gateway."""

    async def request(self, order: ChildOrder) -> ChildAnswer:
        """Raises NatsUnavailable if no gateway answers, or RequestTooLarge."""
        ...

    async def serve(
        self, handler: Callable[[ChildOrder], Awaitable[ChildAnswer]]
    ) -> Callable[[], Awaitable[None]]:
        """Until the returned function is called."""
        ...


class DeadLetters(Protocol):
    async def publish(self, letter: DeadLetter, tag: str, tenant_id: str | None = None) -> None:
        """The tenant is stored beside the letter, not in it."""
        ...


class LetterWindow(Struct, frozen=True):
    """A stretch of the dead letters."""

    items: list[StoredLetter]
    """Newest first."""
    start: int
    """The lowest number that was read."""
    first: int
    """The lowest number that there is."""


class DeadLetterStore(DeadLetters, Protocol):
    async def count(self) -> int:
        """The number of stored records."""
        ...

    async def before(self, number: int | None, limit: int) -> LetterWindow:
        """The letters with the `limit` numbers before this one; None: the newest. Some may be gone."""
        ...

    async def get(self, number: int) -> StoredLetter | None: ...

    async def remove(self, number: int) -> bool:
        """False: there was none."""
        ...


class WorkerBackend(Protocol):
    """The ports of a worker; they define the permissions it needs."""

    @property
    def runs(self) -> RunStore: ...
    @property
    def workers(self) -> WorkerStore: ...
    @property
    def queue(self) -> JobQueue: ...
    @property
    def sources(self) -> JobSources: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def task_logs(self) -> TaskLogs: ...
    @property
    def run_signals(self) -> RunSignals: ...
    @property
    def secrets(self) -> Store[SecretRecord]: ...
    @property
    def variables(self) -> Store[VariableRecord]: ...
    @property
    def values(self) -> ValueStore: ...
    @property
    def child_runs(self) -> ChildRuns: ...
    @property
    def is_available(self) -> bool:
        """Whether the backend is connected."""
        ...


class Backend(WorkerBackend, Protocol):
    """The ports for submitting work."""

    @property
    def api_keys(self) -> ApiKeyStore: ...


class GatewayBackend(Backend, Protocol):
    """The ports of a gateway, including the feeds."""

    @property
    def dead_letters(self) -> DeadLetterStore: ...
    @property
    def letter_marks(self) -> Store[LetterMark]: ...
    @property
    def run_feed(self) -> Feed[RunSnapshot]: ...
    @property
    def worker_feed(self) -> Feed[WorkerRecord]: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def flow_files(self) -> FlowFileStore: ...
    @property
    def wheels(self) -> WheelStore: ...
    @property
    def wheel_history(self) -> WheelHistory: ...
    @property
    def graphs(self) -> GraphStore: ...
    @property
    def undeliverable(self) -> UndeliverableJobs: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def run_index(self) -> RunIndex: ...
    @property
    def storage(self) -> "Storage": ...
