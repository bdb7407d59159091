"""Bulk operations: one action on many runs or dead letters, planned once and carried out in batches.

The items are fixed when an operation starts. `done + failed` is the place in them, so that whoever carries
on knows where, and a batch that two gateways carried out is counted once.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from pyoco_server.domain.audit_trail import Origin
from pyoco_server.domain.dead_letters import DeadLetterView
from pyoco_server.domain.runs.listing import RunSummary

CHUNK = 1000
"""Items per stored chunk: 40 KB of ids."""
BATCH = 100
"""Items at a time; a divisor of a chunk's."""
MAX_ERRORS = 100
MAX_RECORDED = 100
"""Ids in the audit record of an operation that was asked for by ids."""
MAX_ERROR = 500
"""Characters of an item's error."""
MAX_DURATION_SEC = 30 * 86_400.0


class BulkAction(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    REDRIVE = "redrive"


class BulkStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"


class BulkError(Struct, frozen=True):
    id: str
    error: str


class BulkOperation(Struct, frozen=True, kw_only=True):
    """`errors`: the first 100 items that failed. `done + failed + left` is `total`."""

    id: str
    action: BulkAction
    status: BulkStatus
    total: int
    done: int = 0
    failed: int = 0
    left: int
    created_at: float
    ended_at: float | None = None
    errors: tuple[BulkError, ...] = ()


class BulkPage(Struct, frozen=True):
    """Newest first."""

    items: list[BulkOperation]
    next_cursor: str | None


class BulkPreview(Struct, frozen=True):
    """What an operation would act on: the number, and the first 20."""

    count: int
    items: Annotated[
        list[Any],
        Meta(
            extra_json_schema={
                "items": {
                    "anyOf": [
                        {"$ref": f"#/components/schemas/{kind.__name__}"}
                        for kind in (RunSummary, DeadLetterView)
                    ]
                }
            }
        ),
    ]


class BulkRecord(Struct, frozen=True, kw_only=True):
    """An operation as it is stored."""

    id: str
    action: BulkAction
    status: BulkStatus
    total: int
    done: int = 0
    failed: int = 0
    created_at: float
    ended_at: float | None = None
    errors: tuple[BulkError, ...] = ()
    max_per_sec: float | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    origin: Origin | None = None
    asked: dict[str, Any] | None = None
    """What it acts on, for the audit trail: its filter, or the first of its ids."""
    holder: str | None = None
    """The gateway that carried out the last batch. None: no gateway has begun."""

    @property
    def position(self) -> int:
        return self.done + self.failed

    def batch_size(self, most: int = BATCH) -> int:
        """At most a second's worth, so that a slow operation is even, and can be cancelled."""
        at_once = most if self.max_per_sec is None else max(1, min(most, int(self.max_per_sec)))
        return min(at_once, CHUNK - self.position % CHUNK, self.total - self.position)

    @property
    def chunks(self) -> int:
        return -(-self.total // CHUNK)

    def view(self) -> BulkOperation:
        shown = {name: value for name, value in asdict(self).items() if name in _SHOWN}
        return BulkOperation(**shown, left=self.total - self.position)


_SHOWN = frozenset(BulkOperation.__struct_fields__)
BULK_ANSWERS = (BulkOperation, BulkPage, BulkPreview, BulkError)


class BulkChunk(Struct, frozen=True):
    ids: tuple[str, ...]


def chunks_of(ids: Sequence[str]) -> Iterator[BulkChunk]:
    for start in range(0, len(ids), CHUNK):
        yield BulkChunk(tuple(ids[start : start + CHUNK]))


def chunk_key(operation_id: str, number: int) -> str:
    return f"{operation_id}.{number}"


def opened(record: BulkRecord) -> BulkRecord:
    """A new operation; one without items has ended."""
    if record.total:
        return record
    return replace(record, status=BulkStatus.COMPLETED, ended_at=record.created_at)


def taken(record: BulkRecord, holder: str) -> BulkRecord:
    return record if record.holder == holder else replace(record, holder=holder)


def progressed(
    record: BulkRecord, start: int, outcomes: Sequence[BulkError | None], now: float
) -> BulkRecord | None:
    """The operation after a batch that began at `start`. None: another gateway has counted it.

    What was under way when it was cancelled is counted, too.
    """
    if record.position != start:
        return None
    errors = [error for error in outcomes if error is not None]
    after = replace(
        record,
        done=record.done + len(outcomes) - len(errors),
        failed=record.failed + len(errors),
        errors=(*record.errors, *errors)[:MAX_ERRORS],
    )
    if after.status is BulkStatus.RUNNING and after.position == after.total:
        return replace(after, status=BulkStatus.COMPLETED, ended_at=now)
    return after


def cancelled(record: BulkRecord, now: float) -> BulkRecord:
    if record.status is not BulkStatus.RUNNING:
        return record
    return replace(record, status=BulkStatus.CANCELLED, ended_at=now)


def error_of(item: str, text: str) -> BulkError:
    return BulkError(item, text if len(text) <= MAX_ERROR else text[:MAX_ERROR] + "…")


# Ids that follow from the operation and the item, so that a repetition is harmless.


def retried_run_id(operation_id: str, run_id: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"pyoco:bulk:{operation_id}:{run_id}"))


def entry_id(operation_id: str, item: str = "") -> str:
    """Of an entry in the audit trail."""
    return str(uuid5(NAMESPACE_URL, f"pyoco:bulk-audit:{operation_id}:{item}"))
