"""Give places to waiting runs: one gateway at a time, as soon as a feed shows that there is one.

In this order: take the places by compare-and-set, mark the run as admitted, queue its job, remove the held
one. The mark decides: it is written at the revision that the places name. Whoever is killed before it leaves
places that the next gateway voids by writing the snapshot again, and after it a held job that the next one
queues. The lease only saves work: two gateways that both believe to hold it admit no run too many.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from pyoco_server.domain.limits.holders import (
    HeldPlace,
    Holders,
    KeyId,
    Standing,
    give_places,
    new_holders,
    replace,
    standing_of,
    without,
)
from pyoco_server.domain.runs.changes import Admit, GiveUpPlaces, decide
from pyoco_server.domain.runs.model import RunLimit, RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger, surviving
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_run, write
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.lines import Line
from pyoco_server.usecases.ports.queues import HeldJob, JobQueue
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Store, Versioned, WrongRevision

log = get_logger(__name__)

AT_ONCE = 200
"""Runs admitted in one round. The next round sees what has happened meanwhile."""
MAX_TRIES = 100
NOT_HELD_SEC = 0.2
"""Until a run is tried again whose job is not there yet: its worker writes the snapshot first."""
OLD_SEC = 0.05
"""Until a line is tried again that should have got places."""
UNSURE_SEC = 1.0
"""Until a run is checked again for which something failed."""
IDLE_SEC = 86_400.0
"""After which the record of a key without holders is removed."""
COLLECT_SEC = 600.0
GONE = 1 << 62
"""Later than any revision."""


class AdmissionMeter(Protocol):
    def admitted(self, waited_sec: float) -> None:
        """`waited_sec`: since it was submitted, or since its delay was over."""
        ...


class AdmitRuns:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        board: LimitBoard,
        runs: RunStore,
        queue: JobQueue,
        holders: Store[Holders],
        lease: Lease,
        clock: Clock,
        meter: AdmissionMeter,
        ready: Callable[[], Awaitable[None]],
        on_written: Callable[[Revision], None] = lambda _: None,
    ) -> None:
        """`ready`: waits until the board shows everything that was stored at the start."""
        self._board = board
        self._runs = runs
        self._queue = queue
        self._holders = holders
        self._lease = lease
        self._clock = clock
        self._meter = meter
        self._ready = ready
        self._on_written = on_written
        self._busy: set[str] = set()
        self._unsure: dict[str, float] = {}
        """Runs to check again, and when."""
        self._collected_at = float("-inf")

    async def run(self) -> None:
        """Whoever has no limits pays for no lease."""
        await self._ready()
        await self._board.in_use.wait()
        await self._lease.run(self._work)

    async def _work(self) -> None:
        """What the last holder of the lease did not finish comes first."""
        self._unsure = dict.fromkeys(sorted(self._board.unconfirmed()), 0.0)
        self._board.wake_all()
        while True:
            with surviving(log, "limit.admit", NatsUnavailable):
                await self.round()
            await self._wait()

    async def _wait(self) -> None:
        now = self._clock()
        times = [at for at in (self._board.next_time(), *self._unsure.values()) if at is not None]
        pause = min(times, default=now + COLLECT_SEC) - now
        if not self._board.changed.is_set():
            await wait_at_most(self._board.changed, max(0.001, min(pause, COLLECT_SEC)))

    async def round(self) -> None:
        """Admit whoever can be admitted now, and finish what is unfinished."""
        self._board.changed.clear()
        if not self._lease.is_fresh:
            await asyncio.sleep(0.05)  # it is renewed, or lost
            self._board.changed.set()
            return
        await self._ask_for_all(self._board.unknown_holders())
        plan = self._board.plan(self._clock(), self._busy, AT_ONCE)
        await asyncio.gather(
            *(self._admit(line, runs) for line, runs in plan.admissions),
            *(self._void_places(run_id) for run_id in plan.unsure),
            *(self._finish(run_id) for run_id in self._due_unsure()),
        )
        await self._collect()

    def _due_unsure(self) -> list[str]:
        now = self._clock()
        for run_id in sorted(self._board.unconfirmed() - self._busy):
            self._unsure.setdefault(run_id, now + UNSURE_SEC)
        due = [run_id for run_id, at in self._unsure.items() if at <= now and run_id not in self._busy]
        for run_id in due[:AT_ONCE]:
            del self._unsure[run_id]
        return due[:AT_ONCE]

    # Take places

    async def _admit(self, line: Line, runs: Sequence[Standing]) -> None:
        ids = {run.run_id for run in runs}
        granted: Sequence[Standing] = ()
        self._busy |= ids
        try:
            with best_effort(log, "limit.admit", NatsUnavailable, flow_name=line.flow_name):
                granted = await self._take(line, runs)
                await asyncio.gather(*(self._start_safely(run) for run in granted))
        finally:
            self._busy -= ids
            if granted:
                self._board.wake((line,))
            else:  # what the board shows is old
                self._board.wake_at(line, self._clock() + OLD_SEC)

    async def _take(self, line: Line, runs: Sequence[Standing]) -> list[Standing]:
        """Those that got a place in every limit; what the others got is given back."""
        places = [run.place for run in runs]
        for number, of in enumerate(line.limits):
            given = await self._take_places(of, places)
            lost = [place for place in places if place not in given]
            if lost:
                await self._give_back(line.limits[:number], lost)
            places = given
            if not places:
                break
        kept = {place.run_id for place in places}
        return [run for run in runs if run.run_id in kept]

    async def _take_places(self, of: KeyId, wanted: list[HeldPlace]) -> list[HeldPlace]:
        for _ in range(MAX_TRIES):
            limit, known = self._board.limit(of), self._board.record(of)
            if limit is None:  # deleted meanwhile
                return wanted
            record = new_holders(of) if known is None else known.value
            if record.version > limit.revision:  # our definitions are old
                return []
            changed, given = give_places(
                record,
                limit.value.definition,
                wanted,
                lambda place: self._board.is_void(place, of),
                self._board.adopted(of),
                self._clock(),
            )
            if not given:
                return []
            changed = replace(changed, version=limit.revision)
            if await self._write(of, changed, known):
                return given
        raise NatsUnavailable(f"limit {of.limit}: {MAX_TRIES} consecutive conflicts")

    async def _write(self, of: KeyId, record: Holders, known: Versioned[Holders] | None) -> bool:
        """False: another gateway was faster, and what it wrote is known now."""
        try:
            revision = await write(self._holders, of.store_key, record, known)
        except WrongRevision:
            await self._read(of)
            return False
        self._board.note_record(Versioned(record, revision))
        return True

    async def _read(self, of: KeyId) -> None:
        found = await self._holders.get(of.store_key)
        known = self._board.record(of)
        if found is not None:
            self._board.note_record(found)
        elif known is not None:
            self._board.forget_record(of, known.revision + 1)

    async def _give_back(self, limits: Iterable[KeyId], places: Sequence[HeldPlace]) -> None:
        """Places that this gateway took and does not use. Nobody else uses them."""
        for of in limits:
            for _ in range(MAX_TRIES):
                known = self._board.record(of)
                if known is None:
                    break
                changed = without(known.value, places)
                if changed.places == known.value.places or await self._write(of, changed, known):
                    break

    # Start the run

    async def _start_safely(self, run: Standing) -> None:
        """After a failure the run is checked again."""
        with best_effort(log, "limit.admit", NatsUnavailable, run_id=run.run_id):
            self._unsure[run.run_id] = self._clock() + UNSURE_SEC
            await self._start(run)
            self._unsure.pop(run.run_id, None)

    async def _start(self, run: Standing) -> None:
        """Mark the run as admitted, then queue its job."""
        stored, held = await asyncio.gather(self._runs.get(run.run_id), self._queue.held(run.run_id))
        if stored is None or stored.revision != run.revision:
            if stored is None:
                self._board.end(run.run_id, GONE)
            self._learn(stored)
            await self._give_back(run.limits, [run.place])
            return
        if held is None:
            await self._give_back(run.limits, [run.place])
            self._board.postpone(run.run_id, self._clock() + NOT_HELD_SEC)
            return
        limits = tuple(RunLimit(of.limit, of.key) for of in run.limits)
        admitted = decide(stored.value, Admit(limits, run.rules or ""), self._clock())
        assert isinstance(admitted, RunSnapshot)  # noqa: S101 - it is never refused
        try:
            revision = await self._runs.update(run.run_id, admitted, stored.revision)
        except WrongRevision:
            await self._give_back(run.limits, [run.place])
            return
        self._learn(Versioned(admitted, revision))
        self._on_written(revision)
        await self._queue_job(held, Versioned(admitted, revision))
        self._measure(admitted)

    def _learn(self, stored: Versioned[RunSnapshot] | None) -> None:
        """The feed will show it as well."""
        if stored is not None:
            self._board.note(standing_of(stored.value, stored.revision))

    async def _queue_job(self, held: HeldJob, run: Versioned[RunSnapshot]) -> None:
        """A held job of an earlier try will do: they differ only in what the snapshot shows.

        A later try may have its own by the time that this one is removed.
        """
        admitted = replace(
            held.job,
            try_number=run.value.try_number,
            not_before=run.value.not_before,
            limits=run.value.limits,
            limit_rules=run.value.limit_rules,
            admitted_try=run.value.admitted_try,
        )
        await self._queue.publish(admitted, run.revision)
        await self._queue.remove_held(run.value.run_id, held.sequence)
        self._board.confirm(run.value.run_id)
        log.debug("run admitted", action="limit.admitted", run_id=run.value.run_id)

    def _measure(self, run: RunSnapshot) -> None:
        began = run.submitted_at if run.not_before is None else run.not_before
        self._meter.admitted(max(0.0, self._clock() - (began or 0.0)))

    # Finish what others began

    async def _finish(self, run_id: str) -> None:
        """Queue the job of an admitted run, unless that was done."""
        with best_effort(log, "limit.finish", NatsUnavailable, run_id=run_id):
            self._unsure[run_id] = self._clock() + UNSURE_SEC
            stored = await self._runs.get(run_id)
            if stored is not None and _is_queued(stored.value):
                self._learn(stored)
                await self._queue_again(stored)
                self._board.confirm(run_id)
            self._unsure.pop(run_id, None)

    async def _queue_again(self, run: Versioned[RunSnapshot]) -> None:
        held = await self._queue.held(run.value.run_id)
        if held is not None and held.job.try_number <= run.value.try_number:  # a later one is still needed
            log.info("finished an interrupted admission", action="limit.finished", run_id=run.value.run_id)
            await self._queue_job(held, run)

    async def _void_places(self, run_id: str) -> None:
        """Somebody took places for a waiting run and did not use them: they name an older revision then."""
        self._board.look_again(run_id, self._clock() + UNSURE_SEC)  # in case that this fails
        with best_effort(log, "limit.finish", NatsUnavailable, run_id=run_id):
            written = await change_run(self._runs, run_id, GiveUpPlaces(), self._clock)
            if isinstance(written, Versioned):
                self._learn(written)

    async def _ask_for_all(self, run_ids: Sequence[str]) -> None:
        """Holders that no feed has shown: they ended before it began, or lost their mark."""
        for start in range(0, len(run_ids), AT_ONCE):
            await asyncio.gather(*(self._ask_for(run_id) for run_id in run_ids[start : start + AT_ONCE]))

    async def _ask_for(self, run_id: str) -> None:
        """One that cannot be read keeps its place, and only that."""
        with best_effort(log, "limit.finish", NatsUnavailable, run_id=run_id):
            self._unsure[run_id] = self._clock() + UNSURE_SEC
            stored = await self._runs.get(run_id)
            del self._unsure[run_id]
            if stored is None or stored.value.status.is_terminal:
                self._board.end(run_id, GONE if stored is None else stored.revision)
            elif stored.value.limits is not None:
                self._learn(stored)
            else:
                self._board.note_unmarked(stored.value, stored.revision)

    async def _collect(self) -> None:
        """Remove records of keys that are not used any more."""
        now = self._clock()
        if now < self._collected_at + COLLECT_SEC:
            return
        self._collected_at = now
        for known in self._board.records():
            record, of = known.value, known.value.id
            is_old = max(record.updated_at, record.full_at) < now - IDLE_SEC
            is_unused = not self._board.holders(of) and not self._board.lines.count(of)
            if self._board.limit(of) is None or (is_old and is_unused):
                await self._remove(known)

    async def _remove(self, known: Versioned[Holders]) -> None:
        with best_effort(log, "limit.collect", NatsUnavailable, limit=known.value.limit):
            try:
                await self._holders.remove(known.value.id.store_key, known.revision)
            except WrongRevision:
                return
            self._board.forget_record(known.value.id, known.revision + 1)


def _is_queued(run: RunSnapshot) -> bool:
    """Whether the run is admitted, and no worker has started it."""
    return run.status is RunStatus.PENDING and run.limits is not None and not run.is_held
