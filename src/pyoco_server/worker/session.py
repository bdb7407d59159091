"""A run in this worker's hands.

Its snapshot is written as the flow goes on, and the flow is stopped when the snapshot says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.changes import Beat, Conclude, Refusal, Report, RunChange
from pyoco_server.domain.runs.jobs import FlowListener, FlowOutcome, FlowProgress, Job, conclusion
from pyoco_server.domain.runs.logs import LogEntry, LogLine, cut_text, line_of
from pyoco_server.domain.runs.model import CodeWheel, Owner, RunSnapshot, RunStatus
from pyoco_server.errors import CancelTimedOut, NatsUnavailable, SnapshotTooLarge, TerminalNotRecorded
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.runs import TooManyLines, WorkerBackend
from pyoco_server.usecases.ports.stores import Clock, Versioned

# What a run prints, on its way into the store: kept until it is written, also while NATS is away.

log = get_logger(__name__)

BATCH_BYTES = 128 * 1024
"""Text in one write; escaped as JSON it may be six times that, and must fit a message."""
LINE_BYTES = 100
"""What a line takes beside its text."""
LOG_RETRY_SEC = 0.5
REFUSED_PATIENCE_SEC = 10.0
"""A run whose log alone cannot be written ends without it then; without NATS it could not end, either."""


class RunLog:
    """One write in flight. The executor bounds what a run may print, so what waits here is bounded too."""

    def __init__(
        self, backend: WorkerBackend, run_id: str, owner: Owner, patience_sec: float = REFUSED_PATIENCE_SEC
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._owner = owner
        self._patience_sec = patience_sec
        self._waiting: list[LogLine] = []
        self._next = 0
        self._writes = 0
        self._batch_bytes = BATCH_BYTES
        self._writing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None

    def add(self, entries: Sequence[LogEntry]) -> None:
        excerpt: list[LogLine] = []
        for entry in entries:
            n = self._next if entry.n < 0 else entry.n
            self._next = max(self._next, n + 1)
            (excerpt if entry.is_excerpt else self._waiting).append(line_of(entry, self._owner.attempt, n))
        if excerpt:
            self._showing = asyncio.ensure_future(self._show(excerpt))
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write_waiting())

    async def is_written(self) -> None:
        """Or cannot be: whoever sees the run's end is to find its whole log."""
        if self._writing is None:
            return
        refused_for = 0.0
        while not self._writing.done() and refused_for < self._patience_sec:
            await asyncio.wait({self._writing}, timeout=LOG_RETRY_SEC)
            if not self._writing.done() and await self._store_answers():
                refused_for += LOG_RETRY_SEC
        if self._waiting:
            log.error(
                "the end of the run's log could not be written",
                action="run.log_lost",
                run_id=self._run_id,
                lines=len(self._waiting),
                **NatsUnavailable().ids,
            )

    async def is_written_soon(self) -> None:
        """As far as a moment goes: the run is done again elsewhere."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=LOG_RETRY_SEC)

    def close(self) -> None:
        for task in (self._writing, self._showing):
            if task is not None:
                task.cancel()

    async def _store_answers(self) -> bool:
        """Whether it is the log alone that cannot be written."""
        try:
            await self._backend.runs.get(self._run_id)
        except NatsUnavailable:
            return False
        except Unreadable:
            return True
        return True

    async def _write_waiting(self) -> None:
        is_delayed = False
        batch: list[LogLine] = []
        while self._waiting:
            # The same lines again under the same id: what seemed to fail may have been stored.
            batch = batch or _first_of(self._waiting, self._batch_bytes)
            write_id = f"{self._run_id}.{self._owner.instance_id}.{self._owner.attempt}.{self._writes}"
            try:
                await self._backend.task_logs.append(self._run_id, batch, write_id)
            except TooManyLines:
                self._make_smaller(batch)
                batch = []
            except NatsUnavailable as error:
                if not is_delayed:
                    self._warn(error)
                is_delayed = True
                await asyncio.sleep(LOG_RETRY_SEC)
            else:
                del self._waiting[: len(batch)]
                self._writes += 1
                batch, is_delayed = [], False

    def _make_smaller(self, batch: Sequence[LogLine]) -> None:
        """The server takes smaller messages than usual."""
        if len(batch) > 1:
            self._batch_bytes //= 2
            return
        size = len(batch[0].text.encode())
        self._waiting[0] = replace(batch[0], text=cut_text(1, size), cut_lines=1, cut_bytes=size)

    def _warn(self, error: NatsUnavailable) -> None:
        log.warning(
            "the run's log is not written yet",
            action="run.log_delayed",
            run_id=self._run_id,
            exc_info=error,
        )

    async def _show(self, lines: list[LogLine]) -> None:
        with suppress(NatsUnavailable):  # it is for those who watch, and nobody can
            await self._backend.task_logs.show(self._run_id, lines)


def _first_of(lines: Sequence[LogLine], size: int) -> list[LogLine]:
    """As many as fit one write."""
    left = size
    for index, line in enumerate(lines):
        left -= len(line.text) + LINE_BYTES
        if left < 0 and index:
            return list(lines[:index])
    return list(lines)


# What the pipeline needs from whoever runs flows: processes, or a thread of this one.


class FlowHandle(Protocol):
    @property
    def wheels(self) -> tuple[CodeWheel, ...]:
        """The synced code it runs with."""
        ...

    @property
    def busy_sec(self) -> float:
        """How long an executor could do nothing else, once it has ended."""
        ...

    async def outcome(self) -> FlowOutcome | None:
        """How the flow ended; None: it was never begun. Does not raise for what the flow does."""
        ...

    def cancel(self) -> None:
        """Ask the flow to stop at its next task."""
        ...

    def go_live(self) -> None:
        """Have the progress told, now and with every step. Before that nothing is told."""
        ...

    def written(self) -> None:
        """The last told step is written; the next may be told."""
        ...

    def kill(self) -> bool:
        """End the flow by force. False: that cannot be done here."""
        ...


class FlowExecutors(Protocol):
    @property
    def capacity(self) -> int:
        """How many flows can run at once, now."""
        ...

    def when_it_changes(self, tell: Callable[[], None]) -> None:
        """Have somebody told when the capacity is another."""
        ...

    async def start(self, job: Job, listener: FlowListener, patience: float) -> FlowHandle | None:
        """Run the job's flow. None: nobody was free to do it within `patience` seconds."""
        ...

    async def close(self) -> None: ...


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
        log_patience_sec: float = REFUSED_PATIENCE_SEC,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._owner = owner
        self._known = claimed
        self._grace = grace
        self._run_id = claimed.value.run_id
        self._flow: FlowHandle | None = None
        self._waiting: RunChange | None = None
        self._writing: asyncio.Task[None] | None = None
        self._log = RunLog(backend, self._run_id, owner, log_patience_sec)
        self._listening: asyncio.Task[Callable[[], Awaitable[None]]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._is_stopping = False
        self._has_ended = False
        self._is_abandoned = False
        self.refusal: Refusal | None = None
        """Set when the run is not ours any more: nothing more is written."""

    # While the flow runs

    async def follow(self, flow: FlowHandle) -> FlowOutcome | None:
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
        self._offer(
            Report(
                self._owner,
                progress.tasks,
                progress.task_records,
                progress.task_dependencies,
                progress.task_records_truncated,
            )
        )

    def printed(self, entries: Sequence[LogEntry]) -> None:
        self._log.add(entries)

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
        if self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        await (self._log.is_written_soon() if self._is_abandoned else self._log.is_written())
        self._log.close()
        if self._listening is not None:
            with best_effort(log, "run.unlisten", NatsUnavailable, run_id=self._run_id):
                stop = await self._listening
                await stop()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))
