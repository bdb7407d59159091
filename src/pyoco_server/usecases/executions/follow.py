"""Keep a gateway's picture of the executions up to date: one feed of commits for everything that needs it."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from pyoco_server.domain.execution.events import ORCHESTRATOR, Commit
from pyoco_server.domain.execution.records import LoggedCommit, summarise
from pyoco_server.errors import GatewayOverloaded
from pyoco_server.usecases.executions.command import is_execution_id
from pyoco_server.usecases.executions.orchestrate import Orchestrate
from pyoco_server.usecases.executions.ports import ExecutionIndex
from pyoco_server.usecases.executions.records import ExecutionRecords
from pyoco_server.usecases.ports import Change, Feed, FeedBatch, Revision
from pyoco_server.usecases.waiting import wait_at_most

CHUNK = 200


class ExecutionHub:
    """Who watches which execution. A watcher is only told that there is news; it reads them in the log."""

    def __init__(self, max_watchers: int) -> None:
        self._max_watchers = max_watchers
        self._bells: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.count = 0
        self.is_closed = False

    @contextmanager
    def watching(self, execution_id: str) -> Iterator[asyncio.Event]:
        if self.count >= self._max_watchers:
            raise GatewayOverloaded("too many watchers")
        bell = asyncio.Event()
        self._bells[execution_id].add(bell)
        self.count += 1
        try:
            yield bell
        finally:
            self.count -= 1
            self._bells[execution_id].discard(bell)
            if not self._bells[execution_id]:
                del self._bells[execution_id]

    def ring(self, execution_id: str) -> None:
        for bell in self._bells.get(execution_id, ()):
            bell.set()

    def close(self) -> None:
        """The gateway is going away, and its watchers' clients should look for another."""
        self.is_closed = True
        for bells in self._bells.values():
            for bell in bells:
                bell.set()


class FollowExecutions:
    def __init__(
        self,
        feed: Feed[LoggedCommit],
        index: ExecutionIndex,
        records: ExecutionRecords,
        orchestrate: Orchestrate,
        hub: ExecutionHub,
    ) -> None:
        self._feed = feed
        self._index = index
        self._records = records
        self._orchestrate = orchestrate
        self._hub = hub
        self._caught_up = asyncio.Event()
        self._somebody_waits = asyncio.Event()

    @property
    def is_caught_up(self) -> bool:
        """Whether every execution that was there when the reading began is known."""
        return self._caught_up.is_set()

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            await self._take(batch)

    async def orchestrate(self) -> None:
        """Only who knows all executions can see to all of them."""
        await self._caught_up.wait()
        await self._orchestrate.run()

    async def next_wait(self, seconds: float) -> bool:
        """Until something is heard of an execution in which a node waits; False after so long without."""
        await wait_at_most(self._somebody_waits, seconds)
        has_come = self._somebody_waits.is_set()
        self._somebody_waits.clear()
        return has_come

    async def _take(self, batch: FeedBatch[LoggedCommit]) -> None:
        if batch.is_reset:
            self._index.clear()
            self._records.forget_all()
            self._caught_up.clear()
        for start in range(0, len(batch.changes), CHUNK):
            chunk = batch.changes[start : start + CHUNK]
            for change in chunk:
                self._tell(change)
            applied = [await self._made_good(change) for change in chunk]
            self._index.apply(applied)
            if any(change.value is not None and change.value.summary.waits for change in applied):
                self._somebody_waits.set()
            if start + CHUNK < len(batch.changes):
                await asyncio.sleep(0)
        if batch.is_caught_up:
            self._caught_up.set()

    async def _made_good(self, change: Change[LoggedCommit]) -> Change[LoggedCommit]:
        """Where somebody wrote what is no commit, the execution stands where it stood before."""
        if change.value is not None or not is_execution_id(change.key):
            return change
        record = await self._records.fresh(change.key)
        if record is None:
            return change
        nothing = Commit(
            execution_id=change.key,
            command_id="",
            first_sequence=record.state.version + 1,
            at=record.state.updated_at,
            actor=ORCHESTRATOR,
            payloads=(),
        )
        self._orchestrate.nudge(nothing)
        return Change(change.key, change.revision, LoggedCommit(nothing, summarise(record.state)), None)

    def _tell(self, change: Change[LoggedCommit]) -> None:
        logged = change.value
        if logged is None:
            return
        if self._records.heard(logged, Revision(change.revision)):
            self._orchestrate.nudge(logged.commit)
        self._hub.ring(change.key)
