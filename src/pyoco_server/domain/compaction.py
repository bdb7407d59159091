"""Keeping a snapshot under its byte limit: what is dropped, and in which order.

What people need last goes first: inputs and outputs of tasks, then tracebacks, then the records themselves,
then the picture of the flow, then the result, then the tail of the error. `params` and `tasks` are promised
and always stay.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from pyoco_server.domain.runs import RunSnapshot, TaskRecord, replace
from pyoco_server.domain.values import bounded_warnings

SHORT_ERROR = 2_000
"""Characters of an error's text that are kept when nothing else helped."""


class Fitted(Struct, frozen=True):
    snapshot: RunSnapshot
    data: bytes
    within_limit: bool


def fit(snapshot: RunSnapshot, limit: int, encode: Callable[[RunSnapshot], bytes]) -> Fitted:
    """The largest reduction of `snapshot` that fits, with its bytes.

    When even the smallest is over the limit it is returned all the same: a run whose end cannot be written
    would stay RUNNING for ever, so the caller writes it and tells the operator (ERR-PYOCO-0010).
    """
    data = encode(snapshot)
    if len(data) <= limit:
        return Fitted(snapshot, data, within_limit=True)
    for reduced in _reductions(snapshot):
        snapshot, data = reduced, encode(reduced)
        if len(data) <= limit:
            return Fitted(snapshot, data, within_limit=True)
    return Fitted(snapshot, data, within_limit=False)


def _reductions(snapshot: RunSnapshot) -> Iterator[RunSnapshot]:
    for shrink in (_without_values, _without_tracebacks):
        records = {name: shrink(record) for name, record in (snapshot.task_records or {}).items()}
        snapshot = replace(snapshot, task_records=records, task_records_truncated=True)
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
    text = (
        f"the result has {size:,} bytes as JSON; with the rest of its snapshot that is too large to be kept"
    )
    return replace(
        snapshot, result=None, result_truncated=True, warnings=bounded_warnings([text, *snapshot.warnings])
    )


def _without_values(record: TaskRecord) -> TaskRecord:
    return replace(record, inputs=None, output=None, artifacts=None)


def _without_tracebacks(record: TaskRecord) -> TaskRecord:
    return replace(record, traceback=None, error=_shortened(record.error))


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= SHORT_ERROR:
        return text
    return text[:SHORT_ERROR] + " … (shortened)"
