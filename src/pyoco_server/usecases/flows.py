"""Flows: list them, set defaults for their runs, and apply these to every run."""

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice

import msgspec

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.flows import (
    SETTINGS,
    Flow,
    FlowDetails,
    FlowPage,
    FlowRun,
    FlowSettings,
    check_name,
    details,
    flow_key,
    flow_of_runs,
    flows_by_name,
    is_empty,
    is_same,
    with_defaults,
)
from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.params_schema import ParamsSchema
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.listing import Place, RunFilter, cursor_at, digest_of, place_of
from pyoco_server.domain.runs.model import RunStatus, replace
from pyoco_server.errors import FlowNotFound, InvalidRequest, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES, OwnWrites, write
from pyoco_server.usecases.fleet import ListWorkers, WorkerFilter
from pyoco_server.usecases.limits.definitions import LimitDefinitions
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import RunIndex
from pyoco_server.usecases.ports.stores import (
    Change,
    Clock,
    Feed,
    FeedBatch,
    Revision,
    Store,
    Versioned,
    WrongRevision,
)

log = get_logger(__name__)

# Settings in memory, from a feed: every submit needs them.


class FollowFlows:
    """What is set for flows, of all tenants."""

    def __init__(self, feed: Feed[FlowSettings], store: Store[FlowSettings]) -> None:
        self._feed = feed
        self._store = store
        self._known: dict[str, Versioned[FlowSettings | None]] = {}
        """None: removed."""
        self._schemas: dict[str, tuple[Revision, ParamsSchema]] = {}
        self.is_caught_up = False

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    async def complete(self, submission: Submission) -> Submission:
        """With the defaults of its flow. Raises InvalidRequest for params that its schema refuses."""
        if self.is_caught_up and not self._known:
            return submission
        key = flow_key(submission.tenant_id, submission.flow_name)
        found = await self._read(key)
        if found is None:
            return submission
        if found.value.params_schema is not None:
            self._check_params(key, found, submission)
        return with_defaults(submission, found.value)

    def _check_params(self, key: str, flow: Versioned[FlowSettings], submission: Submission) -> None:
        revision, schema = self._schemas.get(key, (None, None))
        if schema is None or revision != flow.revision:
            schema = ParamsSchema(flow.value.params_schema or {})
            self._schemas[key] = flow.revision, schema
        try:
            schema.check(submission.params, [place[1] for place in submission.values])
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{error.detail} (params_schema of the flow {submission.flow_name!r})"
            ) from error

    async def _read(self, key: str) -> Versioned[FlowSettings] | None:
        """Not all are known right after a start."""
        known = self._known.get(key)
        if known is not None:
            return None if known.value is None else Versioned(known.value, known.revision)
        return None if self.is_caught_up else await self._store.get(key)

    def known(self, tenant_id: str | None, name: str) -> FlowSettings | None:
        found = self._known.get(flow_key(tenant_id, name))
        return None if found is None else found.value

    def names(self, tenant_id: str | None) -> list[str]:
        """Of a tenant, in order."""
        everyone = (found.value for found in self._known.values() if found.value is not None)
        return sorted(flow.name for flow in everyone if flow.tenant_id == tenant_id)

    def note(self, key: str, stored: Versioned[FlowSettings | None]) -> None:
        """Something newer, from the feed or from this gateway's own work."""
        known = self._known.get(key)
        if known is not None and _age(known) >= _age(stored):
            return
        self._known[key] = stored
        self._schemas.pop(key, None)

    def _take(self, batch: FeedBatch[FlowSettings]) -> None:
        if batch.is_reset:
            self._known.clear()
            self._schemas.clear()
            self.is_caught_up = False
        for change in batch.changes:
            self._take_change(change)
        self.is_caught_up = self.is_caught_up or batch.is_caught_up

    def _take_change(self, change: Change[FlowSettings]) -> None:
        known = self._known.get(change.key)
        if change.value is not None:
            self.note(change.key, Versioned(change.value, Revision(change.revision)))
        elif known is not None and known.revision < change.revision:
            del self._known[change.key]


def _age(stored: Versioned[FlowSettings | None]) -> tuple[Revision, bool]:
    """What this gateway has removed has the revision of what was there."""
    return stored.revision, stored.value is None


# Lists: flows that live workers report, that have runs, or that have settings.

RECENT_RUNS = 100
"""How many ended runs the statistics of a flow cover."""
LAST_RUNS = 5
MAX_WORKERS = 10_000
_flow_run = msgspec.json.Decoder(FlowRun)


class ReadFlows:
    """Cost: a few bounded walks along the run index per flow of the page."""

    def __init__(
        self,
        index: RunIndex,
        workers: ListWorkers,
        followed: FollowFlows,
        schedules: Callable[[str | None], dict[str, list[str]]],
        limits: LimitDefinitions,
        *,
        own_writes: OwnWrites,
        clock: Clock,
    ) -> None:
        """`schedules`: ids of a tenant's schedules, by the flow that they start."""
        self._limits = limits
        self._clock = clock
        self._index = index
        self._workers = workers
        self._followed = followed
        self._schedules = schedules
        self._own_writes = own_writes

    async def page(self, caller: Caller, cursor: str | None, limit: int) -> FlowPage:
        of = digest_of("flows", caller.tenant_id)
        after = "" if cursor is None else place_of(cursor, of).run_id
        await self._own_writes.are_visible()
        holders, schedules = self._holders(caller.tenant_id), self._schedules(caller.tenant_id)
        ran = self._index.flows(caller.tenant_id, after, limit + 1)
        names = _first(
            [_after(after, sorted(holders)), _after(after, self._followed.names(caller.tenant_id)), ran],
            limit + 1,
        )
        items = []
        for name in names[:limit]:
            items.append(self._flow(name, holders.get(name, []), schedules.get(name, []), caller.tenant_id))
            await asyncio.sleep(0)  # a page of flows must not hold up other requests
        more = cursor_at(Place(0.0, names[limit - 1]), of) if len(names) > limit else None
        return FlowPage(items, more)

    async def find(self, name: str, caller: Caller) -> FlowDetails:
        """Raises FlowNotFound."""
        found = await self.details(name, caller)
        if not (found.workers or found.last_runs or found.updated_at or found.paused):
            known = [*self._holders(caller.tenant_id), *self._index.flows(caller.tenant_id, "", MAX_LISTED)]
            raise FlowNotFound(f"flow not found: {name[:64]}{nearest(name, known)}")
        return found

    async def details(self, name: str, caller: Caller) -> FlowDetails:
        """Also of a flow that nobody knows."""
        await self._own_writes.are_visible()
        holders, schedules = self._holders(caller.tenant_id), self._schedules(caller.tenant_id)
        flow = self._flow(name, holders.get(name, []), schedules.get(name, []), caller.tenant_id)
        return details(flow, self._followed.known(caller.tenant_id, name) or FlowSettings(name=name))

    def _holders(self, tenant_id: str | None) -> dict[str, list[WorkerRecord]]:
        """The live workers of each flow."""
        return flows_by_name(self._workers(WorkerFilter(limit=MAX_WORKERS), tenant_id))

    def _flow(
        self, name: str, holders: Sequence[WorkerRecord], schedules: Sequence[str], tenant_id: str | None
    ) -> Flow:
        wanted = RunFilter(tenant_id=tenant_id, flow=name)
        ended = [
            run
            for status in (RunStatus.COMPLETED, RunStatus.FAILED)
            for run in self._runs(replace(wanted, status=status), RECENT_RUNS)
        ]
        flow = flow_of_runs(
            name,
            holders,
            schedules,
            self._runs(wanted, LAST_RUNS),
            heapq.nlargest(RECENT_RUNS, ended, key=lambda run: run.updated_at),
        )
        pause = self._limits.pause(tenant_id, name, self._clock())
        return replace(
            flow,
            limits=self._limits.names_for(tenant_id, name, flow.tags),
            paused=None if pause is None else pause.pause,
        )

    def _runs(self, wanted: RunFilter, limit: int) -> list[FlowRun]:
        return [*map(_flow_run.decode, self._index.page(wanted, None, limit).summaries)]


MAX_LISTED = 500
"""Names to choose a suggestion from."""


def _after(name: str, names: list[str]) -> list[str]:
    return names[bisect_right(names, name) :]


def _first(lists: Iterable[Iterable[str]], count: int) -> list[str]:
    """Of sorted lists."""
    return list(islice((name for name, _ in groupby(heapq.merge(*lists))), count))


class SetFlow:
    """Replace what is set for a flow."""

    def __init__(
        self,
        store: Store[FlowSettings],
        followed: FollowFlows,
        read: ReadFlows,
        queue: JobQueue,
        clock: Clock,
        trail: AuditTrail,
    ) -> None:
        self._store = store
        self._trail = trail
        self._read = read
        self._followed = followed
        self._queue = queue
        self._clock = clock

    async def __call__(self, wanted: FlowSettings, caller: Caller) -> FlowDetails:
        """Nothing set: it is removed. Raises InvalidRequest or TimersUnsupported."""
        check_name(wanted.name)
        if wanted.params_schema is not None:
            ParamsSchema(wanted.params_schema)
        if wanted.retry is not None or wanted.start_within_sec is not None:
            self._queue.require_timers()
        wanted = replace(wanted, tenant_id=caller.tenant_id, updated_at=self._clock())
        before = await self._replace(wanted)
        if not is_same(before, wanted):
            log.info("flow set", action="flow.set", flow_name=wanted.name, by=caller.name)
            target = ChangeTarget("flow", wanted.name)
            await self._trail.record(caller, "flow.put", target, _state(before), _state(wanted))
        return await self._read.details(wanted.name, caller)

    async def _replace(self, wanted: FlowSettings) -> FlowSettings:
        """What was set before."""
        for _ in range(MAX_TRIES):
            stored = await self._store.get(wanted.key)
            before = FlowSettings(name=wanted.name) if stored is None else stored.value
            try:
                if not is_same(before, wanted):
                    await self._write(wanted, stored)
            except WrongRevision:
                continue
            return before
        raise NatsUnavailable(f"flow {wanted.name!r} could not be written")

    async def _write(self, wanted: FlowSettings, stored: Versioned[FlowSettings] | None) -> None:
        if is_empty(wanted) and stored is not None:
            await self._store.remove(wanted.key, stored.revision)
            self._followed.note(wanted.key, Versioned(None, stored.revision))
        else:
            revision = await write(self._store, wanted.key, wanted, stored)
            self._followed.note(wanted.key, Versioned(wanted, revision))


def _state(settings: FlowSettings) -> dict[str, object] | None:
    """What people set."""
    found = {name: getattr(settings, name) for name in SETTINGS}
    return None if is_empty(settings) else found
