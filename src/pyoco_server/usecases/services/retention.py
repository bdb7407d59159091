"""Remove runs and executions whose retention is over.

Most runs expire by themselves: their last write carries a time to live. What remains is older than the
setting, or was ended by a process that set none. It is removed a little at a time, by one gateway.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pyoco_server.domain.codec import Unreadable
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.runs import RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Clock, WrongRevision
from pyoco_server.usecases.stats.count import CountedEnds

log = get_logger(__name__)

INTERVAL_SEC = 60.0
BUSY_SEC = 5.0
"""Between two turns while there is more to remove."""
RUNS_AT_ONCE = 200
EXECUTIONS_AT_ONCE = 50
SIDE_BY_SIDE = 20
"""At an upgrade, runs may wait for the statistics: then a turn ends with the first that waits in vain."""
MARGIN_SEC = 60.0
"""What expires by itself is left to the store."""


class Retention:
    def __init__(
        self,
        *,
        ended_before: Callable[[float, int], Sequence[str]],
        remove: Callable[[str], Awaitable[None]],
        keep_sec: float,
        at_once: int,
        clock: Clock,
        what: str,
    ) -> None:
        """`keep_sec`: 0 is for ever. `clock`: that of the store. `what`: for the log."""
        self._ended_before = ended_before
        self._remove = remove
        self._keep_sec = keep_sec
        self._at_once = at_once
        self._clock = clock
        self._what = what

    async def run(self) -> None:
        """While this gateway holds the lease for it."""
        while True:
            removed = 0
            with best_effort(log, "retention.turn", NatsUnavailable, what=self._what):
                removed = await self.turn()
            await asyncio.sleep(BUSY_SEC if removed == self._at_once else INTERVAL_SEC)

    async def turn(self) -> int:
        """How many were removed."""
        if not self._keep_sec:
            return 0
        old = self._ended_before(self._clock() - self._keep_sec - MARGIN_SEC, self._at_once)
        for start in range(0, len(old), SIDE_BY_SIDE):
            await asyncio.gather(*(self._remove(one) for one in old[start : start + SIDE_BY_SIDE]))
        if old:
            log.info(
                "removed what is older than its retention",
                action="retention.removed",
                what=self._what,
                count=len(old),
                retention_sec=self._keep_sec,
            )
        return len(old)


class ExpireRun:
    def __init__(self, runs: RunStore, index: RunIndex, counted: CountedEnds) -> None:
        self._runs = runs
        self._index = index
        self._counted = counted

    async def __call__(self, run_id: str) -> None:
        try:
            found = await self._runs.get(run_id)
        except Unreadable as damage:
            log.warning("run snapshot is damaged", action="run.unreadable", run_id=run_id, exc_info=damage)
            return
        if found is None:  # it was removed unnoticed, and its marker is gone too
            self._index.forget(run_id)
        elif found.value.status.is_terminal:
            await self._counted.require(found)
            try:
                await self._runs.remove(run_id, found.revision)
            except WrongRevision:
                log.debug("a run changed meanwhile; it is kept", action="retention.kept", run_id=run_id)
