"""Fixes, each undone again: with them the simulation shows that it finds what they are for.

A world gets a part that behaves as the product did before; its faults are those that made it matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.executions.events import Commit
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.memory.queue import MemoryDelivery, MemoryMessage, MemoryQueue
from pyoco_server.usecases.concurrency import read_all
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.queues import QueuedJob
from pyoco_server.usecases.ports.stores import WrongRevision
from pyoco_server.wiring.gateway import Levels
from support.simulation import Faults, simulate

RUNS = (1.0, 0.0, 0.0)
EXECUTIONS = (0.0, 1.0, 0.0)


class ShortBatchEnds(MemoryQueue):
    """D01: a batch that is cut is taken for the end of the queue."""

    async def _listed(self) -> list[MemoryMessage]:
        return list((await self._batch(1)).items)


class NamelessDelivery(MemoryDelivery):
    @property
    def sequence(self) -> Any:
        return None


class NamelessJobs(MemoryQueue):
    """D03: a claim does not know which job of its run it is for."""

    delivery = NamelessDelivery


class ReplicaAnswers(MemoryQueue):
    """D03, its sister: what a replica does not have is taken for absent."""

    async def _listed(self) -> list[MemoryMessage]:
        return [message async for message in read_all(self._batch, 1)]


class AdvisoriesOnly(MemoryQueue):
    """D04: only an advisory reports that a job is never delivered again."""

    async def jobs(self) -> list[QueuedJob]:
        return [replace(job, max_deliver=0, is_given_up=False) for job in await super().jobs()]


class Trusting:
    """D06: the records of an orchestrator that reads again only after an append was refused."""

    def __init__(self, records: ExecutionRepository) -> None:
        self._records = records
        self._given: dict[str, ExecutionRecord | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def known(self, execution_id: str) -> ExecutionRecord | None:
        self._given[execution_id] = await self._records.known(execution_id)
        return self._given[execution_id]

    async def fresh(self, execution_id: str, known: ExecutionRecord | None = None) -> ExecutionRecord | None:
        if execution_id not in self._given:
            self._given[execution_id] = await self._records.fresh(execution_id, known)
        return self._given[execution_id]

    async def append(self, record: ExecutionRecord | None, commit: Commit) -> ExecutionRecord:
        try:
            appended = await self._records.append(record, commit)
        except WrongRevision:
            self._given.pop(commit.execution_id, None)
            raise
        self._given[commit.execution_id] = appended
        return appended


def trust_what_is_known(levels: Levels) -> None:
    orchestrate = levels.executions.orchestrate
    orchestrate._records = Trusting(orchestrate._records)  # type: ignore[assignment]


@dataclass(frozen=True)
class Undone:
    faults: Faults
    reported: str
    """A part of what the simulation has to report."""
    levels: tuple[float, float, float] = RUNS
    queue_kind: type[MemoryQueue] = MemoryQueue
    idle: frozenset[str] = frozenset()
    prepare: Callable[[Levels], None] | None = None
    first: int = 0
    """The seed to begin with: a fault that shows in one world of ten is found sooner where one is known."""

    def problems(self, seed: int) -> list[str]:
        _, broken = simulate(
            seed,
            levels=self.levels,
            forced=self.faults,
            queue_kind=self.queue_kind,
            idle=self.idle,
            prepare=self.prepare,
        )
        return [problem for problem in broken if self.reported in problem]

    def problems_with_the_fix(self, seed: int) -> list[str]:
        return simulate(seed, levels=self.levels, forced=self.faults)[1]


UNDONE = {
    "D01": Undone(
        Faults(batch_bytes=500, workers_leave=True),
        "failed for no reason of its own: the run's job is not on the queue",
        queue_kind=ShortBatchEnds,
    ),
    "D03": Undone(
        Faults(duplicate_window_sec=5.0, workers_leave=True),
        "was started while it ran",
        queue_kind=NamelessJobs,
    ),
    "D03-replica": Undone(
        Faults(follower_behind=0.5, workers_leave=True),
        "failed for no reason of its own: the run's job is not on the queue",
        queue_kind=ReplicaAnswers,
    ),
    "D04": Undone(Faults(advisories_lost=True), "still RUNNING", queue_kind=AdvisoriesOnly, first=67),
    # Who has to see cancels to their end never begins with it: the worker alone can do so.
    "D05": Undone(
        Faults(workers_leave=True), "CANCELLING without a worker", idle=frozenset({"keep-cancels"})
    ),
    "D06": Undone(
        Faults(executions_late=True),
        "its execution cancelled it, and waits for it",
        levels=EXECUTIONS,
        prepare=trust_what_is_known,
        first=69,
    ),
}
