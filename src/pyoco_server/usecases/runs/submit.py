"""Accept runs: the PENDING snapshot first, then the job, both or neither; idempotency keys and batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from pyoco_server import tracing
from pyoco_server.domain.flows import RUN_DEFAULTS, named_flow
from pyoco_server.domain.runs.claims import IdempotencyClaim, claim_key, request_digest
from pyoco_server.domain.runs.jobs import Job, Submission, accept, pending, start_of
from pyoco_server.domain.runs.model import (
    RunSnapshot,
    RunStatus,
    replace,
)
from pyoco_server.errors import (
    InvalidRequest,
    LimitReached,
    NatsUnavailable,
    OrphanRunSuspected,
    PyocoServerError,
    Unresolvable,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import claim_once
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.limits.gate import LimitGate
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import ClaimStore, RunStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Versioned, WrongRevision

log = get_logger(__name__)


class KeepsFiles(Protocol):
    async def keep(self, tenant_id: str | None, sha256: str, text: str) -> None:
        """Store a flow.yaml for retries of its runs."""
        ...


class SubmitRun:
    def __init__(  # noqa: PLR0913 - one argument per thing that callers may lack
        self,
        runs: RunStore,
        queue: JobQueue,
        clock: Clock,
        new_run_id: Callable[[], str],
        on_written: Callable[[Revision], None] = lambda _: None,
        retention_sec: float | None = None,
        *,
        expire_at: Callable[[str, float], Awaitable[None]] | None = None,
        keep_file: Callable[[str | None, str, str], Awaitable[None]] | None = None,
        check_request: Callable[[Submission], None] = lambda _: None,
        complete: Callable[[Submission], Awaitable[Submission]] | None = None,
        choose_lane: Callable[[Job], Awaitable[Job]] | None = None,
        limits: LimitGate | None = None,
        require_resolvable: Callable[[Submission], Awaitable[None]] | None = None,
        keep_values: Callable[[Job], Awaitable[None]] | None = None,
    ) -> None:
        """`retention_sec`: retention of a run after its end; 0: for ever, None: set by gateways.

        `keep_file`: keeps a flow.yaml (tenant, hash, text) for retries. `check_request`: refuses requests of
        clients; what was accepted before, such as a schedule, must not fail because a worker is away.
        `require_resolvable`: the same for secrets and variables, which have to be read.
        `keep_values`: makes the run a user of the stored values in its params.
        `complete`: adds the defaults of the flow, for runs from every source. `choose_lane`: without, all
        jobs go to the plain lane.
        """
        self._complete = complete
        self._keep_values = keep_values
        self._check_request = check_request
        self._require_resolvable = require_resolvable
        self._keep_file = keep_file
        self._choose_lane = choose_lane
        self._limits = limits
        self._retention_sec = retention_sec
        self._runs = runs
        self._queue = queue
        self._clock = clock
        self._new_run_id = new_run_id
        self._on_written = on_written
        self._expire_at = expire_at

    async def check_request(self, submission: Submission) -> None:
        """Raises InvalidRequest or Unresolvable."""
        self._check_request(submission)
        if self._require_resolvable is not None:
            await self._require_resolvable(submission)

    async def __call__(self, submission: Submission) -> RunSnapshot:
        """Raises NatsUnavailable or RequestTooLarge if the run was not accepted; then nothing is stored."""
        await self.check_request(submission)
        job = await self.job_of(submission, self._new_run_id(), self._clock())
        snapshot = self._pending(job)
        revision: Revision | None = None
        await self._keep_file_of(job)
        await self._keep_values_of(job)
        if job.is_held:
            try:
                await self._place_held(job, snapshot)
            except LimitReached:
                raise
            except PyocoServerError:
                await self._withdraw(snapshot.run_id, None)
                raise
            return snapshot
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

    async def job_of(
        self, submission: Submission, run_id: str, at: float, graph_id: str | None = None
    ) -> Job:
        """Refuses now what would fail later. Raises InvalidRequest or TimersUnsupported.

        `graph_id`: the graph of the run's execution.
        """
        if self._complete is not None:
            submission = await self._complete(submission)
        if submission.retry is not None or submission.start_within_sec is not None:
            self._queue.require_timers()
        not_before = None
        if submission.delay_sec or submission.run_at is not None:
            self._queue.require_timers()
            not_before = start_of(submission, await self._queue.now())
        job = tracing.carrying(accept(submission, run_id, at, not_before))
        if graph_id is not None:
            job = replace(job, graph_id=graph_id)
        return job if self._limits is None else await self._limits.mark(job)

    async def _place_held(self, job: Job, snapshot: RunSnapshot) -> None:
        """The job comes first, so that a run that waits for its place has one. Raises LimitReached."""
        assert self._limits is not None  # noqa: S101 - who else holds jobs
        async with self._limits.entering(job):
            await self._set_expiry(job)
            await self._queue.publish(await self._with_lane(job), Revision(0))
            try:
                revision = await self._runs.create(job.run_id, snapshot)
            except WrongRevision:
                return
            self._limits.entered(snapshot, revision)
            self._on_written(revision)
        _say_accepted(snapshot)

    async def place_claimed(self, job: Job, before_job: Callable[[], Awaitable[None]] | None = None) -> None:
        """Place the run of an `Idempotency-Key`. A retry continues where an earlier attempt was interrupted.

        Nothing is rolled back on failure, because a concurrent attempt may have succeeded. Without a retry, a
        sweep ends the run. A worker drops a second job that the queue did not detect as a duplicate.
        `before_job` records that the run exists: with a job it may start, end and expire, and must not be
        placed again.
        """
        snapshot = self._pending(job)
        await self._keep_file_of(job)
        await self._keep_values_of(job)
        if job.is_held:
            await self._place_held_once(job, snapshot)
            if before_job is not None:
                await before_job()
            return
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

    async def place_new(self, submission: Submission, run_id: str) -> None:
        """Place a run with an id that its caller derived; see `place_derived`."""
        job = await self.job_of(submission, run_id, self._clock())
        await self._keep_file_of(job)
        await self.place_derived(job)

    async def place_derived(self, job: Job) -> None:
        """Place a run with a derived id, which exists once however often it is placed.

        If another caller places it as well, the queue drops the second job; if that caller died, it accepts
        it.
        """
        snapshot = self._pending(job)
        await self._keep_values_of(job)
        if job.is_held:
            await self._place_held_once(job, snapshot)
            return
        placed = await self._create(snapshot)
        if placed is not None:
            await self._enqueue_first(job, placed)
            _say_accepted(snapshot)

    async def _place_held_once(self, job: Job, snapshot: RunSnapshot) -> None:
        """A run that exists is not refused by its limits, and has its job."""
        found = await self._runs.get(job.run_id)
        if found is None:
            await self._place_held(job, snapshot)
        elif found.value.limits is None and is_first_try_pending(found.value):  # no limit concerned it then
            await self._enqueue_first(replace(job, limits=None), found)

    async def replace_job(self, run: Versioned[RunSnapshot], job: Job) -> None:
        """Place the job of a PENDING run that lost it. A worker runs a duplicate once."""
        if run.value.limits is not None:
            return  # its job was there before it, and is queued when it gets its place
        job = replace(job, try_number=run.value.try_number, not_before=run.value.not_before, limits=None)
        job = await self._with_lane(job)
        await self._queue.publish(job, run.revision, message_id=f"{job.run_id}.{run.revision}")

    async def _enqueue_first(self, job: Job, run: Versioned[RunSnapshot]) -> None:
        """An earlier attempt may have created the run, with another start and other defaults of its flow."""
        self._on_written(run.revision)
        if run.value.limits is None:
            stored = {name: getattr(run.value, name) for name in ("not_before", *RUN_DEFAULTS)}
            await self._enqueue(replace(job, **stored, limits=None, limit_rules=None), run.revision)

    async def _enqueue(self, job: Job, revision: Revision) -> None:
        await self._set_expiry(job)
        await self._queue.publish(await self._with_lane(job), revision)

    async def _set_expiry(self, job: Job) -> None:
        if job.start_within_sec is not None and self._expire_at is not None:
            start = await self._queue.now() if job.not_before is None else job.not_before
            await self._expire_at(job.run_id, start + job.start_within_sec)

    async def _with_lane(self, job: Job) -> Job:
        return job if self._choose_lane is None else await self._choose_lane(job)

    async def _keep_file_of(self, job: Job) -> None:
        """Before the run exists: a run can be retried as soon as it has ended."""
        if self._keep_file is not None and job.workflow_yaml is not None:
            await self._keep_file(job.tenant_id, job.workflow_yaml_sha256 or "", job.workflow_yaml)

    async def _keep_values_of(self, job: Job) -> None:
        """Before the run exists, as its worker may read them at once. Raises ValueGone."""
        if self._keep_values is not None and job.values:
            await self._keep_values(job)

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
            if revision is None and self._limits is not None:
                await self._queue.remove_held(run_id)
        return True


class RequireKnown:
    """Refuses runs for a tag or a flow that no worker has had. Raises InvalidRequest."""

    def __init__(self, workers: ListWorkers) -> None:
        self._workers = workers

    def __call__(self, submission: Submission) -> None:
        doubt = self._workers.doubt_about(submission.tag, named_flow(submission))
        if doubt is not None and doubt.is_certain:
            raise InvalidRequest(f"{doubt.text} (PYOCO_STRICT_FLOWS)")


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
        place, wanted = claim_key(submission.tenant_id, key), request_digest(submission)
        try:
            # What is refused must not use up its key.
            await self._submit_run.check_request(submission)
            job = await self._submit_run.job_of(submission, self._new_run_id(), self._clock())
        except (InvalidRequest, Unresolvable):
            earlier = await self._accepted_before(submission, place, wanted)
            if earlier is None:
                raise
            return earlier
        asked = IdempotencyClaim(run_id=job.run_id, request=wanted, claimed_at=job.submitted_at)
        claim, is_new = await claim_once(self._claims, place, asked)
        if claim.value.request != wanted:
            raise InvalidRequest("this Idempotency-Key was used with another request")
        job = replace(job, run_id=claim.value.run_id, submitted_at=claim.value.claimed_at)
        if claim.value.is_accepted:
            await self._submit_run.carry_on(job)
        else:
            await self._submit_run.place_claimed(job, partial(self._mark_accepted, place, claim))
        return Submitted(claim.value.run_id, is_replayed=not is_new)

    async def _accepted_before(self, submission: Submission, place: str, wanted: str) -> Submitted | None:
        """A repeat is answered as the first request was, whatever rules its flow has by now."""
        claim = await self._claims.get(place)
        if claim is None or not claim.value.is_accepted or claim.value.request != wanted:
            return None
        await self._submit_run.carry_on(accept(submission, claim.value.run_id, claim.value.claimed_at))
        return Submitted(claim.value.run_id, is_replayed=True)

    async def _mark_accepted(self, place: str, claim: Versioned[IdempotencyClaim]) -> None:
        """Without this mark a retry would start the run again after its snapshot has expired."""
        try:
            await self._claims.update(place, replace(claim.value, is_accepted=True), claim.revision)
        except WrongRevision:
            log.debug("a retry marked the claim first", action="idempotency.marked")


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
