"""Trimming of run snapshots to their size limit."""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.runs.model import RunFailure, RunSnapshot, TaskRecord
from pyoco_server.domain.values import bounded_warnings

# Trimming to the size limit drops the least important parts first: inputs and outputs of tasks, tracebacks,
# the records themselves, the task graph, the result, the end of the error. `params` and `tasks` always stay.

SHORT_ERROR = 2_000
"""Characters of the error to keep in the last step."""


class TrimmedSnapshot(Struct, frozen=True):
    snapshot: RunSnapshot
    data: bytes
    within_limit: bool


def trim_snapshot(
    snapshot: RunSnapshot, limit: int, encode: Callable[[RunSnapshot], bytes]
) -> TrimmedSnapshot:
    """The largest version of `snapshot` that fits, with its bytes.

    If even the smallest exceeds the limit, it is returned anyway: a run whose end is not written would stay
    RUNNING forever, so the caller writes it and logs ERR-PYOCO-0010.
    """
    data = encode(snapshot)
    if len(data) <= limit:
        return TrimmedSnapshot(snapshot, data, within_limit=True)
    for reduced in _reductions(snapshot):
        snapshot, data = reduced, encode(reduced)
        if len(data) <= limit:
            return TrimmedSnapshot(snapshot, data, within_limit=True)
    return TrimmedSnapshot(snapshot, data, within_limit=False)


def _reductions(snapshot: RunSnapshot) -> Iterator[RunSnapshot]:
    for shrink in (_without_values, _without_tracebacks):
        records = {name: shrink(record) for name, record in (snapshot.task_records or {}).items()}
        snapshot = replace(snapshot, task_records=records, task_records_truncated=True)
        yield snapshot
    snapshot = replace(
        snapshot,
        failure=_brief(snapshot.failure),
        tries=tuple(replace(one, failure=brief) for one in snapshot.tries if (brief := _brief(one.failure))),
    )
    yield snapshot
    snapshot = replace(snapshot, task_records={})
    yield snapshot
    snapshot = replace(snapshot, task_dependencies=None)
    yield snapshot
    snapshot = _without_result(snapshot)
    yield snapshot
    yield replace(snapshot, error=_shortened(snapshot.error))


def _without_result(snapshot: RunSnapshot) -> RunSnapshot:
    if snapshot.result is None:
        return snapshot
    size = len(msgspec.json.encode(snapshot.result))
    text = f"the result has {size:,} bytes as JSON; with the rest of the snapshot it is too large to store"
    return replace(
        snapshot, result=None, result_truncated=True, warnings=bounded_warnings([text, *snapshot.warnings])
    )


def _without_values(record: TaskRecord) -> TaskRecord:
    return replace(record, inputs=None, output=None, artifacts=None, reusable=None)


def _without_tracebacks(record: TaskRecord) -> TaskRecord:
    return replace(record, traceback=None, error=_shortened(record.error))


def _brief(failure: RunFailure | None) -> RunFailure | None:
    return None if failure is None else replace(failure, traceback=None, message=_cut(failure.message))


def _cut(text: str) -> str:
    return text if len(text) <= SHORT_ERROR else text[:SHORT_ERROR] + " … (shortened)"


def _shortened(text: str | None) -> str | None:
    return None if text is None else _cut(text)
