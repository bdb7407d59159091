"""F2: gateways and workers as they are, on ports in memory that lose, delay and repeat, from one seed.

A process dies between any two of its steps: nothing that it does has an effect any more. Its tasks are
not cancelled, because a killed process cleans up nothing. The twins in memory fail like JetStream: `Faults`.
"""

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Self, TypeVar
from uuid import UUID

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec as wire
from pyoco_server.domain.executions.codec import decode_record, encode_record
from pyoco_server.domain.executions.events import Event
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.fleet import LANES, SHARES
from pyoco_server.domain.limits.holders import decode_holders
from pyoco_server.domain.limits.model import decode_limit
from pyoco_server.domain.queues import Turns
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, Job, Submission
from pyoco_server.domain.runs.model import FailureKind, Priority, RunRetry, RunSnapshot, RunStatus
from pyoco_server.domain.stats.records import decode_count_position, decode_run_end
from pyoco_server.engine.executors.pool import Prefetch
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.http_api.gateway import keep_running
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.memory import (
    MemoryLanes,
    MemorySignals,
    MemoryStorage,
    MemoryTimer,
    MemoryTimers,
    alert_stores,
)
from pyoco_server.memory.child_runs import MemoryChildRuns
from pyoco_server.memory.dead_letters import MemoryDeadLetters, MemoryUndeliverable
from pyoco_server.memory.events import MemoryEvents
from pyoco_server.memory.queue import MEGABYTE, MemoryQueue, QueueFaults
from pyoco_server.memory.stores import (
    MemoryApiKeys,
    MemoryChangeLog,
    MemoryExecutionLog,
    MemoryGraphs,
    MemoryListedStore,
    MemoryStats,
    MemoryStore,
    MemoryTaskLogs,
    MemoryView,
    MemoryWheelHistory,
    MemoryWheels,
)
from pyoco_server.memory.values import MemoryValues
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.coordination import SharedClock
from pyoco_server.usecases.events.definitions import ManageActions, ManageTemplates
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.ports.stores import FeedPosition
from pyoco_server.wiring.gateway import Levels, Setup
from pyoco_server.wiring.worker import WorkerName, new_worker
from pyoco_server.worker.worker import SideWorkEnded, WorkerIdInUse
from support import virtual_time
from support.execution_promises import cancelled_though_needed, kept_badly
from support.simulated_clients import (
    ACTION,
    GRAPH_ID,
    GRAPH_TEXT,
    TEMPLATES,
    EventClients,
    ExecutionClients,
    Question,
    ScheduleClients,
    untimely,
)

CONFIG = NatsBackendConfig(
    consumer_ack_wait_sec=10.0,
    ack_progress_interval_sec=3.0,
    consumer_max_deliver=50,
    run_heartbeat_interval_sec=2.0,
    worker_heartbeat_interval_sec=4.0,
    cancel_grace_period_sec=3.0,
    audit_log_path="",
)
EPOCH = 1_700_000_000.0
LOOK_SEC = 0.5
HEALED_SEC = 400.0
"""Of virtual time, in which everything must have come to its end: several sweeps and ack waits."""
ANSWER_SEC = 8.0
_ONE_WAY = frozenset({"ack", "nak", "term", "in_progress"})
"""Nobody says whether these arrived."""

THAWED_SEC = 60.0
"""Longer than a gateway is frozen and its requests are tried."""
ALONE_SEC = 200.0
"""Without any worker: more sweeps than end a PENDING run that has no job."""
AFTERMATH_SEC = 45.0
"""A process may be frozen when the world heals, and what it held comes back after AckWait."""

_here: ContextVar["Process"] = ContextVar("process")
T = TypeVar("T")


@dataclass(frozen=True)
class Odds:
    """Of a port's call, unless said otherwise."""

    lost: float = 0.03
    unanswered: float = 0.03
    crash: float = 0.004
    slow: float = 0.1


@dataclass(frozen=True)
class Faults:
    """What the twins of JetStream do to a world: what a real server does, chosen by the seed."""

    duplicate_window_sec: float = 120.0
    batch_bytes: int = 64 * MEGABYTE
    follower_behind: float = 0.0
    """The share of scans that a replica answers which stands still: longer than any network is cut."""
    advisories_lost: bool = False
    """Jobs are delivered a few times only, and nobody is told when that was too often."""
    workers_leave: bool = False
    """For good, until all that can end without them has ended."""
    executions_late: bool = False
    """Gateways read of executions long after they read of their runs, and the orchestrator freezes."""

    @classmethod
    def of(cls, seed: int) -> Self:
        chance = random.Random(f"faults of {seed}")  # noqa: S311
        advisories_lost = chance.random() < 0.1
        return cls(
            duplicate_window_sec=chance.choice([120.0, 30.0, 5.0]),
            batch_bytes=chance.choice([64 * MEGABYTE, 500]),
            follower_behind=chance.choices((0.0, 0.5, 1.0), (0.8, 0.1, 0.1))[0],
            advisories_lost=advisories_lost,
            workers_leave=not advisories_lost and chance.random() < 0.2,
            executions_late=chance.random() < 0.3,
        )


class Process:
    """A gateway or a worker: alive, frozen or dead."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.skew = world.chance.uniform(-300, 300)
        self._dead = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    @property
    def is_alive(self) -> bool:
        return not self._dead.is_set()

    @property
    def is_running(self) -> bool:
        return self.is_alive and self._thawed.is_set()

    def die(self) -> None:
        self._dead.set()

    def freeze(self, seconds: float) -> None:
        self.world.count(f"freeze {self.name[0]}")
        self._thawed.clear()
        asyncio.get_running_loop().call_later(seconds, self._thawed.set)

    async def step(self) -> None:
        """Between any two steps a process may be killed or stopped for a while."""
        world = self.world
        if world.hurts(world.odds.crash):
            world.count(f"kill {self.name[0]}")
            self.die()
        elif world.hurts(world.odds.crash):
            self.freeze(world.chance.uniform(1, 25))
        elif world.hurts(world.odds.crash):
            self.skew += world.chance.uniform(-300, 300)
        await self._thawed.wait()
        await self.while_alive()

    async def while_alive(self) -> None:
        """Without an end for the dead."""
        if not self.is_alive:
            grave = asyncio.get_running_loop().create_future()
            self.world.graves.append(grave)  # what waits here must not be cleaned up before the end
            await grave

    async def next_of(self, items: AsyncIterator[Any]) -> Any:
        """None: the end. The server closes what a dead process has open: others receive the items."""
        item = asyncio.ensure_future(anext(items, None))
        dead = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait((item, dead), return_when=asyncio.FIRST_COMPLETED)
        finally:
            dead.cancel()
            if not item.done():
                item.cancel()
        await self.while_alive()
        return await item

    async def call(self, method: Callable[..., Awaitable[Any]], name: str, *args: Any, **options: Any) -> Any:
        world = self.world
        await self.step()
        if world.hurts(world.odds.lost):
            return await self._unheard(name)
        await asyncio.sleep(world.delay())
        await self.step()
        answer = await method(*args, **options)
        if world.hurts(world.odds.unanswered):
            return await self._unheard(name)
        await asyncio.sleep(world.delay())
        await self.step()
        return answer

    async def _unheard(self, name: str) -> None:
        if name in _ONE_WAY:
            return
        await asyncio.sleep(2.0)
        raise NatsUnavailable("nats unavailable: request timed out")


class HostTime:
    """`time` as a process sees it: no two hosts agree, and a clock may jump."""

    def time(self) -> float:
        process = _here.get(None)
        return EPOCH + asyncio.get_running_loop().time() + (process.skew if process else 0.0)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


HOST = HostTime()


class Port:
    """A port as a process sees it: every call travels, and may not arrive or not be answered."""

    def __init__(self, process: Process, target: Any) -> None:
        self._process = process
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.isasyncgenfunction(found):
            return self._reading(found, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def travelling(*args: Any, **options: Any) -> Any:
            return await self._process.call(found, name, *args, **options)

        return travelling

    def _reading(self, found: Callable[..., AsyncIterator[Any]], name: str) -> Callable[..., Any]:
        async def reading(*args: Any, **options: Any) -> AsyncIterator[Any]:
            await self._process.call(_nothing, name)
            items = found(*args, **options)
            while (item := await self._process.next_of(items)) is not None:
                yield Port(self._process, item) if isinstance(item, MemoryTimer) else item

        return reading


class LateFeed:
    """Changes come in their order, and some time after they were made."""

    def __init__(self, process: Process, target: Any, *, is_withheld: bool = False) -> None:
        self._process = process
        self._target = target
        self._is_withheld = is_withheld

    stale_sec = 0.0
    missed_sec = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[Any, None]:
        world = self._process.world
        async for batch in self._target.follow(position):
            await self._process.step()
            await asyncio.sleep(world.delay())
            if self._is_withheld and world.hurts(0.4):
                await wait_at_most(world.healed, world.chance.uniform(3.0, 40.0))
            yield batch


async def _nothing() -> None:
    pass


def _world_now() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class WorldTime:
    async def now(self) -> float:
        return _world_now()


async def _measured(clock: SharedClock) -> None:
    while True:
        try:
            return await clock.measure()
        except NatsUnavailable:
            await asyncio.sleep(1.0)


class TimedStore(MemoryStore[T]):
    """Knows when it stored what, by the clock of the world."""

    def __init__(self, *codec: Any) -> None:
        super().__init__(*codec)
        self._stored_at: list[float] = []

    def _remember(self, key: str, data: bytes | None) -> None:
        super()._remember(key, data)
        self._stored_at.append(asyncio.get_running_loop().time())

    def histories(self) -> dict[str, list[tuple[T, float]]]:
        found: dict[str, list[tuple[T, float]]] = {}
        for (key, data, _), at in zip(self._history, self._stored_at, strict=True):
            if data is not None:
                found.setdefault(key, []).append((self._decode(data), at))
        return found


class TimedLog(TimedStore[LoggedCommit], MemoryExecutionLog):
    def timed(self) -> dict[str, list[tuple[Event, float]]]:
        return {
            key: [(event, at) for logged, at in written for event in logged.commit.events()]
            for key, written in self.histories().items()
        }


class Source:
    """The jobs of a worker. One that is taken and does not arrive comes again after AckWait."""

    has_lanes = True
    features = (LANES, SHARES)

    def __init__(self, process: Process, queue: MemoryQueue, tags: tuple[str, ...]) -> None:
        self._process = process
        self._queue = queue
        self._tags = tags
        self._turns = Turns()
        self._is_interrupted = False

    async def next(self, timeout: float, wanted: int = 1) -> Any:  # noqa: ASYNC109
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._is_interrupted = False
        while loop.time() < deadline and not self._is_interrupted:
            await self._process.step()
            taken = self._queue.take_in_turn(self._tags, self._turns)
            if taken is not None and not self._process.world.hurts(self._process.world.odds.lost):
                await asyncio.sleep(self._process.world.delay())
                return Port(self._process, taken)
            await asyncio.sleep(LOOK_SEC)
        return None

    def interrupt(self) -> None:
        self._is_interrupted = True

    @property
    def ack_wait_sec(self) -> float:
        return self._queue.ack_wait

    async def keep_settings(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def pause(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Flow:
    """Takes some time; stops when it is asked to, or only by force."""

    wheels = ()

    def __init__(
        self, done: FlowOutcome, seconds: float, *, is_stubborn: bool, on_end: Callable[[], None]
    ) -> None:
        self._ended: asyncio.Future[FlowOutcome] = asyncio.get_running_loop().create_future()
        self._is_stubborn = is_stubborn
        self._on_end = on_end
        asyncio.get_running_loop().call_later(seconds, self._end, done)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def _end(self, outcome: FlowOutcome) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)
            self._on_end()

    async def outcome(self) -> FlowOutcome:
        return await self._ended

    def cancel(self) -> None:
        if not self._is_stubborn:
            self._end(FlowOutcome(ending=Ending.CANCELLED))

    def kill(self) -> bool:
        self._end(FlowOutcome(ending=Ending.EXECUTION_ERROR, error="killed"))
        return True

    def go_live(self) -> None:
        pass

    def written(self) -> None:
        pass


class Executors:
    capacity = 2
    flows = None

    def __init__(self, process: Process) -> None:
        self._process = process
        self._chance = process.world.chance
        self._free = self.capacity
        self.prefetch = Prefetch(lambda: asyncio.get_running_loop().time())

    def on_capacity_change(self, callback: Callable[[], None]) -> None:
        pass

    async def start(self, job: Job, listener: object, timeout_sec: float) -> Flow | None:
        if not self._free:
            await asyncio.sleep(timeout_sec)
        if not self._free:
            return None
        self._free -= 1
        world = self._process.world
        seconds = self._chance.choice([0.0, 0.05, 0.5, 3.0, world.longest_flow_sec])
        if world.faults.executions_late and job.node_id == "finish":
            seconds = world.longest_flow_sec
            world.freeze_orchestrator(job.execution_id)
        is_stubborn = self._chance.random() < 0.2
        done = FlowOutcome(ending=Ending.COMPLETED, result={"run": job.run_id})
        if job.try_number <= (job.params or {}).get("failures", 0):
            done = FlowOutcome(ending=Ending.EXECUTION_ERROR, error="planned")
        flow = Flow(done, seconds, is_stubborn=is_stubborn, on_end=partial(self._freed, seconds))
        world.started(job, self._process, flow)
        return flow

    def _freed(self, busy_sec: float) -> None:
        self._free += 1
        self.prefetch.ended(busy_sec)

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Gateway:
    process: Process
    levels: Levels

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive


@dataclass
class World:
    seed: int
    odds: Odds = field(default_factory=Odds)
    gateways: int = 2
    workers: int = 2
    clients: int = 3
    acts: int = 2
    """What each client does."""
    levels: tuple[float, float, float] = (0.4, 0.3, 0.3)
    """How often it is a run, an execution, an event."""
    forced: Faults | None = None
    """None: the faults are chosen by the seed."""
    schedules: int = 0
    """Clients with a schedule each."""
    queue_kind: type[MemoryQueue] = MemoryQueue
    idle: frozenset[str] = frozenset()
    """Background work that no gateway begins."""
    prepare: Callable[[Levels], None] | None = None
    """What is done to a gateway before it begins."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311
        self.is_hurting = True
        self.hurt: Counter[str] = Counter()
        self.graves: list[asyncio.Future[None]] = []
        self.acknowledged: set[str] = set()
        self.cancel_answers: dict[str, set[RunStatus]] = {}
        self.execution_clients = ExecutionClients()
        self.event_clients = EventClients()
        self.schedule_clients = ScheduleClients()
        self.problems: list[str] = []
        self._gateways: dict[str, Gateway] = {}
        self.faults = Faults.of(self.seed) if self.forced is None else self.forced
        if self.faults.advisories_lost:  # a node may fail for it, and its execution
            self.levels = (1.0, 0.0, 0.0)
        self.healed = asyncio.Event()
        self.healed_at = float("inf")
        self.longest_flow_sec = 15.0
        self._flows: dict[str, list[tuple[Process, Flow]]] = {}
        self._may_work = asyncio.Event()
        self._may_work.set()
        self._worker_processes: list[Process] = []
        self._follower_stands_at = self.chance.uniform(0.0, 20.0)

    # Chance

    def hurts(self, probability: float) -> bool:
        return self.is_hurting and self.chance.random() < probability

    def delay(self) -> float:
        slow = self.is_hurting and self.chance.random() < self.odds.slow
        return self.chance.uniform(0.0, 3.0) if slow else self.chance.uniform(0.0, 0.01)

    def count(self, what: str) -> None:
        self.hurt[what] += 1

    def new_run_id(self) -> str:
        return str(UUID(int=self.chance.getrandbits(128)))

    # The life of the world

    async def live(self) -> list[str]:
        """Everything that was broken, in words."""
        self.store: TimedStore[RunSnapshot] = TimedStore(wire.encode, wire.decode_run)
        self.queue = self._new_queue()
        self.shared: dict[str, Any] = {
            "workers": MemoryStore(wire.encode, wire.decode_worker),
            "claims": MemoryStore(wire.encode, wire.decode_claim),
            "dead_letters": MemoryDeadLetters(),
            "task_logs": MemoryTaskLogs(),
            "run_signals": MemorySignals(),
            "values": MemoryValues(),
            "child_runs": MemoryChildRuns(),
            "wheels": MemoryWheels("wheels"),
            "wheel_history": MemoryWheelHistory(),
            "flow_files": MemoryListedStore(wire.decode_flow_file, wire.decode_listed_flow_file),
            "graphs": MemoryGraphs(),
            "execution_log": TimedLog(),
            "execution_cache": MemoryStore(encode_record, decode_record),
            "leases": MemoryStore(wire.encode, wire.decode_lease),
            "rosters": MemoryStore(wire.encode, wire.decode_roster),
            "storage": MemoryStorage(),
            "timers": MemoryTimers(_world_now, late_sec=self._lateness, doubles=lambda: self.hurts(0.2)),
            "flows": MemoryStore(wire.encode, wire.decode_flow_settings),
            "queues": MemoryStore(wire.encode, wire.decode_queue),
            "lanes": MemoryLanes(self.queue, _world_now),
            "schedules": MemoryStore(wire.encode, wire.decode_schedule),
            "limits": MemoryStore(wire.encode, decode_limit),
            "limit_holders": MemoryStore(wire.encode, decode_holders),
            "tick_pages": MemoryStore(wire.encode, wire.decode_tick_page),
            "letter_marks": MemoryStore(wire.encode, wire.decode_letter_mark),
            "bulk_operations": MemoryStore(wire.encode, wire.decode_bulk),
            "bulk_chunks": MemoryStore(wire.encode, wire.decode_bulk_chunk),
            "change_log": MemoryChangeLog(),
            "api_keys": MemoryApiKeys(),
            "secrets": MemoryListedStore(wire.decode_secret),
            "variables": MemoryListedStore(wire.decode_variable),
            "stats_records": MemoryStats(),
            "count_positions": MemoryStore(wire.encode, decode_count_position),
        }
        self.events = MemoryEvents.new(CONFIG)
        self.alerts = alert_stores()
        self._indexes: list[SqliteRunIndex | SqliteExecutionIndex] = []
        await self._define()
        keepers = [asyncio.ensure_future(self._keep_gateway(f"g{n}")) for n in range(self.gateways)]
        keepers += [asyncio.ensure_future(self._keep_worker(f"w{n}")) for n in range(self.workers)]
        if self.faults.workers_leave:
            keepers.append(asyncio.ensure_future(self._send_workers_away()))
        story = asyncio.ensure_future(self._story())
        try:
            pending: set[asyncio.Future[None]] = {story, *keepers}
            while story in pending:  # after an error of a keeper it would have no end
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        finally:
            for task in (story, *keepers):
                task.cancel()
            for index in self._indexes:
                index.close()
        return [*self.problems, *self._broken(), *self._broken_above()]

    def _new_queue(self) -> MemoryQueue:
        faults = self.faults
        config = replace(CONFIG, consumer_max_deliver=3) if faults.advisories_lost else CONFIG
        queue_faults = QueueFaults(
            duplicate_window_sec=faults.duplicate_window_sec,
            batch_bytes=faults.batch_bytes,
            lag_sec=self._lag if faults.follower_behind else None,
            loses_advisory=lambda: faults.advisories_lost,
            late_sec=self._lateness,
        )
        return self.queue_kind(config, queue_faults, _world_now)

    def _lateness(self) -> float:
        return self.chance.uniform(0.0, 5.0) if self.hurts(0.2) else 0.0

    def _lag(self) -> float:
        if self.chance.random() >= self.faults.follower_behind:
            return 0.0
        return max(0.0, asyncio.get_running_loop().time() - self._follower_stands_at)

    async def _send_workers_away(self) -> None:
        """Before the clients are done, unless one of them waits for what only a worker can do."""
        await asyncio.sleep(self.chance.uniform(0.0, 15.0))
        self._dismiss_workers()
        await asyncio.sleep(ALONE_SEC)
        if self.is_hurting:
            self._may_work.set()

    def _dismiss_workers(self) -> None:
        self._may_work.clear()
        for process in self._worker_processes:
            process.die()

    async def _manage_alone(self) -> None:
        """Whatever can end without workers has ended; then they come back, and have long work to do."""
        self._dismiss_workers()
        await asyncio.sleep(ALONE_SEC)
        left = [run for run in self._unfinished() if run.status is RunStatus.CANCELLING]
        self.problems += [f"{run.run_id}: cancelled, and CANCELLING without a worker" for run in left]
        self.longest_flow_sec = 45.0
        self._may_work.set()

    def freeze_orchestrator(self, execution_id: str | None) -> None:
        for gateway in self._gateways.values():
            if self.is_hurting and gateway.levels.executions.orchestrate._share.has(execution_id or ""):
                gateway.process.freeze(20.0)

    def started(self, job: Job, process: Process, flow: Flow) -> None:
        """A healthy run is carried out by one worker, once, and not before its time."""
        run_id, run = job.run_id, self._runs()[job.run_id]
        if job.not_before is not None and _world_now() < job.not_before:
            self.problems.append(f"{run_id}: try {job.try_number} began before its time")
        if run.status is RunStatus.RUNNING and run.try_number != job.try_number and process.is_running:
            self.problems.append(f"{run_id}: try {job.try_number} began during try {run.try_number}")
        others = [one for one in self._flows.get(run_id, []) if not one[1].has_ended and one[0].is_running]
        is_healthy = asyncio.get_running_loop().time() > self.healed_at + AFTERMATH_SEC
        if others and is_healthy:
            self.problems.append(f"{run_id}: was started while it ran")
        self._flows[run_id] = [*others, (process, flow)]

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEALED_SEC
        while loop.time() < deadline:
            if not self._unfinished() and not self.queue._messages and self._have_ended():
                return
            await asyncio.sleep(1.0)

    def _have_ended(self) -> bool:
        """The last word of each log says where its execution stands."""
        log = self.shared["execution_log"]
        last = (log._decode(data).summary for data, _ in log._values.values())
        are_over = all(summary.status is not ExecutionStatus.ACTIVE for summary in last)
        return are_over and not self.event_clients.unrecorded(self.events.audit.events)

    async def _story(self) -> None:
        await asyncio.gather(
            *(self._client(n) for n in range(self.clients)),
            *(self._keep_schedule(n) for n in range(self.schedules)),
        )
        self.is_hurting = False
        self.healed.set()
        self.healed_at = asyncio.get_running_loop().time()
        await self._end_schedules()
        if self.faults.workers_leave:
            await self._manage_alone()
        await self._settle()

    async def _define(self) -> None:
        """What clients want is known before anything is hurt."""
        trail = AuditTrail(MemoryChangeLog(), HOST.time, lambda: "change")
        graphs = ManageGraphs(self.shared["graphs"], HOST.time, trail)
        await graphs.register(GRAPH_ID, GRAPH_TEXT, "application/json", ANONYMOUS)
        await ManageActions(self.events.actions, HOST.time, trail).put(ACTION, ANONYMOUS)
        for template in TEMPLATES:
            await ManageTemplates(self.events.templates, HOST.time, trail).put(template, None, ANONYMOUS)

    # Processes

    def _ports(self, process: Process) -> SimpleNamespace:
        ports = {name: Port(process, target) for name, target in self.shared.items()}
        runs, queue = Port(process, self.store), Port(process, self.queue)
        events = SimpleNamespace(
            **{one.name: Port(process, getattr(self.events, one.name)) for one in fields(MemoryEvents)},
            audit_feed=LateFeed(process, self.events.audit),
        )
        alerts = SimpleNamespace(
            **{name: Port(process, store) for name, store in self.alerts.items()},
            definition_feed=LateFeed(process, self.alerts["definitions"]),
            delivery_feed=LateFeed(process, self.alerts["deliveries"]),
        )
        return SimpleNamespace(
            runs=runs, queue=queue, events=events, alerts=alerts, is_available=True, **ports
        )

    async def _keep_gateway(self, name: str) -> None:
        while True:
            process = Process(self, name)
            _here.set(process)
            backend = self._ports(process)
            backend.run_index = SqliteRunIndex(None, tenants=False)
            self._indexes.append(backend.run_index)
            backend.run_feed = LateFeed(process, self.store)
            backend.run_end_feed = LateFeed(process, MemoryView(self.store, decode_run_end))
            backend.worker_feed = LateFeed(process, self.shared["workers"])
            backend.flow_feed = LateFeed(process, self.shared["flows"])
            backend.queue_feed = LateFeed(process, self.shared["queues"])
            backend.schedule_feed = LateFeed(process, self.shared["schedules"])
            backend.limit_feed = LateFeed(process, self.shared["limits"])
            backend.bulk_feed = LateFeed(process, self.shared["bulk_operations"])
            backend.limit_holder_feed = LateFeed(process, self.shared["limit_holders"])
            backend.undeliverable = MemoryUndeliverable(backend.queue)
            backend.execution_feed = LateFeed(
                process, self.shared["execution_log"], is_withheld=self.faults.executions_late
            )
            backend.execution_index = SqliteExecutionIndex(None, tenants=False)
            self._indexes.append(backend.execution_index)
            backend.shared_clock = SharedClock(
                Port(process, WorldTime()), wall=HOST.time, monotonic=HOST.monotonic
            )
            opening = asyncio.ensure_future(_measured(backend.shared_clock))
            await self._death_of(process, opening)
            gateway = await self._new_gateway(process, backend)
            self._gateways[name] = gateway
            background = gateway.levels.background()
            work = [
                asyncio.ensure_future(keep_running(name, partial(self._background, name, start)))
                for name, start in background.items()
                if name not in self.idle
            ]
            await self._death_of(process)
            for task in work:
                task.add_done_callback(_look_at)
            await asyncio.sleep(self.chance.uniform(0.1, 5.0))

    async def _background(self, name: str, start: Callable[[], Awaitable[None]]) -> None:
        """Background work of a gateway may fail because of NATS, and for no other reason."""
        try:
            await start()
        except NatsUnavailable:
            self.count(f"restart {name}")
            raise
        except Exception as error:
            self.problems.append(f"{name} failed: {error!r}")
            raise

    async def _new_gateway(self, process: Process, backend: Any) -> Gateway:
        levels = Levels(
            Setup(
                config=CONFIG,
                meter=Metrics(),
                clock=HOST.time,
                monotonic=HOST.monotonic,
                new_id=self.new_run_id,
            )
        )
        await levels.connect(backend)
        if self.prepare is not None:
            self.prepare(levels)
        return Gateway(process, levels)

    async def _keep_worker(self, name: str) -> None:
        while True:
            await self._may_work.wait()
            process = Process(self, name)
            self._worker_processes.append(process)
            _here.set(process)
            backend = self._ports(process)
            backend.sources = _Sources(process, self.queue)
            working = asyncio.ensure_future(self._work(backend, process))
            await self._death_of(process, working)
            working.add_done_callback(_look_at)
            await asyncio.sleep(self.chance.uniform(0.1, 5.0))

    async def _work(self, backend: Any, process: Process) -> None:
        name = WorkerName(process.name, ("default",))
        worker = new_worker(CONFIG, backend, Executors(process), name, clock=HOST.time)
        try:
            await worker.open()
            await worker.run()
        except (NatsUnavailable, WorkerIdInUse, SideWorkEnded):
            self.count("restart w")  # as the command does: it ends, and somebody starts it again
        finally:
            process.die()

    async def _death_of(self, process: Process, work: "asyncio.Task[None] | None" = None) -> None:
        while process.is_alive and not (work is not None and work.done()):  # noqa: ASYNC110 - virtual
            await asyncio.sleep(1.0)

    # Clients

    async def _client(self, number: int) -> None:
        own = random.Random(self.chance.random())  # noqa: S311
        for n in range(self.acts):
            key = f"key-{number}-{n}"
            level = own.choices(("runs", "executions", "events"), self.levels)[0]
            self.count(level)
            if level == "runs":
                await self._submit(own, key)
            elif level == "executions":
                await self.execution_clients.act(self._ask, own, key)
            else:
                await self.event_clients.act(self._ask, own, key)
            await asyncio.sleep(own.uniform(0, 3))

    async def _keep_schedule(self, number: int) -> None:
        own = random.Random(self.chance.random())  # noqa: S311
        await self.schedule_clients.act(self._ask, own, f"schedule-{number}")

    async def _end_schedules(self) -> None:
        """Once no frozen gateway has a request left: it would take effect after this one."""
        if self.schedules:
            await asyncio.sleep(THAWED_SEC)
        for number in range(self.schedules):
            await self.schedule_clients.end(self._ask, self.chance, f"schedule-{number}")

    async def _submit(self, own: random.Random, key: str) -> None:
        submission = Submission(
            flow_name="f", params={"key": key}, tag="default", **timing(f"{self.seed} {key}")
        )
        submission.params["failures"] = 0 if submission.retry is None else own.choice([0, 1, 2, 9])
        submitted = await self._ask(own, lambda gateway: gateway.levels.runs.submit_once(submission, key))
        self.acknowledged.add(submitted.run_id)
        if own.random() < 0.4:
            await self._submit_again(own, submission, key, submitted.run_id)
        if own.random() < 0.5:
            await asyncio.sleep(own.choice([0.0, 0.05, 1.0, 12.0]))
            answer = await self._ask(
                own, lambda gateway: gateway.levels.runs.cancel(submitted.run_id, ANONYMOUS, None)
            )
            self.cancel_answers.setdefault(submitted.run_id, set()).add(answer.status)

    async def _submit_again(self, own: random.Random, submission: Submission, key: str, run_id: str) -> None:
        """Later than a queue may remember."""
        await asyncio.sleep(own.choice([1.0, 8.0, 35.0]))
        again = await self._ask(own, lambda gateway: gateway.levels.runs.submit_once(submission, key))
        if again.run_id != run_id:
            self.problems.append(f"{key}: was answered {run_id}, and then {again.run_id}")

    async def _ask(self, own: random.Random, question: Question, *refusals: type[PyocoServerError]) -> Any:
        while True:
            gateway = self._gateways.get(own.choice(list(self._gateways)) if self._gateways else "")
            if gateway is not None:
                _here.set(gateway.process)
                asking = asyncio.ensure_future(question(gateway))
                await asyncio.wait({asking}, timeout=ANSWER_SEC)
                asking.add_done_callback(_look_at)
                if asking.done():
                    try:
                        answer = asking.result()
                    except NatsUnavailable:
                        pass
                    except refusals:
                        raise
                    except PyocoServerError as error:
                        self.problems.append(f"a client heard {type(error).__name__}: {error}")
                        raise
                    else:
                        if not self.hurts(self.odds.unanswered):
                            return answer
            await asyncio.sleep(own.uniform(0.1, 2.0))

    # What must hold

    def _unfinished(self) -> list[RunSnapshot]:
        return [run for run in self._runs().values() if not run.status.is_terminal]

    def _runs(self) -> dict[str, RunSnapshot]:
        return {key: wire.decode_run(data) for key, (data, _) in self.store._values.items()}

    def _broken(self) -> Iterator[str]:
        runs = self._runs()
        yield from (f"{run_id}: acknowledged, and lost" for run_id in self.acknowledged - runs.keys())
        yield from (f"{run.run_id}: still {run.status}" for run in self._unfinished())
        yield from (f"{wire.run_id_in(m.payload)}: its job is still there" for m in self.queue._messages)
        yield from self._reversals()
        for run_id, answers in self.cancel_answers.items():
            for answer in answers:
                wanted = RunStatus.CANCELLED if answer is RunStatus.CANCELLING else answer
                if run_id in runs and runs[run_id].status is not wanted:
                    yield f"{run_id}: its cancel was answered {answer}, and it ended {runs[run_id].status}"
        for run in runs.values():
            if [one.n for one in run.tries] != list(range(1, run.try_number)):
                yield f"{run.run_id}: has tries {[one.n for one in run.tries]}"
            if run.status is RunStatus.COMPLETED and run.result != {"run": run.run_id}:
                yield f"{run.run_id}: has the result of another run"
            if run.status is RunStatus.FAILED and run.run_id in self.acknowledged and not self._may_fail(run):
                yield f"{run.run_id}: failed for no reason of its own: {run.error}"

    def _may_fail(self, run: RunSnapshot) -> bool:
        kind = None if run.failure is None else run.failure.kind
        if kind is FailureKind.EXPIRED:
            return run.start_within_sec is not None
        if run.error == "planned":
            return run.retry is not None and run.tries[-1].n == run.retry.max_attempts
        if self.faults.advisories_lost and str(run.error).startswith("max_deliver"):
            letters = [letter for _, letter in self.shared["dead_letters"].letters]
            return any(letter.run_id == run.run_id for letter in letters)
        return "killed" in str(run.error)

    def _broken_above(self) -> Iterator[str]:
        """What was promised of executions and events."""
        timed, runs = self.shared["execution_log"].timed(), self._runs()
        logs = {key: [event for event, _ in events] for key, events in timed.items()}
        cache = self.shared["execution_cache"]
        cached = {key: decode_record(data) for key, (data, _) in cache._values.items()}
        yield from kept_badly(logs, cached, runs)
        yield from cancelled_though_needed(timed, self.store.histories())
        yield from self.execution_clients.broken(logs)
        yield from untimely(timed, CONFIG.cancel_grace_period_sec, self.healed_at, EPOCH)
        stored = {key: wire.decode_receipt(data) for key, (data, _) in self.events.receipts._values.items()}
        yield from self.event_clients.broken(logs, runs, stored, self.events.audit.events)
        schedules, pages = self.shared["schedules"], self.shared["tick_pages"]
        known = {key: wire.decode_schedule(data) for key, (data, _) in schedules._values.items()}
        filed = {key: wire.decode_tick_page(data) for key, (data, _) in pages._values.items()}
        healthy_since = EPOCH + self.healed_at + AFTERMATH_SEC
        yield from self.schedule_clients.broken(known, filed, runs, healthy_since)

    def _reversals(self) -> Iterator[str]:
        for run_id, writes in self.store.histories().items():
            for (before, _), (after, _) in pairwise(writes):
                if before.status.is_terminal:
                    yield f"{run_id}: {after.status} was written after {before.status}"
                elif before.status is RunStatus.CANCELLING and after.status not in (
                    RunStatus.CANCELLING,
                    RunStatus.CANCELLED,
                ):
                    yield f"{run_id}: {after.status} was written after CANCELLING"


def timing(seed: str) -> dict[str, Any]:
    """Of one run in three: a delay, tries, a time for its start, or a priority."""
    chance = random.Random(f"timing of {seed}")  # noqa: S311
    if chance.random() < 0.67:
        return {}
    retry = RunRetry(max_attempts=4, backoff_sec=chance.choice([0.0, 1.0, 10.0]), factor=1.5)
    return {
        "delay_sec": chance.choice([None, 0.5, 20.0]),
        "retry": chance.choice([None, retry]),
        "start_within_sec": chance.choice([None, None, 5.0, 60.0]),
        "priority": chance.choice([None, Priority.HIGH, Priority.LOW]),
    }


class _Sources:
    def __init__(self, process: Process, queue: MemoryQueue) -> None:
        self._process = process
        self._queue = queue

    async def open(self, tags: tuple[str, ...]) -> Source:
        return Source(self._process, self._queue, tags)


def _look_at(task: "asyncio.Task[Any]") -> None:
    """Its error is somebody's who is dead."""
    if not task.cancelled():
        task.exception()


def simulate(seed: int, **options: Any) -> tuple[World, list[str]]:
    """One world from its seed to its end, and what was broken in it."""
    world = World(seed, **options)
    return world, virtual_time.run(world.live())
