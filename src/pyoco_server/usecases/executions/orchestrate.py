"""The orchestrator: for every execution that something happened to, do what `react` says is missing.

It holds nothing that cannot be lost. After a crash, here or elsewhere, all active executions are looked at
again; what was appended but not done is done then, what was done is seen to be done.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct, field

from pyoco_server.domain.execution.events import ORCHESTRATOR, Commit
from pyoco_server.domain.execution.react import Reaction, RunFact, react
from pyoco_server.domain.execution.records import ExecutionRecord
from pyoco_server.domain.execution.state import Execution, NodeStatus
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.executions.node_runs import NodeRuns
from pyoco_server.usecases.executions.ports import ExecutionIndex, Graphs
from pyoco_server.usecases.executions.records import ExecutionRecords
from pyoco_server.usecases.lease import Lease
from pyoco_server.usecases.ports import Change, Clock, WrongRevision

log = get_logger(__name__)

AT_ONCE = 16
"""Executions attended at the same time; each waits for the log most of its time."""
RETRY_SEC = 1.0
MAX_TRIES = 100


class OrchestratorMeter(Protocol):
    def attended(self, lag_sec: float) -> None: ...
    def execution_ended(self, status: str) -> None: ...


class _Due(Struct):
    """Why an execution is to be looked at."""

    since: float
    runs: dict[str, RunFact | None] = field(default_factory=dict)
    """What was heard of its runs."""
    look_at: set[str] = field(default_factory=set)
    """Nodes whose runs are to be read."""
    look_at_all: bool = False


class Orchestrate:
    def __init__(  # noqa: PLR0913 - one argument per part it is put together from
        self,
        *,
        records: ExecutionRecords,
        index: ExecutionIndex,
        graphs: Graphs,
        node_runs: NodeRuns,
        lease: Lease,
        clock: Clock,
        new_id: Callable[[], str],
        grace_sec: float,
        meter: OrchestratorMeter,
    ) -> None:
        self._records = records
        self._index = index
        self._graphs = graphs
        self._node_runs = node_runs
        self._lease = lease
        self._clock = clock
        self._new_id = new_id
        self._grace_sec = grace_sec
        self._meter = meter
        self._due: dict[str, _Due] = {}
        self._attended: set[str] = set()
        self._wake = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cut_off: set[str] = set()
        """Executions that were not attended to the end: what was done for them has to be looked up."""
        self._appending: set[str] = set()
        """The ids of our own commits, until the log has answered."""
        self._unfinished: dict[str, tuple[str, RunStatus]] = {}
        """By run that has not ended, its execution and last known status: most changes are signs of life."""

    # What may be news

    def nudge(self, commit: Commit) -> None:
        """A commit that this orchestrator did not write. Who speaks for a node may leave its run behind.

        Another orchestrator may do so, too: it may have died between its commit and what follows from it.
        """
        if self._lease.is_held and commit.command_id not in self._appending:
            self._want(commit.execution_id).look_at.update(_nodes_of(commit))

    def look(self, changes: Sequence[Change[RunSnapshot]]) -> None:
        """Every change of a run passes here."""
        for change in changes:
            run = change.value
            if run is None or run.execution_id is None:
                continue
            if self._is_news(run, run.execution_id) and self._lease.is_held:
                due = self._want(run.execution_id)
                due.runs[run.run_id] = RunFact(run.status, run.result, run.error)

    def _is_news(self, run: RunSnapshot, execution_id: str) -> bool:
        known = self._unfinished.get(run.run_id)
        if run.status.is_terminal:
            self._unfinished.pop(run.run_id, None)
        else:
            self._unfinished[run.run_id] = execution_id, run.status
        return known is None or known[1] is not run.status

    def _unfinished_of(self, execution_id: str) -> dict[str, RunFact]:
        return {
            run_id: RunFact(status)
            for run_id, (owner, status) in self._unfinished.items()
            if owner == execution_id
        }

    def _want(self, execution_id: str) -> _Due:
        due = self._due.get(execution_id)
        if due is None:
            due = self._due[execution_id] = _Due(asyncio.get_running_loop().time())
        self._wake.set()
        return due

    # The work

    async def run(self) -> None:
        await self._lease.run(self._work)

    async def _work(self) -> None:
        log.info("orchestrating", action="orchestrator.started")
        try:
            for execution_id in self._index.active():
                self._want(execution_id).look_at_all = True
            for run_id, (execution_id, status) in self._unfinished.items():
                # Also of an execution that has ended: whoever ended it may not have stopped its runs.
                self._want(execution_id).runs[run_id] = RunFact(status)
            await self._attend_for_ever()
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self._due.clear()
            self._attended.clear()
            self._cut_off.clear()

    async def _attend_for_ever(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while len(tasks) < AT_ONCE and (execution_id := self._next()) is not None:
                    task = asyncio.ensure_future(self._attend(execution_id, self._due.pop(execution_id)))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    task.add_done_callback(lambda _: self._wake.set())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _next(self) -> str | None:
        """The one that waits longest and is not being attended."""
        return next((wanted for wanted in self._due if wanted not in self._attended), None)

    async def _attend(self, execution_id: str, due: _Due) -> None:
        self._attended.add(execution_id)
        if execution_id in self._cut_off:
            due.look_at_all = True
            due.runs = {**self._unfinished_of(execution_id), **due.runs}
        self._cut_off.add(execution_id)
        try:
            await self._react(execution_id, due)
            self._cut_off.discard(execution_id)
            self._meter.attended(asyncio.get_running_loop().time() - due.since)
        except NatsUnavailable as error:
            log.warning(
                "an execution has to wait for NATS",
                action="orchestrator.waiting",
                execution_id=execution_id,
                exc_info=error,
            )
            self._later(execution_id, RETRY_SEC)
        except Exception:
            # One execution that cannot be attended must not keep the others waiting.
            log.exception(
                "attending an execution failed; trying again",
                action="orchestrator.failed",
                execution_id=execution_id,
            )
            self._later(execution_id, RETRY_SEC * 10)
        finally:
            self._attended.discard(execution_id)

    async def _react(self, execution_id: str, due: _Due) -> None:
        record = await self._records.known(execution_id)
        if record is None:
            return
        state = record.state
        graph = (await self._graphs.read(state.tenant_id, state.graph_id, state.graph_version)).graph
        for _ in range(MAX_TRIES):
            runs = await self._known_runs(record.state, due)
            reaction = react(record.state, graph, runs, self._clock(), self._grace_sec)
            if not reaction.events:
                break
            try:
                record = await self._append(record, reaction)
            except WrongRevision:
                due.look_at_all = True  # whoever it was may have left runs behind
                current = await self._records.fresh(execution_id)
                if current is None:
                    return
                record = current
                continue
            break
        await self._carry_out(record, reaction)
        self._set_timer(execution_id, reaction.wake_at)
        if reaction.events:
            await self._records.save(record)
            if record.state.is_terminal:
                self._say_ended(record.state)

    async def _known_runs(self, state: Execution, due: _Due) -> dict[str, RunFact | None]:
        """What is read is newer than what was heard before."""
        return {**due.runs, **await self._node_runs.read(self._runs_to_read(state, due))}

    def _runs_to_read(self, state: Execution, due: _Due) -> list[str]:
        """Of nodes that may be waiting for their run, and of nodes for which somebody else has spoken."""
        wanted = [
            node.run_id
            for node_id, node in state.nodes.items()
            if node.run_id is not None
            and (
                node_id in due.look_at
                or (due.look_at_all and node.status in (NodeStatus.RUNNING, NodeStatus.WAITING))
            )
        ]
        return [run_id for run_id in wanted if not _is_over(due.runs.get(run_id))]

    async def _append(self, record: ExecutionRecord, reaction: Reaction) -> ExecutionRecord:
        commit = Commit(
            execution_id=record.state.execution_id,
            command_id=self._new_id(),
            first_sequence=record.state.version + 1,
            at=max(self._clock(), record.state.updated_at),
            actor=ORCHESTRATOR,
            payloads=reaction.events,
        )
        self._appending.add(commit.command_id)
        try:
            return await self._records.append(record, commit)
        finally:
            self._appending.discard(commit.command_id)

    async def _carry_out(self, record: ExecutionRecord, reaction: Reaction) -> None:
        state = record.state
        work = [
            *(self._node_runs.dispatch(state, wanted) for wanted in reaction.dispatches),
            *(self._node_runs.cancel(state, unwanted) for unwanted in reaction.cancels),
        ]
        if len(work) == 1:
            await work[0]
        elif work:
            await asyncio.gather(*work)

    def _set_timer(self, execution_id: str, wake_at: float | None) -> None:
        timer = self._timers.pop(execution_id, None)
        if timer is not None:
            timer.cancel()
        if wake_at is not None:
            self._timers[execution_id] = asyncio.get_running_loop().call_later(
                max(0.0, wake_at - self._clock()), self._want, execution_id
            )

    def _later(self, execution_id: str, seconds: float) -> None:
        previous = self._timers.pop(execution_id, None)
        if previous is not None:
            previous.cancel()
        self._timers[execution_id] = asyncio.get_running_loop().call_later(seconds, self._want, execution_id)

    def _say_ended(self, state: Execution) -> None:
        self._meter.execution_ended(state.status.value)
        log.info(
            "execution ended",
            action="execution.ended",
            execution_id=state.execution_id,
            graph_id=state.graph_id,
            status=state.status.value,
        )


def _is_over(fact: RunFact | None) -> bool:
    return fact is not None and fact.status.is_terminal


def _nodes_of(commit: Commit) -> Iterable[str]:
    for payload in commit.payloads:
        node_id = getattr(payload, "node_id", None)
        if isinstance(node_id, str):
            yield node_id
