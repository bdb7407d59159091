"""How far a flow is, and how it ended: what whoever runs flows tells the worker."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.run_changes import Conclude
from pyoco_server.domain.runs import CodeWheel, Owner, RunStatus, TaskRecord, TaskState
from pyoco_server.domain.task_logs import LogEntry


class FlowProgress(Struct, frozen=True):
    tasks: dict[str, TaskState] = field(default_factory=dict)
    task_records: dict[str, TaskRecord] = field(default_factory=dict)
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    task_records_truncated: bool = False
    """Some value of a record is only marked, because it is too large."""


class Raised(Struct, frozen=True):
    """An exception of another process, as log lines have it."""

    exc_type: str
    exc_message: str
    exc_origin: str | None = None
    exc_traceback: str | None = None


class FlowListener(Protocol):
    """Who is told how far a flow is."""

    def progressed(self, progress: FlowProgress) -> None: ...
    def printed(self, entries: Sequence[LogEntry]) -> None: ...


class FlowOutcome(Struct, frozen=True, kw_only=True):
    ending: Ending
    progress: FlowProgress = field(default_factory=FlowProgress)
    result: Any = None
    result_truncated: bool = False
    """It is not there because it is too large."""
    warnings: tuple[str, ...] = ()
    error: str | None = None
    raised: Raised | None = None
    """The exception behind `error`; for the log, not for the snapshot."""


def conclusion(owner: Owner, outcome: FlowOutcome, wheels: tuple[CodeWheel, ...] | None = None) -> Conclude:
    """What an outcome means for the run's snapshot."""
    status: Any = {Ending.COMPLETED: RunStatus.COMPLETED, Ending.CANCELLED: RunStatus.CANCELLED}.get(
        outcome.ending, RunStatus.FAILED
    )
    return Conclude(
        owner=owner,
        status=status,
        # Whoever died in the middle told nothing of its tasks: what was reported before stays.
        tasks=outcome.progress.tasks or None,
        task_records=outcome.progress.task_records or None,
        task_dependencies=outcome.progress.task_dependencies,
        task_records_truncated=outcome.progress.task_records_truncated,
        result=outcome.result,
        result_truncated=outcome.result_truncated,
        warnings=outcome.warnings,
        error=outcome.error,
        wheels=wheels,
    )
