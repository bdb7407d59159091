"""Accept runs: the PENDING snapshot first, then the job, both or neither; idempotency keys and batches."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from pyoco_server.domain.fleet import KEPT_TASKS
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.changes import LinkRetry
from pyoco_server.domain.runs.jobs import (
    IdempotencyClaim,
    Job,
    Retry,
    Submission,
    accept,
    claim_key,
    pending,
    repeated,
    request_digest,
    start_of,
)
from pyoco_server.domain.runs.listing import RunFilter
from pyoco_server.domain.runs.model import (
    FROM_START,
    FlowFile,
    RunSnapshot,
    RunStatus,
    flow_file_key,
    kept_tasks_of,
    replace,
)
from pyoco_server.errors import (
    InvalidRequest,
    NatsUnavailable,
    OrphanRunSuspected,
    PyocoServerError,
    RunNotFound,
    RunNotRetriable,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.consistency import change_run, write
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.ports.runs import ClaimStore, FlowFileStore, JobQueue, RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Change, Clock, Revision, Versioned, WrongRevision

log = get_logger(__name__)


class SubmitRun:
    def __init__(  # noqa: PLR0913 - one argument per thing that callers may lack
        self,
        runs: RunStore,
        queue: JobQueue,
        clock: Clock,
        new_run_id: Callable[[], str],
        on_written: Callable[[Revision], None] = lambda _: None,
        retention_sec: float = 0.0,
        *,
        expire_at: Callable[[str, float], Awaitable[None]] | None = None,
        files: "FlowFiles | None" = None,
        choose_lane: Callable[[Job], Awaitable[Job]] | None = None,
    ) -> None:
        """`retention_sec`: retention of a run after its end; 0: set by its worker.

        `files`: where every flow.yaml is kept, for retries. `choose_lane`: without, all jobs go to the plain
        lane.
        """
        self._files = files
        self._choose_lane = choose_lane
        self._retention_sec = retention_sec or None
        self._runs = runs
        self._queue = queue
        self._clock = clock
        self._new_run_id = new_run_id
        self._on_written = on_written
        self._expire_at = expire_at

    async def __call__(self, submission: Submission) -> RunSnapshot:
        """Raises NatsUnavailable or RequestTooLarge if the run was not accepted; then nothing is stored."""
        job = await self.job_of(submission, self._new_run_id(), self._clock())
        snapshot = self._pending(job)
        revision: Revision | None = None
        await self._keep_file(job)
        try:
            revision = await self._runs.create(snapshot.run_id, snapshot)
            self._on_written(revision)
            await self._enqueue(job, revision)
        except PyocoServerError:
            if not await self._withdraw(snapshot.run_id, revision):
                return snapshot
            raise
        _say_accepted(snapshot)
        return snapshot

    async def job_of(self, submission: Submission, run_id: str, at: float) -> Job:
        """Refuses now what would fail later. Raises InvalidRequest or TimersUnsupported."""
        if submission.retry is not None or submission.start_within_sec is not None:
            self._queue.require_timers()
        not_before = None
        if submission.delay_sec or submission.run_at is not None:
            self._queue.require_timers()
            not_before = start_of(submission, await self._queue.now())
        return accept(submission, run_id, at, not_before)

    async def place_claimed(self, job: Job, before_job: Callable[[], Awaitable[None]] | None = None) -> None:
        """Place the run of an `Idempotency-Key`. A retry continues where an earlier attempt was interrupted.

        Nothing is rolled back on failure, because a concurrent attempt may have succeeded. Without a retry, a
        sweep ends the run. A worker drops a second job that the queue did not detect as a duplicate.
        `before_job` records that the run exists: with a job it may start, end and expire, and must not be
        placed again.
        """
        snapshot = self._pending(job)
        await self._keep_file(job)
        placed = await self._create(snapshot)
        if before_job is not None:
            await before_job()
        if placed is not None:
            await self._enqueue_first(job, placed)
        _say_accepted(snapshot)

    async def carry_on(self, job: Job) -> None:
        """Place the job of an existing run, whose first attempt may have crashed before doing so."""
        found = await self._runs.get(job.run_id)
        if found is not None and is_first_try_pending(found.value):
            await self._enqueue_first(job, found)

    async def place_derived(self, job: Job) -> None:
        """Place a run with a derived id, which exists once however often it is placed.

        If another caller places it as well, the queue drops the second job; if that caller died, it accepts
        it.
        """
        snapshot = self._pending(job)
        placed = await self._create(snapshot)
        if placed is not None:
            await self._enqueue_first(job, placed)
            _say_accepted(snapshot)

    async def replace_job(self, run: Versioned[RunSnapshot], job: Job) -> None:
        """Place the job of a PENDING run that lost it. A worker runs a duplicate once."""
        job = replace(job, try_number=run.value.try_number, not_before=run.value.not_before)
        job = await self._with_lane(job)
        await self._queue.publish(job, run.revision, message_id=f"{job.run_id}.{run.revision}")

    async def _enqueue_first(self, job: Job, run: Versioned[RunSnapshot]) -> None:
        """An earlier attempt may have created the run, with another start."""
        self._on_written(run.revision)
        await self._enqueue(replace(job, not_before=run.value.not_before), run.revision)

    async def _enqueue(self, job: Job, revision: Revision) -> None:
        if job.start_within_sec is not None and self._expire_at is not None:
            start = await self._queue.now() if job.not_before is None else job.not_before
            await self._expire_at(job.run_id, start + job.start_within_sec)
        await self._queue.publish(await self._with_lane(job), revision)

    async def _with_lane(self, job: Job) -> Job:
        return job if self._choose_lane is None else await self._choose_lane(job)

    async def _keep_file(self, job: Job) -> None:
        """Before the run exists: a run can be retried as soon as it has ended."""
        if self._files is not None and job.workflow_yaml is not None:
            await self._files.keep(job.tenant_id, job.workflow_yaml_sha256 or "", job.workflow_yaml)

    def _pending(self, job: Job) -> RunSnapshot:
        """Stored in the run, so that its retention does not depend on the process that ends it."""
        return pending(job, self._retention_sec)

    async def _create(self, snapshot: RunSnapshot) -> Versioned[RunSnapshot] | None:
        """The run without a job; None if another attempt got further.

        A retry at another gateway may even overtake the first attempt.
        """
        try:
            return Versioned(snapshot, await self._runs.create(snapshot.run_id, snapshot))
        except WrongRevision:
            found = await self._runs.get(snapshot.run_id)
        if found is None:
            # Removed meanwhile, or not yet visible on the queried server: no attempt got further.
            raise NatsUnavailable("the run of an earlier attempt is not readable yet")
        return found if is_first_try_pending(found.value) else None

    async def _withdraw(self, run_id: str, revision: Revision | None) -> bool:
        """Remove the snapshot. False: a worker holds the run already, so the job was queued."""
        with best_effort(log, "run.withdraw", OrphanRunSuspected, run_id=run_id):
            try:
                await self._runs.remove(run_id, revision)
            except WrongRevision:
                return False
        return True


def is_first_try_pending(run: RunSnapshot) -> bool:
    """Whether the run may lack its first job."""
    return run.status is RunStatus.PENDING and not run.tries


def _say_accepted(snapshot: RunSnapshot) -> None:
    log.debug(
        "run accepted",
        action="run.accepted",
        run_id=snapshot.run_id,
        flow_name=snapshot.flow_name,
        tag=snapshot.tag,
    )


# Submit with an `Idempotency-Key`: a retry returns the same run, whatever happened in between.

MAX_TRIES = 3
"""A claim may expire between the conflict and the read, but not three times in a row."""


class Submitted(Struct, frozen=True):
    run_id: str
    is_replayed: bool


class SubmitOnce:
    def __init__(
        self, claims: ClaimStore, submit_run: SubmitRun, clock: Clock, new_run_id: Callable[[], str]
    ) -> None:
        self._claims = claims
        self._submit_run = submit_run
        self._clock = clock
        self._new_run_id = new_run_id

    async def __call__(self, submission: Submission, key: str) -> Submitted:
        # What is refused must not use up its key.
        job = await self._submit_run.job_of(submission, self._new_run_id(), self._clock())
        place, wanted = claim_key(submission.tenant_id, key), request_digest(submission)
        claim, is_new = await self._claim(place, wanted, job)
        if claim.value.request != wanted:
            raise InvalidRequest("this Idempotency-Key was used with another request")
        job = replace(job, run_id=claim.value.run_id, submitted_at=claim.value.claimed_at)
        if claim.value.is_accepted:
            await self._submit_run.carry_on(job)
        else:
            await self._submit_run.place_claimed(job, partial(self._mark_accepted, place, claim))
        return Submitted(claim.value.run_id, is_replayed=not is_new)

    async def _claim(self, place: str, request: str, job: Job) -> tuple[Versioned[IdempotencyClaim], bool]:
        """The claim of the key, and whether it is new."""
        for _ in range(MAX_TRIES):
            claim = IdempotencyClaim(run_id=job.run_id, request=request, claimed_at=job.submitted_at)
            try:
                return Versioned(claim, await self._claims.create(place, claim)), True
            except WrongRevision:
                found = await self._claims.get(place)
            if found is not None:
                return found, False
        raise NatsUnavailable("the Idempotency-Key could not be claimed")

    async def _mark_accepted(self, place: str, claim: Versioned[IdempotencyClaim]) -> None:
        """Without this mark a retry would start the run again after its snapshot has expired."""
        try:
            await self._claims.update(place, replace(claim.value, is_accepted=True), claim.revision)
        except WrongRevision:
            log.debug("a retry marked the claim first", action="idempotency.marked")


# Retry an ended run: a new run with the same input, linked with the old one.

USED_AGAIN_SEC = 86_400.0
"""How old the last use of a stored file may be before it is recorded again."""
UNUSED_SEC = 2 * USED_AGAIN_SEC
"""When a file without runs is removed. Longer than that: a submit may be between file and run."""
COLLECT_INTERVAL_SEC = 3600.0


class FlowFiles:
    """Every flow.yaml of a tenant once, while there are runs of it. Jobs have it, but not after the run."""

    def __init__(self, files: FlowFileStore, index: RunIndex, clock: Clock) -> None:
        self._files = files
        self._index = index
        self._clock = clock

    async def keep(self, tenant_id: str | None, sha256: str, text: str) -> None:
        file = FlowFile(tenant_id=tenant_id, sha256=sha256, text=text, used_at=self._clock())
        found = await self._files.get(file.key)
        if found is not None and found.value.used_at > file.used_at - USED_AGAIN_SEC:
            return
        try:
            await write(self._files, file.key, file, found)
        except WrongRevision:
            log.debug("another submission stored the flow.yaml", action="flow_yaml.stored")

    async def text(self, tenant_id: str | None, sha256: str) -> str | None:
        found = await self._files.get(flow_file_key(tenant_id, sha256))
        return None if found is None else found.value.text

    async def run(self, is_index_complete: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(COLLECT_INTERVAL_SEC)
            with best_effort(log, "flow_yaml.collect", NatsUnavailable):
                if is_index_complete():  # otherwise it may lack runs
                    await self.collect()

    async def collect(self) -> None:
        """Remove files without runs."""
        for file in await self._files.list_values():
            of_file = RunFilter(tenant_id=file.tenant_id, workflow_yaml_sha256=file.sha256)
            is_old = file.used_at < self._clock() - UNUSED_SEC
            if is_old and not self._index.page(of_file, None, 1).places:
                await self._remove(file)

    async def _remove(self, file: FlowFile) -> None:
        found = await self._files.get(file.key)
        if found is None or found.value.used_at != file.used_at:
            return
        with suppress(WrongRevision):  # used again
            await self._files.remove(file.key, found.revision)
            log.info("removed a flow.yaml without runs", action="flow_yaml.collect", sha256=file.sha256)


class RetryRun:
    def __init__(
        self,
        runs: RunStore,
        submit: SubmitRun,
        submit_once: SubmitOnce,
        files: FlowFiles,
        workers: ListWorkers,
        links: "LinkRetries",
    ) -> None:
        self._runs = runs
        self._submit = submit
        self._submit_once = submit_once
        self._files = files
        self._workers = workers
        self._links = links

    async def __call__(self, run_id: str, caller: Caller, wanted: Retry) -> tuple[Submitted, str]:
        """The new run and its tag."""
        found = await self._runs.get(run_id) if is_run_id(run_id) else None
        if found is None or not may_see(caller, found.value):
            raise RunNotFound
        submission = await self._submission(found.value, caller, wanted)
        if wanted.key is None:
            submitted = Submitted((await self._submit(submission)).run_id, is_replayed=False)
        else:
            submitted = await self._submit_once(submission, wanted.key)
        with best_effort(log, "run.link", NatsUnavailable, run_id=run_id):  # the feed links it, too
            await self._links.link(run_id, submitted.run_id)
        return submitted, submission.tag

    async def _submission(self, run: RunSnapshot, caller: Caller, wanted: Retry) -> Submission:
        if not run.status.is_terminal:
            raise RunNotRetriable(f"the run is {run.status}; it can be retried when it has ended")
        if wanted.params and (wanted.from_failed or run.workflow_yaml_sha256 is not None):
            raise InvalidRequest(
                "params: the tasks that succeeded used the params of the run; retry it from the start"
                if wanted.from_failed
                else "params: the params of the run are in its flow.yaml; submit the changed file"
            )
        text = await self._text_of(run)
        submission = repeated(run, text, caller.api_key_id, wanted.params)
        kept = kept_tasks_of(run) if wanted.from_failed else None
        if kept is not None:
            self._require_current_workers(submission.tag)
        return replace(submission, kept=kept)

    async def _text_of(self, run: RunSnapshot) -> str | None:
        if run.workflow_yaml_sha256 is None:
            return None
        text = await self._files.text(run.tenant_id, run.workflow_yaml_sha256)
        if text is None:
            raise RunNotRetriable("the flow.yaml of the run is not stored any more; submit the file again")
        return text

    def _require_current_workers(self, tag: str) -> None:
        """An older worker refuses such a job, and the run would fail."""
        if older := self._workers.lacking(KEPT_TASKS, tag):
            raise RunNotRetriable(
                f"workers that are too old to keep outputs have the tag {tag!r}: {', '.join(older[:5])}; "
                f"update them, or {FROM_START}"
            )


class LinkRetries:
    """Records in an ended run which run repeats it. A gateway may die between the new run and this."""

    def __init__(self, runs: RunStore, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._waiting: dict[str, str] = {}
        self._wake = asyncio.Event()

    async def link(self, old: str, new: str) -> None:
        await change_run(self._runs, old, LinkRetry(new), self._clock)

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Called for every change of a run. A gateway that was down may see only the end of one."""
        for change in changes:
            run = change.value
            if run is None or run.retried_from is None:
                continue
            if is_first_try_pending(run) or run.status.is_terminal:
                self._waiting[change.key] = run.retried_from
                self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                new, old = next(iter(self._waiting.items()))
                with best_effort(log, "run.link", NatsUnavailable, run_id=old):
                    await self.link(old, new)
                self._waiting.pop(new, None)


# Batches: many submissions in one call, each with its own result.

IN_FLIGHT = 100
"""Concurrent submissions: enough for JetStream to batch its writes, few enough to be fair to others."""


class SubmitBatch:
    def __init__(self, submit_run: SubmitRun) -> None:
        self._submit_run = submit_run

    async def __call__(
        self, submissions: Sequence[Submission | PyocoServerError]
    ) -> list[RunSnapshot | PyocoServerError]:
        """A result for each submission in order: the accepted run, or the error."""
        turns = asyncio.Semaphore(IN_FLIGHT)
        return await asyncio.gather(*(self._one(submission, turns) for submission in submissions))

    async def _one(
        self, submission: Submission | PyocoServerError, turns: asyncio.Semaphore
    ) -> RunSnapshot | PyocoServerError:
        if isinstance(submission, PyocoServerError):
            return submission
        async with turns:
            try:
                return await self._submit_run(submission)
            except PyocoServerError as error:
                return error
