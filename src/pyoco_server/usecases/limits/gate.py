"""What limits mean for a run that is submitted, and why one waits."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import ceil
from typing import NamedTuple, Protocol

from msgspec.structs import asdict

from pyoco_server.domain.limits.holders import KeyId, Standing, next_token_at, standing_of
from pyoco_server.domain.limits.model import Definition, OnFull, limits_of
from pyoco_server.domain.queues import Paused, WaitingFor
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, replace
from pyoco_server.errors import LimitReached, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.follow import FollowLimits
from pyoco_server.usecases.ports.stores import Clock, Revision

log = get_logger(__name__)

Cancel = Callable[[str, str, str], Awaitable[None]]
"""The run, who asks for it, and why."""


class GateMeter(Protocol):
    def refused(self) -> None: ...


class _Victim(NamedTuple):
    run_id: str
    limit: str
    reason: str


class LimitGate:
    def __init__(
        self, board: LimitBoard, follow: FollowLimits, cancel: Cancel, clock: Clock, meter: GateMeter
    ) -> None:
        self._board = board
        self._follow = follow
        self._cancel = cancel
        self._clock = clock
        self._meter = meter
        self._entering: Counter[KeyId] = Counter()
        """Runs that are being stored."""
        self._leaving: set[str] = set()
        """Runs that are being cancelled for others."""

    async def mark(self, job: Job) -> Job:
        """The job with the limits that concern it. Raises InvalidRequest."""
        if not self._follow.is_caught_up:
            await self._follow.definitions_known()
        definitions = self._board.definitions
        if definitions.is_empty:
            return job
        limits = definitions.limits(job.tenant_id)
        found = limits_of(job, [limit.value for limit in limits.values()]) if limits else ()
        if not found and definitions.pause(job.tenant_id, job.flow_name, self._clock()) is None:
            return job
        return replace(job, limits=found, limit_rules=definitions.rules(job.tenant_id))

    @asynccontextmanager
    async def entering(self, job: Job) -> AsyncIterator[None]:
        """While a run is stored. Afterwards those are cancelled that have to go for it.

        Raises LimitReached.
        """
        keys = [KeyId(job.tenant_id, one.limit, one.key) for one in job.limits or ()]
        victims = [] if job.not_before is not None else self._make_room(keys)
        self._entering.update(keys)
        self._leaving.update(victim.run_id for victim in victims)
        try:
            yield
            for victim in victims:
                with best_effort(log, "limit.cancel", NatsUnavailable, run_id=victim.run_id):
                    await self._cancel(victim.run_id, f"limit:{victim.limit}", victim.reason)
        finally:
            self._entering.subtract(keys)
            self._entering += Counter()  # without zeros
            self._leaving.difference_update(victim.run_id for victim in victims)

    def entered(self, snapshot: RunSnapshot, revision: Revision) -> None:
        """The run is stored; the feed will show it as well."""
        self._board.note(standing_of(snapshot, revision))

    def _make_room(self, keys: list[KeyId]) -> list[_Victim]:
        return [victim for of in keys for victim in self._make_room_in(of)]

    def _make_room_in(self, of: KeyId) -> list[_Victim]:
        """Raises LimitReached."""
        limit, now = self._board.limit(of), self._clock()
        if limit is None:
            return []
        definition = limit.value.definition
        if definition.on_full is OnFull.CANCEL_OLDEST:
            return self._oldest(of, definition)
        ahead = self._board.lines.count(of) + self._entering[of] - len(self._leaving_of(of))
        waiting = ahead - self._board.room(of, now)
        if waiting < 0 or (definition.on_full is not OnFull.REJECT and definition.max_waiting is None):
            return []
        if definition.on_full is OnFull.REJECT or waiting >= (definition.max_waiting or 0):
            return self._drop_or_refuse(of, definition, waiting)
        return []

    def _drop_or_refuse(self, of: KeyId, definition: Definition, waiting: int) -> list[_Victim]:
        most = definition.max_waiting
        if definition.on_full is not OnFull.DROP_OLDEST_WAITING or most is None:
            self._meter.refused()
            error = LimitReached(_why(of, definition))
            error.retry_after_sec = self._retry_after(of, definition)
            raise error
        reason = f"limit {of.limit!r}: a newer run came, and only {most:,} may wait"
        next_ones = max(0, self._board.room(of, self._clock()))  # they do not wait for long
        oldest = [run for run in self._board.in_order(of)[next_ones:] if run.run_id not in self._leaving]
        return [_Victim(run.run_id, of.limit, reason) for run in oldest[: waiting - most + 1]]

    def _oldest(self, of: KeyId, definition: Definition) -> list[_Victim]:
        runs = [*self._board.admitted(of), *self._board.in_order(of)]
        staying = [run for run in runs if not run.is_cancelled and run.run_id not in self._leaving]
        surplus = len(staying) + self._entering[of] + 1 - (definition.max_running or 0)
        reason = f"limit {of.limit!r}: replaced by a newer run"
        staying.sort(key=lambda run: run.order)
        return [_Victim(run.run_id, of.limit, reason) for run in staying[: max(0, surplus)]]

    def _leaving_of(self, of: KeyId) -> list[Standing]:
        runs = (self._board.run(run_id) for run_id in self._leaving)
        return [run for run in runs if run is not None and run.is_waiting and of in run.limits]

    def _retry_after(self, of: KeyId, definition: Definition) -> int:
        record = self._board.record(of)
        if definition.rate is None or record is None:
            return 1
        return max(1, ceil(next_token_at(definition.rate, record.value.full_at) - self._clock()))

    # Why a run waits

    def waiting_for(self, snapshot: RunSnapshot) -> WaitingFor | None:
        if snapshot.status is not RunStatus.PENDING or not snapshot.is_held:
            return None
        now = self._clock()
        if snapshot.not_before is not None and snapshot.not_before > now:
            return None
        pause = self._board.definitions.pause(snapshot.tenant_id, snapshot.flow_name, now)
        if pause is not None:
            return WaitingFor(paused=Paused(flow=pause.flow, **asdict(pause.pause)))
        run = self._board.run(snapshot.run_id) or standing_of(snapshot, 0)
        if run is None or not run.limits:
            return None
        full = [of for of in run.limits if self._board.room(of, now) <= 0]
        of = (full or run.limits)[0]
        return WaitingFor(limit=of.limit, key=of.key, position=self._board.lines.ahead(of, run) + 1)


def _why(of: KeyId, definition: Definition) -> str:
    key = f" for key {of.key[:80]!r}" if definition.key is not None else ""
    if definition.on_full is OnFull.REJECT:
        return f"limit {of.limit!r} is reached{key}"
    return f"limit {of.limit!r} is reached{key}, and {definition.max_waiting:,} runs wait already"
