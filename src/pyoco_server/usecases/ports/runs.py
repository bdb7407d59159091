"""What the use cases need from the world. `jetstream` and `testing` both provide it; one suite checks both.

Every method may raise `NatsUnavailable`: the store did not answer in time, so what it did is unknown.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.auth import ApiKeyRecord
from pyoco_server.domain.executions.graph_registry import GraphRecord, GraphSummary
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.jobs import DeadLetter, IdempotencyClaim, Job
from pyoco_server.domain.runs.listing import Place, RunFilter
from pyoco_server.domain.runs.logs import LogLine, LogRecord
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.wheels import InstalledWheel, Wheel, WheelEvent
from pyoco_server.usecases.ports.stores import Change, Feed, FeedPosition, Revision, Storage, Store, Versioned

RunStore = Store[RunSnapshot]
WorkerStore = Store[WorkerRecord]
ClaimStore = Store[IdempotencyClaim]


class ApiKeyFeed(Protocol):
    """All API keys as this process knows them without asking, kept up to date by whoever stores them."""

    @property
    def is_current(self) -> bool:
        """Whether every change is in it but those of the last second. If not, the store has to be asked."""
        ...

    def known(self, key_id: str) -> ApiKeyRecord | None: ...


class ApiKeyStore(Store[ApiKeyRecord], Protocol):
    """Records by `record_key(key_id)`."""

    async def list_keys(self) -> list[ApiKeyRecord]:
        """All of them, oldest change first."""
        ...

    def follow_keys(self) -> AbstractAsyncContextManager[ApiKeyFeed]: ...


class IndexedPage(Struct, frozen=True):
    summaries: list[bytes]
    """Each run's summary as JSON, ready to be sent."""
    places: list[Place]
    """Of each run, in the same order."""
    more_after: Place | None
    """Where the next page starts; None when this was the last."""


class RunIndex(Protocol):
    """A cache of the run store that answers lists and counts. Losing it loses nothing."""

    @property
    def position(self) -> FeedPosition | None: ...
    def clear(self) -> None: ...
    def apply(self, changes: Sequence[Change[RunSnapshot]], position: FeedPosition) -> None: ...
    def expire(self, now: float) -> int: ...
    def forget(self, run_id: str) -> None: ...
    def page(self, wanted: RunFilter, after: Place | None, limit: int) -> IndexedPage: ...
    def counts(self, tenant_id: str | None) -> dict[RunStatus, int]: ...
    def is_of(self, run_id: str, tenant_id: str) -> bool: ...
    def is_known(self, change: Change[RunSnapshot]) -> bool:
        """Whether the index has the run in this state already, apart from its heartbeat."""
        ...

    def unfinished(self) -> Iterable[tuple[str, Revision, RunStatus]]:
        """Every run that has not ended, of all tenants, with the revision it was seen at."""
        ...

    def close(self) -> None: ...


class QueuedJob(Struct, frozen=True):
    """A message of the queue, as a scan finds it."""

    sequence: int
    run_id: str | None
    """None: the message names no run."""
    max_deliver: int
    """How often its consumer delivers a job; 0: without end, or there is no consumer."""
    is_given_up: bool
    """The consumer's state proves that it is never delivered again."""


class JobQueue(Protocol):
    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        """Returns when the queue has the job. False: it had a message of that id already, none is added.

        The message id is the run's, unless another is given.
        """
        ...

    async def jobs(self) -> list[QueuedJob]:
        """All that are on the queue, taken by a worker or not. It reads the whole queue.

        None is missing that was there when this was called. Some may have been removed before: a replica
        that is behind may answer for the older ones.
        """
        ...

    async def count(self) -> int:
        """How many `jobs` there are, without reading them."""
        ...

    async def run_ids(self) -> set[str]:
        """Of `jobs`."""
        ...


class Delivery(Protocol):
    """One job handed to this worker, until it is acknowledged or AckWait passes."""

    @property
    def payload(self) -> bytes: ...
    @property
    def subject(self) -> str: ...
    @property
    def num_delivered(self) -> int: ...
    @property
    def sequence(self) -> int:
        """The queue's number of the job: the same at every delivery, another for every job."""
        ...

    @property
    def revision(self) -> Revision | None:
        """Of the PENDING snapshot, if the sender told it."""
        ...

    @property
    def retention_sec(self) -> float | None:
        """For how long the run is kept after its end, if the sender told it."""
        ...

    def job(self) -> Job:
        """The job in it; raises InvalidJob."""
        ...

    async def ack(self) -> None: ...
    async def nak(self, delay: float) -> None: ...
    async def term(self) -> None: ...
    async def in_progress(self) -> None: ...


class JobSource(Protocol):
    """The jobs of some tags."""

    async def next(self, timeout: float, wanted: int = 1) -> Delivery | None:  # noqa: ASYNC109
        """The next job of any tag, or None when there was none for `timeout` seconds.

        `wanted` says how many more would be taken right after it.
        """
        ...

    def interrupt(self) -> None:
        """Let a `next` that waits return None."""
        ...

    async def pause(self) -> None:
        """Nobody asks for `next` for a while: what was asked for ahead is for others, until it is called."""
        ...

    @property
    def ack_wait_sec(self) -> float:
        """How soon a job that nobody reports on is delivered again; the shortest of the tags."""
        ...

    async def keep_settings(self) -> None:
        """Read what others may change about the deliveries, now and then, for ever."""
        ...

    async def close(self) -> None: ...


class JobSources(Protocol):
    async def open(self, tags: Sequence[str]) -> JobSource: ...


class QueuedMessage(Struct, frozen=True):
    """A message of the work queue as it lies there, readable as a job or not."""

    payload: bytes
    subject: str


class UndeliverableJob(Protocol):
    """The queue's word that it has delivered a job as often as it may. It comes again until it is settled."""

    @property
    def deliveries(self) -> int: ...
    @property
    def sequence(self) -> int: ...

    async def read(self) -> QueuedMessage | None:
        """None: the message is gone."""
        ...

    async def remove(self) -> None:
        """Take the message off the queue. Fine if it is gone."""
        ...

    async def settle(self) -> None:
        """Everything about it is done."""
        ...


class UndeliverableJobs(Protocol):
    def follow(self) -> AsyncIterator[UndeliverableJob]:
        """Also those of a time when nobody listened; each goes to one of all followers. For ever."""
        ...

    def at(self, sequence: int, deliveries: int) -> UndeliverableJob:
        """One that was found otherwise."""
        ...


class WheelStore(Protocol):
    """Registered wheels: their content, and which there are."""

    async def list_wheels(self) -> list[Wheel]: ...

    async def get(self, name: str) -> Wheel | None: ...

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        tags: Sequence[str],
        check: Callable[[list[Wheel]], None],
    ) -> Wheel:
        """Store a wheel. `check` sees all others, and raises if it must not be added to them.

        Of two uploads at the same moment, the later one is checked against the earlier.
        """
        ...

    def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        """Its content, verified: raises NatsUnavailable when it is not what was stored."""
        ...

    async def delete(self, name: str) -> Wheel | None:
        """The wheel that was removed; None when there was none."""
        ...

    async def collect(self, older_than: float) -> int:
        """Remove what uploads left that never came to their end, `older_than` seconds ago. How many."""
        ...


class GraphStore(Store[GraphRecord], Protocol):
    """Versions of graphs by `newest_key` and `version_key`."""

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        """The newest version of each graph of a tenant (a `tenant_token`), oldest change first."""
        ...


class WheelInstaller(Protocol):
    """Wheels on a worker's disk."""

    async def install(self, wheel: Wheel, content: AsyncIterator[bytes]) -> InstalledWheel:
        """Raises WheelSyncFailed; then nothing of it is left."""
        ...

    async def keep_only(self, wheels: Collection[InstalledWheel]) -> None:
        """Remove others, once nobody can be using them."""
        ...


class WheelHistory(Protocol):
    async def append(self, event: WheelEvent) -> None: ...

    async def list_events(self) -> list[WheelEvent]:
        """All that is kept, newest first."""
        ...


class TooManyLines(Exception):
    """More than the store takes at once."""


class TaskLogs(Protocol):
    """What flows print, by run."""

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str) -> None:
        """A repeat with the same `write_id`, soon after the first, is stored once. Raises TooManyLines."""
        ...

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        """To those who follow the run now; nothing is stored."""
        ...

    def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        """What is stored behind the record `after`, in the order in which it was stored."""
        ...

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        """`callback` gets what is printed from now on, until the answer is called."""
        ...


class RunSignals(Protocol):
    async def on_foreign_write(
        self, run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """`callback` is called soon after somebody else wrote the run, until the answer is called.

        A hint, not a promise: who relies on it also looks now and then.
        """
        ...


class DeadLetters(Protocol):
    async def publish(self, letter: DeadLetter, tag: str) -> None: ...

    async def count(self) -> int:
        """How many records are kept now."""
        ...


class WorkerBackend(Protocol):
    """What a worker needs, opened together: all that its rights have to allow."""

    @property
    def runs(self) -> RunStore: ...
    @property
    def workers(self) -> WorkerStore: ...
    @property
    def sources(self) -> JobSources: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def task_logs(self) -> TaskLogs: ...
    @property
    def run_signals(self) -> RunSignals: ...
    @property
    def is_available(self) -> bool:
        """Whether a call now has a chance to be answered."""
        ...


class Backend(WorkerBackend, Protocol):
    """What those need who may hand out work."""

    @property
    def api_keys(self) -> ApiKeyStore: ...
    @property
    def queue(self) -> JobQueue: ...


class GatewayBackend(Backend, Protocol):
    """What a gateway needs beyond that: to be told of every change."""

    @property
    def run_feed(self) -> Feed[RunSnapshot]: ...
    @property
    def worker_feed(self) -> Feed[WorkerRecord]: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def wheels(self) -> WheelStore: ...
    @property
    def wheel_history(self) -> WheelHistory: ...
    @property
    def graphs(self) -> GraphStore: ...
    @property
    def undeliverable(self) -> UndeliverableJobs: ...
    @property
    def run_index(self) -> RunIndex: ...
    @property
    def storage(self) -> "Storage": ...
