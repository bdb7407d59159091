"""Follow the feed of commits, and keep the gateway's view of all executions up to date."""

import asyncio

from pyoco_server.domain.executions.events import ORCHESTRATOR, Commit
from pyoco_server.domain.executions.records import LoggedCommit, summarise
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.executions.commands import is_execution_id
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.executions import ExecutionIndex
from pyoco_server.usecases.ports.stores import Change, Feed, FeedBatch, Revision
from pyoco_server.usecases.services.orchestrator import Orchestrate

CHUNK = 200


class FollowExecutions:
    def __init__(
        self,
        feed: Feed[LoggedCommit],
        index: ExecutionIndex,
        records: ExecutionRepository,
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
        """Whether all executions that existed at the start are known."""
        return self._caught_up.is_set()

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            await self._take(batch)

    async def orchestrate(self) -> None:
        """The orchestrator needs all executions."""
        await self._caught_up.wait()
        await self._orchestrate.run()

    async def next_wait(self, seconds: float) -> bool:
        """Wait for news of an execution with a waiting node; False after a timeout."""
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
        """Data that is not a commit leaves the execution unchanged."""
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
