"""A run on this worker, from its claim to its end: its flow, its snapshot and its log.

The session writes the snapshot as the flow progresses, and stops the flow when the run is cancelled or owned
by another delivery.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.fleet import FlowList
from pyoco_server.domain.runs.changes import (
    Beat,
    Conclude,
    KeepArtifact,
    Refusal,
    Report,
    RunChange,
    next_wait_sec,
)
from pyoco_server.domain.runs.jobs import (
    FlowListener,
    FlowOutcome,
    FlowProgress,
    Job,
    Raised,
    ResolvedJob,
    conclusion,
)
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import CodeWheel, Owner, RunSnapshot, RunStatus
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.engine.executors.pool import Prefetch
from pyoco_server.errors import CancelTimedOut, NatsUnavailable, SnapshotTooLarge, TerminalNotRecorded
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.usecases.ports.stores import Clock, Revision, Versioned
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC, RunLog
from pyoco_server.worker.task_requests import AnswerTasks

log = get_logger(__name__)

RETRY_SEC = 0.5
"""Between attempts while NATS is unavailable. The flow continues; its end is written when NATS is back."""
LIVE_AFTER_SEC = 0.02
"""A run that ends sooner is written at its start and its end only."""


class FlowHandle(Protocol):
    """A flow in an executor process or in a thread of this one."""

    @property
    def wheels(self) -> tuple[CodeWheel, ...]:
        """The synced code it runs with."""
        ...

    async def outcome(self) -> FlowOutcome | None:
        """How the flow ended; None: it never started. Does not raise what the flow raises."""
        ...

    def cancel(self) -> None:
        """Stop at the next task."""
        ...

    def go_live(self) -> None:
        """Report the progress now and after every step. Before that nothing is reported."""
        ...

    def written(self) -> None:
        """The last progress report is stored; the next may come."""
        ...

    def kill(self) -> bool:
        """End the flow by force. False: not possible here."""
        ...


class FlowExecutors(Protocol):
    @property
    def capacity(self) -> int:
        """How many flows can run at once, now."""
        ...

    @property
    def prefetch(self) -> Prefetch: ...

    @property
    def flows(self) -> FlowList | None:
        """Names of the flows that can be run; None: the resolver cannot list them."""
        ...

    def on_capacity_change(self, callback: Callable[[], None]) -> None:
        """Register a callback for changes of `capacity`."""
        ...

    async def start(self, job: Job, listener: FlowListener, timeout_sec: float) -> FlowHandle | None:
        """Run the job's flow. None: no executor was free within `timeout_sec`."""
        ...

    async def close(self) -> None: ...


class Concluded(Struct, frozen=True):
    """The end of a try, as it was recorded."""

    run: RunSnapshot
    is_overruled: bool
    """A cancel won over what the flow returned."""

    @property
    def is_retried(self) -> bool:
        """The try failed, and the run waits for the next one."""
        return self.run.status is RunStatus.PENDING


class RunSession:
    def __init__(  # noqa: PLR0913 - one argument per part that it works with
        self,
        backend: WorkerBackend,
        clock: Clock,
        owner: Owner,
        claimed: Versioned[RunSnapshot],
        grace: float,
        log_patience_sec: float = REFUSED_PATIENCE_SEC,
        *,
        on_write: Callable[[Revision, bool], None] = lambda _, __: None,
        answer: AnswerTasks | None = None,
    ) -> None:
        """`on_write` gets the revision of every write, and whether it is only a heartbeat.

        `answer`: to requests of tasks; without, there are none.
        """
        self._answer = answer
        self.saving = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()
        self._backend = backend
        self._on_write = on_write
        self._clock = clock
        self.owner = owner
        self._known = claimed
        self._grace = grace
        self._run_id = claimed.value.run_id
        self._try_number = claimed.value.try_number
        self._flow: FlowHandle | None = None
        self._waiting: RunChange | None = None
        self._writing: asyncio.Task[None] | None = None
        self._log = RunLog(backend, self._run_id, owner, log_patience_sec)
        self._listening: asyncio.Task[Callable[[], Awaitable[None]]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._is_stopping = False
        self._has_ended = False
        self._is_abandoned = False
        self.masks = NO_MASKS
        """Secrets that the flow got."""
        self.refusal: Refusal | None = None
        """Set when this worker has lost the run: nothing more is written."""

    # Before the flow starts

    async def is_held(self, known_at: float, ack_wait_sec: float) -> bool:
        """Whether the run was ours at most `ack_wait_sec` ago. `known_at`: when its job came.

        Another worker may have received the job since if this process was frozen, or waited for a slow reply.
        Then a heartbeat finds out. Raises NatsUnavailable.
        """
        loop = asyncio.get_running_loop()
        while self.refusal is None and (asked_at := loop.time()) - known_at > ack_wait_sec:
            log.warning("claim is old; checking whether the run is still ours", action="run.claim_old")
            await self._write(self._beat())
            known_at = asked_at
        return self.refusal is None

    # While the flow runs

    async def follow(self, flow: FlowHandle) -> FlowOutcome | None:
        """Wait for the end of the flow. None: it was abandoned, or never started."""
        self._flow = flow
        self._after(LIVE_AFTER_SEC, self._go_live)
        if self._is_abandoned:
            self._end_flow()
        if self._is_stopping:  # cancelled before there was a flow to cancel
            flow.cancel()
        try:
            outcome = await flow.outcome()
        finally:
            await self._close()
        return None if self._is_abandoned else outcome

    def abandon(self) -> None:
        """Kill the flow and write nothing more: another worker will run it."""
        if not self._has_ended:
            self._is_abandoned = True
            self._end_flow()

    def _end_flow(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
            self._flow.kill()

    def masked(self, outcome: FlowOutcome) -> FlowOutcome:
        """The executor masks as well, before it cuts; a crash of it is only described here."""
        if not self.masks:
            return outcome
        return replace(
            outcome,
            progress=_masked_progress(outcome.progress, self.masks),
            result=self.masks.value(outcome.result),
            warnings=tuple(map(self.masks.text, outcome.warnings)),
            error=self.masks.value(outcome.error),
            raised=None
            if outcome.raised is None
            else _masked_fields(outcome.raised, self.masks, *Raised.__struct_fields__),
        )

    def progressed(self, progress: FlowProgress) -> None:
        if self.masks:
            progress = _masked_progress(progress, self.masks)
        self._offer(
            Report(
                self.owner,
                progress.tasks,
                progress.task_records,
                progress.task_dependencies,
                progress.task_records_truncated,
                self._try_number,
                progress.progress,
            )
        )

    def printed(self, entries: Sequence[LogEntry]) -> None:
        if self.masks:
            entries = [_masked_fields(entry, self.masks, "text", "fields") for entry in entries]
        self._log.add(entries)

    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None:
        async def find_answer() -> None:
            assert self._answer is not None  # noqa: S101 - see __init__
            answer(await self._answer(self, request))

        task = asyncio.ensure_future(find_answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    @property
    def run(self) -> RunSnapshot:
        """As it was written last."""
        return self._known.value

    async def keep_artifact(self, artifact: RunArtifact) -> bool:
        while self.refusal is None:
            try:
                await self._write(KeepArtifact(self.owner, artifact, self._try_number))
            except NatsUnavailable as error:
                log.warning("artifact not listed yet", action="artifact.delayed", exc_info=error)
                await asyncio.sleep(RETRY_SEC)
            else:
                break
        return self.refusal is None

    async def beat(self) -> None:
        """Write a heartbeat, unless a waiting report will do."""
        self._check_run()

    def _go_live(self) -> None:
        if self._flow is not None:
            self._flow.go_live()
        self._listening = asyncio.ensure_future(
            self._backend.run_signals.on_foreign_write(self._run_id, self._check_run)
        )

    def _check_run(self) -> None:
        """Any write finds out what others have written, so a waiting report will do.

        It must not be replaced by a heartbeat: no more progress is reported until it is written.
        """
        if self._waiting is None:
            self._offer(self._beat())

    def _beat(self) -> Beat:
        return Beat(self.owner, self._try_number)

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
                if not isinstance(self._waiting, Report):  # a heartbeat does not replace a report
                    self._waiting = change
                await asyncio.sleep(RETRY_SEC)
            except SnapshotTooLarge:
                log.exception("progress is too large", action="run.progress_too_large")
            else:
                if isinstance(change, Report) and self._flow is not None:
                    self._flow.written()

    async def _write(self, change: RunChange) -> None:
        answer = await change_run(self._backend.runs, self._run_id, change, self._clock, known=self._known)
        if isinstance(answer, Versioned):
            if answer.revision > self._known.revision:  # an artifact is written beside other changes
                self._known = answer
            self._on_write(answer.revision, isinstance(change, Beat))
            if answer.value.status is RunStatus.CANCELLING:
                self._cancel_flow()
            return
        # Taken over, ended or removed: lost in any case.
        self.refusal = answer or Refusal.TERMINAL
        if not self._has_ended:
            self._end_flow()  # it would do the work of the new owner twice

    # Stopping the flow

    def _cancel_flow(self) -> None:
        if self._is_stopping or self._has_ended:
            return
        self._is_stopping = True
        log.info("stopping a cancelled run", action="run.cancelling", run_id=self._run_id)
        if self._flow is not None:
            self._flow.cancel()
        self._after(self._grace, self._kill_flow)

    def _kill_flow(self) -> None:
        log.error(
            "cancelled run did not stop within the grace period; killing its process",
            action="run.cancel_timeout",
            run_id=self._run_id,
            grace_sec=self._grace,
            **CancelTimedOut().ids,
        )
        if self._flow is not None and not self._flow.kill():
            log.error(
                "a flow in a thread cannot be killed; it continues until it returns",
                action="run.unstoppable",
                run_id=self._run_id,
            )

    # The end

    async def conclude(self, outcome: FlowOutcome) -> Concluded | Refusal:
        """The last write, retried until NATS answers: a result is never dropped."""
        wheels = self._flow.wheels if self._flow is not None else ()
        run = self._known.value
        change = conclusion(self.owner, outcome, wheels or None, run.try_number)
        wait_sec = next_wait_sec(run, change, random.uniform(-1, 1))  # noqa: S311 - spreads the load
        while self.refusal is None:
            try:
                if wait_sec is not None:
                    change = replace(change, retry_at=await self._backend.queue.now() + wait_sec)
                await self._write(change)
            except NatsUnavailable as error:
                log.warning(
                    "end of the run not written yet",
                    action="run.end_delayed",
                    exc_info=error,
                    **TerminalNotRecorded().ids,
                )
                await asyncio.sleep(RETRY_SEC)
            except SnapshotTooLarge:
                log.exception("end of the run is too large", action="run.end_too_large", run_id=self._run_id)
                # The store trims all but params and tasks, and marks a result that it leaves out.
                change = replace(change, tasks={}, task_records={}, task_records_truncated=True)
                await asyncio.sleep(RETRY_SEC)
            else:
                break
        run = self._known.value
        return self.refusal or Concluded(run, is_overruled=_is_cancelled(run) and not _is_cancelled(change))

    async def _close(self) -> None:
        """Nothing of this run may continue after its end."""
        self._has_ended = True
        for timer in self._timers:
            timer.cancel()
        for task in list(self._answering):
            task.cancel()
        if self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        await (self._log.flush_briefly() if self._is_abandoned else self._log.flush())
        self._log.close()
        if self._listening is not None:
            with best_effort(log, "run.unlisten", NatsUnavailable, run_id=self._run_id):
                stop = await self._listening
                await stop()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))


def masks_of(job: Job) -> Masks:
    return Masks(job.secrets) if isinstance(job, ResolvedJob) and job.secrets else NO_MASKS


S = TypeVar("S", bound=Struct)
_RECORDED = ("error", "traceback", "inputs", "output", "artifacts")


def _masked_fields(of: S, masks: Masks, *names: str) -> S:
    return replace(of, **{name: masks.value(getattr(of, name)) for name in names})


def _masked_progress(progress: FlowProgress, masks: Masks) -> FlowProgress:
    records = {
        name: _masked_fields(record, masks, *_RECORDED) for name, record in progress.task_records.items()
    }
    mark = progress.progress
    return replace(
        progress,
        task_records=records,
        progress=None if mark is None else _masked_fields(mark, masks, "message"),
    )


def _is_cancelled(ended: RunSnapshot | Conclude) -> bool:
    return ended.status is RunStatus.CANCELLED
