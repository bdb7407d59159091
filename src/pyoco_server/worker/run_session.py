"""A run in this worker's hands.

Its snapshot is written as the flow goes on, and the flow is stopped when the snapshot says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress, conclusion
from pyoco_server.domain.run_changes import Beat, Conclude, Refusal, Report, RunChange
from pyoco_server.domain.runs import Owner, RunSnapshot, RunStatus
from pyoco_server.domain.task_logs import LogEntry, LogLine
from pyoco_server.errors import CancelTimedOut, NatsUnavailable, SnapshotTooLarge, TerminalNotRecorded
from pyoco_server.logs import best_effort, get_logger, surviving
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Clock, Versioned, WorkerBackend
from pyoco_server.worker.executors import RunningFlow

log = get_logger(__name__)

RETRY_SEC = 0.5
"""Between tries while NATS is away. The flow goes on meanwhile; its end is written when NATS is back."""
LIVE_AFTER_SEC = 0.02
"""A run that is over sooner is written when it starts and when it has ended, with nothing in between."""


class RunSession:
    def __init__(
        self,
        backend: WorkerBackend,
        clock: Clock,
        owner: Owner,
        claimed: Versioned[RunSnapshot],
        grace: float,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._owner = owner
        self._known = claimed
        self._grace = grace
        self._run_id = claimed.value.run_id
        self._flow: RunningFlow | None = None
        self._waiting: RunChange | None = None
        self._writing: asyncio.Task[None] | None = None
        self._logging: asyncio.Task[None] | None = None
        self._to_log: list[LogLine] = []
        self._logged = 0
        self._listening: asyncio.Task[Callable[[], Awaitable[None]]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._is_stopping = False
        self._has_ended = False
        self._is_abandoned = False
        self.refusal: Refusal | None = None
        """Set when the run is not ours any more: nothing more is written."""

    # While the flow runs

    async def follow(self, flow: RunningFlow) -> FlowOutcome | None:
        """Until the flow has ended. None: it was abandoned before that, or never begun."""
        self._flow = flow
        self._after(LIVE_AFTER_SEC, self._go_live)
        if self._is_abandoned:
            self._end_flow()
        try:
            outcome = await flow.outcome()
        finally:
            await self._come_to_rest()
        return None if self._is_abandoned else outcome

    def abandon(self) -> None:
        """End the flow by force and write nothing more: another worker will run it."""
        if not self._has_ended:
            self._is_abandoned = True
            self._end_flow()

    def _end_flow(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
            self._flow.kill()

    def progressed(self, progress: FlowProgress) -> None:
        self._offer(Report(self._owner, progress.tasks, progress.task_records, progress.task_dependencies))

    def printed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._to_log.append(_line(entry, self._owner.attempt, self._logged))
            self._logged += 1
        if self._logging is None or self._logging.done():
            self._logging = asyncio.ensure_future(self._write_logs())

    async def beat(self) -> None:
        """A sign of life; a waiting report is one too."""
        if self._waiting is None:
            self._offer(Beat(self._owner))

    def _go_live(self) -> None:
        if self._flow is not None:
            self._flow.go_live()
        self._listening = asyncio.ensure_future(
            self._backend.run_signals.on_foreign_write(self._run_id, self._look)
        )

    def _look(self) -> None:
        """Somebody else wrote the run: a beat will meet it, and learn what it was."""
        self._offer(Beat(self._owner))

    # Writing: one change in flight, the newest waiting

    def _offer(self, change: RunChange) -> None:
        if self._has_ended:
            return
        self._waiting = change
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_waiting())

    async def _write_waiting(self) -> None:
        while self._waiting is not None and self.refusal is None and not self._has_ended:
            change, self._waiting = self._waiting, None
            try:
                await self._write(change)
            except NatsUnavailable as error:
                log.warning("progress not written yet", action="run.progress_delayed", exc_info=error)
                if self._waiting is None:  # else something newer was offered meanwhile
                    self._waiting = change
                await asyncio.sleep(RETRY_SEC)
            except SnapshotTooLarge:
                log.exception("progress is too large to be shown", action="run.progress_too_large")
            else:
                if isinstance(change, Report) and self._flow is not None:
                    self._flow.written()

    async def _write(self, change: RunChange) -> None:
        answer = await change_run(self._backend.runs, self._run_id, change, self._clock, known=self._known)
        if isinstance(answer, Versioned):
            self._known = answer
            if answer.value.status is RunStatus.CANCELLING:
                self._stop_politely()
            return
        # Taken over, ended, or removed by somebody else: to us it is the same.
        self.refusal = answer or Refusal.TERMINAL
        self._stop_now()

    async def _write_logs(self) -> None:
        while self._to_log:
            lines, self._to_log = self._to_log, []
            with surviving(log, "run.logs", NatsUnavailable, run_id=self._run_id):
                await self._backend.task_logs.append(self._run_id, lines)

    # Stopping the flow

    def _stop_politely(self) -> None:
        if self._is_stopping or self._has_ended:
            return
        self._is_stopping = True
        log.info("stopping a cancelled run", action="run.cancelling", run_id=self._run_id)
        if self._flow is not None:
            self._flow.cancel()
        self._after(self._grace, self._stop_by_force)

    def _stop_by_force(self) -> None:
        log.error(
            "a cancelled run did not stop in time; its process is ended",
            action="run.cancel_timeout",
            run_id=self._run_id,
            grace_sec=self._grace,
            **CancelTimedOut().ids,
        )
        if self._flow is not None and not self._flow.kill():
            log.error(
                "a flow in a thread cannot be ended by force; it goes on until it returns",
                action="run.unstoppable",
                run_id=self._run_id,
            )

    def _stop_now(self) -> None:
        """The run belongs to somebody else: what our flow still does, it does twice."""
        if not self._has_ended:
            self._end_flow()

    # The end

    async def conclude(self, outcome: FlowOutcome) -> Versioned[RunSnapshot] | Refusal:
        """The last write. It is tried until NATS has answered: a result is never dropped."""
        wheels = self._flow.wheels if self._flow is not None else ()
        change = conclusion(self._owner, outcome, wheels or None)
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
                log.exception("the run's end is too large", action="run.end_too_large", run_id=self._run_id)
                change = Conclude(
                    owner=self._owner, status=change.status, tasks={}, task_records={}, error=change.error
                )
            else:
                break
        return self.refusal or self._known

    async def _come_to_rest(self) -> None:
        """Nothing of this run may go on behind its end."""
        self._has_ended = True
        for timer in self._timers:
            timer.cancel()
        unfinished: set[asyncio.Task[None]] = {
            t for t in (self._writing, self._logging) if t and not t.done()
        }
        if unfinished:
            await asyncio.wait(unfinished)
        if self._listening is not None:
            with best_effort(log, "run.unlisten", NatsUnavailable, run_id=self._run_id):
                stop = await self._listening
                await stop()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))


def _line(entry: LogEntry, attempt: int, n: int) -> LogLine:
    return LogLine(attempt=attempt, n=n, task=entry.task, stream=entry.stream, text=entry.text, ts=entry.ts)
