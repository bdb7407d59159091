"""Writes one run's snapshot while its flow runs: one write in flight, the newest state waiting."""

import asyncio
from collections.abc import Callable

from pyoco_server.domain.outcomes import FlowProgress
from pyoco_server.domain.run_changes import Beat, Conclude, Refusal, Report, RunChange
from pyoco_server.domain.runs import Owner, RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, SnapshotTooLarge, TerminalNotRecorded
from pyoco_server.logs import get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Clock, RunStore, Versioned

log = get_logger(__name__)

RETRY_SEC = 0.5
"""Between tries while NATS is away. The flow goes on meanwhile; its end is written when NATS is back."""


class RunRecorder:
    def __init__(
        self,
        runs: RunStore,
        clock: Clock,
        owner: Owner,
        claimed: Versioned[RunSnapshot],
        on_stop: Callable[[], None],
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._owner = owner
        self._known = claimed
        self._on_stop = on_stop
        self._waiting: RunChange | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self.refusal: Refusal | None = None
        """Set when the run is not ours any more: nothing more is written."""

    def progressed(self, progress: FlowProgress) -> None:
        self._offer(Report(self._owner, progress.tasks, progress.task_records))

    def beat(self) -> None:
        """A sign of life; a waiting report is one too."""
        if self._waiting is None:
            self._offer(Beat(self._owner))

    def _offer(self, change: RunChange) -> None:
        self._waiting = change
        self._wake.set()

    async def run(self) -> None:
        """Writes what is offered until `stop`, or until the run is not ours any more."""
        while not self._stopping and self.refusal is None:
            change, self._waiting = self._waiting, None
            if change is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._write(change)
            except NatsUnavailable as error:
                log.warning("progress not written yet", action="run.progress_delayed", exc_info=error)
                if self._waiting is None:  # else something newer was offered meanwhile
                    self._waiting = change
                await asyncio.sleep(RETRY_SEC)
            except SnapshotTooLarge:
                log.exception("progress is too large to be shown", action="run.progress_too_large")

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def conclude(self, change: Conclude) -> Versioned[RunSnapshot] | Refusal:
        """The last write. It is tried until NATS has answered: a result is never dropped."""
        while self.refusal is None:
            try:
                await self._write(change)
            except NatsUnavailable as error:
                log.warning(
                    "the run's end is not written yet",
                    action="run.end_delayed",
                    exc_info=error,
                    **TerminalNotRecorded().ids,
                )
                await asyncio.sleep(RETRY_SEC)
            except SnapshotTooLarge:
                log.exception("the run's end is too large", action="run.end_too_large")
                change = Conclude(
                    owner=change.owner, status=change.status, tasks={}, task_records={}, error=change.error
                )
            else:
                break
        return self.refusal or self._known

    async def _write(self, change: RunChange) -> None:
        answer = await change_run(
            self._runs, self._known.value.run_id, change, self._clock, known=self._known
        )
        if not isinstance(answer, Versioned):
            # Taken over, ended, or removed by somebody else: to us it is the same.
            self.refusal = answer or Refusal.TERMINAL
            self._on_stop()
            return
        self._known = answer
        if answer.value.status is RunStatus.CANCELLING:
            self._on_stop()
