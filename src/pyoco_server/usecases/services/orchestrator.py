"""The orchestrator: after every change of an execution, carry out what `react` returns.

Each gateway attends to the executions of its share. It has no state of its own: whoever takes over an
execution evaluates it again; effects that were appended but not carried out are carried out then, and
completed ones are recognized. Two gateways that attend to the same execution do each other's work, and no
harm.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from msgspec import Struct, field

from pyoco_server.domain.executions.codec import smaller
from pyoco_server.domain.executions.events import ORCHESTRATOR, Commit, Payload
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.executions.model import Execution, NodeStatus, possible_ids
from pyoco_server.domain.executions.orchestration import Allowance, Reaction, TooHeavy, react
from pyoco_server.domain.executions.orchestration_map import work_in_question
from pyoco_server.domain.executions.records import ExecutionRecord, RunFact, Work
from pyoco_server.domain.executions.stored import Opened
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import HeavyWork
from pyoco_server.usecases.coordination import Share
from pyoco_server.usecases.executions.commands import EndMeter, is_execution_id, tell_if_ended
from pyoco_server.usecases.executions.node_runs import LiveRuns, fact_of
from pyoco_server.usecases.executions.node_work import NodeWork, fact_of_execution
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.executions.stored_values import OpenValues
from pyoco_server.usecases.ports.gateway import ExecutionIndex, Graphs
from pyoco_server.usecases.ports.stores import Change, Clock, WrongRevision

log = get_logger(__name__)

AT_ONCE = 16
"""Executions processed concurrently; each mostly waits for the log."""
RETRY_SEC = 1.0
MAX_TRIES = 100
SMALL_GRAPH = 200
"""Limit of nodes and edges on the event loop; larger graphs are processed in a thread."""
LIGHT_STEPS = 20_000
"""Limit of conditions and templates on the event loop: a few milliseconds."""
LONGEST_TIMER_SEC = 3_600.0
"""Maximum timer, because the loop clock and the wall clock may drift apart."""


class OrchestratorMeter(EndMeter, Protocol):
    def attended(self, lag_sec: float) -> None: ...


class _Due(Struct):
    """Why an execution has to be evaluated."""

    since: float
    runs: dict[str, RunFact | None] = field(default_factory=dict)
    """New facts about its runs and child executions."""
    look_at: set[str] = field(default_factory=set)
    """Nodes whose work has to be read."""
    look_at_all: bool = False


class Orchestrate:
    def __init__(  # noqa: PLR0913 - one argument per part it is put together from
        self,
        *,
        records: ExecutionRepository,
        index: ExecutionIndex,
        graphs: Graphs,
        node_work: NodeWork,
        share: Share,
        clock: Clock,
        new_id: Callable[[], str],
        grace_sec: float,
        meter: OrchestratorMeter,
        open_values: OpenValues,
        heavy_work: HeavyWork | None = None,
        retry_sec: float = RETRY_SEC,
    ) -> None:
        self._records = records
        self._index = index
        self._graphs = graphs
        self._node_work = node_work
        self._share = share
        self._clock = clock
        self._new_id = new_id
        self._grace_sec = grace_sec
        self._meter = meter
        self._heavy_work = heavy_work or HeavyWork()
        self._open_values = open_values
        self._retry_sec = retry_sec
        self._due: dict[str, _Due] = {}
        self._attended: set[str] = set()
        self._wake = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unsure: set[str] = set()
        """Executions whose last evaluation was interrupted, so that effects may be missing."""
        self._writing: set[str] = set()
        """Commands being appended; the feed may deliver them before the ack."""
        self._live = LiveRuns()
        self._kept: dict[str, Mapping[str, RunFact | None]] = {}
        """Facts about items of maps that are not in the log yet, by execution."""

    # Notifications

    def nudge(self, commit: Commit) -> None:
        """A commit that this orchestrator did not write.

        Its runs are checked, because an external command may leave a run behind, and another orchestrator may
        have crashed before carrying out its effects.
        """
        if self._share.has(commit.execution_id) and commit.command_id not in self._writing:
            self._want(commit.execution_id).look_at.update(_nodes_of(commit))

    def look(self, changes: Sequence[Change[RunSnapshot]]) -> None:
        """Called for every change of a run."""
        for change in changes:
            run = change.value
            if run is None or run.execution_id is None or not is_execution_id(run.execution_id):
                continue  # a snapshot may contain anything; only an id may become part of a subject
            is_news = self._live.heard(run)
            if is_news and self._share.has(run.execution_id) and not self._is_history(run):
                self._want(run.execution_id).runs[run.run_id] = fact_of(run)

    def _is_history(self, run: RunSnapshot) -> bool:
        """A starting feed delivers all stored runs."""
        return run.status.is_terminal and self._index.has_ended(run.execution_id or "")

    def statuses(self, execution_id: str) -> Mapping[str, RunStatus]:
        """Active runs of an execution by id, of any gateway."""
        return self._live.of(execution_id)

    def attends_to(self, execution_id: str) -> bool:
        return self._share.has(execution_id)

    def _want(self, execution_id: str) -> _Due:
        due = self._due.get(execution_id)
        if due is None:
            due = self._due[execution_id] = _Due(asyncio.get_running_loop().time())
        self._wake.set()
        return due

    # The work

    async def run(self) -> None:
        """Attend to the executions of this gateway's share, forever."""
        work = [
            asyncio.ensure_future(self._share.run(self._share_changed)),
            asyncio.ensure_future(self._attend_for_ever()),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            self._unsure.clear()
            self._writing.clear()
            self._kept.clear()

    def _share_changed(self, is_new: Callable[[str], bool]) -> None:
        """Drop what others attend to now, and evaluate what they may have left."""
        for execution_id in {*self._timers, *self._due}:
            if not self._share.has(execution_id):
                self._drop(execution_id)
        for execution_id in dict.fromkeys([*self._index.active(), *self._live.executions()]):
            if is_new(execution_id):
                self._want(execution_id).look_at_all = True

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
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self._due.clear()
            self._attended.clear()

    def _next(self) -> str | None:
        """The execution that has waited longest and is not being processed."""
        return next((wanted for wanted in self._due if wanted not in self._attended), None)

    async def _attend(self, execution_id: str, due: _Due) -> None:
        self._attended.add(execution_id)
        due.look_at_all = due.look_at_all or execution_id in self._unsure
        self._unsure.add(execution_id)
        try:
            async with self._records.room_for(execution_id, within_sec=None):
                await self._react(execution_id, due)
            self._unsure.discard(execution_id)
            self._meter.attended(asyncio.get_running_loop().time() - due.since)
        except NatsUnavailable as error:
            log.warning(
                "NATS unavailable; an execution is waiting",
                action="orchestrator.waiting",
                execution_id=execution_id,
                exc_info=error,
            )
            self._later(execution_id, self._retry_sec)
        except Exception:
            # A failing execution must not block the others.
            log.exception(
                "processing an execution failed; retrying",
                action="orchestrator.failed",
                execution_id=execution_id,
            )
            self._later(execution_id, self._retry_sec * 10)
        finally:
            self._attended.discard(execution_id)

    async def _react(self, execution_id: str, due: _Due) -> None:
        """Evaluate and act until nothing is left to do."""
        record = await self._records.known(execution_id)
        for _ in range(MAX_TRIES):
            if record is None:
                return
            try:
                record, is_done = await self._step(record, due)
            except WrongRevision:
                due.look_at_all = True  # whoever was faster may be gone before it does what it wrote
                record = await self._records.fresh(execution_id, record)
                continue
            if is_done:
                self._tell_parent(record.state, due)
                return
        raise NatsUnavailable("too many concurrent writers on this execution")

    def _tell_parent(self, state: Execution, due: _Due) -> None:
        """Its end, and that it exists if this process may not know: nobody may wait for it any more."""
        if state.parent_execution_id is None:
            return
        if state.is_terminal or due.look_at_all or due.look_at:
            for parent_id in possible_ids(state.tenant_id, state.parent_execution_id):
                if self._index.version(parent_id):
                    self._want(parent_id).runs[state.execution_id] = fact_of_execution(state)

    async def _step(self, known: ExecutionRecord, due: _Due) -> tuple[ExecutionRecord, bool]:
        """The record after one evaluation, and whether nothing is left to do."""
        state = known.state
        graph = (await self._graphs.read(state.tenant_id, state.graph_id, state.graph_version)).graph
        kept = self._kept.pop(state.execution_id, {})
        runs = {**kept, **due.runs, **await self._node_work.read(self._work_to_read(state, graph, due))}
        facts = await self._node_work.keep_values(state, runs)
        reaction = await self._open_values(state.tenant_id, partial(self._reaction, state, graph, facts))
        await self._check_is_current(known, reaction)
        record, is_whole = await self._append(known, reaction)
        tell_if_ended(self._meter, state, record.state)
        if not is_whole:
            due.look_at_all = True  # what follows from the part that is appended is to be done, too
            return record, False
        refused = await self._carry_out(record, reaction)
        due.runs.update(refused)
        if reaction.kept:
            self._kept[state.execution_id] = reaction.kept
        wake_at = reaction.wake_at
        self._later(state.execution_id, None if wake_at is None else wake_at - self._clock())
        if reaction.events:
            await self._records.save_if_far(record)
        if reaction.has_more:
            self._want(state.execution_id).look_at_all = True
        return record, not refused

    async def _reaction(
        self, state: Execution, graph: Graph, runs: Mapping[str, RunFact | None], opened: Opened
    ) -> Reaction:
        """On the event loop if cheap, as mostly; else in the thread for heavy work. Raises Lacking."""
        now = self._clock()
        if len(graph.nodes) + len(graph.edges) <= SMALL_GRAPH:
            with suppress(TooHeavy):
                return react(state, graph, runs, now, self._grace_sec, Allowance(LIGHT_STEPS), opened=opened)
        return await self._heavy_work(react, state, graph, runs, now, self._grace_sec, opened=opened)

    async def _check_is_current(self, known: ExecutionRecord, reaction: Reaction) -> None:
        """An append proves that the state was current. Effects without events need another proof.

        Raises WrongRevision if the log has advanced, because a run that a stale state does not need may be
        needed.
        """
        if reaction.events or not (reaction.dispatches or reaction.cancels):
            return
        current = await self._records.fresh(known.state.execution_id, known)
        if current is None or current.log_revision != known.log_revision:
            raise WrongRevision("the evaluated state is not current")

    def _work_to_read(self, state: Execution, graph: Graph, due: _Due) -> list[Work]:
        """The work of nodes changed by others; or all active work, whether a node waits or not."""
        wanted = {
            work
            for node_id, node in state.nodes.items()
            if node_id in due.look_at
            or (due.look_at_all and node.status in (NodeStatus.RUNNING, NodeStatus.WAITING))
            for work in work_in_question(state, graph, node_id)
        }
        if due.look_at_all:
            wanted.update(map(Work, self._live.of(state.execution_id)))
        return sorted(work for work in wanted if not _has_ended(due.runs.get(work.id)))

    async def _append(self, record: ExecutionRecord, reaction: Reaction) -> tuple[ExecutionRecord, bool]:
        """The record with the events, and whether all of them fit."""
        payloads = reaction.events
        while payloads:
            try:
                return await self._append_all(record, payloads), payloads == reaction.events
            except RequestTooLarge as error:
                log.warning(
                    "events exceed the message size; appending a part",
                    action="orchestrator.too_large",
                    execution_id=record.state.execution_id,
                    events=len(payloads),
                    detail=str(error),
                )
                less = smaller(reaction.state, payloads)
                if less is None or less == payloads:
                    raise
                payloads = less
        return record, True

    async def _append_all(self, record: ExecutionRecord, payloads: tuple[Payload, ...]) -> ExecutionRecord:
        command_id = self._new_id()
        self._writing.add(command_id)
        try:
            return await self._records.append(
                record,
                Commit(
                    execution_id=record.state.execution_id,
                    command_id=command_id,
                    first_sequence=record.state.version + 1,
                    at=max(self._clock(), record.state.updated_at),
                    actor=ORCHESTRATOR,
                    payloads=payloads,
                ),
            )
        finally:
            self._writing.discard(command_id)

    async def _carry_out(self, record: ExecutionRecord, reaction: Reaction) -> dict[str, RunFact]:
        """Returns the work that has ended already, or can never be placed."""
        state = record.state
        work = [
            *(self._node_work.dispatch(state, wanted) for wanted in reaction.dispatches),
            *(self._node_work.cancel(state, unwanted) for unwanted in reaction.cancels),
        ]
        answers = [await work[0]] if len(work) == 1 else await _all_of(work)
        return {
            wanted.work_id: refusal
            for wanted, refusal in zip(reaction.dispatches, answers, strict=False)
            if refusal is not None
        }

    def _later(self, execution_id: str, seconds: float | None) -> None:
        """Evaluate after a delay; only the newest timer counts."""
        previous = self._timers.pop(execution_id, None)
        if previous is not None:
            previous.cancel()
        if seconds is not None:
            self._timers[execution_id] = asyncio.get_running_loop().call_later(
                min(max(0.0, seconds), LONGEST_TIMER_SEC), self._look_again, execution_id
            )

    def _look_again(self, execution_id: str) -> None:
        self._timers.pop(execution_id, None)
        if self._share.has(execution_id):
            self._want(execution_id)
        else:
            self._drop(execution_id)

    def _drop(self, execution_id: str) -> None:
        """Another gateway attends to it now."""
        self._later(execution_id, None)
        self._due.pop(execution_id, None)
        self._unsure.discard(execution_id)


def _has_ended(fact: RunFact | None) -> bool:
    """Other facts do not show whether a run has its job."""
    return fact is not None and fact.status.is_terminal


async def _all_of(work: Sequence[Awaitable[RunFact | None]]) -> list[RunFact | None]:
    """On an error, no part of the work continues in the background."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[RunFact | None]", answers)


def _nodes_of(commit: Commit) -> Iterable[str]:
    for payload in commit.payloads:
        node_id = getattr(payload, "node_id", None)
        if isinstance(node_id, str):
            yield node_id
