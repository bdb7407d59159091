"""What a gateway counts while it follows the runs: durations, waits, redeliveries."""

from collections.abc import Iterable
from typing import Protocol

from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.usecases.ports import Change


class RunMeter(Protocol):
    """Where the figures go."""

    def started(self, queue_wait_sec: float) -> None: ...
    def redelivered(self) -> None: ...
    def ended(self, status: RunStatus, duration_sec: float | None) -> None: ...


def observe(changes: Iterable[Change[RunSnapshot]], meter: RunMeter) -> None:
    """Feed every change in once: a snapshot says by its own times what it is news of."""
    for change in changes:
        run = change.value
        if run is None:
            continue
        if run.status.is_terminal:
            meter.ended(run.status, _duration(run))
        elif _is_claim(run):
            _observe_claim(run, meter)


def _is_claim(run: RunSnapshot) -> bool:
    """The write with which a worker took the run: nothing has beaten or progressed since."""
    return run.status is RunStatus.RUNNING and not run.tasks and run.heartbeat_at == run.start_time


def _observe_claim(run: RunSnapshot, meter: RunMeter) -> None:
    if run.attempt is not None and run.attempt > 1:
        meter.redelivered()
    elif run.start_time is not None and run.submitted_at is not None:
        meter.started(max(0.0, run.start_time - run.submitted_at))


def _duration(run: RunSnapshot) -> float | None:
    if run.start_time is None or run.end_time is None:
        return None
    return max(0.0, run.end_time - run.start_time)
