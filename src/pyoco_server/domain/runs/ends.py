"""A run at its end, and the time of a change."""

from typing import Any

from pyoco_server.domain.runs.model import (
    RunFailure,
    RunSnapshot,
    RunStatus,
    replace,
    settled,
    settled_records,
)


def ended(
    snapshot: RunSnapshot,
    status: RunStatus,
    now: float,
    *,
    error: str | None = None,
    failure: RunFailure | None = None,
    result: Any = None,
) -> RunSnapshot:
    return replace(
        snapshot,
        status=status,
        tasks=settled(snapshot.tasks, status),
        task_records=settled_records(snapshot.task_records, status),
        error=error,
        failure=failure,
        result=result,
        end_time=now,
        heartbeat_at=now,
        updated_at=later(snapshot, now),
    )


TICK_SEC = 1e-6


def later(snapshot: RunSnapshot, now: float) -> float:
    """`updated_at` increases with every change, even if the clocks of two hosts differ.

    Never before the last heartbeat: only a heartbeat leaves `updated_at` behind (`listing.is_beat`).
    """
    return max(now, snapshot.updated_at + TICK_SEC, snapshot.heartbeat_at)
