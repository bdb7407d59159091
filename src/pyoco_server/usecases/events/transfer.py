"""Import the files of an earlier workflow server, once, before the first event; export to files."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pyoco_server.domain.events import imports
from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.imports import Found, ImportMark
from pyoco_server.domain.events.receipts import Receipt, receipt_key
from pyoco_server.domain.events.retry import NotificationSettings, RetryJob, RetryPolicy, masked
from pyoco_server.errors import InvalidRequest
from pyoco_server.logs import get_logger
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.events.definitions import tenant_key
from pyoco_server.usecases.events.notify import KEY as WEBHOOK
from pyoco_server.usecases.ports.gateway import EventsBackend, ListedStore
from pyoco_server.usecases.ports.stores import Clock, Store, WrongRevision

log = get_logger(__name__)
T = TypeVar("T")

SHOWN_PROBLEMS = 5
AT_ONCE = 50


class EventFiles(Protocol):
    async def read(self, name: str) -> bytes | None:
        """None: there is no such file. Raises OSError."""
        ...

    def path(self, name: str) -> str: ...


class Imported(Struct, frozen=True):
    path: str
    count: int
    left_out: int


class ImportFiles:
    """Several gateways may import at once: each imports everything, and existing records stay."""

    def __init__(
        self,
        *,
        files: EventFiles,
        events: EventsBackend,
        policy: RetryPolicy,
        clock: Clock,
        tenant_id: str | None,
        receipt_ttl_days: float,
        max_receipts: int,
    ) -> None:
        self._files = files
        self._events = events
        self._marks: Store[ImportMark] = events.imports
        self._policy = policy
        self._clock = clock
        self._tenant_id = tenant_id
        self._ttl_days = receipt_ttl_days
        self._max_receipts = max_receipts

    async def __call__(self) -> list[Imported]:
        """Imported files. An unreadable file is tried again on the next start."""
        done = [
            await self._import(imports.RECEIPTS, self._receipts, self._events.receipts, self._receipt_key),
            await self._import(imports.RETRY_JOBS, self._jobs, self._events.retry_jobs, _job_key),
            await self._import(
                imports.NOTIFICATION_SETTINGS,
                self._settings,
                self._events.notification_settings,
                lambda _: tenant_key(self._tenant_id, WEBHOOK),
            ),
        ]
        return [one for one in done if one is not None]

    def _receipts(self, data: bytes) -> Found[Receipt]:
        return imports.read_receipts(data, self._tenant_id, self._clock(), self._ttl_days, self._max_receipts)

    def _jobs(self, data: bytes) -> Found[RetryJob]:
        return imports.read_retry_jobs(data, self._tenant_id, self._clock(), self._policy)

    def _settings(self, data: bytes) -> Found[NotificationSettings]:
        return imports.read_settings(data, iso(self._clock()))

    @staticmethod
    def _receipt_key(receipt: Receipt) -> str:
        return receipt_key(receipt.tenant_id, receipt.template_id, receipt.idempotency_key)

    async def _import(
        self,
        name: str,
        read: Callable[[bytes], Found[T]],
        store: ListedStore[T],
        key_of: Callable[[T], str],
    ) -> Imported | None:
        data = await self._content(name)
        if data is None or await self._is_done(name):
            return None
        try:
            found = read(data)
        except InvalidRequest as error:
            self._complain(name, error.detail)
            return None
        if not await self._begin(name, store.list_values):
            return None
        count = 0
        for values in _batched(found.values):
            count += sum(await asyncio.gather(*(_create(store, key_of(one), one) for one in values)))
        await self._end(name, count)
        return self._report(name, found, count)

    async def _content(self, name: str) -> bytes | None:
        try:
            return await self._files.read(name)
        except OSError as error:
            self._complain(name, str(error))
            return None

    async def _is_done(self, name: str) -> bool:
        mark = await self._marks.get(_mark(name))
        return mark is not None and mark.value.is_done

    async def _begin(self, name: str, listed: Callable[[], Awaitable[list[Any]]]) -> bool:
        """The mark comes first: whoever finds it continues an unfinished import."""
        began = ImportMark(is_done=False, count=0, at=iso(self._clock()))
        try:
            await self._marks.create(_mark(name), began)
        except WrongRevision:
            return not await self._is_done(name)
        if not await listed():
            return True
        log.info(
            "file of workflow events not imported: records exist already",
            action="events.import_skipped",
            path=self._files.path(name),
        )
        await self._end(name, 0)
        return False

    async def _end(self, name: str, count: int) -> None:
        done = ImportMark(is_done=True, count=count, at=iso(self._clock()))
        await change_value(self._marks, _mark(name), lambda found: found if found and found.is_done else done)

    def _report(self, name: str, found: Found[Any], count: int) -> Imported:
        path, problems = self._files.path(name), found.problems
        log.info(
            "file of workflow events imported",
            action="events.imported",
            path=path,
            count=count,
            expired=found.expired,
            left_out=len(problems),
        )
        if problems:
            self._complain(name, "; ".join(problems[:SHOWN_PROBLEMS]), left_out=len(problems))
        return Imported(path, count, len(problems))

    def _complain(self, name: str, problem: str, **fields: Any) -> None:
        log.error(
            "file of workflow events not importable, or only in part",
            action="events.import_failed",
            path=self._files.path(name),
            problem=problem,
            **fields,
            **InvalidRequest().ids,
        )


def _batched(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


async def _create(store: Store[T], key: str, value: T) -> bool:
    """False: it exists already."""
    try:
        await store.create(key, value)
    except WrongRevision:
        return False
    return True


def _job_key(job: RetryJob) -> str:
    return tenant_key(job.tenant_id, job.id)


def _mark(name: str) -> str:
    return name.removesuffix(".json")


# Export


class Export(Struct, frozen=True):
    receipts: list[Receipt]
    retry_jobs: list[RetryJob]
    notification_settings: list[dict[str, Any]]


async def export_events(events: EventsBackend) -> Export:
    receipts = await events.receipts.list_values()
    listed = await events.retry_jobs.list_values()
    stored = [await events.retry_jobs.get(tenant_key(job.tenant_id, job.id)) for job in listed]
    jobs = [job.value for job in stored if job is not None]
    settings = await events.notification_settings.list_values()
    return Export(
        receipts=sorted(receipts, key=lambda receipt: receipt.claimed_at),
        retry_jobs=sorted(jobs, key=lambda job: job.created_at),
        notification_settings=[
            {"webhook_url_masked": masked(one.webhook_url), "updated_at": one.updated_at} for one in settings
        ],
    )
