"""Why a try of a run failed, and what is kept of it."""

from pyoco_server.domain.runs.model import FailureKind, RunFailure, RunSnapshot, RunTry, replace

MAX_TRIES_KEPT = 20
SHORT_TEXT = 2_000
"""Characters of a message or traceback in `tries`."""


def failure_of(
    snapshot: RunSnapshot, kind: FailureKind, message: str, traceback: str | None = None
) -> RunFailure:
    """With the task that failed first."""
    records = snapshot.task_records or {}
    failed = [(record.ended_at or 0.0, name) for name, record in records.items() if record.error is not None]
    task = min(failed)[1] if failed else None
    of_task = None if task is None else records[task].traceback
    return RunFailure(kind=kind, message=message, task=task, traceback=of_task or traceback)


def with_failed_try(snapshot: RunSnapshot, failure: RunFailure, now: float) -> RunSnapshot:
    failed = RunTry(
        n=snapshot.try_number,
        started_at=snapshot.start_time,
        ended_at=now,
        worker_id=snapshot.worker_id,
        failure=_shortened(failure),
    )
    earlier = snapshot.tries[-MAX_TRIES_KEPT + 1 :]
    return replace(snapshot, tries=(*earlier, failed))


def _shortened(failure: RunFailure) -> RunFailure:
    """An exception's name is at the start of a message and at the end of a traceback."""
    traceback = failure.traceback
    return replace(
        failure,
        message=failure.message[:SHORT_TEXT],
        traceback=None if traceback is None else traceback[-SHORT_TEXT:],
    )
