"""Retry ended runs: a new run with the same input, linked with the old one."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.fleet import KEPT_TASKS
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.changes import LinkRetry
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.listing import RunFilter
from pyoco_server.domain.runs.model import (
    FROM_START,
    FlowFile,
    RunSnapshot,
    flow_file_key,
    kept_tasks_of,
    replace,
)
from pyoco_server.domain.runs.repeats import Retry, repeated
from pyoco_server.errors import InvalidRequest, NatsUnavailable, NotCountedYet, RunNotFound, RunNotRetriable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.consistency import change_run, write
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.ports.runs import FlowFileStore, RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Change, Clock, WrongRevision
from pyoco_server.usecases.runs.submit import SubmitOnce, SubmitRun, Submitted, is_first_try_pending
from pyoco_server.usecases.stats.count import CountedEnds

log = get_logger(__name__)

USED_AGAIN_SEC = 86_400.0
"""How old the last use of a stored file may be before it is recorded again."""
UNUSED_SEC = 2 * USED_AGAIN_SEC
"""When a file without runs is removed. Longer than that: a submit may be between file and run."""
COLLECT_INTERVAL_SEC = 3600.0
LINK_PATIENCE_SEC = 1.5
"""For a request; after that the run is linked in the background."""


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
        *,
        trail: AuditTrail,
    ) -> None:
        self._runs = runs
        self._submit = submit
        self._submit_once = submit_once
        self._files = files
        self._workers = workers
        self._links = links
        self._trail = trail

    async def __call__(self, run_id: str, caller: Caller, wanted: Retry) -> tuple[Submitted, Submission]:
        """The new run, and what was submitted."""
        found = await self._runs.get(run_id) if is_run_id(run_id) else None
        if found is None or not may_see(caller, found.value):
            raise RunNotFound
        submission = await self._submission(found.value, caller, wanted)
        if wanted.key is None:
            submitted = Submitted((await self._submit(submission)).run_id, is_replayed=False)
        else:
            submitted = await self._submit_once(submission, wanted.key)
        with best_effort(log, "run.link", NatsUnavailable, run_id=run_id):  # the feed links it, too
            await self._links.link(run_id, submitted.run_id, LINK_PATIENCE_SEC)
        if not submitted.is_replayed:
            await self._record(run_id, submitted.run_id, caller, wanted)
        return submitted, submission

    async def _record(self, old: str, new: str, caller: Caller, wanted: Retry) -> None:
        after = {"run_id": new, "from": "failed" if wanted.from_failed else "start"}
        await self._trail.record(caller, "run.retry", ChangeTarget("run", old), None, after)

    async def as_run(self, run: RunSnapshot, caller: Caller, new_run_id: str) -> None:
        """Retry it from the start as a run with this id, which exists once however often this is called.

        It was accepted before, so it is not refused because a worker is away. Raises RunNotRetriable.
        """
        submission = await self._submission(run, caller, Retry())
        await self._submit.place_new(submission, new_run_id)
        with best_effort(log, "run.link", NatsUnavailable, run_id=run.run_id):  # the feed links it, too
            await self._links.link(run.run_id, new_run_id, LINK_PATIENCE_SEC)

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

    def __init__(self, runs: RunStore, clock: Clock, counted: CountedEnds) -> None:
        self._runs = runs
        self._clock = clock
        self._counted = counted
        self._waiting: dict[str, str] = {}
        self._wake = asyncio.Event()

    async def link(self, old: str, new: str, patience_sec: float | None = None) -> None:
        """Raises NotCountedYet: the link replaces what the statistics count."""
        run = await self._runs.get(old)
        if run is None or not run.value.status.is_terminal or (run.value.retried_as or "") >= new:
            return
        await self._counted.require(run, patience_sec)
        await change_run(self._runs, old, LinkRetry(new), self._clock, known=run)

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Called for every change of a run. A gateway that was down may see only the end of one."""
        for change in changes:
            run = change.value
            if run is None or run.retried_from is None or not is_run_id(run.retried_from):
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
                self._waiting.pop(new)
                with best_effort(log, "run.link", NatsUnavailable, run_id=old):
                    await self._link(old, new)

    async def _link(self, old: str, new: str) -> None:
        try:
            await self.link(old, new)
        except NotCountedYet:
            self._waiting[new] = old  # it waits its turn again
